//! Decisions over few rules, or few quotas of one rule, need no lists. They equal those with lists, which
//! further rules need.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Key, Quota, StoreExt, decision::Outcome, rule::RuleName, store::Charge, testing::FakeClock,
};

/// The largest number of rules or quotas without lists.
const FEW: usize = 3;

#[derive(Clone, Debug)]
struct Wish {
    key: u8,
    cost: u32,
    headroom: u32,
    max_wait: Duration,
    report_only: bool,
}

fn wish() -> impl Strategy<Value = Wish> {
    let cost = prop_oneof![20 => 0..3_u32, 1 => Just(9), 1 => Just(u32::MAX)];
    let wait = prop_oneof![Just(0), 0..3_000_u64].prop_map(Duration::from_millis);
    (0..2_u8, cost, 0..2_u32, wait, prop::bool::weighted(0.2)).prop_map(
        |(key, cost, headroom, max_wait, report_only)| Wish {
            key,
            cost,
            headroom,
            max_wait,
            report_only,
        },
    )
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn decisions_without_lists_equal_those_with_lists(
        calls in vec((0..800_u64, vec(wish(), 1..=FEW)), 1..60),
        is_one_rule in any::<bool>(),
    ) {
        let (clock, ample) = (FakeClock::new(), [Quota::per_second(1_000_000)]);
        let (short, long) = (clock.store(1_000), clock.store(1_000));
        let quotas = [(3, 1), (5, 2), (8, 3)]
            .map(|(units, seconds)| Quota::per(units, Duration::from_secs(seconds)));
        let names = ["a", "b", "c", "w", "x", "y", "z"].map(|name| RuleName::new(name).expect("a name"));
        for (pause, wishes) in calls {
            clock.advance(Duration::from_millis(pause));
            let keys: Vec<_> = wishes.iter().map(|wish| Key::from(u32::from(wish.key))).collect();
            let rules = if is_one_rule { 1 } else { wishes.len() };
            let mut charges: Vec<_> = wishes[..rules]
                .iter()
                .enumerate()
                .map(|(at, wish)| {
                    let own = if is_one_rule { &quotas[..wishes.len()] } else { &quotas[at..=at] };
                    let charge = Charge::new(names[at], &keys[at], own)
                        .with_cost(wish.cost)
                        .with_headroom(wish.headroom)
                        .with_max_wait(wish.max_wait);
                    charge.with_report_only(wish.report_only)
                })
                .collect();
            let decided = short.take(&charges).now();
            // These never deny and are never binding, but four charges and more need lists.
            let everyone = Key::everyone();
            charges.extend(names[FEW..].iter().map(|name| Charge::new(*name, &everyone, &ample).with_cost(0)));
            let expected = long.take(&charges).now();
            prop_assert_eq!(decided.is_allowed(), expected.is_allowed());
            prop_assert_eq!((decided.wait(), decided.is_overage()), (expected.wait(), expected.is_overage()));
            prop_assert_eq!(decided.would_deny(), expected.would_deny());
            let fields = |outcomes: &[Outcome]| -> Vec<_> {
                let field = |it: &Outcome| (it.remaining(), it.reset_after(), it.retry_after(), it.is_report_only());
                outcomes.iter().take(wishes.len()).map(field).collect()
            };
            prop_assert_eq!(fields(decided.outcomes()), fields(expected.outcomes()));
        }
    }
}
