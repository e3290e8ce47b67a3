//! Operations on one account, by the key that an operator enters.

use std::{net::SocketAddr, num::NonZeroU32, sync::Arc};

use axum::{Router, body::Body, extract::ConnectInfo};
use governor::RateLimiter;
use http::{HeaderValue, Request};
use serde_json::{Value, json};
use tower_sluice::{
    Algorithm, ClientIp, Key, KeyExtractor, Limiter, LivePlan, LocalStore, PeerIp, Plan, Quota,
    RateLimitLayer, Rule, StoreExt,
    key::{Everyone, ExtensionKey, HeaderKey, MethodKey, RouteKey},
    rule::{OnMissingKey, RuleName},
    store::GovernorStore,
    testing::FakeClock,
};

use super::{THREE, denied, done, of, post, send, users, visit, visits, watched, with};
use crate::support::{Broken, Gated};

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
async fn text_and_bytes_match_header_keys() {
    let by = || rule(HeaderKey::new("x-user"));
    addresses(by(), headed("x-user", b"alice"), json!("alice"), json!("Alice")).await;
    let latin = headed("x-user", b"caf\xe9");
    addresses(by(), latin, json!({ "bytes": "Y2Fm6Q==" }), json!("caf\u{e9}")).await;
    let digits = headed("x-user", b"7");
    addresses(by(), digits, json!("7"), json!("8")).await;
    let address = headed("x-user", b"203.0.113.9");
    addresses(by(), address, json!({ "text": "203.0.113.9" }), json!("203.0.113.8")).await;
}

#[tokio::test]
async fn addresses_match_peer_and_client_keys_by_prefix() {
    let ip = |text: &str| json!({ "address": text });
    let v4 = peer("203.0.113.9");
    addresses(rule(PeerIp::new()), v4, ip("203.0.113.9"), ip("203.0.113.8")).await;
    let mapped = peer("::ffff:203.0.113.9");
    addresses(rule(PeerIp::new()), mapped, ip("203.0.113.9"), ip("2001:db8::")).await;
    let v6 = peer("2001:db8:0:1:2::3");
    addresses(rule(PeerIp::new()), v6, ip("2001:db8:0:1:ffff::"), ip("2001:db8:0:2:2::3")).await;
    let site = peer("2001:db8:0:1::3");
    let by = PeerIp::new().ipv6_prefix(48);
    addresses(rule(by), site, ip("2001:db8:0:9::/48"), ip("2001:db8:1::/48")).await;
    let net = peer("203.0.113.9");
    addresses(
        rule(PeerIp::new().ipv4_prefix(24)),
        net,
        ip("203.0.113.200/24"),
        ip("203.0.114.9/24"),
    )
    .await;
    let behind = ClientIp::behind(["10.0.0.0/8"]).expect("networks");
    let request = || {
        let mut request = peer("10.0.0.1")();
        let client = HeaderValue::from_static("198.51.100.7");
        request.headers_mut().insert("x-forwarded-for", client);
        request
    };
    addresses(rule(behind), request, ip("198.51.100.7"), ip("10.0.0.1")).await;
}

#[tokio::test]
async fn numbers_match_identity_keys() {
    #[derive(Clone)]
    struct User(u128);

    let request = |id: u128| {
        move || {
            let mut request = get();
            request.extensions_mut().insert(User(id));
            request
        }
    };
    let by = || rule(ExtensionKey::by(|user: &User| user.0));
    addresses(by(), request(7), json!({ "number": 7 }), json!({ "text": "7" })).await;
    let largest = json!({ "number": u128::MAX.to_string() });
    addresses(by(), request(u128::MAX), largest, json!({ "number": 7 })).await;
}

#[tokio::test]
async fn everyone_and_requests_without_a_key_have_an_account() {
    let (everyone, nobody) = (json!({ "everyone": true }), json!({ "unidentified": true }));
    let all = rule(Everyone).on_missing_key(OnMissingKey::Share);
    addresses(all, get, everyone, nobody.clone()).await;
    let shared = rule(HeaderKey::new("x-user")).on_missing_key(OnMissingKey::Share);
    addresses(shared, get, nobody, json!("alice")).await;
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

/// The type of a key is part of the key.
#[tokio::test]
async fn a_key_of_another_type_is_another_account() {
    let app = watched(RateLimitLayer::rules(rule(PeerIp::new()), LocalStore::new()));
    let status = async || send(&app, peer("127.0.0.1")()).await.status.as_u16();
    let text = done(&app, "block", &with(of("127.0.0.1"), "for", "1h")).await;
    assert_eq!(status().await, 200);
    let address = with(of(json!({ "address": "127.0.0.1" })), "for", "1h");
    let address = done(&app, "block", &address).await;
    assert_eq!(status().await, 429);
    assert_ne!(text["key"], address["key"], "the fingerprint shows the difference");
}

#[tokio::test]
async fn blocking_one_ipv6_address_blocks_its_network() {
    let site = Rule::new("site", PeerIp::new().ipv6_prefix(48), Quota::per_day(100));
    let rules = (rule(PeerIp::new()), site);
    let app = watched(RateLimitLayer::rules(rules, LocalStore::new()));
    let status = async |address: &str| send(&app, peer(address)()).await.status.as_u16();
    let one = with(of(json!({ "address": "2001:db8:0:1::7" })), "for", "1h");
    done(&app, "block", &one).await;
    assert_eq!(status("2001:db8:0:1:ffff::").await, 429);
    assert_eq!(status("2001:db8:0:2::").await, 200);
    let site = with(of(json!({ "address": "2001:db8:0:1::7/48" })), "for", "1h");
    let site = with(site, "rule", "site");
    done(&app, "block", &site).await;
    assert_eq!(status("2001:db8:0:2::").await, 429);
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
async fn a_report_only_rule_shows_its_account_and_its_block() {
    let rule = rule(HeaderKey::new("x-user")).report_only(true);
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    assert_eq!(visits(&app, "alice", 4).await, [200; 4]);
    assert_eq!(left(&app, &json!("alice")).await, 0);
    done(&app, "block", &with(of("alice"), "for", "1h")).await;
    assert!(done(&app, "peek", &of("alice")).await["blocked_ms"].is_u64());
}

#[tokio::test]
async fn live_quotas_are_current_and_per_request_quotas_must_be_given() {
    let live = LivePlan::new(THREE);
    let rule = Rule::new("user", HeaderKey::new("x-user"), &live);
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    visits(&app, "alice", 3).await;
    live.replace(Quota::per_day(10));
    // the units of the day are still charged
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

#[tokio::test]
async fn an_account_of_an_older_plan_is_shown_and_reset() {
    let live = LivePlan::new(Quota::per_day(10));
    let rule = Rule::new("user", HeaderKey::new("x-user"), &live);
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    visits(&app, "alice", 10).await;
    live.replace(Quota::per_hour(3));
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    let old = with(of("alice"), "quotas", json!([{ "units": 10, "period": "day" }]));
    assert_eq!(done(&app, "peek", &old).await["quotas"][0]["remaining"], 0);
    done(&app, "reset", &old).await;
    assert_eq!(done(&app, "peek", &old).await["quotas"][0]["remaining"], 10);
    assert_eq!(visit(&app, "alice").await, 429, "the plan in force has another account");
    live.replace(Quota::per_day(10));
    assert_eq!(visit(&app, "alice").await, 200);
}

#[tokio::test]
async fn a_rule_without_limits_has_no_account() {
    let app = watched(RateLimitLayer::rules(
        (Rule::new("default", Everyone, []), super::user()),
        LocalStore::new(),
    ));
    let free = json!({ "layer": "api", "rule": "default", "key": { "everyone": true } });
    for route in ["peek", "reset"] {
        let said = denied(&app, route, &free, 400).await;
        assert!(said.contains("rule \"default\" has no quotas of its own"), "{said}");
    }
}

#[tokio::test]
async fn unsupported_operations_of_a_store_are_reported() {
    let ten = NonZeroU32::new(10).expect("above 0");
    let limiter = Arc::new(RateLimiter::<Key, _, _>::keyed(governor::Quota::per_hour(ten)));
    let governed = || GovernorStore::new(limiter.clone());
    for store in [governed().fail_closed().boxed(), governed().fail_open().boxed()] {
        let quota = Quota::per_hour(10);
        let app = watched(RateLimitLayer::rules(
            Rule::new("user", HeaderKey::new("x-user"), quota),
            store,
        ));
        assert_eq!(visit(&app, "alice").await, 200);
        let said = denied(&app, "peek", &of("alice"), 501).await;
        assert!(said.contains("a governor limiter does not support cost 0"), "{said}");
        let block = with(of("alice"), "for", "1h");
        for (route, body) in [("reset", of("alice")), ("block", block), ("unblock", of("alice"))] {
            let said = denied(&app, route, &body, 501).await;
            assert!(said.contains("the store does not support this: a governor limiter"), "{said}");
        }
        let report = json!({ "layer": "api", "rule": "user", "report_only": true });
        let said = denied(&app, "switch", &report, 409).await;
        assert!(said.contains("a governor limiter does not support report-only charges"), "{said}");
        done(&app, "switch", &with(report, "report_only", false)).await;
        assert_eq!(visit(&app, "alice").await, 200, "the layer still works");
    }
}

#[tokio::test]
async fn a_failed_operation_is_distinguished_from_a_successful_one() {
    for broken in [Broken::Now, Broken::Later] {
        let open = watched(RateLimitLayer::rules(super::user(), broken.fail_open()));
        let closed = watched(RateLimitLayer::rules(super::user(), broken.fail_closed()));
        for app in [open, closed] {
            visit(&app, "alice").await;
            for route in ["peek", "reset", "unblock"] {
                let said = denied(&app, route, &of("alice"), 503).await;
                assert!(said.contains(": it failed (see api/health)"), "{said}");
                assert!(!said.contains("10.0.0.7"), "{said}");
            }
        }
    }
}

/// Operations applied locally while the shared store fails are not applied there.
#[tokio::test]
async fn a_change_in_this_process_only_is_reported_as_local() {
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

#[tokio::test]
async fn asynchronous_stores_are_awaited() {
    let store = Gated::open(LocalStore::new());
    let app = watched(RateLimitLayer::rules(super::user(), store));
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    assert_eq!(left(&app, &json!("alice")).await, 0);
    done(&app, "reset", &of("alice")).await;
    assert_eq!(visit(&app, "alice").await, 200);
}

#[tokio::test]
async fn a_block_without_room_is_reported() {
    let store = LocalStore::with_capacity(16);
    let name = RuleName::new("user").expect("a name");
    let limiter = Limiter::named(name.as_str(), store.clone());
    let hour = std::time::Duration::from_secs(3_600);
    let is_full = |key: &u32| limiter.block(key.to_string(), hour).now().is_err();
    let full = (0..100_000_u32).find(is_full);
    let app = watched(RateLimitLayer::rules(super::user(), store));
    let key = full.expect("it has an end").to_string();
    let said = denied(&app, "block", &with(of(key), "for", "1h"), 507).await;
    assert!(said.contains("no room for the block; unblock other keys"), "{said}");
}

#[tokio::test]
async fn responses_do_not_repeat_the_key_in_clear_text() {
    let app = watched(users());
    for route in ["peek", "reset", "unblock"] {
        let said = post(&app, route, &of("alice")).await;
        assert!(!said.text.contains("alice"), "{said:?}");
    }
}
