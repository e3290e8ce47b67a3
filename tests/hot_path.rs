//! Allocations of a decision and of the layer.
//!
//! A decision allocates nothing, except for its second slot, for more than four outcomes, and for what a store
//! creates once for itself, for a set of entries or for a denied key. The layer
//! allocates only for header fields, for slots and for the axum body of a rejection, and adds a few words
//! to the future of the service.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, Service};
use tower_sluice::{
    Headers, Key, LivePlan, LocalStore, PeerIp, Plan, Quota, RateLimit, RateLimitLayer, Rule,
    StoreExt, TooManyRequests,
    decision::Source,
    key::Everyone,
    rule::{RuleName, Rules},
    store::{Answer, Charge},
};

type Inner<B> = Ready<Result<Response<B>, Infallible>>;

/// Returns the allocations of `work` and its result.
fn allocated<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let mut given = None;
    let info = allocation_counter::measure(|| given = Some(work()));
    (info.count_total, given.expect("work was done"))
}

fn name(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

/// An inner service that immediately answers with a text.
#[derive(Clone)]
struct Hello;

impl<B: From<&'static str>> Service<Request<B>> for Hello {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Inner<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Inner<B> {
        ready(Ok(Response::new("hello".into())))
    }
}

/// Serves a request of this address. Returns the allocations and the response.
fn serve<S, B>(service: &mut S, address: u32) -> (u64, Response<B>)
where
    S: Service<Request<B>, Response = Response<B>, Error = Infallible>,
    B: Default + From<&'static str>,
{
    serve_request(service, Request::new(B::default()), address)
}

fn serve_request<S, B>(service: &mut S, mut request: Request<B>, address: u32) -> (u64, Response<B>)
where
    S: Service<Request<B>, Response = Response<B>, Error = Infallible>,
{
    let peer = IpAddr::from(Ipv4Addr::from_bits(address));
    request.extensions_mut().insert(SocketAddr::new(peer, 4000));
    allocated(|| {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(service.poll_ready(&mut cx).is_ready());
        match pin!(service.call(request)).poll(&mut cx) {
            Poll::Ready(Ok(response)) => response,
            Poll::Pending => panic!("everything is ready"),
        }
    })
}

/// Permits `most` allocations for the fields, and `body` for the body of a rejection. `plan` must allow
/// three requests of an address: two of address 1 pass without fields and one with fields, and the next is
/// denied.
fn layer_adds_only_header_fields<B>(plan: impl Into<Plan>, most: u64, body: u64)
where
    B: Default + From<&'static str> + 'static,
{
    let layer = RateLimitLayer::new(PeerIp::new(), plan, LocalStore::new());
    count_added_allocations::<B>(&layer, || {}, most, body);
}

/// Warms up, calls `change`, warms up again, and then counts the allocations.
fn count_added_allocations<B>(
    layer: &RateLimitLayer<Rule<PeerIp>, LocalStore>,
    change: impl FnOnce(),
    most: u64,
    body: u64,
) where
    B: Default + From<&'static str> + 'static,
{
    let mut quiet = layer.clone().headers(Headers::None).layer(Hello);
    let mut served = layer.layer(Hello);
    // What is created once, such as the text of a short rejection, is created here. So are the cached fields:
    // as two addresses alternate, the same numbers occur twice in succession, which fills the cache.
    for address in [0, 2].repeat(5) {
        drop(serve::<_, B>(&mut served, address));
    }
    change();
    for address in [4, 6].repeat(5) {
        drop(serve::<_, B>(&mut served, address));
    }
    // With the feature `metrics`, the counters of the quiet layer register here.
    drop(serve::<_, B>(&mut quiet, 4));

    let (bare, _) = serve::<_, B>(&mut Hello, 1);
    let (first_contact, _) = serve::<_, B>(&mut quiet, 1);
    let (again, response) = serve::<_, B>(&mut quiet, 1);
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!((first_contact, again), (bare, bare));

    let (with_headers, response) = serve::<_, B>(&mut served, 1);
    assert!(response.headers().contains_key("ratelimit"));
    assert!(with_headers <= bare + most, "{with_headers} with headers, {bare} bare");

    let (denied, response) = serve::<_, B>(&mut served, 1);
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(response.headers().contains_key("ratelimit"));
    assert!(denied <= bare + most + body, "{denied} denied, {bare} bare");
}

#[test]
fn layer_adds_only_header_fields_to_a_plain_body() {
    layer_adds_only_header_fields::<Full<Bytes>>(Quota::per_minute(3), 2, 0);
    layer_adds_only_header_fields::<Full<Bytes>>(Quota::per_hour(3), 2, 0);
}

/// Requests of new addresses and of one address pass a layer without fields. With the feature `metrics`,
/// counters register on their first increment, by the first requests.
fn allocates_nothing<K: Rules>(what: &str, layer: RateLimitLayer<K, LocalStore>) {
    let mut quiet = layer.headers(Headers::None).layer(Hello);
    let (bare, _) = serve::<_, Full<Bytes>>(&mut Hello, 1);
    for address in (0..20).chain([0; 4]) {
        drop(serve::<_, Full<Bytes>>(&mut quiet, address));
    }
    for address in (20..40).chain([40; 5]) {
        let (served, response) = serve::<_, Full<Bytes>>(&mut quiet, address);
        assert_eq!((served, response.status()), (bare, StatusCode::OK), "{what}");
    }
}

/// Fingerprints are computed if a span or a line records them. Nothing listens here.
#[test]
fn a_layer_without_fields_allocates_nothing() {
    let five = [Quota::per_second(5), Quota::per_hour(5)];
    let network = Rule::new("net", PeerIp::new().ipv4_prefix(24), Quota::per_hour(90));
    let two = (Rule::new("ip", PeerIp::new(), five), network);
    allocates_nothing("two rules", RateLimitLayer::rules(two, LocalStore::new()));
    let fair = Rule::new("site", Everyone, Quota::per_minute(900)).fair_by(PeerIp::new());
    allocates_nothing("a fair share", RateLimitLayer::rules(fair, LocalStore::new()));
    let secret = RateLimitLayer::new(PeerIp::new(), five, LocalStore::new());
    allocates_nothing("fingerprints", secret.fingerprint(*b"sixteen bytes .."));
}

/// The fields of a live plan are prepared again when the plan is replaced.
#[test]
fn a_live_plan_allocates_no_more_than_a_fixed_one() {
    let live = LivePlan::new(Quota::per_minute(60));
    let layer = RateLimitLayer::new(PeerIp::new(), &live, LocalStore::new());
    let replace = || live.replace(Quota::per_minute(3));
    count_added_allocations::<Full<Bytes>>(&layer, replace, 2, 0);
}

#[test]
fn layer_adds_only_header_fields_to_an_axum_body() {
    layer_adds_only_header_fields::<axum::body::Body>(Quota::per_minute(3), 2, 1);
    layer_adds_only_header_fields::<axum::body::Body>(Quota::per_hour(3), 2, 1);
}

/// A request is charged by one of thirty route rules, or by the rule for all other routes.
#[test]
fn routes_allocate_no_more_than_one_rule() {
    let routes = (0..30).map(|n| (http::Method::POST, format!("/shop.Cart/M{n}"), TEN_A_MINUTE));
    let rules = tower_sluice::by_route(routes, TEN_A_MINUTE).each(PeerIp::new());
    let layer = RateLimitLayer::rules(rules, LocalStore::new());
    let mut quiet = layer.clone().headers(Headers::None).layer(Hello);
    let mut served = layer.layer(Hello);
    let (bare, _) = serve::<_, Full<Bytes>>(&mut Hello, 1);
    let post = |path| {
        let request = Request::post(path).body(Full::<Bytes>::default());
        request.expect("a request")
    };
    let charged =
        [("/shop.Cart/M7", "\"POST /shop.Cart/M7\";q=10;w=60"), ("/", "\"other\";q=10;w=60")];
    for (path, policy) in charged {
        // Warms up the fields and, with the feature `metrics`, the counters.
        for address in [0, 0, 2, 2] {
            drop(serve_request(&mut served, post(path), address));
        }
        drop(serve_request(&mut quiet, post(path), 0));
        let (without, _) = serve_request(&mut quiet, post(path), 1);
        let (with_headers, response) = serve_request(&mut served, post(path), 1);
        assert_eq!(response.headers()["ratelimit-policy"], policy);
        assert_eq!(without, bare, "{path}");
        assert!(with_headers <= bare + 2, "{path}: {with_headers} with headers, {bare} bare");
    }
}

const TEN_A_MINUTE: Quota = Quota::per_minute(10);

#[test]
fn a_store_decides_without_allocating() {
    let (store, quotas) = (LocalStore::new(), [Quota::per_hour(2), Quota::per_day(2)]);
    let (alice, bob) = (Key::from("alice"), Key::from("bob"));
    let one = [Charge::new(name("one"), &alice, &quotas[..1])];
    // The first reset allocates the table that voids receipts.
    drop(store.reset(&one[0]).now());
    let two_rules =
        [Charge::new(name("two"), &alice, &quotas), Charge::new(name("one"), &bob, &quotas[..1])];
    for charges in [&one[..], &two_rules[..]] {
        // The denial of a new key, its two charges, a denial, a denial of a higher cost, a look.
        for (cost, allowed) in [(3, false), (1, true), (1, true), (1, false), (9, false), (0, true)]
        {
            let charges: Vec<_> = charges.iter().map(|charge| charge.with_cost(cost)).collect();
            let (count, decision) = allocated(|| store.take(&charges).now());
            assert_eq!((count, decision.is_allowed()), (0, allowed), "cost {cost}");
        }
        let (count, _) = allocated(|| store.adjust(&charges[0], -1).now());
        assert_eq!(count, 0);
        let (count, _) = allocated(|| store.reset(&charges[0]).now());
        assert_eq!(count, 0);
    }
}

/// The first charge allocates the states of its set, as for any window.
#[cfg(feature = "calendar")]
#[test]
fn a_calendar_period_is_found_without_allocating() {
    let (store, alice) = (LocalStore::new(), Key::from("alice"));
    let start = "2023-01-31T09:00[Europe/Berlin]".parse().expect("an anchor");
    let anchored = [Quota::per_month(3).anchored_at(&start)];
    let quotas = [Quota::per_year(9), anchored[0], Quota::per_day(5).anchored_at(&start)];
    for quotas in [&anchored[..], &quotas] {
        let charge =
            [Charge::new(name(if quotas.len() > 1 { "all" } else { "one" }), &alice, quotas)];
        assert!(store.take(&charge).now().is_allowed());
        for allowed in [true, true, false] {
            let (count, decision) = allocated(|| store.take(&charge).now());
            assert_eq!((count, decision.is_allowed()), (0, allowed));
        }
    }
}

#[test]
fn a_slot_is_held_without_allocating() {
    let (store, alice) = (LocalStore::new(), Key::from("alice"));
    let quotas = [Quota::concurrent(2), Quota::per_hour(100)];
    let site = [Quota::concurrent(50)];
    let both =
        [Charge::new(name("job"), &alice, &quotas), Charge::new(name("site"), &alice, &site)];
    // The first slot allocates the table.
    drop(store.take(&both).now());
    for charges in [&both[1..], &both[..1]] {
        for _ in 0..3 {
            let (count, held) = allocated(|| {
                let held = [store.take(charges).now(), store.take(charges).now()];
                let two_more = store.take(&[charges[0].with_cost(2)]).now();
                (held[0].is_allowed(), held[1].is_allowed(), two_more.is_allowed())
            });
            // `job` has two slots, which are both held. `site` has 50.
            let has_room = charges[0].rule == name("site");
            assert_eq!((count, held), (0, (true, true, has_room)));
        }
    }
}

#[test]
fn a_second_slot_and_the_first_clone_allocate_once() {
    let (store, alice) = (LocalStore::new(), Key::from("alice"));
    let (job, site) = ([Quota::concurrent(2)], [Quota::concurrent(50)]);
    let both = [Charge::new(name("job"), &alice, &job), Charge::new(name("site"), &alice, &site)];
    // The first slot allocates the table.
    drop(store.take(&both).now());
    let (count, held) = allocated(|| store.take(&both).now());
    assert_eq!((count, held.is_allowed()), (1, true), "the second slot of a decision");
    drop(held);
    let mut held = store.take(&both[..1]).now();
    let (count, slot) = allocated(|| held.take_slot().expect("a slot"));
    assert_eq!(count, 0);
    let (count, _clones) = allocated(|| [slot.clone(), slot.clone()]);
    assert_eq!(count, 1, "clones share the slot");
}

/// The context of the response and the body are one allocation each.
#[test]
fn a_layer_with_slots_allocates_a_context_and_the_body() {
    let quotas = [Quota::concurrent(2), Quota::per_hour(100)];
    let layer = RateLimitLayer::new(PeerIp::new(), quotas, LocalStore::new());
    let mut service = layer.headers(Headers::None).layer(Hello);
    let (bare, _) = serve::<_, axum::body::Body>(&mut Hello, 1);
    // The first request allocates the table and, with the feature `metrics`, registers counters.
    drop(serve::<_, axum::body::Body>(&mut service, 1));
    let (count, response) = serve::<_, axum::body::Body>(&mut service, 1);
    // Metrics add a hold: its callback is allocated, and the first hold moves to the heap.
    let metrics = if cfg!(feature = "metrics") { 2 } else { 0 };
    assert_eq!((count, response.status()), (bare + 2 + metrics, StatusCode::OK));
}

#[test]
fn a_deny_cache_answers_without_allocating() {
    let store = LocalStore::new().deny_cache();
    let (quotas, day) = ([Quota::per_hour(2), Quota::per_day(2)], [Quota::per_day(9)]);
    let (alice, bob) = (Key::from("alice"), Key::from("bob"));
    let one = Charge::new(name("one"), &alice, &quotas[..1]);
    let two_rules =
        [Charge::new(name("two"), &alice, &quotas), Charge::new(name("one"), &bob, &day)];
    let take = |charges: &[Charge<'_>]| {
        let (allocations, answer) = allocated(|| store.take(charges));
        let Answer::Now(Ok(decision)) = answer else { panic!("expected an immediate answer") };
        (allocations, decision.is_allowed(), decision.source())
    };
    let charged = (0, true, Source::Local);
    let denied = (0, false, Source::DenyCache);
    for charges in [&[one][..], &two_rules] {
        assert_eq!(take(charges), charged);
        assert_eq!(take(charges), charged);
        // The first denial is the store's, and recording it may allocate.
        let (_, is_allowed, source) = take(charges);
        assert_eq!((is_allowed, source), (false, Source::Local));
        // From now on, the cache answers.
        assert_eq!(take(charges), denied);
        let costly: Vec<_> = charges.iter().map(|charge| charge.with_cost(2)).collect();
        assert_eq!(take(&costly), denied);
    }
}

#[test]
fn leased_units_are_taken_without_allocating() {
    let store = LocalStore::new().leases(5);
    let quotas = [Quota::per_hour(1_000), Quota::per_day(2_000)];
    let (alice, bob) = (Key::from("alice"), Key::from("bob"));
    let one = Charge::new(name("one"), &alice, &quotas[..1]);
    let two_rules =
        [Charge::new(name("two"), &alice, &quotas), Charge::new(name("one"), &bob, &quotas)];
    for charges in [&[one][..], &two_rules] {
        let take = || {
            let (count, answer) = allocated(|| store.take(charges));
            let Answer::Now(Ok(decision)) = answer else { panic!("expected an immediate answer") };
            assert!(decision.is_allowed());
            (count, decision.source())
        };
        let all: Vec<_> = (0..40).map(|_| take()).collect();
        let here = all.iter().filter(|(_, source)| *source == Source::Leased);
        // The first calls and each borrow ask the store.
        assert!(here.clone().count() > 30, "{all:?}");
        assert!(here.clone().all(|(count, _)| *count == 0), "{all:?}");
    }
}

#[test]
fn addresses_and_short_texts_are_keys_without_allocating() {
    let hasher = RandomState::new();
    let uuid = "67e55044-10b1-426f-9247-bb680e5fe0c8";
    let (v4, v6) = (IpAddr::from([203, 0, 113, 9]), IpAddr::from([0xfe80, 0, 0, 0, 1, 2, 3, 4]));
    let keys: [&dyn Fn() -> Key; 3] = [&|| v4.into(), &|| v6.into(), &|| uuid.into()];
    for make in keys {
        let (count, same) = allocated(|| {
            let key = make();
            let copy = key.clone();
            key == copy && hasher.hash_one(&key) == hasher.hash_one(&copy)
        });
        assert_eq!((count, same), (0, true));
    }
}

/// The additional words hold the response context: the header numbers and an exposed decision.
#[test]
fn the_future_is_a_few_words_larger_than_the_inner_one() {
    type Limited<B> = <RateLimit<Hello, Rule<PeerIp>, LocalStore, TooManyRequests> as Service<
        Request<B>,
    >>::Future;
    let words = |bytes: usize| bytes.div_ceil(size_of::<usize>());
    let (inner, limited) = (size_of::<Inner<Full<Bytes>>>(), size_of::<Limited<Full<Bytes>>>());
    assert!(words(limited) <= words(inner) + 8, "{inner} bytes became {limited}");
}
