//! Properties of the local store for any sequence of charges.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Decision, Key, LocalStore, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::FakeClock,
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
    fn a_retry_passes_after_exactly_retry_after_and_not_a_nanosecond_earlier(
        quota in quota(),
        steps in vec((time(), 1..33_u32), 1..60),
    ) {
        let clock = FakeClock::new();
        let (store, key) = (clock.store(16), Key::from("somebody"));
        for (time, cost) in steps {
            clock.advance(nanos(time, &quota));
            let decision = take(&store, &key, &quota, cost);
            if decision.is_allowed() {
                prop_assert_eq!(decision.retry_after(), Some(Duration::ZERO));
            } else if let Some(wait) = decision.retry_after() {
                let nanosecond = Duration::from_nanos(1);
                clock.advance(wait - nanosecond);
                prop_assert_eq!(take(&store, &key, &quota, cost).retry_after(), Some(nanosecond));
                clock.advance(nanosecond);
                prop_assert!(take(&store, &key, &quota, cost).is_allowed());
            } else {
                prop_assert!(cost > quota.limit());
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

    /// Compares with a store that never received my charge.
    #[test]
    fn undoing_a_charge_keeps_the_charges_of_others(
        quota in quota(),
        before in vec((time(), 1..4_u32), 0..10),
        mine in 1..10_u32,
        after in vec((time(), 1..4_u32), 0..10),
    ) {
        let (clock, key) = (FakeClock::new(), Key::from("somebody"));
        let (store, without) = (clock.store(16), clock.store(16));
        for (time, cost) in before {
            clock.advance(nanos(time, &quota));
            let _ = (take(&store, &key, &quota, cost), take(&without, &key, &quota, cost));
        }
        let taken = take(&store, &key, &quota, mine);
        let mut others = 0;
        for (time, cost) in after {
            clock.advance(nanos(time, &quota));
            if take(&store, &key, &quota, cost).is_allowed() {
                prop_assert!(take(&without, &key, &quota, cost).is_allowed());
                others += cost;
            }
        }
        let debt = |store| take(store, &key, &quota, 0).outcomes()[0].reset_after();
        let with_mine = debt(&store);
        let charges = [Charge::new(RuleName::default(), &key, quota.as_ref()).with_cost(mine)];
        store.undo(&charges, &taken, None);
        prop_assert!((debt(&without)..=with_mine).contains(&debt(&store)));
        if others == 0 {
            prop_assert_eq!(debt(&store), debt(&without));
        }
    }

    #[test]
    fn a_quota_reads_back_from_its_text(quota in quota(), more in "[ ]{0,2}") {
        prop_assert_eq!(format!("{more}{quota}{more}").parse(), Ok(quota));
    }
}
