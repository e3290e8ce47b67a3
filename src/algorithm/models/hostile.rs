//! Tests with random values, for undone charges and for overflows.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::{
        tests::{Account, Row},
        *,
    },
    SECOND, periods, quota,
    sequence::{Op, jump, op, short_steps, start},
    sequences,
};

/// Generates quotas of any algorithm, with extreme values.
pub(super) fn extreme_quota() -> impl Strategy<Value = Quota> {
    let number = || prop_oneof![Just(0), Just(1), 2u32..50, any::<u32>(), Just(u32::MAX)];
    let period = prop_oneof![
        1u64..1_000,
        Just(SECOND),
        Just(10 * SECOND),
        any::<u64>(),
        Just(315_360_000 * SECOND)
    ];
    let algorithm = prop_oneof![
        Just(Algorithm::Gcra),
        Just(Algorithm::TokenBucket),
        (number(), any::<bool>())
            .prop_map(|(carry_over, paced)| Algorithm::FixedWindow { carry_over, paced }),
        Just(Algorithm::AnchoredWindow),
        number().prop_map(|buckets| Algorithm::SlidingWindow {
            buckets: buckets % 1_001
        }),
        Just(Algorithm::SlidingLog),
    ];
    let numbers = (number(), period, number(), number(), number(), number());
    (numbers, algorithm).prop_map(|((units, period, burst, initial, soft, debt), algorithm)| {
        let quota = Quota::new(units, Duration::from_nanos(period)).unwrap_or(Quota::blocked());
        let quota = quota.try_with_algorithm(algorithm).unwrap_or(quota);
        let quota = quota.try_with_burst(burst).unwrap_or(quota);
        let quota = quota.try_with_initial(initial).unwrap_or(quota);
        let quota = quota.try_with_soft(soft).unwrap_or(quota);
        quota.try_with_max_debt(debt).unwrap_or(quota)
    })
}

proptest! {
    #![proptest_config(sequences())]

    /// Compares an account whose charge was undone with an account without that charge.
    ///
    /// The first account must not have more units left.
    #[test]
    fn an_undo_never_reverses_the_charge_of_another_caller(
        kind in 0usize..7, units in 1u32..13, period in periods(), start in start(),
        first in 1u32..4, before in short_steps(), mine in 1u32..6, after in short_steps(),
    ) {
        let algorithm = [
            Algorithm::Gcra,
            Algorithm::TokenBucket,
            Algorithm::fixed_window(),
            Algorithm::FixedWindow { carry_over: 5, paced: true },
            Algorithm::AnchoredWindow,
            Algorithm::SlidingWindow { buckets: 4 },
            Algorithm::SlidingLog,
        ];
        let quota = quota(units, 4 * period).with_algorithm(algorithm[kind]);
        let mut now = start;
        let mut last = Row { remaining: 0, full: 0, next: 0, retry: 0 };
        let mut with = Account::new();
        with.take(&quota, now, Demand::units(first));
        // An account that expires starts again at another instant. So the steps end when the account without
        // the undone charge has expired.
        let is_live = |account: &Account, now| account.expires_at(&quota) > now;
        for (jump, cost, max_wait) in before {
            now += jump.nanos(&quota, last);
            let demand = Demand { max_wait, ..Demand::units(cost) };
            last = with.take(&quota, now, demand).0.snapshot.into();
        }
        let mut without = with.clone();
        let (charged, receipt) = with.take(&quota, now, Demand::units(mine));
        for (jump, cost, max_wait) in after {
            if !charged.allowed || !is_live(&without, now) {
                break;
            }
            let demand = Demand { max_wait, ..Demand::units(cost) };
            let evaluation = with.take(&quota, now, demand).0;
            if evaluation.allowed {
                let other = without.take(&quota, now, demand).0;
                prop_assert!(other.allowed, "{:?} is allowed only with the charge", demand);
            }
            let mut back = with.clone();
            back.undo(&quota, now, receipt);
            let look = Demand::units(0);
            let row = |account: &Account| account.look(&quota, now, look).snapshot.into();
            let (back, never): (Row, Row) = (row(&back), row(&without));
            prop_assert!(back.remaining <= never.remaining, "undone {:?}, never {:?}", back, never);
            prop_assert!(back.full >= never.full, "undone {:?}, never {:?}", back, never);
            now += jump.nanos(&quota, Row::from(evaluation.snapshot));
        }
    }

    /// Changes the quota and the clock at random. In debug builds, an overflow panics.
    #[test]
    fn nothing_overflows(
        quotas in prop::collection::vec(extreme_quota(), 1..4),
        start in prop_oneof![0..10 * SECOND, Just(1u64 << 62)],
        steps in prop::collection::vec((0usize..4, jump(), 0u64..3, op()), 1..24),
    ) {
        let mut account = Account::new();
        let mut now = start;
        let mut last = Row { remaining: 0, full: 0, next: 0, retry: 0 };
        let mut charges = Vec::new();
        for (which, jump, behind, op) in steps {
            let quota = &quotas[which % quotas.len()];
            let year = 31_536_000 * SECOND;
            last = Row { full: last.full.min(year), next: last.next.min(year), ..last };
            now += jump.nanos(quota, Row { retry: last.retry.min(year), ..last }).min(10 * year);
            let now = now.saturating_sub(behind);
            match op {
                Op::Take { cost, headroom, max_wait } => {
                    let demand = Demand { cost, headroom, max_wait };
                    account.look(quota, now, demand);
                    account.open(quota, now, Demand { headroom: 1, ..demand });
                    let (evaluation, receipt) = account.take(quota, now, demand);
                    last = evaluation.snapshot.into();
                    prop_assert!(evaluation.allowed || (last.retry > 0 && cost > 0));
                    if evaluation.allowed {
                        charges.push(receipt);
                    }
                }
                Op::Adjust(units) => {
                    let before = Row::from(account.look(quota, now, Demand::units(0)).snapshot);
                    last = account.adjust(quota, now, units.saturating_neg()).into();
                    prop_assert!(units >= 0 || last.remaining <= before.remaining);
                    prop_assert!(units <= 0 || last.remaining >= before.remaining);
                }
                Op::Undo(at, units) => {
                    if let Some(receipt) = charges.get(at) {
                        let units = receipt.units.min(units);
                        account.undo(quota, now, Receipt { units, ..*receipt });
                    }
                }
            }
        }
    }
}
