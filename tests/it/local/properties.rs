//! Properties of the local store for any sequence of charges.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Decision, Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

use crate::support::random::{nanos, quota, rows, time};

fn take(store: &LocalStore, key: &Key, quota: &Quota, cost: u32) -> Decision {
    let quotas = std::slice::from_ref(quota);
    store.take(&[Charge::new(RuleName::default(), key, quotas).with_cost(cost)]).now()
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    /// Runs in a store with room, and in one that is far too small for its keys.
    #[test]
    fn no_window_allows_more_than_its_burst_and_the_refilled_units(
        quota in quota(),
        steps in vec((0..24_u32, prop_oneof![30 => Just((0, 0)), 1 => time()], 0..9_u32), 1..300),
        capacity in prop_oneof![Just(1), Just(100)],
    ) {
        let clock = FakeClock::new();
        let store = clock.store(capacity);
        let mut admitted = vec![Vec::new(); 24];
        let mut now = Duration::ZERO;
        for (who, time, cost) in steps {
            clock.advance(nanos(time, &quota));
            now += nanos(time, &quota);
            if take(&store, &who.into(), &quota, cost).is_allowed() {
                admitted[who as usize].push((now, u128::from(cost)));
            }
        }
        for admitted in admitted {
            for (first, (start, _)) in admitted.iter().enumerate() {
                let mut units = 0;
                for (at, cost) in &admitted[first..] {
                    units += cost;
                    let back = (*at - *start).as_nanos() / quota.interval().as_nanos();
                    prop_assert!(units <= u128::from(quota.limit()) + back);
                }
            }
        }
    }

    #[test]
    fn a_denial_changes_nothing(
        quotas in vec(vec(quota(), 1..4), 2..4),
        before in vec((0..3_usize, time(), 1..6_u32), 0..30),
        costs in vec(0..12_u32, 3),
    ) {
        let (clock, key) = (FakeClock::new(), Key::from("somebody"));
        let store = clock.store(64);
        let names = ["a", "b", "c"].map(|name| RuleName::new(name).expect("a name"));
        let charges: Vec<_> =
            names.iter().zip(&quotas).map(|(name, q)| Charge::new(*name, &key, q)).collect();
        for (at, time, cost) in before {
            clock.advance(nanos(time, &quotas[0][0]));
            let _ = store.take(&[charges[at % charges.len()].with_cost(cost)]).now();
        }
        let look = || rows(&store.take(&charges.iter().map(|c| c.with_cost(0)).collect::<Vec<_>>()).now());
        let (seen, active) = (look(), store.stats().active);
        let dear: Vec<_> = charges.iter().zip(&costs).map(|(c, units)| c.with_cost(*units)).collect();
        if !store.take(&dear).now().is_allowed() {
            prop_assert_eq!(look(), seen);
            prop_assert_eq!(store.stats().active, active);
        }
    }

    #[test]
    fn a_quota_reads_back_from_its_text(quota in quota(), more in "[ ]{0,2}") {
        prop_assert_eq!(format!("{more}{quota}{more}").parse(), Ok(quota));
    }
}
