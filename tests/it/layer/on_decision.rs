//! Hooks that a layer calls with each decision.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use tower_sluice::{
    AccessList, LocalStore, Quota, RateLimitLayer, Rule,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::{Counters, DecisionEvent, Overcommit},
    testing::FakeClock,
};

use crate::support::{answer, get, with};

const TWO: Quota = Quota::per_hour(2);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

/// The lines that a hook writes, one for each event.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn hook(&self) -> impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static {
        let lines = self.clone();
        move |event: &DecisionEvent<'_>| {
            let rule = event.rule().map_or("-", |rule| rule.as_str());
            let left = event.decision.ok().and_then(|decision| decision.remaining());
            let left = left.map_or("-".to_owned(), |left| left.to_string());
            let runs = if event.is_admitted { "runs" } else { "rejected" };
            let runs = event.result().map_or(runs.to_owned(), |result| format!("{runs} {result}"));
            let line = format!("{} {runs} {rule} {left}", event.head.path());
            lines.0.lock().expect("no panic").push(line);
        }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

#[tokio::test]
async fn a_hook_gets_the_head_the_decision_and_the_rule_of_each_request() {
    let lines = Lines::default();
    let site = Rule::new("site", Everyone, Quota::per_hour(50));
    let user = Rule::new("user", HeaderKey::new("x-user"), TWO);
    let health = AccessList::from_fn(|head| head.path() == "/health");
    let layer = RateLimitLayer::rules((site, user), store()).allow(health);
    let layer = layer.on_decision(lines.hook());
    for _ in 0..3 {
        answer(&layer, with(&[("x-user", "alice")])).await;
    }
    answer(&layer, get("/no-key")).await;
    answer(&layer, get("/health")).await;
    let expected = [
        "/ runs allowed user 1",
        "/ runs allowed user 0",
        "/ rejected limited user 0",
        "/no-key rejected - -",
    ];
    assert_eq!(lines.take(), expected, "an exempt request has no event");
}

#[tokio::test]
async fn every_hook_is_called_and_the_overage_is_admitted() {
    let (one, other, counters) = (Lines::default(), Lines::default(), Counters::new());
    let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1), store());
    let layer = layer.overcommit(Overcommit::when(|| true));
    let layer = layer.on_decision(one.hook()).on_decision(other.hook());
    let layer = layer.on_decision(counters.clone());
    for _ in 0..2 {
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
    assert_eq!(one.take(), ["/ runs allowed default 0"; 2]);
    assert_eq!(other.take(), ["/ runs allowed default 0"; 2]);
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.overage, counts.denied), (2, 1, 0));
}

#[tokio::test]
async fn a_hook_gets_the_error_of_a_request_without_a_usable_key() {
    let found = Arc::new(Mutex::new(Vec::new()));
    let errors = found.clone();
    let layer = RateLimitLayer::new(HeaderKey::new("x-user"), TWO, store());
    let hook = move |event: &DecisionEvent<'_>| {
        let status = event.decision.err().map(tower_sluice::key::KeyError::status);
        errors.lock().expect("no panic").push((event.is_admitted, status));
    };
    let layer = layer.on_decision(hook);
    answer(&layer, get("/")).await;
    answer(&layer.clone().report_only(true), get("/")).await;
    answer(&layer, with(&[("x-user", "alice")])).await;
    let bad = Some(StatusCode::BAD_REQUEST);
    assert_eq!(*found.lock().expect("no panic"), [(false, bad), (true, bad), (true, None)]);
}

#[tokio::test]
async fn a_hook_gets_fingerprints_if_the_layer_has_them() {
    let secret = FingerprintKey::from(*b"sixteen bytes ..");
    let found = Arc::new(Mutex::new(Vec::new()));
    let shown = found.clone();
    let hook = move |event: &DecisionEvent<'_>| {
        shown.lock().expect("no panic").push(event.fingerprint());
    };
    let layer = RateLimitLayer::new(HeaderKey::new("x-user"), TWO, store()).on_decision(hook);
    answer(&layer, with(&[("x-user", "alice")])).await;
    answer(&layer.fingerprint(secret), with(&[("x-user", "alice")])).await;
    let alice = tower_sluice::Key::from("alice").fingerprint(&secret);
    assert_eq!(*found.lock().expect("no panic"), [None, Some(alice)]);
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_allowed_by_overcommit() {
    let lines = Lines::default();
    let layer = RateLimitLayer::new(Everyone, TWO, store()).on_decision(lines.hook());
    let layer = layer.overcommit(Overcommit::when(|| true));
    for _ in 0..3 {
        answer(&layer, get("/")).await;
    }
    let allowed = ["/ runs allowed default 1", "/ runs allowed default 0"];
    assert_eq!(lines.take(), [allowed[0], allowed[1], allowed[1]]);
}
