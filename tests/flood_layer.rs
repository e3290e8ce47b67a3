//! A flood as the layer meets it: many keys, many addresses of one customer, long headers, and
//! keys that were chosen to meet in one place.

mod support;

use std::{
    convert::Infallible,
    env,
    net::{Ipv6Addr, SocketAddr},
    pin::pin,
    process::Command,
    task::{Context, Waker},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use support::{Strict, get, with};
use tower::{Layer, Service};
use tower_sluice::{
    Limiter, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::Header, testing::FakeClock,
};

const HOURLY: Quota = Quota::per_hour(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// What a service says that is ready at once and answers at once.
fn ask<S>(service: &mut S, request: Request<()>) -> StatusCode
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible>,
{
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    match pin!(service.call(request)).poll(&mut context) {
        std::task::Poll::Ready(Ok(response)) => response.status(),
        std::task::Poll::Pending => panic!("an embedded store answers at once"),
    }
}

fn by_header(store: LocalStore, quota: Quota) -> RateLimitLayer<Rule<Header>, LocalStore> {
    RateLimitLayer::new(Header::new("x-api-key"), quota, store)
}

fn named(key: &str) -> Request<()> {
    with(&[("x-api-key", key)])
}

/// A key as clients make them: 32 digits that say nothing about the next one's.
fn random(n: u64) -> String {
    let mut mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    format!("{mixed:016x}{n:016x}")
}

/// So much that nobody is refused: what matters is who has a slot.
const AMPLE: Quota = Quota::per_hour(1_000_000);

fn charge(store: &LocalStore, key: u32) {
    assert!(Limiter::new(store.clone()).take(key, &AMPLE, 1).now().is_allowed());
}

/// The table holds nothing of a key but its hash: five hundred thousand headers leave nothing.
#[test]
fn a_flood_of_headers_keeps_no_memory_and_frees_nobody() {
    const FLOOD: u64 = 500_000;
    let store = FakeClock::new().store(8_192);
    let mut service = by_header(store.clone(), HOURLY).layer(Strict::default());
    assert!((0..500).all(|n| ask(&mut service, named(&random(n))) == StatusCode::OK));
    let mut admitted = 500;
    let allocated = allocation_counter::measure(|| {
        for n in 500..FLOOD {
            admitted += usize::from(ask(&mut service, named(&random(n))) == StatusCode::OK);
        }
    });
    let stats = store.stats();
    assert!(allocated.bytes_current < 512 * 1_024, "{allocated:?}");
    assert!(stats.overflowed > FLOOD / 2, "{stats:?}");
    // one each for those with a slot, and for those who share
    let most = stats.in_debt + stats.slots / 16;
    assert!((stats.in_debt..=most).contains(&admitted), "{admitted}, {stats:?}");
    for n in 0..500 {
        assert_eq!(ask(&mut service, named(&random(n))), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[test]
fn all_addresses_of_one_slash_64_are_one_account() {
    let (store, quota) = (FakeClock::new().store(1_024), Quota::per_hour(10));
    let layer = RateLimitLayer::new(PeerIp::new(), quota, store.clone());
    let mut service = layer.layer(Strict::default());
    let mut from = |network: u128, host: u64| {
        let host = host.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let address = Ipv6Addr::from_bits(network | u128::from(host));
        let mut request = get("/");
        request.extensions_mut().insert(SocketAddr::from((address, 443)));
        ask(&mut service, request)
    };
    let (one, other) = (0x2001_0db8_0000_0001 << 64, 0x2001_0db8_0000_0002 << 64);
    let passed = (0..50_000).filter(|host| from(one, *host) == StatusCode::OK).count();
    assert_eq!((passed, store.stats().in_debt), (10, 1));
    assert_eq!(from(other, 1), StatusCode::OK, "its neighbour has its own");
}

/// Refused before any store hashes it; where a rule takes keys so long, an account is a slot still.
#[test]
fn a_long_header_costs_no_more_memory_than_a_short_one() {
    const LONG: usize = 100 * 1_024;
    let store = FakeClock::new().store(1_024);
    let rule = || Rule::new("key", Header::new("x-api-key"), HOURLY);
    let usual = RateLimitLayer::rules(rule(), store.clone());
    let patient = rule().max_key_len(LONG);
    let patient = RateLimitLayer::rules(patient, store.clone());
    let (mut usual, mut patient) =
        (usual.layer(Strict::default()), patient.layer(Strict::default()));
    // what is made once is made
    assert_eq!(ask(&mut usual, named("short")), StatusCode::OK);
    assert_eq!(ask(&mut usual, named(&"k".repeat(LONG))), StatusCode::BAD_REQUEST);
    let mut in_debt = store.stats().in_debt;
    for (key, status, accounts) in
        [("k", StatusCode::BAD_REQUEST, 0), ("k", StatusCode::BAD_REQUEST, 0)]
    {
        let request = named(&key.repeat(LONG));
        let allocated = allocation_counter::measure(|| {
            assert_eq!(ask(&mut usual, request), status);
        });
        assert!(allocated.bytes_current <= 0, "{allocated:?}");
        in_debt += accounts;
        assert_eq!(store.stats().in_debt, in_debt, "no account is opened");
    }
    let request = named(&"k".repeat(LONG));
    let allocated = allocation_counter::measure(|| {
        assert_eq!(ask(&mut patient, request), StatusCode::OK);
    });
    assert!(allocated.bytes_current <= 0, "{allocated:?}");
    assert_eq!(store.stats().in_debt, in_debt + 1);
    assert_eq!(ask(&mut patient, named(&"k".repeat(LONG))), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&mut patient, named(&"k".repeat(LONG - 1))), StatusCode::OK, "all of it counts");
}

/// Keys that live in one set of a store, found by what the store does: of a full one, only the set
/// with a free slot takes newcomers.
fn crafted(clock: &FakeClock, store: &LocalStore, wanted: usize) -> Vec<u32> {
    let full = |store: &LocalStore| store.stats().in_debt == store.stats().slots;
    let free = |key| drop(Limiter::new(store.clone()).reset(key, &AMPLE).now());
    (0..10_000).for_each(|key| charge(store, key));
    assert!(full(store));
    let has_slot = |key: &u32| {
        free(*key);
        !full(store)
    };
    let mut found = vec![(0..10_000).find(has_slot).expect("one of them")];
    let newcomers = (10_000..100_000).filter(|key| {
        // a slot is free from the instant after
        clock.advance(NANOSECOND);
        charge(store, *key);
        full(store) && has_slot(key)
    });
    found.extend(newcomers.take(wanted - 1));
    found
}

/// How many of these keys find no slot.
fn crowded_out(store: &LocalStore, keys: &[u32]) -> u64 {
    let before = store.stats().overflowed;
    keys.iter().for_each(|key| charge(store, *key));
    store.stats().overflowed - before
}

#[test]
fn keys_crafted_to_meet_in_one_store_do_not_meet_in_another() {
    let clock = FakeClock::new();
    let (one, other) = (clock.store(512), clock.store(512));
    let keys = crafted(&clock, &one, 48);
    assert_eq!(keys.len(), 48);
    clock.advance(AMPLE.period());
    assert_eq!(crowded_out(&one, &keys), 48 - 16, "a set has sixteen slots");
    assert_eq!(crowded_out(&other, &keys), 0);
}

/// Each process is this test again, which then only says which keys found no slot.
#[test]
#[expect(clippy::print_stdout, reason = "the child's answer")]
fn no_two_processes_place_keys_alike() {
    const CHILD: &str = "TOWER_SLUICE_TEST_CHILD";
    const SAYS: &str = "without a slot:";
    if env::var_os(CHILD).is_some() {
        let store = FakeClock::new().store(256);
        let without = (0..2_000_u32).filter(|key| crowded_out(&store, &[*key]) > 0);
        println!("{SAYS} {:?}", without.collect::<Vec<_>>());
        return;
    }
    let placement = || {
        let mut child = Command::new(env::current_exe().expect("this test"));
        child.args(["--exact", "no_two_processes_place_keys_alike", "--nocapture"]);
        let output = child.env(CHILD, "1").output().expect("it runs");
        let said = String::from_utf8(output.stdout).expect("text");
        said.lines().find_map(|line| Some(line.split_once(SAYS)?.1.to_owned())).expect("a list")
    };
    let (one, other) = (placement(), placement());
    assert!(one.len() > 1_000, "{one}");
    assert_ne!(one, other);
}
