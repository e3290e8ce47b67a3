//! Keys other than addresses, and floods of keys.

use std::ops::Range;

use axum::{
    Router,
    body::Body,
    routing::{any, get},
};
use http::{Method, Request, StatusCode};
use tower::ServiceExt;
use tower_sluice::{
    AccessList, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, by_route,
    key::{self, ExtensionKey, HeaderKey, RouteKey},
    rule::OnMissingKey,
};

use super::{
    THREE, from, ip, statuses,
    support::{Strict, ask, with},
    three, v4,
};

const API_KEY: &str = "x-api-key";
const ACCOUNT: &str = "x-account";

fn named(key: &str) -> Request<()> {
    with(&[(API_KEY, key)])
}

fn small() -> (RateLimitLayer<Rule<HeaderKey>, LocalStore>, LocalStore) {
    let store = LocalStore::with_capacity(1_000);
    (RateLimitLayer::new(HeaderKey::new(API_KEY), THREE, store.clone()), store)
}

/// The maps of chi's httprate and of tollbooth had no bound (2022).
#[tokio::test]
async fn a_flood_of_keys_does_not_grow_memory() {
    let (layer, store) = small();
    let entries = store.stats().entries;
    let mut service = tower::Layer::layer(&layer, Strict::default());
    let mut kept = |keys: Range<u32>| {
        allocation_counter::measure(|| {
            for key in keys {
                futures::executor::block_on(ask(&mut service, named(&key.to_string())));
            }
        })
        .bytes_current
    };
    assert!(kept(0..10_000) < 300_000, "the accounts that new keys share");
    // A thread keeps the fields of at most 128 answers, which change each second.
    assert!(kept(10_000..50_000) < 128 * 1_024, "less than 4 bytes a key");
    assert_eq!(store.stats().entries, entries);
    assert!(store.stats().overflowed > 0);
}

/// HTTP/2 servers keep white space around a header value; HTTP/1 servers remove it.
#[tokio::test]
async fn white_space_around_a_header_does_not_make_a_new_key() {
    let spellings = || (0..50).map(|n| format!("{}mine{}", " ".repeat(n % 5), "\t".repeat(n / 5)));
    let requests = || spellings().map(|spelling| named(&spelling));
    let (layer, _) = small();
    assert_eq!(statuses(&layer, requests()).await, [(200, 3), (429, 47)]);
    let (layer, _) = small();
    let layer = layer.deny(AccessList::keys(HeaderKey::new(API_KEY), ["mine"]));
    assert_eq!(statuses(&layer, requests()).await, [(403, 50)]);
}

/// A map that evicts its oldest keys when it is full would free them.
#[tokio::test]
async fn a_flood_does_not_free_an_exhausted_key() {
    let (layer, _) = small();
    let mine = || (0..100).map(|n| named(&format!("mine {n}")));
    for _ in 0..3 {
        assert_eq!(statuses(&layer, mine()).await, [(200, 100)]);
    }
    statuses(&layer, (0..20_000).map(|n| named(&n.to_string()))).await;
    assert_eq!(statuses(&layer, mine()).await, [(429, 100)]);
}

#[tokio::test]
async fn a_key_of_100_kib_is_rejected_and_not_stored() {
    let (layer, store) = small();
    let long = |n: u32| named(&n.to_string().repeat(100 * 1_024));
    assert_eq!(statuses(&layer, (1..10).map(long)).await, [(400, 9)]);
    assert_eq!(store.stats().active, 0);
}

/// Two rules in one decision. A request denied by the account rule charges nothing to the address,
/// so that guesses at one account do not lock a client out of its own account.
#[tokio::test]
async fn guessing_is_limited_by_address_and_by_account() {
    let rules = (
        Rule::new("ip", PeerIp::new(), THREE),
        Rule::new("account", HeaderKey::new(ACCOUNT), THREE),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::new());
    let tried = |peer: u32, account: u32| from(v4(peer), &[(ACCOUNT, &account.to_string())]);
    let held = [(200, 3), (429, 997)];
    assert_eq!(statuses(&layer, (0..1_000).map(|n| tried(0, 10 + n))).await, held);
    assert_eq!(statuses(&layer, (0..1_000).map(|n| tried(10 + n, 0))).await, held);
    assert_eq!(statuses(&layer, [tried(1_000, 0)]).await, [(429, 1)]);
    assert_eq!(statuses(&layer, (0..3).map(|_| tried(1_000, 5_000))).await, [(200, 3)]);
}

/// A user name counts only after verification, when the application puts it into the extensions.
#[tokio::test]
async fn an_unverified_name_does_not_charge_its_owner() {
    #[derive(Clone)]
    struct User(&'static str);

    let rule = Rule::new("user", ExtensionKey::by(|user: &User| user.0), THREE);
    let rule = rule.on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED));
    let layer = RateLimitLayer::rules(rule, LocalStore::new());
    let claimed = || with(&[("user", "alice"), ("x-user", "alice")]);
    assert_eq!(statuses(&layer, (0..10).map(|_| claimed())).await, [(401, 10)]);
    let verified = || {
        let mut request = claimed();
        request.extensions_mut().insert(User("alice"));
        request
    };
    assert_eq!(statuses(&layer, (0..4).map(|_| verified())).await, [(200, 3), (429, 1)]);
}

#[tokio::test]
async fn invented_methods_share_one_account() {
    let layer = three((key::MethodKey, PeerIp::new()));
    let made_up = (0..1_000).map(|n| {
        let mut request = from(ip("203.0.113.9"), &[]);
        *request.method_mut() = Method::from_bytes(format!("M{n}").as_bytes()).expect("a method");
        request
    });
    assert_eq!(statuses(&layer, made_up).await, [(200, 3), (429, 997)]);
}

#[tokio::test]
async fn spellings_of_a_path_share_one_route() {
    let app = Router::new().route("/users/{id}", get(async || "user")).layer(RateLimitLayer::new(
        RouteKey,
        THREE,
        LocalStore::new(),
    ));
    let mut served = 0;
    for path in [
        "/users/1",
        "/users/2",
        "/users/%31",
        "/users/1?x=1",
        "/users/%2e",
        "/users/a%2fb",
        "//users/1",
        "/users//1",
        "/users/1/",
        "/USERS/1",
        "/./users/1",
        "/users/1;x",
    ] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("an answer");
        served += usize::from(response.status() == StatusCode::OK);
    }
    assert_eq!(served, 3);
}

/// A handler of GET also answers HEAD, and a gRPC handler answers any method.
#[tokio::test]
async fn another_method_does_not_make_a_new_route() {
    let routes = [(Method::GET, "/report", THREE), (Method::POST, "/shop.Cart/Buy", THREE)];
    let rules = by_route(routes, Quota::per_day(1_000));
    let app = Router::new()
        .route("/report", get(async || "report"))
        .route("/shop.Cart/{*rest}", any(async || "bought"))
        .layer(RateLimitLayer::rules(rules, LocalStore::new()));
    let served = async |methods: &[&str], path: &str| {
        let mut served = 0;
        for method in methods.iter().cycle().take(100) {
            let request = Request::builder().method(*method).uri(path).body(Body::empty());
            let response = app.clone().oneshot(request.expect("a request")).await;
            served += usize::from(response.expect("an answer").status() == StatusCode::OK);
        }
        served
    };
    assert_eq!(served(&["HEAD", "GET"], "/report").await, 3);
    let methods = ["GET", "HEAD", "PUT", "PURGE", "POST"];
    assert_eq!(served(&methods, "/shop.Cart/Buy").await, 3);
}
