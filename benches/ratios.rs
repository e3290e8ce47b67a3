//! Ratios between subjects that alternate in short rounds. On a noisy machine, only numbers of one
//! moment are comparable.
//!
//! `cargo bench -p dev --bench ratios [-- ROUNDS]` prints, per group, the median time of a call and
//! the median of each round's ratio to the group's first subject.
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::{
    convert::Infallible,
    future::ready,
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    pin::pin,
    task::{Context, Waker},
    time::Instant,
};

use governor::RateLimiter;
use tower::{Layer, Service, limit::GlobalConcurrencyLimitLayer, service_fn};
use tower_sluice::{Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};

/// Consecutive calls before the next subject's turn.
const BATCH: usize = 1_000;
const HOT: u32 = 1;
const MANY: u32 = 100_000;
const MILLION: u32 = 1_000_000;
/// A quota that is never exhausted: one unit comes back per nanosecond.
const AMPLE: u32 = 1_000_000_000;

/// Nanoseconds per call of one batch.
type Subject<'a> = (&'static str, Box<dyn FnMut() -> f64 + 'a>);

fn main() {
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(500);
    store(rounds, "store, one hot key, allowed", HOT, AMPLE);
    store(rounds, "store, one hot key, denied", HOT, 1);
    store(rounds, "store, 100 000 keys, allowed", MANY, AMPLE);
    store(rounds, "store, 100 000 keys, denied", MANY, 1);
    store(rounds, "store, 1 000 000 keys, allowed", MILLION, AMPLE);
    store(rounds, "store, 1 000 000 keys, denied", MILLION, 1);
    slots(rounds);
}

/// Returns a quota of `units` per second, or of one per hour if `units` is 1.
fn quotas(units: u32) -> (Quota, governor::Quota) {
    let count = NonZeroU32::new(units).expect("above 0");
    if units == 1 {
        (Quota::per_hour(1), governor::Quota::per_hour(count))
    } else {
        (Quota::per_second(units), governor::Quota::per_second(count))
    }
}

fn store(rounds: usize, title: &str, keys: u32, units: u32) {
    let (quota, theirs) = quotas(units);
    let by_address = RateLimiter::keyed(theirs);
    let by_key = RateLimiter::<Key, _, _>::keyed(theirs);
    let capacity = keys.max(MANY) as usize;
    let (store, rule) = (LocalStore::with_capacity(capacity), RuleName::default());
    // The cost of creating the key is part of the decision.
    let ours = |address: IpAddr| {
        let key = Key::from(address);
        store.take(&[Charge::new(rule, &key, quota.as_ref())]).now().is_allowed()
    };
    compare(
        rounds,
        title,
        vec![
            ("governor, IpAddr", timed(keys, |address| by_address.check_key(&address).is_ok())),
            ("governor, Key", timed(keys, |address| by_key.check_key(&address.into()).is_ok())),
            ("LocalStore", timed(keys, ours)),
        ],
    );
}

fn timed<'a>(
    keys: u32,
    mut decide: impl FnMut(IpAddr) -> bool + 'a,
) -> Box<dyn FnMut() -> f64 + 'a> {
    for key in 0..keys {
        decide(address(key));
    }
    let mut keys = random(keys);
    Box::new(move || {
        let batch: Vec<IpAddr> = (0..BATCH).map(|_| address(keys())).collect();
        let start = Instant::now();
        for address in batch {
            black_box(decide(black_box(address)));
        }
        start.elapsed().as_nanos() as f64 / BATCH as f64
    })
}

/// Takes and frees a slot of one hot key, beside tower's limit of all requests.
fn slots(rounds: usize) {
    let (store, rule) = (LocalStore::new(), RuleName::default());
    let take = |quotas: &[Quota], address: IpAddr| {
        let key = Key::from(address);
        store.take(&[Charge::new(rule, &key, quotas)]).now().is_allowed()
    };
    let (slots, rate) = (Quota::concurrent(100), quotas(AMPLE).0);
    let nothing = |()| ready(Ok::<_, Infallible>(()));
    let mut tower = GlobalConcurrencyLimitLayer::new(100).layer(service_fn(nothing));
    let theirs = move |_| {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(tower.poll_ready(&mut cx).is_ready());
        pin!(tower.call(())).poll(&mut cx).is_ready()
    };
    compare(
        rounds,
        "slot of one hot key, taken and freed",
        vec![
            ("tower, GlobalConcurrencyLimit", timed(HOT, theirs)),
            ("LocalStore, slot", timed(HOT, |address| take(&[slots], address))),
            ("LocalStore, rate", timed(HOT, |address| take(&[rate], address))),
            ("LocalStore, slot and rate", timed(HOT, |address| take(&[slots, rate], address))),
        ],
    );
}

fn address(key: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + key).into()
}

/// Returns uniformly distributed numbers below `bound`.
fn random(bound: u32) -> impl FnMut() -> u32 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from(((state >> 32) * u64::from(bound)) >> 32).expect("below the bound")
    }
}

/// Runs the subjects alternately and prints the results.
fn compare(rounds: usize, title: &str, mut subjects: Vec<Subject<'_>>) {
    let mut times = vec![Vec::new(); subjects.len()];
    for _ in 0..rounds {
        for ((_, subject), times) in subjects.iter_mut().zip(&mut times) {
            times.push(subject());
        }
    }
    println!("{title}");
    for ((name, _), of) in subjects.iter().zip(&times) {
        let ratios = of.iter().zip(&times[0]).map(|(time, first)| time / first);
        let (time, ratio) = (median(of.iter().copied()), median(ratios));
        println!("  {name:<28} {time:>8.1} ns {ratio:>6.2}");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
