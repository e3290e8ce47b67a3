//! Threads that share a key, and threads that do not.

use std::{
    hint::{black_box, spin_loop},
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use tower_sluice::{Algorithm, Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};

use crate::{
    room::{DEEP, address},
    rounds::{Case, each, table},
};

/// Decisions of a thread in a round. Threads need time to overlap.
const LONG: usize = 10_000;
const MOST_TRIES: usize = 50;
/// The number of threads, whether each has its own key, and the name of the case.
const CASES: [(usize, bool, &str); 3] =
    [(1, false, "1 thread"), (2, false, "2 threads, one key"), (2, true, "2 threads, a key each")];

pub(crate) fn tables(time: Duration) {
    let window = DEEP.with_algorithm(Algorithm::fixed_window());
    let tables = [
        ("store, threads", DEEP, true),
        ("store, threads, denied", Quota::per_hour(1), false),
        ("store, threads, fixed window", window, true),
    ];
    for (title, quota, allowed) in tables {
        let cases = CASES.map(|(threads, apart, name)| {
            let store = LocalStore::new();
            // The first decision for a key may be allowed where the others are denied.
            for thread in 0..2 {
                let _ = decide_one(&store, quota, &Key::from(address(thread)));
            }
            let run = move || {
                together(threads, |thread| {
                    let key = thread * u32::from(apart);
                    decide(&store, quota, key, allowed)
                })
            };
            Case { threads, ..Case::new(name, run) }
        });
        table(title, time, cases.into());
    }
}

/// Returns the decisions of one thread for its key.
fn decide(store: &LocalStore, quota: Quota, key: u32, allowed: bool) -> impl FnOnce() -> f64 {
    move || {
        each(LONG, || {
            for _ in 0..LONG {
                let key = Key::from(black_box(address(key)));
                assert_eq!(decide_one(store, quota, &key), allowed);
            }
        })
    }
}

fn decide_one(store: &LocalStore, quota: Quota, key: &Key) -> bool {
    store.take(&[Charge::new(RuleName::default(), key, quota.as_ref())]).now().is_allowed()
}

/// Returns the mean over the threads, of a round in which they overlapped. A busy machine may run
/// one after the other, which measures nothing.
fn together<W>(threads: usize, prepare: impl Fn(u32) -> W + Sync) -> f64
where
    W: FnOnce() -> f64,
{
    let mut rounds = (0..MOST_TRIES).map(|_| round(threads, &prepare));
    let mut last = 0.0;
    rounds
        .find_map(|(nanos, beside)| {
            last = nanos;
            beside.then_some(nanos)
        })
        .unwrap_or(last)
}

/// Returns the mean, and `true` if the threads overlapped for at least nine tenths of the time.
fn round<W>(threads: usize, prepare: &(impl Fn(u32) -> W + Sync)) -> (f64, bool)
where
    W: FnOnce() -> f64,
{
    let (waiting, epoch) = (&AtomicUsize::new(threads), Instant::now());
    let part = move |thread| {
        let work = prepare(thread);
        waiting.fetch_sub(1, SeqCst);
        while waiting.load(SeqCst) > 0 {
            spin_loop();
        }
        let start = epoch.elapsed();
        (work(), start, epoch.elapsed())
    };
    let parts: Vec<_> = thread::scope(|scope| {
        let own = u32::try_from(threads).expect("few");
        let all: Vec<_> = (0..own).map(|thread| scope.spawn(move || part(thread))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let nanos = parts.iter().map(|(nanos, ..)| nanos).sum::<f64>() / threads as f64;
    let (mut first, mut last) = (Duration::MAX, Duration::ZERO);
    let (mut all_run, mut one_ends) = (Duration::ZERO, Duration::MAX);
    for (_, start, end) in parts {
        (first, last) = (first.min(start), last.max(end));
        (all_run, one_ends) = (all_run.max(start), one_ends.min(end));
    }
    (nanos, one_ends.saturating_sub(all_run) * 10 >= (last - first) * 9)
}
