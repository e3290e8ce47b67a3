//! A process that is too busy to read an answer: a denial under every policy, and no failure.

use std::{convert::Infallible, time::Duration};

use http::{HeaderMap, StatusCode};
use tower_sluice::{
    Decision, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    decision::Source,
    key::HeaderKey,
    middleware::Penalty,
    store::{Breaker, Timeout},
};

use crate::support::{
    answer,
    shaky::{Mood, Shaky},
    with,
};

const SECOND: Duration = Duration::from_secs(1);
/// More than the denials that open a breaker, or that block a client.
const REQUESTS: usize = 30;

type Guarded = Breaker<Timeout<Shaky>>;

/// A store in front of a busy process.
struct Subject {
    shaky: Shaky,
    breaker: Guarded,
}

impl Subject {
    fn new() -> Self {
        let shaky = Shaky::new(LocalStore::new());
        shaky.is(Mood::Busy);
        let breaker = shaky.clone().timeout(SECOND).breaker();
        Self { shaky, breaker }
    }

    /// Sends requests while the process is busy, and one after that.
    async fn ask<S>(self, store: S, headers: &'static [(&'static str, &'static str)])
    where
        S: Store<Error = Infallible> + Send + Sync + Clone + 'static,
        S::Future: Send,
    {
        let rule = Rule::new("api", HeaderKey::new("x-api-key"), Quota::per_hour(1));
        let penalty = Penalty::after(Quota::per_minute(3)).block([SECOND * 60]);
        let layer = RateLimitLayer::rules(rule, store).expose_decision().penalty("api", penalty);
        for _ in 0..REQUESTS {
            let response = answer(&layer, with(headers)).await;
            assert_rejected(response.status(), response.headers());
            let decision = response.extensions().get::<Decision>().expect("exposed");
            assert_eq!(decision.source(), Source::Busy);
            assert!(!decision.is_allowed() && !decision.is_blocked());
        }
        assert!(!self.breaker.is_open(), "nothing has failed");
        assert_eq!(self.shaky.calls(), REQUESTS, "a busy answer is not remembered");
        self.shaky.is(Mood::Well);
        let response = answer(&layer, with(headers)).await;
        let decision = response.extensions().get::<Decision>().expect("exposed");
        assert!(decision.is_allowed(), "nothing was charged, and the client has no strikes");
    }
}

/// Asserts the response of a service that is unavailable, in the protocol of the client.
fn assert_rejected(status: StatusCode, headers: &HeaderMap) {
    match headers.get("grpc-status") {
        Some(code) => assert_eq!(code, "14"),
        None => {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(headers["retry-after"], "1");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_process_denies_under_every_policy_and_is_no_failure() {
    let web: &[_] = &[("x-api-key", "alice")];
    let grpc: &[_] = &[("x-api-key", "alice"), ("content-type", "application/grpc")];
    for headers in [web, grpc] {
        let subject = Subject::new();
        let store = subject.breaker.clone().fail_open();
        subject.ask(store, headers).await;
        let subject = Subject::new();
        let store = subject.breaker.clone().fail_closed();
        subject.ask(store, headers).await;
        let subject = Subject::new();
        let store = subject.breaker.clone().fallback(LocalStore::new(), 1);
        subject.ask(store, headers).await;
        let subject = Subject::new();
        let store = subject.breaker.clone().deny_cache().leases(25).fail_open();
        subject.ask(store, headers).await;
        let subject = Subject::new();
        let store = subject.breaker.clone().deny_cache().leases(25).fail_closed();
        subject.ask(store, headers).await;
        let subject = Subject::new();
        let cached = subject.breaker.clone().deny_cache().leases(25);
        let store = cached.fallback(LocalStore::new(), 1);
        subject.ask(store, headers).await;
    }
}
