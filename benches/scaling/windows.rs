//! Accounts with more than one word: sliding logs and sliding windows. The clock is fake, so that
//! an account has equal content in every round.

use std::{hint::black_box, time::Duration};

use tower_sluice::{
    Algorithm, Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

use crate::{
    accounts::{BATCH, address},
    rounds::{Case, each, table},
};

const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn tables(time: Duration) {
    let log = |units| Quota::per_second(units).with_algorithm(Algorithm::SlidingLog);
    let lengths = [10, 100, 1_000, 10_000];
    // A charge leaves as another arrives.
    let admitted = lengths.map(|units| {
        let every = SECOND / units;
        Case::new(format!("{units} charges"), decide(log(units), units, every, every))
    });
    table("store, sliding log, admitted", time, admitted.into());
    let denied = lengths.map(|units| {
        let run = decide(log(units), units, SECOND / units / 2, Duration::ZERO);
        Case::new(format!("{units} charges"), run)
    });
    table("store, sliding log, denied", time, denied.into());
    let windows = [2, 6, 12, 30, 60].map(|buckets| {
        let quota =
            Quota::per_minute(60_000_000).with_algorithm(Algorithm::SlidingWindow { buckets });
        let every = 60 * SECOND / 1_000;
        Case::new(format!("{buckets} buckets"), decide(quota, 1_000, every, every))
    });
    table("store, sliding window, admitted", time, windows.into());
}

/// Returns batches of decisions for one key, which was charged `charges` times at intervals of
/// `every`. `before` passes before each decision. If it is zero, the account is exhausted.
fn decide(quota: Quota, charges: u32, every: Duration, before: Duration) -> impl FnMut() -> f64 {
    let clock = FakeClock::new();
    let store = clock.store(1_000);
    for _ in 0..charges {
        clock.advance(every);
        assert!(take(&store, quota));
    }
    move || {
        let mut admitted = 0;
        let nanos = each(BATCH, || {
            for _ in 0..BATCH {
                clock.advance(before);
                admitted += usize::from(take(&store, quota));
            }
        });
        assert_eq!(admitted, if before.is_zero() { 0 } else { BATCH });
        nanos
    }
}

fn take(store: &LocalStore, quota: Quota) -> bool {
    let key = Key::from(black_box(address(0)));
    store.take(&[Charge::new(RuleName::default(), &key, quota.as_ref())]).now().is_allowed()
}
