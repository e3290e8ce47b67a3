//! The embedded store alone, beside governor's keyed limiter with an address as key.
//!
//! The numbers hold for one run on one machine. For ratios on a noisy machine see `ratios`.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use governor::RateLimiter;
use tower_sluice::{
    Algorithm, Key, LocalStore, Quota, StoreExt,
    rule::RuleName,
    store::{Answer, Charge},
};

/// A quota that is never exhausted: one unit comes back per nanosecond.
const AMPLE: Quota = Quota::per_second(1_000_000_000);

fn address(key: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + key).into()
}

fn take(store: &LocalStore, quotas: &[Quota], address: IpAddr) -> bool {
    let key = Key::from(address);
    store.take(&[Charge::new(RuleName::default(), &key, quotas)]).now().is_allowed()
}

fn one_thread(c: &mut Criterion) {
    for keys in [1, 100_000] {
        let mut group = c.benchmark_group(format!("store, {keys} keys"));
        let ample = governor::Quota::per_second(NonZeroU32::new(1_000_000_000).expect("above 0"));
        let limiter = RateLimiter::keyed(ample);
        let mut key = 0;
        let mut next = move || {
            key = (key + 7_919) % keys;
            address(key)
        };
        let mut again = next;
        group.bench_function("governor", |b| {
            b.iter(|| limiter.check_key(&black_box(next())).is_ok());
        });
        let store = LocalStore::new();
        group.bench_function("local", |b| {
            b.iter(|| take(&store, &[AMPLE], black_box(again())));
        });
    }
}

/// Measures the other algorithms, and several quotas at once.
fn algorithms(c: &mut Criterion) {
    let mut group = c.benchmark_group("store, one hot key");
    let ample = Quota::per_second(1_000_000);
    let counted = [
        ("token bucket", ample.with_algorithm(Algorithm::TokenBucket)),
        ("fixed window", ample.with_algorithm(Algorithm::fixed_window())),
        ("sliding window", ample.with_algorithm(Algorithm::SlidingWindow { buckets: 10 })),
        ("sliding log", Quota::per_second(1_000).with_algorithm(Algorithm::SlidingLog)),
    ];
    for (name, quota) in counted {
        let store = LocalStore::new();
        group.bench_function(name, |b| b.iter(|| take(&store, &[quota], black_box(address(1)))));
    }
    for quotas in [2, 3, 5] {
        let (store, quotas) = (LocalStore::new(), vec![AMPLE; quotas]);
        group.bench_function(BenchmarkId::new("quotas", quotas.len()), |b| {
            b.iter(|| take(&store, &quotas, black_box(address(1))));
        });
    }
}

/// Measures the cost that a deny cache adds, and the cost of a cached denial.
fn deny_cache(c: &mut Criterion) {
    const KEYS: u32 = 1_000;
    let mut group = c.benchmark_group("deny cache, 1000 keys");
    let (local, cached) = (LocalStore::new(), LocalStore::new().deny_cache());
    let cached = cached.max_age(Duration::from_secs(60));
    let passes = |quota: Quota, key: u32| {
        let (key, quotas) = (Key::from(address(key)), [quota]);
        let answer = cached.take(&[Charge::new(RuleName::default(), &key, &quotas)]);
        matches!(answer, Answer::Now(Ok(decision)) if decision.is_allowed())
    };
    let mut key = 0;
    let mut next = move || {
        key = (key + 919) % KEYS;
        key
    };
    let (mut again, mut once_more) = (next, next);
    group.bench_function("without it", |b| {
        b.iter(|| take(&local, &[AMPLE], black_box(address(next()))));
    });
    group.bench_function("asked", |b| b.iter(|| passes(AMPLE, black_box(again()))));
    (0..KEYS).for_each(|key| assert!(!passes(Quota::blocked(), key)));
    group.bench_function("known", |b| b.iter(|| passes(Quota::blocked(), black_box(once_more()))));
}

/// Measures a decision from leased units, beside one of the store.
fn leased(c: &mut Criterion) {
    let mut group = c.benchmark_group("leased, one hot key");
    let (local, store) = (LocalStore::new(), LocalStore::new().leases(5));
    let passes = |address: IpAddr| {
        let (key, quotas) = (Key::from(address), [AMPLE]);
        let answer = store.take(&[Charge::new(RuleName::default(), &key, &quotas)]);
        matches!(answer, Answer::Now(Ok(decision)) if decision.source() == tower_sluice::decision::Source::Leased)
    };
    group
        .bench_function("without it", |b| b.iter(|| take(&local, &[AMPLE], black_box(address(1)))));
    let (mut here, mut asks) = (0_u64, 0_u64);
    group.bench_function("in hand", |b| {
        b.iter(|| {
            asks += 1;
            here += u64::from(passes(black_box(address(1))));
        });
    });
    // Nearly all decisions use leased units.
    assert!(here * 100 > asks * 99, "{here} of {asks}");
}

fn two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("store, two threads");
    for (name, apart) in [("same key", 0), ("a key each", 1)] {
        let store = LocalStore::new();
        let run = |rounds: u64, thread: u32| {
            let start = Instant::now();
            (0..rounds).for_each(|_| {
                black_box(take(&store, &[AMPLE], address(1 + thread * apart)));
            });
            start.elapsed()
        };
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| -> Duration {
                thread::scope(|scope| {
                    let other = scope.spawn(|| run(rounds, 1));
                    run(rounds, 0).max(other.join().expect("no panic"))
                })
            });
        });
    }
}

criterion_group!(benches, one_thread, algorithms, deny_cache, leased, two_threads);
criterion_main!(benches);
