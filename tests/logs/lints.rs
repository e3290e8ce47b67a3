//! Probable mistakes in the log, each reported once.

use std::{
    convert::Infallible,
    future::ready,
    net::{IpAddr, SocketAddr},
    panic::Location,
    thread,
    time::Duration,
};

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt};
use tower_sluice::{
    AccessList, ClientIp, Key, KeyExtractor, Limiter, LivePlan, LocalStore, PeerIp, Plan, Quota,
    RateLimitLayer, RequestHead, Rule, StoreExt,
    key::{BearerKey, Everyone, ExtensionKey, HeaderKey},
    middleware::Toggle,
    rule::Quotas,
    testing::FakeClock,
};

use crate::{
    alone,
    log::Log,
    support::{Strict, ask, get, with},
};

const TEN: Quota = Quota::per_second(10);

/// A single test, because most warnings are logged once per process, so that the order counts.
#[test]
fn each_mistake_is_logged_once() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    a_live_plan_that_denies_everyone(&log);
    equal_quotas(&log);
    one_client(&log);
    forwarding_header_ignored(&log);
    untrusted_peer_with_the_header(&log);
    no_client(&log);
    extension_missing(&log);
    authorization_as_header_key(&log);
    slot_ends_at_upgrade(&log);
    request_counted_twice(&log);
    default_rule_shared(&log);
    layer_rebuilt(&log);
    layer_rebuilt_per_request(&log);
    nothing_charged(&log);
    cors_inside(&log);
    unknown_bodies(&log);
    routes::route_never_met(&log);
    routes::route_of_a_file_never_met(&log);
}

/// Returns the text of the only line, a warning.
fn warning(log: &Log) -> String {
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let text = lines[0].split_once("WARN tower_sluice::lint: ").expect("a warning").1;
    text.to_owned()
}

/// Checks that the only line is this warning.
fn warns(log: &Log, lint: &str, text: &str) {
    let warning = warning(log);
    assert!(warning.contains(text), "{warning}");
    assert!(warning.ends_with(&format!("lint=\"{lint}\"")), "{warning}");
}

const NOTHING: [&str; 0] = [];

fn a_live_plan_that_denies_everyone(log: &Log) {
    let live = LivePlan::new(TEN);
    let layer = |rule: Rule<Everyone>| RateLimitLayer::rules(rule, LocalStore::with_capacity(1));
    let rule = || Rule::new("api", Everyone, &live).cost(5).headroom(6);
    let above = layer(rule());
    assert_eq!(log.read(), NOTHING, "the plan may still be replaced");
    for _ in 0..3 {
        let _service = above.clone().layer(Strict::default());
        let _service = above.layer(Strict::default());
    }
    assert_eq!(
        warning(log),
        "rule api: cost plus headroom 11 is above the current limit 10 of its live plan, so every \
         request is denied until the plan is replaced; lower the cost or raise the burst \
         lint=\"cost_above_limit\""
    );
    for plan in [TEN.with_burst(11), Quota::blocked()] {
        live.replace(plan);
        let _service = layer(rule()).layer(Strict::default());
    }
    let _service = RateLimitLayer::per_ip(TEN).layer(Strict::default());
    assert_eq!(log.read(), NOTHING);
}

fn equal_quotas(log: &Log) {
    let rule = Rule::new("api", Everyone, Plan::from_fn(twice_by_path));
    let mut service = RateLimitLayer::rules(rule, LocalStore::new()).layer(Strict::default());
    drop(tokio_test::block_on(ask(&mut service, get("/"))));
    assert_eq!(log.read(), NOTHING);
    drop(tokio_test::block_on(ask(&mut service, get("/twice"))));
    assert_eq!(
        warning(log),
        "a plan has the quotas 5/h and 9/h, which count the same, so the larger has no effect; keep \
         the smaller, or give them different periods, algorithms or units (logged once) \
         lint=\"equal_quotas\""
    );
    drop(tokio_test::block_on(ask(&mut service, get("/twice"))));
    LivePlan::new(TEN).replace([TEN, TEN]);
    assert_eq!(log.read(), NOTHING, "once");
}

fn twice_by_path(head: &RequestHead<'_>, _: &Key) -> Quotas {
    match head.path() {
        "/twice" => [Quota::per_hour(5), Quota::per_hour(9)].into(),
        _ => [Quota::per_hour(5), Quota::per_day(9)].into(),
    }
}

/// Extracts the key of a request from this address, with another address in this header. An empty name
/// stands for no header.
fn extract(extractor: &dyn KeyExtractor, peer: &str, header: &'static str) {
    let headers = [(header, "203.0.113.9")];
    let mut request = with(if header.is_empty() { &[] } else { &headers });
    let peer: IpAddr = peer.parse().expect("an address");
    request.extensions_mut().insert(SocketAddr::new(peer, 4711));
    extractor.extract(&RequestHead::from(&request)).expect("a key");
}

/// Extracts the keys of requests from these addresses, in turn.
fn extract_from(peer: &PeerIp, addresses: &[&str], requests: usize) {
    for address in addresses.iter().cycle().take(requests) {
        extract(peer, address, "");
    }
}

fn one_client(log: &Log) {
    let peer = PeerIp::new();
    extract_from(&peer, &["10.0.3.7"], 900);
    assert_eq!(log.read(), NOTHING, "too few requests so far");
    // Four threads with 25 requests each: the thousandth request logs, in any of them.
    let lines: Vec<_> = thread::scope(|scope| {
        let asking = || {
            let (log, _guard) = Log::start(tracing::Level::INFO);
            extract_from(&peer.clone().ipv6_prefix(48), &["::ffff:10.0.3.7"], 25);
            log.read()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(asking)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        lines[0].split_once("WARN tower_sluice::lint: ").expect("a warning").1,
        "nearly all of the first 1000 requests have the client address 10.0.3.7, so they share one \
         account: if it is a proxy, a balancer or a sidecar, trust it with \
         ClientIp::behind([\"10.0.3.7\"]), see tower_sluice::guide::proxies; ignore this warning in a \
         load test lint=\"one_client\""
    );
    extract_from(&peer, &["10.0.3.7"], 3_000);
    assert_eq!(log.read(), NOTHING, "once");
    for peer in [PeerIp::new(), PeerIp::new().ipv6_prefix(48), PeerIp::new()] {
        extract_from(&peer, &["fd00::1"], 1_000);
        assert_eq!(log.read(), NOTHING, "once per process");
    }
}

fn forwarding_header_ignored(log: &Log) {
    let peer = PeerIp::new();
    extract_from(&peer, &["10.0.3.7", "203.0.113.9"], 500);
    extract(&peer, "203.0.113.9", "x-forwarded-for");
    assert_eq!(log.read(), NOTHING, "any client on the internet may send it");
    extract(&peer.clone(), "::ffff:10.0.3.8", "x-forwarded-for");
    assert_eq!(
        warning(log),
        "a request from 10.0.3.8, a private address, has the header x-forwarded-for, which PeerIp \
         does not read: behind a proxy all clients share the account of the proxy; if it is a proxy of \
         yours, trust it with ClientIp::behind([\"10.0.3.8\"]), see \
         tower_sluice::guide::proxies lint=\"forwarding_header_ignored\""
    );
    (0..3_000).for_each(|_| extract(&peer, "10.0.3.7", "forwarded"));
    assert_eq!(log.read(), NOTHING, "once, and no other line");

    for name in ["forwarded", "x-real-ip", "cf-connecting-ip", "true-client-ip"] {
        extract(&PeerIp::new(), "127.0.0.1", name);
        assert!(warning(log).contains(&format!("has the header {name}, which")));
    }
    extract(&PeerIp::new().ipv6_prefix(48), "::1", "x-forwarded-for");
    assert!(warning(log).contains("ClientIp::behind([\"::1\"])"));
    let late = PeerIp::new();
    extract_from(&late, &["203.0.113.9"], 1_000);
    extract(&late, "10.0.3.7", "x-forwarded-for");
    assert_eq!(log.read(), NOTHING, "only the first requests are looked at");
}

/// The header of a private peer that is not in the list.
fn untrusted_peer_with_the_header(log: &Log) {
    let client = ClientIp::behind(["10.0.0.0/16"]).expect("a network");
    extract(&client, "10.0.3.7", "x-forwarded-for");
    extract(&client, "203.0.113.9", "x-forwarded-for");
    extract(&client, "127.0.0.1", "x-real-ip");
    assert_eq!(log.read(), NOTHING, "trusted, public, and another header");
    extract(&client, "127.0.0.1", "x-forwarded-for");
    assert_eq!(
        warning(log),
        "a request from 127.0.0.1, a private address, has the header x-forwarded-for, which is not read \
         because that address is not trusted: behind a proxy all clients share the account of the \
         proxy; if it is a proxy of yours, add \"127.0.0.1\" or its network to the list of \
         ClientIp::behind, see tower_sluice::guide::proxies lint=\"forwarding_header_ignored\""
    );
    extract(&client, "127.0.0.1", "x-forwarded-for");
    assert_eq!(log.read(), NOTHING, "once");
}

/// The only test here of a trusted proxy without its header, because the line is logged once per
/// process.
fn no_client(log: &Log) {
    let client = ClientIp::behind(["10.0.3.0/24"]).expect("a network");
    (0..3).for_each(|_| extract(&client, "10.0.3.7", ""));
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for text in [
        "names no client in x-forwarded-for",
        "the proxy 10.0.3.7: for a probe, exempt its path",
        "ClientIp::reject_without_header",
    ] {
        assert!(lines[0].contains(text), "{text}: {lines:?}");
    }
}

fn extension_missing(log: &Log) {
    #[derive(Clone)]
    struct User(u64);

    let key = |user: &User| user.0;
    let miss = |extractor: &dyn KeyExtractor, requests: usize| {
        let parts = get("/").into_parts().0;
        for _ in 0..requests {
            extractor.extract(&RequestHead::from(&parts)).expect_err("no identity");
        }
    };
    let found = ExtensionKey::by(key);
    let mut request = get("/");
    request.extensions_mut().insert(User(7));
    miss(&found, 19);
    assert_eq!(found.extract(&RequestHead::from(&request)), Ok(Some(7_u64.into())));
    miss(&found, 3_000);
    assert_eq!(log.read(), NOTHING, "one request had it");

    let missing = ExtensionKey::by(key);
    miss(&missing, 19);
    assert_eq!(log.read(), NOTHING, "too few requests so far");
    miss(&missing.clone(), 1);
    let text = "none of the first 20 requests has an extension of the type \
                logs::lints::extension_missing::User, so none has an identity: the authentication must \
                insert it in a layer outside of the limiter;";
    warns(log, "extension_missing", text);
    miss(&missing, 3_000);
    assert_eq!(log.read(), NOTHING, "once");
}

fn authorization_as_header_key(log: &Log) {
    let request = with(&[("authorization", "Bearer a")]);
    let head = RequestHead::from(&request);
    BearerKey.extract(&head).expect("a token");
    HeaderKey::new("x-authorization").extract(&head).expect_err("no such header");
    assert_eq!(log.read(), NOTHING);
    HeaderKey::new("Authorization").extract(&head).expect("a value");
    warns(log, "authorization_as_header_key", "use key::BearerKey");
    HeaderKey::new("authorization").extract(&head).expect("a value");
    assert_eq!(log.read(), NOTHING, "once");
}

fn slot_ends_at_upgrade(log: &Log) {
    let upgrades = |layer: EveryoneLayer| {
        let upgrade = tower::service_fn(async |_: Request<()>| {
            let response = Response::builder().status(101).body(axum::body::Body::empty());
            Ok::<_, Infallible>(response.expect("a response"))
        });
        tokio_test::block_on(layer.layer(upgrade).oneshot(get("/"))).map(drop).expect("infallible");
    };
    let layer = |quota: Quota| RateLimitLayer::new(Everyone, quota, LocalStore::with_capacity(1));
    upgrades(layer(TEN));
    upgrades(layer(Quota::concurrent(2)).expose_slot());
    assert_eq!(log.read(), NOTHING, "no slots, and a slot that the handler holds");
    upgrades(layer(Quota::concurrent(2)));
    warns(log, "slot_ends_at_upgrade", "its slots end with it, so");
    upgrades(layer(Quota::concurrent(2)));
    assert_eq!(log.read(), NOTHING, "once");
}

/// Two layers by `new` on one store, built at two lines.
fn default_rule_shared(log: &Log) {
    let store = LocalStore::with_capacity(16);
    let build = || RateLimitLayer::new(Everyone, TEN, store.clone());
    drop((build(), build(), build().clone()));
    assert_eq!(log.read(), NOTHING, "one line, as of a factory");
    drop(RateLimitLayer::new(Everyone, TEN, LocalStore::with_capacity(16)));
    drop(RateLimitLayer::rules(Rule::new("site", Everyone, TEN), store.clone()));
    assert_eq!(log.read(), NOTHING, "another store, and another name");
    let timed = store.clone().timeout(Duration::from_secs(1)).fail_open();
    drop(RateLimitLayer::new(PeerIp::new(), TEN, timed));
    warns(log, "default_rule_shared", "tests/logs/lints.rs:");
    drop(RateLimitLayer::new(HeaderKey::new("x-key"), TEN, store));
    assert_eq!(log.read(), NOTHING, "once");
}

fn request_counted_twice(log: &Log) {
    let store = LocalStore::with_capacity(16);
    let layer = |name: &str, store: &LocalStore| {
        RateLimitLayer::rules(Rule::new(name, Everyone, TEN), store.clone())
    };
    let serve_nested = |outer: &EveryoneLayer, inner: &EveryoneLayer| {
        let mut service = outer.layer(inner.layer(Strict::default()));
        drop(tokio_test::block_on(ask(&mut service, get("/"))));
    };
    let one = layer("one", &store);
    serve_nested(&one, &layer("two", &store));
    serve_nested(&one, &layer("one", &LocalStore::with_capacity(16)));
    assert_eq!(log.read(), NOTHING, "another rule, and another store");
    serve_nested(&layer("one", &store).allow(AccessList::from_fn(|_| true)), &one);
    serve_nested(&one, &layer("one", &store).enabled(Toggle::off()));
    let free = || RateLimitLayer::rules(Rule::new("one", Everyone, TEN).cost(0), store.clone());
    serve_nested(&one, &free());
    assert_eq!(log.read(), NOTHING, "one of the layers charges nothing");
    // A wrapper has the accounts of its store.
    let timed = store.timeout(Duration::from_secs(1)).fail_open();
    let wrapped = RateLimitLayer::rules(Rule::new("one", Everyone, TEN), timed);
    let mut service = one.layer(wrapped.layer(Strict::default()));
    drop(tokio_test::block_on(ask(&mut service, get("/"))));
    warns(log, "request_counted_twice", "two layers with the rule one of one store");
    serve_nested(&one, &one);
    assert_eq!(log.read(), NOTHING, "once");
}

/// Builds stores one after another, all on one line. Each is for a layer that is dropped after the time
/// `lives`. Returns the line.
fn build(clock: &FakeClock, times: usize, lives: Duration) -> &'static Location<'static> {
    // The place of the store is that of its caller, as for the constructors of a store.
    #[track_caller]
    fn store(clock: &FakeClock) -> (LocalStore, &'static Location<'static>) {
        (clock.store(1), Location::caller())
    }
    let mut place = None;
    for _ in 0..times {
        let (store, here) = store(clock);
        place = Some(here);
        let layer = RateLimitLayer::new(Everyone, TEN, store);
        let _service = layer.layer(Strict::default());
        clock.advance(lives);
    }
    place.expect("a store was built")
}

/// The number of stores of one line within a minute that is too many.
const REBUILT: usize = 32;

fn layer_rebuilt(log: &Log) {
    let clock = FakeClock::new();
    let minute = Duration::from_secs(60);
    let none = Duration::ZERO;

    // A store that is kept, has no layer, lives long, or is built with pauses logs nothing.
    let rule = |name: &str| Rule::new(name, Everyone, TEN);
    let tenants: Vec<_> =
        (0..5_000).map(|n| RateLimitLayer::rules(rule(&n.to_string()), clock.store(1))).collect();
    (0..5_000).for_each(|_| drop(Limiter::named("default", clock.store(1))));
    let shared = clock.store(1);
    (0..5_000).for_each(|_| drop(RateLimitLayer::rules(rule("one"), shared.clone())));
    clock.advance(minute);
    drop((tenants, shared));
    build(&clock, 100, minute);
    for _ in 0..3 {
        build(&clock, REBUILT - 1, none);
        clock.advance(minute);
    }
    build(&clock, REBUILT - 1, none);
    assert_eq!(log.read(), NOTHING);
    let place = build(&clock, 1, none);
    assert_eq!(
        warning(log),
        format!(
            "layers are built and dropped repeatedly with the store that {place} creates: each \
             starts with new accounts, so that no client is limited, and allocates a whole store; \
             build the layer once, outside of the code that runs per request or connection, and \
             clone it; in tests, ignore this warning lint=\"layer_rebuilt\""
        )
    );
    build(&clock, 3_000, none);
    assert_eq!(log.read(), NOTHING, "once per line of code");

    // By the real clock. The next line must create the layer.
    let here = Location::caller().line() + 1;
    let handle = || RateLimitLayer::per_ip(TEN).layer(Strict::default());
    (0..REBUILT).for_each(|_| drop(handle()));
    let said = warning(log);
    assert!(said.contains(&format!("tests/logs/lints.rs:{here}:")), "{said}");
}

/// Serves one request.
fn serve<L>(layer: &L)
where
    L: Layer<Strict>,
    L::Service: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    let mut service = layer.layer(Strict::default());
    let mut request = get("/");
    request.extensions_mut().insert(SocketAddr::from(([203, 0, 113, 9], 4711)));
    tokio_test::block_on(ask(&mut service, request));
}

/// Builds a layer for each request, on a store of its own or on a shared one.
fn layer_rebuilt_per_request(log: &Log) {
    // The next line must create the layer.
    let here = Location::caller().line() + 1;
    let handle = || serve(&RateLimitLayer::per_ip(TEN));
    (0..REBUILT - 1).for_each(|_| handle());
    assert_eq!(log.read(), NOTHING);
    handle();
    let said = warning(log);
    assert!(said.contains(&format!("tests/logs/lints.rs:{here}:")), "{said}");
    (0..100).for_each(|_| handle());
    assert_eq!(log.read(), NOTHING, "once per line of code");

    // With one shared store all requests count; building the layer is merely wasteful.
    let store = LocalStore::with_capacity(1);
    (0..100).for_each(|_| serve(&RateLimitLayer::new(Everyone, TEN, store.clone())));
    assert_eq!(log.read(), NOTHING);
}

type EveryoneLayer = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// Creates a layer of one rule on a store of its own.
fn alone_on_a_store(rule: Rule<Everyone>) -> EveryoneLayer {
    RateLimitLayer::rules(rule, LocalStore::with_capacity(1))
}

/// Sends requests for a path through a layer.
fn send(layer: &EveryoneLayer, path: &str, requests: u32) {
    let mut service = layer.clone().layer(Strict::default());
    for _ in 0..requests {
        drop(tokio_test::block_on(ask(&mut service, get(path))));
    }
}

fn nothing_charged(log: &Log) {
    let ten = Rule::new("api", Everyone, TEN);
    let free = Plan::from_fn(|_, _| Quotas::from([]));
    for layer in [
        alone_on_a_store(ten.clone()).allow(AccessList::from_fn(|_| true)),
        alone_on_a_store(ten.clone().cost(0)),
        alone_on_a_store(Rule::new("api", Everyone, free)),
        alone_on_a_store(Rule::new("api", Everyone, Quotas::from([]))),
    ] {
        send(&layer, "/", 99);
        assert_eq!(log.read(), NOTHING, "too few requests so far");
        send(&layer, "/", 1);
        let text =
            "none of the first 100 requests of a layer was charged: each is on an allow list,";
        warns(log, "nothing_charged", text);
        send(&layer, "/", 300);
        assert_eq!(log.read(), NOTHING, "once");
    }

    let probes = AccessList::from_fn(|head| head.path() == "/health");
    let charged = alone_on_a_store(ten.clone()).allow(probes);
    send(&charged, "/", 1);
    send(&charged, "/health", 300);
    send(&alone_on_a_store(ten).enabled(Toggle::off()), "/", 300);
    send(&alone_on_a_store(Rule::new("api", Everyone, Quota::blocked())), "/", 300);
    assert_eq!(log.read(), NOTHING, "one was charged, the layer is off, and all were denied");
}

/// Sends a request to a service that answers with these fields.
fn answer_with(fields: &[(&'static str, &'static str)]) {
    let mut response = Response::new(axum::body::Body::empty());
    for (name, value) in fields {
        response.headers_mut().insert(*name, value.parse().expect("a value"));
    }
    let parts = response.into_parts().0;
    let inner = tower::service_fn(move |_: Request<()>| {
        let response = Response::from_parts(parts.clone(), axum::body::Body::empty());
        ready(Ok::<_, Infallible>(response))
    });
    let layer = alone_on_a_store(Rule::new("api", Everyone, TEN));
    tokio_test::block_on(layer.layer(inner).oneshot(get("/"))).map(drop).expect("infallible");
}

fn cors_inside(log: &Log) {
    answer_with(&[("vary", "origin")]);
    assert_eq!(log.read(), NOTHING);
    answer_with(&[("access-control-allow-origin", "*")]);
    warns(log, "cors_inside", "add the CORS layer outside of the limiter");
    answer_with(&[("access-control-allow-origin", "https://example.com")]);
    assert_eq!(log.read(), NOTHING, "once");
}

/// Each warning is logged once per process.
fn unknown_bodies(log: &Log) {
    type Unknown = http_body_util::combinators::UnsyncBoxBody<bytes::Bytes, &'static str>;

    let rejects = |layer: EveryoneLayer, length: &str| {
        let inner = tower::service_fn(async |_: Request<Unknown>| {
            Ok::<_, Infallible>(Response::new(Unknown::default()))
        });
        let request = Request::post("/").header("content-length", length).body(Unknown::default());
        let response = layer.layer(inner).oneshot(request.expect("a request"));
        tokio_test::block_on(response).map(drop).expect("infallible");
    };
    let layer = |quota: Quota| alone_on_a_store(Rule::new("api", Everyone, quota));
    rejects(layer(Quota::blocked()), "0");
    let text = "UnsyncBoxBody<bytes::bytes::Bytes, &str>, which the limiter does not know";
    warns(log, "unknown_response_body", text);
    for quota in [Quota::concurrent(1), Quota::blocked()] {
        rejects(layer(quota), "0");
        assert_eq!(log.read(), NOTHING, "one line, also for a slot that the body cannot hold");
    }

    rejects(layer(Quota::blocked()).drain_with(|body: Unknown| body), "5");
    assert_eq!(log.read(), NOTHING);
    rejects(layer(Quota::blocked()), "5");
    warns(log, "unread_body", "call RateLimitLayer::drain_with (logged once)");
    rejects(layer(Quota::blocked()), "5");
    assert_eq!(log.read(), NOTHING, "once");
}

mod routes {
    use super::*;

    use axum::{Router, body::Body, routing::get};
    use http::Method;
    use tower_sluice::{by_route, rule::ByRoute};

    fn layer(templates: &[&str]) -> RateLimitLayer<ByRoute<Everyone>, LocalStore> {
        let routes = templates.iter().map(|template| (Method::GET, *template, TEN));
        RateLimitLayer::rules(by_route(routes, TEN), LocalStore::with_capacity(64))
    }

    fn router(templates: &[&str]) -> Router {
        templates.iter().fold(Router::new(), |it, path| it.route(path, get(async || {})))
    }

    fn request<S>(service: &S, path: &str, times: usize)
    where
        S: Service<Request<Body>, Error = Infallible> + Clone,
    {
        for _ in 0..times {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            tokio_test::block_on(service.clone().oneshot(request)).map(drop).expect("infallible");
        }
    }

    /// The text of the warning about `routes`.
    fn unmet(routes: &str) -> String {
        format!(
            "none of the first 1000 requests met {routes}: write each path exactly as in the router, \
             with the path it is nested under and the names of its parameters, and add the layer \
             to the Router that has the route, not around it; ignore this warning if the routes \
             are rarely used lint=\"route_never_met\""
        )
    }

    pub(super) fn route_never_met(log: &Log) {
        // The first three are mistakes. The last one is met by the path of a gRPC call, not by a route.
        let templates = ["/url/{id}", "/users/{user}", "/Users/{id}", "/met", "/rpc.Cart/Buy"];
        let inner = router(&["/url/{id}", "/users/{id}", "/met"]);
        let rpc = router(&["/met", "/rpc.Cart/{*rest}"]);
        let app = Router::new().nest("/api", inner).merge(rpc).layer(layer(&templates));
        request(&app, "/met", 1);
        request(&app, "/rpc.Cart/Buy", 1);
        assert_eq!(log.read(), NOTHING, "no sign of a mistake so far");
        request(&app, "/api/url/7", 1);
        assert_eq!(
            warning(log),
            "a request of the route /api/url/{id} is charged to the rule `other`, and not to \
             \"GET /url/{id}\": write each path as in the outermost router, with the path it is nested \
             under: \"/api/url/{id}\" (logged once); ignore this warning if the two are different \
             routes lint=\"route_never_met\""
        );
        // With three requests before and one after, these are the first thousand.
        request(&app, "/api/url/7", 499);
        request(&app, "/api/users/7", 497);
        assert_eq!(log.read(), NOTHING, "too few requests so far");
        request(&app, "/nope", 1);
        let routes = "\"GET /url/{id}\", \"GET /users/{user}\", \"GET /Users/{id}\"";
        assert_eq!(warning(log), unmet(routes));
        request(&app, "/api/url/7", 1_100);
        assert_eq!(log.read(), NOTHING, "once");

        // A layer around the router, where no path is matched.
        let around = layer(&["/url/{id}"]).layer(router(&["/url/{id}"]));
        request(&around, "/url/7", 19);
        assert_eq!(log.read(), NOTHING, "too few requests so far");
        request(&around, "/url/7", 1);
        let text = warning(log);
        assert!(text.contains("add the layer to the axum Router that has the routes"), "{text}");
        request(&around, "/url/7", 980);
        assert_eq!(warning(log), unmet("\"GET /url/{id}\""));

        // A server whose first requests have unknown paths.
        let app = router(&["/url/{id}"]).layer(layer(&["/url/{id}"]));
        request(&app, "/unknown", 50);
        request(&app, "/url/7", 1);
        // A server of gRPC, which never matches a path.
        let grpc = layer(&["/rpc.Cart/Buy"]).layer(router(&[]));
        request(&grpc, "/rpc.Cart/Sell", 50);
        assert_eq!(log.read(), NOTHING);

        // All routes were met, by one of the first requests.
        let app = router(&["/url/{id}", "/"]).layer(layer(&["/url/{id}"]));
        request(&app, "/", 999);
        request(&app, "/url/7", 1);
        request(&app, "/", 2_000);
        assert_eq!(log.read(), NOTHING);
    }

    /// The routes of a file whose router knows another path.
    pub(super) fn route_of_a_file_never_met(log: &Log) {
        let file = "'POST /ulr' = '5/s'\n'/login' = '5/min'\nother = '50/s'";
        let settings: tower_sluice::rule::RouteSettings = toml::from_str(file).expect("routes");
        let layer = RateLimitLayer::rules(settings.rules(), LocalStore::with_capacity(64));
        let app = router(&["/url", "/login"]).layer(layer);
        request(&app, "/login", 500);
        request(&app, "/url", 500);
        assert_eq!(warning(log), unmet("\"POST /ulr\""));
    }
}
