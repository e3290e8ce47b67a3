//! A peek has the result of the take that follows, and changes nothing.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Algorithm, Decision, Key, Quota, Store, StoreExt,
    decision::Outcome,
    rule::RuleName,
    store::{Charge, Timeout},
    testing::FakeClock,
};

use crate::support::{Broken, random::rows};

fn quota() -> impl Strategy<Value = Quota> {
    let numbers = (1..6_u32, 1..40_u64, 1..9_u32, 0..9_usize, 0..4_u32, any::<[bool; 2]>());
    numbers.prop_filter_map("no quota", |(units, tens, burst, which, more, [soft, initial])| {
        let quota = Quota::new(units, Duration::from_nanos(tens * 60)).ok()?;
        let quota = match which {
            0 | 1 => quota.try_with_burst(burst).ok()?,
            2 => {
                quota.try_with_burst(burst).ok()?.try_with_algorithm(Algorithm::TokenBucket).ok()?
            }
            3 => quota
                .try_with_algorithm(Algorithm::FixedWindow { carry_over: more, paced: false })
                .ok()?,
            4 => quota
                .try_with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true })
                .ok()?,
            5 => quota.try_with_algorithm(Algorithm::AnchoredWindow).ok()?,
            6 => quota.try_with_algorithm(Algorithm::SlidingWindow { buckets: 1 + more }).ok()?,
            7 => quota.try_with_algorithm(Algorithm::SlidingLog).ok()?,
            _ => Quota::concurrent(units),
        };
        let quota = if soft { quota.try_with_soft(more).unwrap_or(quota) } else { quota };
        Some(if initial { quota.try_with_initial(more).unwrap_or(quota) } else { quota })
    })
}

#[derive(Clone, Debug)]
struct Wish {
    key: u32,
    cost: u32,
    headroom: u32,
    max_wait: u64,
    report_only: bool,
    only: Option<usize>,
}

fn wish() -> impl Strategy<Value = Wish> {
    let cost = prop_oneof![1 => Just(0), 9 => 1..4_u32, 1 => 4..20_u32];
    let max_wait = prop_oneof![2 => Just(0), 1 => 1..3_000_u64];
    let only = prop::option::weighted(0.1, 0..3_usize);
    (0..3_u32, cost, 0..2_u32, max_wait, prop::bool::weighted(0.1), only).prop_map(
        |(key, cost, headroom, max_wait, report_only, only)| Wish {
            key,
            cost,
            headroom,
            max_wait,
            report_only,
            only,
        },
    )
}

/// Returns everything that a decision reports. The overage of a denial is void.
fn parts(decision: &Decision) -> impl PartialEq + std::fmt::Debug {
    let held: Vec<_> = decision.outcomes().iter().map(Outcome::held).collect();
    let overage = decision.is_allowed() && decision.is_overage();
    let source = (decision.source(), decision.is_blocked(), decision.retry_after());
    (decision.is_allowed(), overage, decision.wait(), held, rows(decision), source)
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    /// Runs in a store with room, and in one that is far too small for its keys.
    #[test]
    fn a_peek_equals_the_take_that_follows(
        rules in vec(vec(quota(), 1..4), 3),
        calls in vec((0..1_500_u64, vec(wish(), 1..4), 0..9_u32), 1..40),
        capacity in prop_oneof![Just(1), Just(100)],
    ) {
        let clock = FakeClock::new();
        let store = clock.store(capacity);
        let names = ["a", "b", "c"].map(|name| RuleName::new(name).expect("a name"));
        let keys = [0_u32, 1, 2].map(Key::from);
        let slots = |quotas: &[Quota]| quotas.iter().any(|it| it.algorithm() == Algorithm::Concurrent);
        let mut running = Vec::new();
        for (pause, wishes, more) in calls {
            clock.advance(Duration::from_nanos(pause));
            let charges: Vec<_> = wishes.iter().enumerate().map(|(at, wish)| {
                let charge = Charge::new(names[at], &keys[wish.key as usize], &rules[at]);
                let charge = charge.with_cost(wish.cost).with_headroom(wish.headroom);
                let charge = wish.only.map_or(charge, |it| charge.with_quota_index(it % rules[at].len()));
                let patient = charge.with_max_wait(Duration::from_nanos(wish.max_wait));
                // A take that joins the queue for a slot expects to wait for itself, too.
                let queues = store.supports(&[patient]).is_ok() && !slots(&rules[at]);
                let charge = if queues { patient } else { charge };
                charge.with_report_only(wish.report_only)
            }).collect();
            let peeks = [(); 2].map(|()| store.peek(&charges).now());
            let taken = store.take(&charges).now();
            prop_assert_eq!(parts(&peeks[0]), parts(&peeks[1]));
            prop_assert_eq!(parts(&peeks[0]), parts(&taken), "{:?}", charges);
            match more {
                0 => drop(store.block(&charges[0], Duration::from_nanos(pause)).now()),
                1 => running.clear(),
                _ => running.push(taken),
            }
        }
    }
}

#[tokio::test]
async fn wrappers_peek_as_they_take() {
    let (clock, key, quotas) = (FakeClock::new(), Key::from("alice"), [Quota::per_hour(4)]);
    let charge = [Charge::new(RuleName::default(), &key, &quotas)];
    let local = || clock.store(64);
    let stores = [
        local().boxed(),
        local().timeout(Timeout::DEFAULT).breaker().fail_closed().boxed(),
        local().deny_cache().fallback(local(), 1).boxed(),
        Broken::Later.fallback(local(), 2).boxed(),
        Broken::Now.fail_open().boxed(),
        Broken::Now.fail_closed().boxed(),
    ];
    for store in stores {
        for _ in 0..5 {
            let [peek, again, taken] =
                [store.peek(&charge).await, store.peek(&charge).await, store.take(&charge).await];
            let [peek, again, taken] = [peek, again, taken].map(|it| it.expect("infallible"));
            assert_eq!(parts(&peek), parts(&again));
            assert_eq!(parts(&peek), parts(&taken));
        }
    }
}
