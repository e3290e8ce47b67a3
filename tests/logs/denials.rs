//! A flood of denials does not fill the log, and no line names a key.

use std::net::SocketAddr;

use tower::Layer;
use tower_sluice::{
    ClientIp, LocalStore, Quota, RateLimitLayer, Rule,
    key::{HeaderKey, Unreadable},
};

use crate::{
    alone,
    log::Log,
    support::{Strict, ask, with},
};

const QUOTA: Quota = Quota::per_day(3);
const ATTACKER: &str = "203.0.113.9";

/// The denials are by a quota, an empty key, a key that is too long, an address that cannot be read, and the
/// account that clients with such addresses share.
#[tokio::test]
async fn hundreds_of_denials_log_no_line_above_debug_and_no_key() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::TRACE);
    tracing::info!("the log is read");

    let client = || ClientIp::behind(["10.0.0.0/8"]).expect("a network");
    let rules = (
        Rule::new("client", client(), QUOTA),
        Rule::new("key", HeaderKey::new("x-api-key"), QUOTA),
    );
    let strict = RateLimitLayer::rules(rules, LocalStore::new()).boxed();
    let sharing = client().unreadable(Unreadable::Share);
    let sharing = RateLimitLayer::new(sharing, QUOTA, LocalStore::new()).boxed();
    let long = "hunter2".repeat(1_000);
    let unreadable = "unknown-203.0.113.9";
    // Three rows have the attacker's address, each in 253 requests. The warning `one_client`, which names the
    // address, needs 1,000.
    for (layer, key, client, status) in [
        (&strict, "hunter2", ATTACKER, 429),
        (&strict, "", ATTACKER, 400),
        (&strict, &*long, ATTACKER, 400),
        (&strict, "hunter2", unreadable, 400),
        (&sharing, "hunter2", unreadable, 429),
    ] {
        let mut service = layer.layer(Strict::default());
        let request = || {
            let mut request = with(&[("x-api-key", key), ("x-forwarded-for", client)]);
            request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 4711)));
            request
        };
        for _ in 0..3 {
            ask(&mut service, request()).await;
        }
        for _ in 0..250 {
            assert_eq!(ask(&mut service, request()).await.status(), status);
        }
    }
    let lines = log.read();
    let (debug, above): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.contains(" DEBUG "));
    assert!(matches!(above[..], [line] if line.ends_with("the log is read")), "{above:?}");
    assert_eq!(debug.len(), 500, "one for each denial by a quota");
    let log = lines.concat();
    assert!(!log.contains("hunter2") && !log.contains(ATTACKER), "{log}");
}
