//! Operations on one account, by the key that an operator enters.

use std::net::SocketAddr;

use axum::{Router, body::Body, extract::ConnectInfo};
use http::{HeaderValue, Request};
use serde_json::{Value, json};
use tower_sluice::{
    Algorithm, KeyExtractor, LivePlan, LocalStore, PeerIp, Plan, Quota, RateLimitLayer, Rule,
    StoreExt,
    key::{Everyone, HeaderKey, MethodKey, RouteKey},
    testing::FakeClock,
};

use super::{THREE, denied, done, of, post, send, visit, visits, watched, with};
use crate::support::Broken;

fn get() -> Request<Body> {
    Request::get("/").body(Body::empty()).expect("a request")
}

fn peer(address: &str) -> impl Fn() -> Request<Body> {
    let address = SocketAddr::new(address.parse().expect("an address"), 4711);
    move || {
        let mut request = get();
        request.extensions_mut().insert(ConnectInfo(address));
        request
    }
}

fn headed(name: &'static str, value: &[u8]) -> impl Fn() -> Request<Body> {
    let value = HeaderValue::from_bytes(value).expect("a value");
    move || {
        let mut request = get();
        request.headers_mut().insert(name, value.clone());
        request
    }
}

fn rule<K>(extractor: K) -> Rule<K> {
    Rule::new("user", extractor, THREE)
}

/// Exhausts the account of `request` and finds it, and only it, under `key`.
async fn addresses<K, F>(rule: Rule<K>, request: F, key: Value, other: Value)
where
    K: KeyExtractor + Send + Sync + 'static,
    F: Fn() -> Request<Body>,
{
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    let visit = async || send(&app, request()).await.status.as_u16();
    let left = async |key: &Value| left(&app, key).await;
    assert_eq!((left(&key).await, left(&other).await), (3, 3));
    for passed in [200, 200, 200, 429] {
        assert_eq!(visit().await, passed, "{key}");
    }
    assert_eq!((left(&key).await, left(&other).await), (0, 3), "{key}");
    done(&app, "reset", &of(other.clone())).await;
    assert_eq!(visit().await, 429, "another account was reset");
    done(&app, "reset", &of(key.clone())).await;
    assert_eq!(left(&key).await, 3);
    assert_eq!(visit().await, 200, "{key}");

    done(&app, "block", &with(of(key.clone()), "for", "1h")).await;
    assert_eq!(visit().await, 429, "{key} is blocked");
    let blocked = done(&app, "peek", &of(key.clone())).await["blocked_ms"].as_u64();
    assert!((1..=3_600_000).contains(&blocked.expect("a block")), "{blocked:?}");
    assert_eq!(done(&app, "peek", &of(other)).await["blocked_ms"], Value::Null);
    let unblocked = done(&app, "unblock", &of(key.clone())).await;
    assert_eq!((&unblocked["done"], &unblocked["by"]), (&json!("unblock"), &json!("local")));
    assert_eq!(visit().await, 200, "{key}");
    assert_eq!(left(&key).await, 1);
}

async fn left(app: &Router, key: &Value) -> u64 {
    let peeked = done(app, "peek", &of(key.clone())).await;
    peeked["quotas"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("{peeked}"))
}

#[tokio::test]
async fn tuple_keys_are_lists() {
    let pair = rule((MethodKey, PeerIp::new()));
    let key = json!(["GET", { "address": "203.0.113.9" }]);
    addresses(pair, peer("203.0.113.9"), key, json!(["POST", { "address": "203.0.113.9" }])).await;
    let request = || {
        let mut request = headed("x-user", b"alice")();
        *request.uri_mut() = "/users/7".parse().expect("a path");
        request
    };
    let nested = rule((RouteKey, (MethodKey, HeaderKey::new("x-user")), Everyone));
    let key = json!(["/users/{id}", ["GET", "alice"], { "everyone": true }]);
    addresses(nested, request, key, json!(["/users/7", ["GET", "alice"], { "everyone": true }]))
        .await;
}

#[tokio::test]
async fn a_read_reports_every_quota_and_charges_none() {
    let store = FakeClock::new().store(64);
    let quotas = [
        Quota::per_second(5).with_burst(20),
        Quota::per_hour(100).with_algorithm(Algorithm::SlidingWindow { buckets: 60 }),
    ];
    let rule = Rule::new("user", HeaderKey::new("x-user"), quotas).cost(2);
    let app = watched(RateLimitLayer::rules(rule, store));
    visits(&app, "alice", 3).await;
    let first = done(&app, "peek", &of("alice")).await;
    for _ in 0..20 {
        assert_eq!(done(&app, "peek", &of("alice")).await, first);
    }
    let quotas = json!([
        {
            "text": "5/s burst 20", "limit": 20, "remaining": 14, "held": null,
            "reset_after_ms": 1_200, "next_after_ms": 200,
        },
    ]);
    assert_eq!(first["quotas"][0], quotas[0]);
    // the position of its buckets depends on the clock
    let window = &first["quotas"][1];
    assert_eq!((&window["limit"], &window["remaining"]), (&json!(100), &json!(94)));
    let (next, full) = (window["next_after_ms"].as_u64(), window["reset_after_ms"].as_u64());
    assert!(next > Some(0) && next <= full && full <= Some(3_660_000), "{window}");
    assert_eq!((&first["by"], &first["blocked_ms"]), (&json!("local"), &Value::Null));
    let would = first["would"].as_str().expect("text");
    assert!(would.contains("cost 2: 12 of 20 left"), "{would}");
    assert!(!first.to_string().contains("alice"), "{first}");
}

#[tokio::test]
async fn live_quotas_are_current_and_per_request_quotas_must_be_given() {
    let live = LivePlan::new(THREE);
    let rule = Rule::new("user", HeaderKey::new("x-user"), &live);
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    visits(&app, "alice", 3).await;
    live.replace(Quota::per_day(10));
    // The account of GCRA is a time: it is full again in a day, so all units of the day are charged.
    let peeked = done(&app, "peek", &of("alice")).await;
    assert_eq!(
        (&peeked["quotas"][0]["limit"], &peeked["quotas"][0]["remaining"]),
        (&json!(10), &json!(0))
    );
    done(&app, "reset", &of("alice")).await;
    assert_eq!(left(&app, &json!("alice")).await, 10);

    let window = THREE.with_algorithm(Algorithm::SlidingLog);
    let rule =
        Rule::new("user", HeaderKey::new("x-user"), Plan::from_fn(move |_, _| window.into()));
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    for route in ["peek", "reset"] {
        let said = denied(&app, route, &of("alice"), 400).await;
        assert!(said.contains("rule \"user\" has no quotas of its own; add the quotas"), "{said}");
        let none = with(of("alice"), "quotas", json!([]));
        assert!(denied(&app, route, &none, 400).await.contains("add the quotas of the key"));
    }
    let log = json!([{ "units": 3, "period": "day", "algorithm": "sliding_log" }]);
    let asked = with(of("alice"), "quotas", log.clone());
    assert_eq!(done(&app, "peek", &asked).await["quotas"][0]["remaining"], 0);
    done(&app, "reset", &asked).await;
    assert_eq!(visit(&app, "alice").await, 200);

    let documented = json!([{ "units": 1000, "period": "day", "algorithm": "fixed_window" }]);
    done(&app, "peek", &with(of("bob"), "quotas", documented)).await;

    // Names stay in memory, so they are not even checked. A unit is part of the account.
    let labelled = json!({ "units": 5, "period": "s", "name": "", "unit": "tokens" });
    for quotas in [labelled.clone(), json!([labelled])] {
        done(&app, "peek", &with(of("bob"), "quotas", quotas)).await;
    }
    let of_unit = |unit: String| {
        let quota = json!({ "units": 5, "period": "s", "unit": unit });
        with(of("bob"), "quotas", json!([quota]))
    };
    let said = denied(&app, "peek", &of_unit("\u{e9}".into()), 400).await;
    assert!(said.contains("is not printable ASCII"), "{said}");
    // Other tests of this process may use some of the units.
    for n in 0..50 {
        done(&app, "peek", &of_unit(format!("unit-{n}"))).await;
    }
    for n in 50..64 {
        post(&app, "peek", &of_unit(format!("unit-{n}"))).await;
    }
    let said = denied(&app, "peek", &of_unit("unit-64".into()), 400).await;
    assert!(said.contains("this process has read 64 others; check its spelling"), "{said}");
    done(&app, "peek", &of_unit("unit-1".into())).await;

    let wrong = with(of("alice"), "quotas", json!(["5/s", "0/s"]));
    let said = denied(&app, "peek", &wrong, 400).await;
    assert!(said.contains("units is \"0\"; give at least 1"), "{said}");
    // a block applies to the key, under any quotas
    done(&app, "block", &with(of("alice"), "for", "1h")).await;
    assert_eq!(visit(&app, "alice").await, 429);
}

/// Operations applied locally while the shared store fails are not applied there.
#[tokio::test]
async fn a_change_in_this_process_only_is_an_error() {
    let store = Broken::Later.fallback(LocalStore::with_capacity(64), 1);
    let app = watched(RateLimitLayer::rules(super::user(), store));
    visit(&app, "alice").await;
    let peeked = done(&app, "peek", &of("alice")).await;
    assert_eq!((&peeked["by"], &peeked["quotas"][0]["remaining"]), (&json!("fallback"), &json!(2)));
    let block = with(of("alice"), "for", "1h");
    for (route, body) in [("reset", of("alice")), ("block", block), ("unblock", of("alice"))] {
        let said = denied(&app, route, &body, 503).await;
        assert!(
            said.contains(&format!(
                "the store did not {route}: it failed, and only this process did"
            )),
            "{said}"
        );
    }
}
