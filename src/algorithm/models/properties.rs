//! Tests that each algorithm equals its slow model.

use proptest::prelude::*;

use super::{
    debt, periods, quota,
    refilling::{SlowBucket, SlowGcra},
    run,
    sequence::{start, steps},
    sequences, soft,
    windows::{SlowAligned, SlowAnchored, SlowSliding},
    with_debt, *,
};

proptest! {
    #![proptest_config(sequences())]

    #[test]
    fn gcra_equals_its_model(
        units in 1u32..11, burst in 1u32..25, soft in soft(), period in periods(),
        start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).with_burst(burst).with_soft(soft);
        run::<SlowGcra>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn quotas_with_initial_units_equal_their_models(
        bucket: bool, units in 1u32..11, burst in 1u32..25, initial in 0u32..25, soft in soft(),
        period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).with_burst(burst).with_initial(initial.min(burst)).with_soft(soft);
        let quota = with_debt(quota, debt);
        if bucket {
            run::<SlowBucket>(quota.with_algorithm(Algorithm::TokenBucket), start, steps)?;
        } else {
            run::<SlowGcra>(quota, start, steps)?;
        }
    }

    #[test]
    fn token_bucket_equals_its_model(
        units in 1u32..11, burst in 1u32..25, soft in soft(), period in periods(),
        start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = with_debt(quota(units, period).with_burst(burst).with_soft(soft), debt);
        run::<SlowBucket>(quota.with_algorithm(Algorithm::TokenBucket), start, steps)?;
    }

    #[test]
    fn fixed_window_equals_its_model(
        units in 1u32..13, carry_over in prop_oneof![2 => Just(0u32), 3 => 1u32..15], paced: bool,
        soft in soft(), period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).with_algorithm(Algorithm::FixedWindow { carry_over, paced });
        let quota = if paced { quota } else { quota.with_soft(soft) };
        run::<SlowAligned>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn anchored_window_equals_its_model(
        units in 1u32..13, soft in soft(), period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).with_algorithm(Algorithm::AnchoredWindow).with_soft(soft);
        run::<SlowAnchored>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn sliding_window_equals_its_model(
        units in 1u32..13, buckets in prop_oneof![2 => Just(1u32), 3 => 2u32..17], soft in soft(),
        width in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, width * u64::from(buckets));
        let quota = quota.with_algorithm(Algorithm::SlidingWindow { buckets }).with_soft(soft);
        run::<SlowSliding>(with_debt(quota, debt), start, steps)?;
    }

    #[test]
    fn sliding_log_equals_its_model(
        units in 1u32..13, soft in soft(), period in periods(), start in start(), debt in debt(), steps in steps(),
    ) {
        let quota = quota(units, period).with_algorithm(Algorithm::SlidingLog).with_soft(soft);
        run::<SlowSliding>(with_debt(quota, debt), start, steps)?;
    }
}
