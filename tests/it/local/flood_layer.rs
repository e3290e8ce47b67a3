//! Floods through the layer: many keys, long headers, and keys that collide.

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
use tower::{Layer, Service};
use tower_sluice::{
    Limiter, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::HeaderKey, testing::FakeClock,
};

use crate::support::{Strict, get, with};

const HOURLY: Quota = Quota::per_hour(1);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// Returns the status from a service that is ready at once and responds at once.
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

fn by_header(store: LocalStore, quota: Quota) -> RateLimitLayer<Rule<HeaderKey>, LocalStore> {
    RateLimitLayer::new(HeaderKey::new("x-api-key"), quota, store)
}

fn named(key: &str) -> Request<()> {
    with(&[("x-api-key", key)])
}

/// Returns a key like those of clients: 32 digits that do not reveal the next key.
fn random(n: u64) -> String {
    let mut mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    format!("{mixed:016x}{n:016x}")
}

/// A limit so high that no request is denied: only the slots matter.
const AMPLE: Quota = Quota::per_hour(1_000_000);

fn charge(store: &LocalStore, key: u32) {
    assert!(Limiter::named("default", store.clone()).take(key, &AMPLE, 1).now().is_allowed());
}

/// The table stores only the hash of a key: five hundred thousand headers leave no memory
/// allocated.
#[test]
fn a_flood_of_headers_keeps_no_memory_and_frees_no_exhausted_key() {
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
    // one per key with a slot, and one per key that shares
    let most = stats.active + stats.slots / 16;
    assert!((stats.active..=most).contains(&admitted), "{admitted}, {stats:?}");
    for n in 0..500 {
        assert_eq!(ask(&mut service, named(&random(n))), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[test]
fn all_addresses_of_one_64_share_one_account() {
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
    assert_eq!((passed, store.stats().active), (10, 1));
    assert_eq!(from(other, 1), StatusCode::OK, "its neighbour has its own");
}

/// By default a long key is rejected before any store hashes it. Under a rule that accepts long
/// keys an account is still one slot.
#[test]
fn a_long_header_costs_no_more_memory_than_a_short_one() {
    const LONG: usize = 100 * 1_024;
    let store = FakeClock::new().store(1_024);
    let rule = || Rule::new("key", HeaderKey::new("x-api-key"), HOURLY);
    let usual = RateLimitLayer::rules(rule(), store.clone());
    let patient = rule().max_key_len(LONG);
    let patient = RateLimitLayer::rules(patient, store.clone());
    let (mut usual, mut patient) =
        (usual.layer(Strict::default()), patient.layer(Strict::default()));
    // one-time allocations are done before the measurement
    assert_eq!(ask(&mut usual, named("short")), StatusCode::OK);
    assert_eq!(ask(&mut usual, named(&"k".repeat(LONG))), StatusCode::BAD_REQUEST);
    let mut active = store.stats().active;
    for (key, status, accounts) in
        [("k", StatusCode::BAD_REQUEST, 0), ("k", StatusCode::BAD_REQUEST, 0)]
    {
        let request = named(&key.repeat(LONG));
        let allocated = allocation_counter::measure(|| {
            assert_eq!(ask(&mut usual, request), status);
        });
        assert!(allocated.bytes_current <= 0, "{allocated:?}");
        active += accounts;
        assert_eq!(store.stats().active, active, "no account is opened");
    }
    let request = named(&"k".repeat(LONG));
    let allocated = allocation_counter::measure(|| {
        assert_eq!(ask(&mut patient, request), StatusCode::OK);
    });
    assert!(allocated.bytes_current <= 0, "{allocated:?}");
    assert_eq!(store.stats().active, active + 1);
    assert_eq!(ask(&mut patient, named(&"k".repeat(LONG))), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask(&mut patient, named(&"k".repeat(LONG - 1))), StatusCode::OK, "all of it counts");
}

/// Finds keys of one set by observing the store: if one slot is free in a full store, only its set
/// accepts new keys.
fn crafted(clock: &FakeClock, store: &LocalStore, wanted: usize) -> Vec<u32> {
    let full = |store: &LocalStore| store.stats().active == store.stats().slots;
    let free = |key| drop(Limiter::named("default", store.clone()).reset(key, &AMPLE).now());
    (0..10_000).for_each(|key| charge(store, key));
    assert!(full(store));
    let has_slot = |key: &u32| {
        free(*key);
        !full(store)
    };
    let mut found = vec![(0..10_000).find(has_slot).expect("one of them")];
    let new_keys = (10_000..100_000).filter(|key| {
        // a slot is free from the next instant on
        clock.advance(NANOSECOND);
        charge(store, *key);
        full(store) && has_slot(key)
    });
    found.extend(new_keys.take(wanted - 1));
    found
}

/// Counts the keys that find no slot.
fn without_slot(store: &LocalStore, keys: &[u32]) -> u64 {
    let before = store.stats().overflowed;
    keys.iter().for_each(|key| charge(store, *key));
    store.stats().overflowed - before
}

#[test]
fn keys_crafted_to_collide_in_one_store_do_not_collide_in_another() {
    let clock = FakeClock::new();
    let (one, other) = (clock.store(512), clock.store(512));
    let keys = crafted(&clock, &one, 48);
    assert_eq!(keys.len(), 48);
    clock.advance(AMPLE.period());
    assert_eq!(without_slot(&one, &keys), 48 - 16, "a set has sixteen slots");
    assert_eq!(without_slot(&other, &keys), 0);
}

/// Each child process runs this test and prints only the keys that found no slot.
#[test]
#[expect(clippy::print_stdout, reason = "the child's answer")]
fn two_processes_place_keys_differently() {
    const CHILD: &str = "TOWER_SLUICE_TEST_CHILD";
    const SAYS: &str = "without a slot:";
    if env::var_os(CHILD).is_some() {
        let store = FakeClock::new().store(256);
        let without = (0..2_000_u32).filter(|key| without_slot(&store, &[*key]) > 0);
        println!("{SAYS} {:?}", without.collect::<Vec<_>>());
        return;
    }
    let placement = || {
        let mut child = Command::new(env::current_exe().expect("this test"));
        child.args([
            "--exact",
            "local::flood_layer::two_processes_place_keys_differently",
            "--nocapture",
        ]);
        let output = child.env(CHILD, "1").output().expect("it runs");
        let said = String::from_utf8(output.stdout).expect("text");
        said.lines().find_map(|line| Some(line.split_once(SAYS)?.1.to_owned())).expect("a list")
    };
    let (one, other) = (placement(), placement());
    assert!(one.len() > 1_000, "{one}");
    assert_ne!(one, other);
}
