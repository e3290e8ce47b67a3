//! Random quotas of every algorithm.

use std::time::Duration;

use tower_sluice::{Algorithm, Quota};

use crate::random::Random;

/// Returns a random quota. Its period is at least sixty times `micros` microseconds.
pub fn quota(random: &mut Random, micros: u64) -> Quota {
    let units = u32::try_from(random.within(1..12)).expect("few");
    let period = micros * 60 * *random.pick(&[1, 2, 7, 60, 1_000]);
    let small = |random: &mut Random, end| u32::try_from(random.within(0..end)).expect("few");
    let odd = if random.percent(20) { random.within(0..1_000) } else { 0 };
    let kind = random.within(0..8);
    let nanos = period * 1_000 + if kind < 3 { odd } else { 0 };
    let base = Quota::new(units, Duration::from_nanos(nanos)).expect("a quota");
    let burst = small(random, 15) + 1;
    let more = small(random, 5);
    let built = match kind {
        0..3 => base.try_with_burst(burst),
        3 => {
            base.try_with_burst(burst).and_then(|it| it.try_with_algorithm(Algorithm::TokenBucket))
        }
        4 => base.try_with_algorithm(Algorithm::FixedWindow {
            carry_over: more,
            paced: more.is_multiple_of(2),
        }),
        5 => base.try_with_algorithm(Algorithm::AnchoredWindow),
        6 => {
            let buckets = *random.pick(&[1, 2, 3, 4, 5, 6, 10]);
            base.try_with_algorithm(Algorithm::SlidingWindow { buckets })
        }
        _ => base.try_with_algorithm(Algorithm::SlidingLog),
    };
    let mut quota = built.unwrap_or(base);
    if random.percent(25) {
        quota = quota.try_with_initial(small(random, 5)).unwrap_or(quota);
    }
    if random.percent(25) {
        quota = quota.try_with_max_debt(small(random, 37)).unwrap_or(quota);
    }
    if random.percent(25) {
        quota = quota.try_with_soft(small(random, 5)).unwrap_or(quota);
    }
    quota
}

/// Returns a random quota whose bounds are simple: no units beyond the limit, and none at start.
pub fn plain(random: &mut Random) -> Quota {
    let units = u32::try_from(random.within(1..20)).expect("few");
    let burst = u32::try_from(random.within(1..30)).expect("few");
    let period = Duration::from_millis(*random.pick(&[500, 1_000, 1_000, 2_000, 5_000, 10_000]));
    let base = Quota::new(units, period).expect("a quota");
    let built = match random.within(0..12) {
        0..7 => base.try_with_burst(burst),
        7 => {
            base.try_with_burst(burst).and_then(|it| it.try_with_algorithm(Algorithm::TokenBucket))
        }
        8 => base.try_with_algorithm(Algorithm::fixed_window()),
        9 => base.try_with_algorithm(Algorithm::AnchoredWindow),
        10 => base.try_with_algorithm(Algorithm::SlidingWindow { buckets: 5 }),
        _ => base.try_with_algorithm(Algorithm::SlidingLog),
    };
    built.unwrap_or(base)
}

/// Returns two quotas of a rule whose requests queue. A live plan has one or the other.
pub fn queueing(random: &mut Random) -> [Quota; 2] {
    let units = u32::try_from(random.within(2..10)).expect("few");
    let of = |units| Quota::new(units, Duration::from_secs(2)).expect("a quota");
    let (few, many) = (of(units), of(units * 2));
    if random.percent(40) {
        let paced = Algorithm::FixedWindow { carry_over: 0, paced: true };
        return [few, many].map(|it| it.with_algorithm(paced));
    }
    [few.with_burst(2), many.with_burst(4)]
}

/// Returns a quota whose late charges may lead far into debt.
pub fn adjusted(random: &mut Random) -> Quota {
    let units = u32::try_from(random.within(3..20)).expect("few");
    let base = Quota::new(units, Duration::from_secs(1)).expect("a quota");
    let built = match random.within(0..8) {
        0..3 => base.try_with_burst(units * 2),
        3 => base.try_with_algorithm(Algorithm::TokenBucket),
        4 => base.try_with_algorithm(Algorithm::fixed_window()),
        5 => base.try_with_algorithm(Algorithm::AnchoredWindow),
        6 => base.try_with_algorithm(Algorithm::SlidingWindow { buckets: 5 }),
        _ => base.try_with_algorithm(Algorithm::SlidingLog),
    };
    built.and_then(|it| it.try_with_max_debt(DEBT)).expect("a quota")
}

/// The debt that late charges may lead to.
pub const DEBT: u32 = 2_000;
