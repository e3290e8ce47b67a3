//! The table of accounts, which treats every algorithm alike.

use std::time::Duration;

use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt, decision::Source, rule::RuleName,
    store::Charge, testing::FakeClock,
};

use crate::support::{ALGORITHMS, live};

/// Entries of one set. A store with a capacity of one key has one set.
const WAYS: u32 = 16;
fn charged(store: &LocalStore, rule: &str, key: u32, quota: &Quota, units: u32) -> Decision {
    let (rule, key) = (RuleName::new(rule).expect("a name"), Key::from(key));
    store.take(&[Charge::new(rule, &key, quota.as_ref()).with_cost(units)]).now()
}

/// Returns a store of one set in which every entry is in debt for one unit of `quota`.
fn filled(clock: &FakeClock, quota: &Quota) -> LocalStore {
    let store = clock.store(1);
    assert!((0..WAYS).all(|key| charged(&store, "filler", key, quota, 1).is_allowed()));
    store
}

/// A shared account has the charges of other keys, too.
#[test]
fn an_undo_changes_no_shared_account() {
    for algorithm in ALGORITHMS {
        let (clock, rule) = (FakeClock::new(), RuleName::new("late").expect("a name"));
        let (store, key) = (clock.store(1), Key::from("me"));
        let quota = Quota::per_hour(5).with_algorithm(algorithm);
        let charges = [Charge::new(rule, &key, quota.as_ref()).with_cost(3)];
        let own = store.take(&charges).now();
        assert_eq!((own.remaining(), store.stats().overflowed), (Some(2), 0), "{algorithm:?}");
        drop(store.reset(&charges[0]).now());
        clock.advance(Duration::from_secs(1));
        let second = Quota::per_second(1);
        assert!((0..WAYS).all(|key| charged(&store, "filler", key, &second, 1).is_allowed()));
        // The charge was made in an account that is gone.
        let shared = charged(&store, "late", 7, &quota, 3);
        assert_eq!((shared.remaining(), store.stats().overflowed), (Some(2), 1), "{algorithm:?}");
        store.undo(&charges, &own, None);
        assert_eq!(charged(&store, "late", 8, &quota, 0).remaining(), Some(2), "{algorithm:?}");
        // This one was made in the shared account.
        let taken = store.take(&charges[..1]).now();
        assert!(!taken.is_allowed(), "{algorithm:?}: three of two units");
        let one = [charges[0].with_cost(1)];
        let taken = store.take(&one).now();
        store.undo(&one, &taken, None);
        assert_eq!(charged(&store, "late", 8, &quota, 0).remaining(), Some(1), "{algorithm:?}");
    }
}

/// Two plans of one rule in a full store. The windows of the second end every second, and its limit
/// is below or above that of the first.
#[test]
fn a_plan_does_not_refill_the_shared_account_of_another() {
    let all = || ALGORITHMS.iter().flat_map(|one| ALGORITHMS.map(|other| (*one, other)));
    for ((one, other), units) in all().flat_map(|pair| [5, 50].map(|units| (pair, units))) {
        let clock = FakeClock::new();
        let store = filled(&clock, &Quota::per_day(1));
        let daily = Quota::per_day(10).with_algorithm(one);
        let fast = Quota::per_second(units).with_algorithm(other);
        let mut taken = 0;
        for round in 0..5 {
            while charged(&store, "plans", 100 + round, &daily, 1).is_allowed() {
                taken += 1;
            }
            assert_eq!(taken, 10, "{one:?} beside {other:?} with {units}/s, round {round}");
            clock.advance(Duration::from_millis(1_001));
            drop(charged(&store, "plans", 200, &fast, 1));
        }
        assert!(store.stats().overflowed > 0);
    }
}

/// The accounts that new keys share are bounded, so a key whose plan has none is denied.
#[test]
fn shared_accounts_of_many_plans_are_bounded() {
    for algorithm in [Algorithm::AnchoredWindow, Algorithm::TokenBucket] {
        let clock = FakeClock::new();
        let store = filled(&clock, &Quota::per_day(1));
        let initial = (algorithm == Algorithm::TokenBucket).then_some(10);
        let plan = |n: u32| {
            let quota = Quota::per(10 + n, Duration::from_secs(600 + u64::from(n)))
                .with_algorithm(algorithm);
            initial.map_or(quota, |units| quota.with_initial(units))
        };
        let take = |n, cost| charged(&store, "plans", 100 + n, &plan(n), cost);
        let allowed = (0..1_000).filter(|n| take(*n, 1).is_allowed()).count();
        assert_eq!(allowed, 32, "{algorithm:?}");
        assert!((0..32).all(|n| take(n, 1).is_allowed()), "{algorithm:?}");
        let denied = take(40, 1);
        assert_eq!(denied.source(), Source::Overflow);
        let wait = denied.retry_after().expect("a wait");
        assert!(take(40, 0).is_allowed(), "a cost of 0");
        clock.advance(wait - Duration::from_nanos(1));
        assert!(!take(40, 1).is_allowed(), "{algorithm:?} before {wait:?}");
        clock.advance(Duration::from_nanos(1));
        assert!(take(40, 1).is_allowed(), "{algorithm:?} after {wait:?}");
    }
}

/// Neither do late charges open more of them, which no decision precedes, nor a decision on several quotas
/// for which there is room only one at a time.
#[test]
fn no_operation_opens_more_than_32_shared_accounts() {
    for algorithm in [Algorithm::Gcra, Algorithm::AnchoredWindow] {
        let plans: Vec<_> = (0..40)
            .map(|n| Quota::per(10, Duration::from_secs(600 + n)).with_algorithm(algorithm))
            .collect();
        let (key, rule) = (Key::from("late"), RuleName::new("plans").expect("a name"));
        let charge = |plans| Charge::new(rule, &key, plans);
        let opened = |store: &LocalStore| {
            let look = store.take(&[charge(&plans).with_cost(0)]).now();
            look.outcomes().iter().filter(|outcome| outcome.remaining() < 10).count()
        };
        let clock = FakeClock::new();

        let store = filled(&clock, &Quota::per_day(1));
        drop(store.adjust(&charge(&plans), 1).now());
        assert_eq!(opened(&store), 32, "{algorithm:?}: one late charge");
        for plan in &plans {
            drop(store.adjust(&charge(plan.as_ref()), 1).now());
        }
        assert_eq!(opened(&store), 32, "{algorithm:?}: many late charges");

        let store = filled(&clock, &Quota::per_day(1));
        let take = |plans| store.take(&[charge(plans)]).now();
        assert_eq!(take(&plans).source(), Source::Overflow);
        assert_eq!(opened(&store), 0, "{algorithm:?}");
        assert!(take(&plans[..31]).is_allowed());
        let denied = take(&plans[31..33]);
        assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Overflow));
        assert!(denied.retry_after().is_some());
        assert_eq!(opened(&store), 31, "{algorithm:?}: nothing was charged");
        assert!(take(&plans[31..32]).is_allowed() && !take(&plans[32..33]).is_allowed());
    }
}

#[tokio::test]
async fn a_replaced_quota_refills_no_account_and_locks_none_out() {
    live::replaced_quotas(&mut FakeClock::new()).await;
}

#[tokio::test]
async fn a_receipt_of_an_older_quota_drops_no_account() {
    live::a_receipt_of_an_older_quota(&mut FakeClock::new()).await;
}

#[tokio::test]
async fn a_look_under_another_quota_changes_no_account() {
    live::a_look_under_another_quota(&mut FakeClock::new()).await;
}

#[test]
fn a_key_that_gets_an_entry_starts_with_the_debt_of_the_shared_account() {
    for algorithm in ALGORITHMS {
        let (clock, quota) = (FakeClock::new(), Quota::per_hour(5).with_algorithm(algorithm));
        let store = full(&clock);
        assert!(charged(&store, "late", 1, &quota, 3).is_allowed(), "{algorithm:?}");
        clock.advance(Duration::from_secs(3));
        let own = charged(&store, "late", 1, &quota, 2);
        assert_eq!((own.is_allowed(), own.remaining()), (true, Some(0)), "{algorithm:?}");
        assert_eq!(store.stats().active, 1, "{algorithm:?}");
    }
}

/// Returns a store of one set in which every entry is in debt for a second.
pub(super) fn full(clock: &FakeClock) -> LocalStore {
    filled(clock, &Quota::per_second(1))
}

/// An account that starts with less than its limit fills from its first contact on, even if that
/// request is denied because of another account. A request that can never pass is not a contact.
#[test]
fn a_temporary_denial_opens_accounts_and_a_permanent_one_does_not() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let cold = Quota::per_hour(10).with_burst(20).with_algorithm(algorithm).with_initial(0);
        let other = Quota::per_hour(2);
        for (cost, after_an_hour) in [(2, Some(10)), (3, Some(0))] {
            let (clock, key) = (FakeClock::new(), Key::from("a"));
            let store = clock.store(64);
            let charges =
                [("cold", &cold, 1), ("other", &other, cost)].map(|(rule, quota, cost)| {
                    Charge::new(rule.parse().expect("a name"), &key, quota.as_ref()).with_cost(cost)
                });
            assert!(!store.take(&charges).now().is_allowed());
            clock.advance(Duration::from_secs(3_600));
            let look = store.take(&[charges[0].with_cost(0)]).now();
            assert_eq!(look.remaining(), after_an_hour, "{algorithm:?}, {cost}");
        }
    }
}
