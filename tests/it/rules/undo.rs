//! Charges that are undone by their receipts.
//!
//! `tests/scenarios/refunds.json` has the values for each algorithm.

use std::{sync::Arc, time::Duration};

use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, Store, StoreExt,
    decision::Outcome,
    rule::RuleName,
    store::{Charge, Reservation},
    testing::FakeClock,
};

use crate::support::{ALGORITHMS, all_algorithms};

const TEN: Quota = Quota::per_hour(10);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn rule(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

fn left(store: &LocalStore, charges: &[Charge<'_>]) -> Vec<u32> {
    let looks: Vec<_> = charges.iter().map(|charge| charge.with_cost(0)).collect();
    store.take(&looks).now().outcomes().iter().map(Outcome::remaining).collect()
}

fn taken(store: &LocalStore, charges: &[Charge<'_>]) -> Decision {
    let taken = store.take(charges).now();
    assert!(taken.is_allowed(), "{taken:?}");
    taken
}

#[test]
fn one_charge_of_several_is_undone_alone() {
    let (store, me) = (FakeClock::new().store(64), Key::from("me"));
    let charge = |name| Charge::new(rule(name), &me, TEN.as_ref()).with_cost(4);
    let all = ["a", "b", "c"].map(charge);
    let decision = taken(&store, &all);
    store.undo(&[all[1]], &decision, Some(3));
    assert_eq!(left(&store, &all), [6, 9, 6]);
    store.undo(&[all[2], all[0]], &decision, None);
    assert_eq!(left(&store, &all), [10, 9, 10]);
}

#[test]
fn one_quota_of_several_is_undone_alone() {
    let (store, me) = (FakeClock::new().store(64), Key::from("me"));
    let quotas = [TEN, Quota::per_day(50)];
    let charge = Charge::new(RuleName::default(), &me, &quotas).with_cost(4);
    let decision = taken(&store, &[charge]);
    store.undo(&[charge.with_quota_index(1)], &decision, None);
    assert_eq!(left(&store, &[charge]), [6, 50]);
}

/// The receipts of two keys under one rule cannot be distinguished by the rule.
#[test]
fn an_ambiguous_receipt_undoes_nothing() {
    let (store, me, other) = (FakeClock::new().store(64), Key::from("me"), Key::from("other"));
    let both =
        [&me, &other].map(|key| Charge::new(RuleName::default(), key, TEN.as_ref()).with_cost(4));
    let decision = taken(&store, &both);
    store.undo(&both[1..], &decision, None);
    assert_eq!(left(&store, &both), [6, 6]);
    store.undo(&[Charge::new(rule("unknown"), &me, TEN.as_ref())], &decision, None);
    assert_eq!(left(&store, &both), [6, 6]);
    // all receipts together, in their order, are unambiguous
    store.undo(&both, &decision, Some(3));
    assert_eq!(left(&store, &both), [9, 9]);
}

/// Two steps have the effect of one, while no time passes.
#[test]
fn an_account_named_twice_is_undone_once() {
    let (store, me) = (FakeClock::new().store(64), Key::from("me"));
    let charge = Charge::new(RuleName::default(), &me, TEN.as_ref());
    let twice = [charge.with_cost(2), charge.with_cost(3)];
    let decision = taken(&store, &twice);
    store.undo(&twice, &decision, None);
    assert_eq!(left(&store, &[charge]), [10]);
}

#[test]
fn a_denial_and_a_read_undo_nothing() {
    for algorithm in all_algorithms() {
        let (clock, me) = (FakeClock::new(), Key::from("me"));
        clock.advance(Duration::from_secs(3_599));
        let (store, quota) = (clock.store(64), TEN.with_algorithm(algorithm));
        let charge = Charge::new(RuleName::default(), &me, quota.as_ref()).with_cost(7);
        drop(taken(&store, &[charge]));
        let denied = store.take(&[charge]).now();
        assert!(!denied.is_allowed());
        store.undo(&[charge], &denied, None);
        let look = store.take(&[charge.with_cost(0)]).now();
        store.undo(&[charge.with_cost(0)], &look, None);
        assert_eq!(left(&store, &[charge]), [3], "{algorithm:?}");
    }
}

/// A charge from before a reset gives no claim on charges after it, regardless of which of two
/// threads was first.
#[test]
fn receipts_from_before_a_reset_are_void() {
    for algorithm in all_algorithms() {
        let (clock, me) = (FakeClock::new(), Key::from("me"));
        clock.advance(Duration::from_secs(3_590));
        let (store, quota) = (clock.store(64), TEN.with_algorithm(algorithm));
        let charge = Charge::new(RuleName::default(), &me, quota.as_ref()).with_cost(4);
        let old = taken(&store, &[charge]);
        clock.advance(NANOSECOND);
        let _ = store.reset(&charge).now();
        clock.advance(NANOSECOND);
        let new = taken(&store, &[charge]);
        store.undo(&[charge], &old, None);
        assert_eq!(left(&store, &[charge]), [6], "{algorithm:?}: it is another's charge");
        store.undo(&[charge], &new, Some(1));
        assert_eq!(left(&store, &[charge]), [7], "{algorithm:?}");
    }
}

/// Keys without a slot share an account. An undo, like a refund, would give units to all of them.
#[test]
fn a_charge_to_a_shared_account_is_not_undone() {
    for algorithm in all_algorithms() {
        let clock = FakeClock::new();
        clock.advance(Duration::from_secs(3_590));
        let (store, day) = (clock.store(1), Quota::per_day(1).with_algorithm(algorithm));
        for key in 0..64_u32 {
            let filler = Key::from(key);
            drop(store.take(&[Charge::new(rule("filler"), &filler, day.as_ref())]));
        }
        let (me, other, quota) =
            (Key::from("me"), Key::from("other"), TEN.with_algorithm(algorithm));
        let charge = |key| Charge::new(RuleName::default(), key, quota.as_ref());
        let shared = store.stats().overflowed;
        let mine = taken(&store, &[charge(&me).with_cost(4)]);
        drop(taken(&store, &[charge(&other).with_cost(3)]));
        assert_eq!(store.stats().overflowed, shared + 2, "both without a slot");
        store.undo(&[charge(&me).with_cost(4)], &mine, None);
        assert_eq!(left(&store, &[charge(&other)]), [3], "{algorithm:?}");
    }
}

/// Slow work outside HTTP also saves up nothing: one minute of units is all that one minute of
/// charges holds.
#[test]
fn a_limiter_undoes_its_charges() {
    let (clock, quota) = (FakeClock::new(), Quota::per_minute(5));
    let limiter = Limiter::named("default", clock.store(64));
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(limiter.reserve("me", &quota, 1).now());
        clock.advance(Duration::from_secs(12));
    }
    assert!(held.iter().all(Reservation::is_allowed));
    let burst = limiter.reserve("me", &quota, 5).now();
    assert!(burst.is_allowed());
    for taken in held {
        limiter.adjust_to(taken, 0);
    }
    assert!(!limiter.take("me", &quota, 1).now().is_allowed(), "300 were held for an hour");
    limiter.adjust_to(burst, 1);
    let passed = (0..9).take_while(|_| limiter.take("me", &quota, 1).now().is_allowed()).count();
    assert_eq!(passed, 4);
}

/// The actual cost of a reservation of three out of ten units, and the units left.
#[tokio::test]
async fn a_reservation_is_adjusted_to_the_actual_cost() {
    for (cost, left) in [(0, 10), (1, 9), (3, 7), (4, 6), (10, 0), (12, 0)] {
        for algorithm in ALGORITHMS {
            let quota = TEN.with_algorithm(algorithm);
            let limiter = Limiter::named("jobs", FakeClock::new().store(64));
            let taken = limiter.reserve("me", &quota, 3).await;
            assert_eq!(taken.decision().remaining(), Some(7));
            limiter.adjust_to(taken, cost);
            let decision = limiter.peek("me", &quota).await;
            assert_eq!(decision.remaining(), Some(left), "{algorithm:?}, {cost}");
        }
    }
    let limiter = Limiter::named("jobs", FakeClock::new().store(64));
    let denied = limiter.reserve("me", &TEN, 11).await;
    assert!(!denied.is_allowed());
    limiter.adjust_to(denied, 5);
    assert_eq!(limiter.peek("me", &TEN).await.remaining(), Some(10), "nothing was taken");
}

#[test]
fn a_reset_voids_receipts_of_its_own_instant() {
    for algorithm in all_algorithms() {
        let (clock, me) = (FakeClock::new(), Key::from("me"));
        clock.advance(Duration::from_secs(3_590));
        let (store, quota) = (clock.store(64), TEN.with_algorithm(algorithm));
        let charge = Charge::new(RuleName::default(), &me, quota.as_ref()).with_cost(4);
        let old = taken(&store, &[charge]);
        let _ = store.reset(&charge).now();
        clock.advance(NANOSECOND);
        drop(taken(&store, &[charge]));
        store.undo(&[charge], &old, None);
        assert_eq!(left(&store, &[charge]), [6], "{algorithm:?}");
    }
}

/// Returns the units left after a charge of 4 is undone through this store.
async fn left_after_undo<S: Store>(accounts: &LocalStore, store: S) -> u32
where
    S::Error: std::fmt::Debug,
{
    let me = Key::from("me");
    let charge = Charge::new(RuleName::default(), &me, TEN.as_ref()).with_cost(4);
    let taken = store.take(&[charge]).await.expect("a decision");
    assert_eq!(left(accounts, &[charge]), [6]);
    store.undo(&[charge], &taken, Some(3));
    let left = left(accounts, &[charge])[0];
    let _ = accounts.reset(&charge).now();
    left
}

#[tokio::test]
async fn a_wrapped_store_undoes_what_it_took() {
    let (clock, second) = (FakeClock::new(), Duration::from_secs(1));
    let store = clock.store(64);
    assert_eq!(left_after_undo(&store, &store).await, 9);
    for run in 0..4 {
        // receipts of before a reset are void
        clock.advance(second);
        let left = match run {
            0 => left_after_undo(&store, Arc::new(store.clone())).await,
            1 => left_after_undo(&store, store.clone().boxed()).await,
            2 => left_after_undo(&store, store.clone().fail_open()).await,
            _ => left_after_undo(&store, store.clone().fail_closed()).await,
        };
        assert_eq!(left, 9, "{run}");
    }
}
