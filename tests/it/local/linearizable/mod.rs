//! Linearizable accounts: one order of the calls explains all results.
//!
//! In this order, no call comes before one that ended before it began.

mod checker;
mod denied;
mod models;
mod recorded;

use tower_sluice::{Algorithm, LocalStore, Quota, testing::FakeClock};

use self::{
    checker::{Model, explains},
    models::{Counted, Gcra},
    recorded::{KEYS, Recorder, Time, nanos},
};

const QUOTA: Quota = Quota::per_hour(5);
const HISTORIES: usize = if cfg!(debug_assertions) { 4_000 } else { 20_000 };

fn gcra() -> Gcra {
    Gcra::new(QUOTA.limit(), nanos(QUOTA.interval()))
}

/// Runs stores of one set until the number of histories is reached, and searches an order for each.
fn have_an_order<M: Model>(
    model: &M,
    quota: Quota,
    histories: usize,
    store: impl Fn() -> (LocalStore, Time),
) {
    for seed in 0..histories.div_ceil(KEYS) as u64 {
        let (store, time) = store();
        let recorder = Recorder { store, quota, time, seed };
        for history in recorder.histories() {
            assert!(explains(model, &history), "{quota}, seed {seed}: {history:#?}");
        }
        assert_eq!(recorder.store.stats().overflowed, 0, "a shared account has many histories");
    }
}

/// The model computes every value to the nanosecond.
#[test]
fn every_history_has_an_order() {
    have_an_order(&gcra(), QUOTA, HISTORIES, || {
        let clock = FakeClock::new();
        (clock.store(1), Time::Rounds(clock))
    });
}

/// The clocks of the threads differ, and slots change their keys.
#[test]
fn every_history_has_an_order_while_time_passes() {
    have_an_order(&gcra(), QUOTA, HISTORIES, || {
        let clock = FakeClock::new();
        (clock.store(1), Time::Ticking(clock))
    });
}

#[test]
fn every_history_by_the_real_clock_has_an_order() {
    let counted = Counted(QUOTA.limit().into());
    have_an_order(&counted, QUOTA, HISTORIES, || (LocalStore::with_capacity(1), Time::Real));
}

/// While time stands still, an account is a counter under any algorithm.
#[test]
fn every_history_of_each_algorithm_has_an_order() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 4 },
        Algorithm::SlidingLog,
    ] {
        let quota = QUOTA.with_algorithm(algorithm);
        let store = || (FakeClock::new().store(1), Time::Still);
        have_an_order(&Counted(quota.limit().into()), quota, HISTORIES / 5, store);
    }
}
