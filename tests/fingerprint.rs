//! Spans and log lines tell keys apart where a layer is asked to, by a keyed fingerprint and never
//! by the key.

#[path = "support/log.rs"]
mod log;
mod support;

use http::Request;
use log::Log;
use support::{Gated, Strict, ask, driven::Time, with};
use tower::Layer;
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule, Secret, Store,
    key::{Everyone, Header},
};
use tracing::{Instrument, Span, debug_span, field::Empty};

const SECRET: [u8; 16] = *b"sixteen bytes ..";
/// Of the key `alice`, by another implementation of `SipHash`.
const ALICE: &str = "bc6ccc7043dc9acb";

type Layered<S> = RateLimitLayer<(Rule<Header>, Rule<Everyone>), S>;

fn layer<S: Store<Error = std::convert::Infallible>>(store: S) -> Layered<S> {
    let user = Rule::new("user", Header::new("x-user"), Quota::per_hour(2));
    RateLimitLayer::rules((user, Rule::new("site", Everyone, Quota::per_hour(1_000))), store)
}

fn span() -> Span {
    debug_span!("request", ratelimit.result = Empty, ratelimit.key = Empty)
}

fn alice() -> Request<()> {
    with(&[("x-user", "alice")])
}

/// What is logged of three requests of alice's, the last of which is refused: the line of each, with
/// its span's fields, and the debug line of the refusal.
async fn told<S>(layer: &Layered<S>, log: &Log) -> Vec<String>
where
    S: Store<Error = std::convert::Infallible> + Send + Sync + 'static,
    S::Future: 'static,
{
    let mut service = layer.layer(Strict::default());
    for status in [200, 200, 429] {
        async {
            assert_eq!(ask(&mut service, alice()).await.status(), status);
            tracing::info!("answered");
        }
        .instrument(span())
        .await;
    }
    log.read()
}

/// One test, since what another thread does first decides whether this one's lines are caught.
#[tokio::test]
async fn a_key_is_told_by_its_fingerprint_and_only_where_asked() {
    let (log, _guard) = Log::start(tracing::Level::DEBUG);
    let store = || Time::default().store();

    let silent = told(&layer(store()), &log).await;
    assert_eq!(silent.len(), 4, "{silent:?}");
    assert!(!silent.concat().contains("ratelimit.key"), "{silent:?}");

    // at once, later, and where more than header fields goes with the request
    let at_once = told(&layer(store()).fingerprint(SECRET), &log).await;
    let later = told(&layer(Gated::open(store())).fingerprint(SECRET), &log).await;
    let exposed = told(&layer(store()).fingerprint(SECRET).expose_decision(), &log).await;
    for lines in [at_once, later, exposed] {
        let of_key: Vec<_> = lines.iter().filter(|line| line.contains(ALICE)).collect();
        assert_eq!(of_key.len(), 4, "{lines:?}");
        let refused: Vec<_> = lines.iter().filter(|line| line.contains("DEBUG")).collect();
        assert!(matches!(refused[..], [line] if line.ends_with(&format!("ratelimit.key={ALICE}"))));
        assert!(!lines.concat().contains("alice"), "{lines:?}");
    }

    let other = Secret::new("another sixteen bytes").expect("long enough");
    let others = told(&layer(store()).fingerprint(other), &log).await.concat();
    let found = Key::from("alice").fingerprint(&other).to_string();
    assert!(found != ALICE && others.contains(&found) && !others.contains(ALICE), "{others}");

    binding(&log).await;
}

/// Of several rules it is that of the rule that decided, and of none that was not asked.
async fn binding(log: &Log) {
    let user = Rule::new("user", Header::new("x-user"), Quota::per_hour(50));
    let site = Rule::new("site", Everyone, Quota::per_hour(1));
    let rules = RateLimitLayer::rules((user, site), LocalStore::new()).fingerprint(SECRET);
    let mut service = rules.layer(Strict::default());
    for _ in 0..2 {
        ask(&mut service, alice()).await;
    }
    let lines = log.read().concat();
    let everyone = Key::everyone().fingerprint(&Secret::from(SECRET)).to_string();
    assert!(lines.contains(&everyone) && !lines.contains(ALICE), "{lines}");

    let broken = RateLimitLayer::new(
        Header::new("x-user"),
        Quota::per_hour(1),
        support::Broken::Now.fail_closed(),
    );
    let refused = ask(&mut broken.fingerprint(SECRET).layer(Strict::default()), alice()).await;
    assert_eq!(refused.status(), 503);
    assert!(log.read().concat().contains(ALICE), "whom it turned away is known");
}
