//! Charges undone by their receipts: one of several, in part, after a reset, and in accounts that keys
//! without a slot share. `tests/scenarios/refunds.json` has the numbers of each algorithm.

use std::time::Duration;

use tower_sluice::{
    Algorithm, Charge, Decision, Key, Limiter, LocalStore, Outcome, Quota, RuleName, Store,
    testing::FakeClock,
};

const TEN: Quota = Quota::per_hour(10);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn rule(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

fn algorithms() -> [Algorithm; 7] {
    [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::fixed_window().paced(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 4 },
        Algorithm::SlidingLog,
    ]
}

fn left(store: &LocalStore, charges: &[Charge<'_>]) -> Vec<u32> {
    let looks: Vec<_> = charges.iter().map(|charge| charge.cost(0)).collect();
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
    let charge = |name| Charge::new(rule(name), &me, TEN.as_ref()).cost(4);
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
    let charge = Charge::new(RuleName::default(), &me, &quotas).cost(4);
    let decision = taken(&store, &[charge]);
    store.undo(&[charge.only(1)], &decision, None);
    assert_eq!(left(&store, &[charge]), [6, 50]);
}

/// The receipts of two keys under one rule cannot be told apart by their rule.
#[test]
fn a_receipt_that_may_be_anothers_gives_nothing_back() {
    let (store, me, other) = (FakeClock::new().store(64), Key::from("me"), Key::from("other"));
    let both = [&me, &other].map(|key| Charge::new(RuleName::default(), key, TEN.as_ref()).cost(4));
    let decision = taken(&store, &both);
    store.undo(&both[1..], &decision, None);
    assert_eq!(left(&store, &both), [6, 6]);
    store.undo(&[Charge::new(rule("unknown"), &me, TEN.as_ref())], &decision, None);
    assert_eq!(left(&store, &both), [6, 6]);
    // all of them, in their order, are clear
    store.undo(&both, &decision, Some(3));
    assert_eq!(left(&store, &both), [9, 9]);
}

/// In two steps as in one, while no time passes.
#[test]
fn an_account_named_twice_gives_back_once() {
    let (store, me) = (FakeClock::new().store(64), Key::from("me"));
    let charge = Charge::new(RuleName::default(), &me, TEN.as_ref());
    let twice = [charge.cost(2), charge.cost(3)];
    let decision = taken(&store, &twice);
    store.undo(&twice, &decision, None);
    assert_eq!(left(&store, &[charge]), [10]);
}

#[test]
fn a_denial_and_a_look_give_nothing_back() {
    for algorithm in algorithms() {
        let (clock, me) = (FakeClock::new(), Key::from("me"));
        clock.advance(Duration::from_secs(3_599));
        let (store, quota) = (clock.store(64), TEN.algorithm(algorithm));
        let charge = Charge::new(RuleName::default(), &me, quota.as_ref()).cost(7);
        taken(&store, &[charge]);
        let denied = store.take(&[charge]).now();
        assert!(!denied.is_allowed());
        store.undo(&[charge], &denied, None);
        let look = store.take(&[charge.cost(0)]).now();
        store.undo(&[charge.cost(0)], &look, None);
        assert_eq!(left(&store, &[charge]), [3], "{algorithm:?}");
    }
}

/// Whoever was charged before a reset has no claim on what is charged after it, whichever of two
/// threads was quicker.
#[test]
fn receipts_of_before_a_reset_are_void() {
    for algorithm in algorithms() {
        let (clock, me) = (FakeClock::new(), Key::from("me"));
        clock.advance(Duration::from_secs(3_590));
        let (store, quota) = (clock.store(64), TEN.algorithm(algorithm));
        let charge = Charge::new(RuleName::default(), &me, quota.as_ref()).cost(4);
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

/// Keys without a slot share an account: each gives back what it was charged there, and no more.
#[test]
fn what_was_charged_to_a_shared_account_is_undone_there() {
    for algorithm in algorithms() {
        let clock = FakeClock::new();
        clock.advance(Duration::from_secs(3_590));
        let (store, day) = (clock.store(1), Quota::per_day(1).algorithm(algorithm));
        for key in 0..64_u32 {
            let filler = Key::from(key);
            drop(store.take(&[Charge::new(rule("filler"), &filler, day.as_ref())]));
        }
        let (me, other, quota) = (Key::from("me"), Key::from("other"), TEN.algorithm(algorithm));
        let charge = |key| Charge::new(RuleName::default(), key, quota.as_ref());
        let shared = store.stats().overflowed;
        let mine = taken(&store, &[charge(&me).cost(4)]);
        taken(&store, &[charge(&other).cost(3)]);
        assert_eq!(store.stats().overflowed, shared + 2, "both without a slot");
        store.undo(&[charge(&me).cost(4)], &mine, Some(3));
        assert_eq!(left(&store, &[charge(&other)]), [6], "{algorithm:?}");
        store.undo(&[charge(&me).cost(4)], &mine, Some(0));
        assert_eq!(left(&store, &[charge(&other)]), [6], "{algorithm:?}");
    }
}

/// Slow work outside HTTP banks nothing either: a minute's worth is all that a minute's charges hold.
#[test]
fn a_limiter_undoes_what_it_took() {
    let (clock, quota) = (FakeClock::new(), Quota::per_minute(5));
    let limiter = Limiter::new(clock.store(64));
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(limiter.take("me", &quota, 1).now());
        clock.advance(Duration::from_secs(12));
    }
    assert!(held.iter().all(Decision::is_allowed));
    let burst = limiter.take("me", &quota, 5).now();
    assert!(burst.is_allowed());
    for taken in &held {
        limiter.undo("me", &quota, 1, taken, None);
    }
    assert!(!limiter.take("me", &quota, 1).now().is_allowed(), "300 were held for an hour");
    limiter.undo("me", &quota, 5, &burst, Some(4));
    let passed = (0..9).take_while(|_| limiter.take("me", &quota, 1).now().is_allowed()).count();
    assert_eq!(passed, 4);
}
