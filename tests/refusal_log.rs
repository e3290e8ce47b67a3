//! A flood that is refused fills no log, and no line names a key.

#[path = "support/log.rs"]
mod log;
mod support;

use std::net::SocketAddr;

use log::Log;
use support::{Strict, ask, with};
use tower::Layer;
use tower_sluice::{
    ClientIp, LocalStore, Quota, RateLimitLayer, Rule,
    key::{Header, Unreadable},
};

const QUOTA: Quota = Quota::per_day(3);
const ATTACKER: &str = "203.0.113.9";

/// Whatever the reason is. The only test here, since what another thread does first decides whether
/// this one's lines are caught.
#[tokio::test]
async fn a_thousand_refusals_are_no_line_above_debug_and_none_names_a_key() {
    let (log, _guard) = Log::start(tracing::Level::TRACE);
    tracing::info!("the log is read");

    let client = ClientIp::behind(["10.0.0.0/8"]).expect("a network");
    let shared = client.clone().unreadable(Unreadable::Share);
    let rules = (
        Rule::new("client", client, QUOTA),
        Rule::new("shared", shared, QUOTA),
        Rule::new("key", Header::new("x-api-key"), QUOTA),
    );
    let mut service = RateLimitLayer::rules(rules, LocalStore::new()).layer(Strict::default());
    let long = "hunter2".repeat(1_000);
    for (key, client, status) in [
        ("hunter2", ATTACKER, 429),
        ("", ATTACKER, 400),
        (&*long, ATTACKER, 400),
        ("hunter2", "unknown-203.0.113.9", 400),
    ] {
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
    assert_eq!(debug.len(), 250, "one for each that a quota refused");
    let log = lines.concat();
    assert!(!log.contains("hunter2") && !log.contains(ATTACKER), "{log}");
}
