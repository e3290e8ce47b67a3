//! Clones of a layer and its services, which share one limit.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use proptest::prelude::*;
use tower::{Layer, ServiceBuilder};
use tower_sluice::{
    Algorithm, Limiter, LivePlan, LocalStore, PeerIp, Plan, Quota, RateLimitLayer, Rule, Store,
    StoreExt, key::Everyone, testing::FakeClock,
};

use crate::support::{Strict, answer, ask};

const TEN: Quota = Quota::per_hour(10);

type Limit<K> = RateLimitLayer<Rule<K>, LocalStore>;

fn rule(name: &str, plan: impl Into<Plan>) -> Rule<Everyone> {
    Rule::new(name, Everyone, plan)
}

fn limit(store: &LocalStore, name: &str, plan: impl Into<Plan>) -> Limit<Everyone> {
    RateLimitLayer::rules(rule(name, plan), store.clone())
}

/// Returns the error for another layer of the rule `login` on this store.
fn denial<S>(store: S, plan: impl Into<Plan>) -> Option<String>
where
    S: Store<Error = Infallible>,
{
    let layer = RateLimitLayer::try_rules(rule("login", plan), store);
    layer.err().map(|wrong| wrong.to_string())
}

fn from(peer: &str, path: &str) -> Request<Body> {
    let mut request = Request::get(path).body(Body::empty()).expect("a request");
    request.extensions_mut().insert(peer.parse::<SocketAddr>().expect("an address"));
    request
}

/// Sends `requests` to each path in turn and counts those that the app serves.
async fn served(app: &mut Router, paths: &[&str], requests: usize) -> usize {
    let mut served = 0;
    for path in paths.iter().cycle().take(requests) {
        let response = ask(app, from("203.0.113.9:1", path)).await;
        served += usize::from(response.status() == StatusCode::OK);
    }
    served
}

/// A known trap of tower's own `RateLimitLayer`: each of its services has separate state.
#[tokio::test]
async fn a_layer_cloned_for_each_route_is_one_limit() {
    let limit = RateLimitLayer::new(PeerIp::new(), TEN, LocalStore::with_capacity(64));
    let hello = || get(async || "hello");
    let mut app = Router::new()
        .route("/a", hello().layer(limit.clone()))
        .route("/b", hello().layer(limit.clone()))
        .merge(Router::new().route("/c", hello()).route_layer(limit.clone()))
        .nest("/d", Router::new().route("/e", hello()).layer(limit));
    assert_eq!(served(&mut app, &["/a", "/b", "/c", "/d/e"], 40).await, 10);
    let elsewhere = ask(&mut app, from("203.0.113.10:1", "/a")).await;
    assert_eq!(elsewhere.status(), StatusCode::OK, "another peer has its own");
}

/// Clones the app for each connection, as servers do.
#[tokio::test]
async fn an_app_cloned_for_each_connection_is_one_limit() {
    let limit = RateLimitLayer::new(PeerIp::new(), TEN, LocalStore::with_capacity(64));
    let app = Router::new().route("/", get(async || "hello")).layer(limit);
    let mut passed = 0;
    for _ in 0..40 {
        passed += served(&mut app.clone(), &["/"], 1).await;
    }
    assert_eq!(passed, 10);
}

#[tokio::test]
async fn services_of_a_layer_and_their_clones_are_one_limit() {
    let limit = limit(&LocalStore::with_capacity(64), "api", TEN);
    let builder = ServiceBuilder::new().layer(limit.clone());
    let mut statuses = Vec::new();
    for _ in 0..10 {
        let mut service = builder.clone().service(Strict::default());
        statuses.push(ask(&mut service.clone(), crate::support::get("/")).await.status());
        statuses.push(ask(&mut service, crate::support::get("/")).await.status());
        statuses.push(answer(&limit.clone(), crate::support::get("/")).await.status());
    }
    let (passed, denied) = statuses.split_at(10);
    assert!(passed.iter().all(|status| *status == 200));
    assert!(denied.iter().all(|status| *status == 429));
}

#[tokio::test]
async fn two_layers_of_one_store_rule_and_quota_are_one_limit() {
    let store = LocalStore::with_capacity(64);
    let (one, two) = (limit(&store, "api", TEN), limit(&store, "api", TEN));
    for _ in 0..5 {
        assert_eq!(answer(&one, crate::support::get("/")).await.status(), 200);
        assert_eq!(answer(&two, crate::support::get("/")).await.status(), 200);
    }
    assert_eq!(answer(&one, crate::support::get("/")).await.status(), 429);
    assert_eq!(answer(&two, crate::support::get("/")).await.status(), 429);
}

#[tokio::test]
async fn nested_layers_each_charge() {
    let store = LocalStore::with_capacity(64);
    let inner = limit(&store, "api", TEN).layer(Strict::default());
    let mut both = limit(&store, "api", TEN).layer(inner);
    for _ in 0..5 {
        assert_eq!(ask(&mut both, crate::support::get("/")).await.status(), 200);
    }
    assert_eq!(ask(&mut both, crate::support::get("/")).await.status(), 429);
}

#[tokio::test]
async fn names_and_stores_separate_limits() {
    let (store, alone) = (LocalStore::with_capacity(64), LocalStore::with_capacity(64));
    let one = Quota::per_hour(1);
    for limit in [limit(&store, "a", one), limit(&store, "b", one), limit(&alone, "a", one)] {
        assert_eq!(answer(&limit, crate::support::get("/")).await.status(), 200);
        assert_eq!(answer(&limit, crate::support::get("/")).await.status(), 429);
    }
}

/// Different window lengths would be unsafe: a request under the short one would end the account,
/// and free a key that is exhausted under the long one.
#[test]
fn other_quotas_under_one_name_fail_to_build() {
    const TEXT: &str = "the store cannot do this: rule login has different quotas in another layer on \
                        this store, and both would charge the same accounts; rename one, or give \
                        each layer its own store";
    let store = LocalStore::with_capacity(64);
    let windows = TEN.with_algorithm(Algorithm::SlidingLog);
    assert_eq!(denial(store.clone(), TEN), None);
    for other in [&[Quota::per_second(10)][..], &[windows], &[TEN.with_burst(9)], &[TEN, windows]] {
        assert_eq!(denial(store.clone(), other), Some(TEXT.into()), "{other:?}");
    }
    assert_eq!(denial(store.clone(), TEN), None, "a layer that failed to build does not count");
    assert_eq!(denial(store, &LivePlan::new(windows)), None, "live plans are not compared");
    assert_eq!(denial(LocalStore::with_capacity(64), windows), None);
}

#[test]
fn a_wrapped_store_knows_its_rules_too() {
    let hourly = Quota::per_hour(1);
    let local = || LocalStore::with_capacity(64);
    let wrapped = |store: LocalStore| {
        let store = store.timeout(Duration::from_secs(1)).breaker();
        store.fail_closed().boxed()
    };
    let store = local();
    assert_eq!(denial(wrapped(store.clone()), TEN), None);
    assert!(denial(wrapped(store.clone()), hourly).is_some());
    assert!(denial(store.clone().fail_open(), hourly).is_some());
    assert!(denial(store.clone().fallback(local(), 1), hourly).is_some());
    assert!(denial(local().fallback(store, 1), hourly).is_some());
}

/// Another prefix makes it another store, with other accounts.
#[cfg(feature = "redis")]
#[test]
fn a_redis_store_knows_its_rules_too() {
    let store =
        tower_sluice::RedisStore::connect("redis://127.0.0.1:1").lazy().expect("an address");
    let reported =
        |store: &tower_sluice::RedisStore, plan| denial(store.clone().fail_closed(), plan);
    assert_eq!(reported(&store, TEN), None);
    assert!(reported(&store, Quota::per_hour(1)).is_some());
    assert_eq!(
        reported(&store.reopen().prefix("other").lazy().expect("a store"), Quota::per_hour(1)),
        None
    );
    assert!(reported(&store, Quota::per_hour(1)).is_some());
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    /// Quotas that can change are not compared; under GCRA that cannot free any key.
    #[test]
    fn a_quota_allows_alone_what_it_allows_beside_another(
        units in [1..20_u32, 1..20], bursts in [1..30_u32, 1..30], periods in [1..90_u64, 1..90],
        asks in prop::collection::vec((0..2_usize, 1..4_u32, 0..5_000_u64), 1..200),
    ) {
        let quota = |at: usize| {
            let quota = Quota::new(units[at], Duration::from_secs(periods[at])).expect("a quota");
            quota.with_burst(bursts[at])
        };
        let (quotas, clock) = ([quota(0), quota(1)], FakeClock::new());
        let [shared, one, two] = [(); 3].map(|()| Limiter::named("default", clock.store(16)));
        let alone = [one, two];
        for (at, cost, millis) in asks {
            clock.advance(Duration::from_millis(millis));
            if shared.take("alice", &quotas[at], cost).now().is_allowed() {
                prop_assert!(alone[at].take("alice", &quotas[at], cost).now().is_allowed());
            }
        }
    }
}
