//! Tests of the maximum units that a sliding window allows in a time span.

use proptest::prelude::*;

use super::{decide, periods, quota, sequence::start, sequences, windows::SlowSliding, *};

/// The instants of all allowed units. An instant occurs once per unit.
type Allowed = Vec<u64>;

/// Takes units from the algorithm and from its model, and returns the allowed units of each.
///
/// A take has an instant and a cost. A cost of `None` takes all units left.
fn allowed(quota: &Quota, takes: &[(u64, Option<u32>)]) -> [Allowed; 2] {
    let mut fast = Account::new();
    let mut slow = SlowSliding::of(quota);
    let mut instants = [Allowed::new(), Allowed::new()];
    for (now, cost) in takes.iter().copied() {
        let left = [
            Row::from(fast.look(quota, now, Demand::units(0)).snapshot).remaining,
            u32::try_from(slow.remaining(now)).expect("fits"),
        ];
        let [by_fast, by_slow] = left.map(|left| Demand::units(cost.unwrap_or(left)));
        let took = [
            fast.take(quota, now, by_fast)
                .0
                .allowed
                .then_some(by_fast.cost),
            decide(&mut slow, quota, now, by_slow)
                .allowed
                .then_some(by_slow.cost),
        ];
        for (instants, units) in instants.iter_mut().zip(took) {
            instants.extend((0..units.unwrap_or(0)).map(|_| now));
        }
    }
    instants
}

/// Returns the maximum number of units that were allowed within `nanos` nanoseconds.
fn most_in(allowed: &Allowed, nanos: u64) -> usize {
    let from = |(at, first): (usize, &u64)| {
        allowed[at..]
            .iter()
            .take_while(|last| **last - first <= nanos)
            .count()
    };
    allowed.iter().enumerate().map(from).max().unwrap_or(0)
}

/// A pause before a take: a number of sixteenths of a bucket, plus nanoseconds.
///
/// With the flag, the pause starts at the next bucket.
type Pause = (bool, u64, i64);

fn takes() -> impl Strategy<Value = Vec<(Pause, Option<u32>)>> {
    let part = prop_oneof![2 => Just(0), 1 => 0u64..40, 1 => (0u64..20).prop_map(|n| 16 * n)];
    let cost = prop_oneof![2 => Just(None), 1 => (1u32..4).prop_map(Some)];
    prop::collection::vec(((any::<bool>(), part, -1i64..2), cost), 1..40)
}

proptest! {
    #![proptest_config(sequences())]

    #[test]
    fn a_sliding_window_allows_its_units_in_any_span_one_bucket_shorter_than_its_period(
        units in 1u32..40, buckets in 1u32..17, width in periods(), start in start(),
        takes in takes(),
    ) {
        let width = width.max(40);
        let period = width * u64::from(buckets);
        let quota = quota(units, period).with_algorithm(Algorithm::SlidingWindow { buckets });
        let mut now = start;
        let takes = takes.into_iter().map(|((edge, part, beside), cost)| {
            let from = if edge { now.next_multiple_of(width) } else { now };
            now = (from + width * part / 16).saturating_add_signed(beside).max(now);
            (now, cost)
        });
        let takes: Vec<_> = takes.collect();
        for allowed in allowed(&quota, &takes) {
            prop_assert!(most_in(&allowed, period - width) <= units as usize);
            prop_assert!(most_in(&allowed, period - 1) < 2 * units as usize);
        }
    }
}

/// The first burst is just before a bucket ends. The second burst is just before the units of that
/// bucket expire.
#[test]
fn a_sliding_window_allows_nearly_twice_its_units_in_a_whole_period() {
    for buckets in [1, 2, 10] {
        let quota = quota(12, SECOND).with_algorithm(Algorithm::SlidingWindow { buckets });
        let width = SECOND / u64::from(buckets);
        for allowed in allowed(&quota, &[(width - 1, None), (width + SECOND - 2, None)]) {
            assert_eq!(most_in(&allowed, SECOND - 1), 23, "{buckets} buckets");
            assert_eq!(most_in(&allowed, SECOND - width), 12, "{buckets} buckets");
        }
    }
}
