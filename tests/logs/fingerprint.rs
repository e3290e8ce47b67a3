//! Spans and log lines with the fingerprint of a key, and never with the key.

use http::Request;
use tower::Layer;
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
};
use tracing::{Instrument, Span, debug_span, field::Empty};

use crate::{
    alone,
    log::Log,
    support::{Gated, Strict, ask, driven::Time, with},
};

const SECRET: [u8; 16] = *b"sixteen bytes ..";
/// The fingerprint of the key `alice`, computed by another implementation of `SipHash`.
const ALICE: &str = "bc6ccc7043dc9acb";

type Layered<S> = RateLimitLayer<(Rule<HeaderKey>, Rule<Everyone>), S>;

fn layer<S: Store<Error = std::convert::Infallible>>(store: S) -> Layered<S> {
    let user = Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(2));
    RateLimitLayer::rules((user, Rule::new("site", Everyone, Quota::per_hour(1_000))), store)
}

fn span() -> Span {
    debug_span!("request", ratelimit.result = Empty, ratelimit.key = Empty)
}

fn alice() -> Request<()> {
    with(&[("x-user", "alice")])
}

/// Returns the log of three requests of alice, the last of which is denied: one line per request,
/// with the fields of its span, and the debug line of the denial.
async fn logged<S>(layer: &Layered<S>, log: &Log) -> Vec<String>
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

#[tokio::test]
async fn a_key_is_logged_as_its_fingerprint_and_only_if_enabled() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::DEBUG);
    let store = || Time::default().store();

    let silent = logged(&layer(store()), &log).await;
    assert_eq!(silent.len(), 4, "{silent:?}");
    assert!(!silent.concat().contains("ratelimit.key"), "{silent:?}");

    // An immediate decision, a later one, and one that is exposed to the handler.
    let at_once = logged(&layer(store()).fingerprint(SECRET), &log).await;
    let later = logged(&layer(Gated::open(store())).fingerprint(SECRET), &log).await;
    let exposed = logged(&layer(store()).fingerprint(SECRET).expose_decision(), &log).await;
    for lines in [at_once, later, exposed] {
        let of_key: Vec<_> = lines.iter().filter(|line| line.contains(ALICE)).collect();
        assert_eq!(of_key.len(), 4, "{lines:?}");
        let rejected: Vec<_> = lines.iter().filter(|line| line.contains("DEBUG")).collect();
        assert!(
            matches!(rejected[..], [line] if line.ends_with(&format!("ratelimit.key={ALICE}")))
        );
        assert!(!lines.concat().contains("alice"), "{lines:?}");
    }

    let other = FingerprintKey::new("another sixteen bytes").expect("long enough");
    let others = logged(&layer(store()).fingerprint(other), &log).await.concat();
    let found = Key::from("alice").fingerprint(&other).to_string();
    assert!(found != ALICE && others.contains(&found) && !others.contains(ALICE), "{others}");

    binding(&log).await;
}

/// The fingerprint is that of the key of the rule that decided.
async fn binding(log: &Log) {
    let user = Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(50));
    let site = Rule::new("site", Everyone, Quota::per_hour(1));
    let rules = RateLimitLayer::rules((user, site), LocalStore::new()).fingerprint(SECRET);
    let mut service = rules.layer(Strict::default());
    for _ in 0..2 {
        ask(&mut service, alice()).await;
    }
    let lines = log.read().concat();
    let everyone = Key::everyone().fingerprint(&FingerprintKey::from(SECRET)).to_string();
    assert!(lines.contains(&everyone) && !lines.contains(ALICE), "{lines}");

    // A store that fails denies by no rule, so the fingerprint is that of the first key.
    let broken = RateLimitLayer::new(
        HeaderKey::new("x-user"),
        Quota::per_hour(1),
        crate::support::Broken::Now.fail_closed(),
    );
    let rejected = ask(&mut broken.fingerprint(SECRET).layer(Strict::default()), alice()).await;
    assert_eq!(rejected.status(), 503);
    assert!(log.read().concat().contains(ALICE), "the rejected key has a fingerprint");
}
