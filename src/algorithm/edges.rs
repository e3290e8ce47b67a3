//! Tests of blocked and changed quotas, clocks that go back, and several accounts.

use super::{
    tests::{Account, Row, remaining},
    *,
};

const SECOND: u64 = 1_000_000_000;

/// One quota per algorithm, each of ten units per second.
fn kinds() -> [Quota; 8] {
    let ten = Quota::per_second(10);
    [
        ten,
        ten.with_algorithm(Algorithm::TokenBucket),
        ten.with_algorithm(Algorithm::fixed_window()),
        ten.with_algorithm(Algorithm::FixedWindow {
            carry_over: 5,
            paced: false,
        }),
        ten.with_algorithm(Algorithm::AnchoredWindow),
        ten.with_algorithm(Algorithm::SlidingWindow { buckets: 1 }),
        ten.with_algorithm(Algorithm::SlidingWindow { buckets: 10 }),
        ten.with_algorithm(Algorithm::SlidingLog),
    ]
}

#[test]
fn a_blocked_quota_denies_permanently_with_every_algorithm() {
    let paced = Quota::per_second(1).with_algorithm(Algorithm::FixedWindow {
        carry_over: 0,
        paced: true,
    });
    for kind in kinds().into_iter().chain([paced]) {
        let quota = Quota::blocked().with_algorithm(kind.algorithm());
        let mut account = Account::new();
        account.adjust(&quota, 5, 3);
        let (evaluation, _) = account.take(
            &quota,
            5,
            Demand {
                max_wait: SECOND,
                ..Demand::units(1)
            },
        );
        assert!(!evaluation.allowed);
        let expected = Row {
            remaining: 0,
            full: 0,
            next: 0,
            retry: NEVER,
        };
        assert_eq!(Row::from(evaluation.snapshot), expected, "{kind:?}");
        assert!(account.look(&quota, 5, Demand::units(0)).allowed);
        assert!(account.expires_at(&quota) <= 5, "{kind:?}");
    }
}

#[test]
fn a_changed_quota_of_the_same_algorithm_keeps_earlier_charges() {
    for quota in kinds() {
        let counted_by = quota.algorithm();
        let wider = Quota::per_second(20).with_algorithm(counted_by);
        let mut account = Account::new();
        account.take(&quota, 100, Demand::units(8));
        // Each algorithm keeps something else: a time until full, tokens, or a count.
        let expected = match counted_by {
            Algorithm::Gcra => 4,
            Algorithm::TokenBucket => 2,
            _ => 12,
        };
        assert_eq!(remaining(&account, &wider, 100), expected, "{counted_by:?}");
        account.take(&wider, 100, Demand::units(1));
        assert!(remaining(&account, &quota, 100) <= 2, "{counted_by:?}");
    }
}

#[test]
fn a_changed_number_of_buckets_keeps_earlier_charges() {
    let of = |buckets| Quota::per_second(20).with_algorithm(Algorithm::SlidingWindow { buckets });
    for (before, after) in [(1, 10), (10, 1), (4, 5), (10, 1_000), (1_000, 8)] {
        let before = of(before);
        let after = of(after);
        let mut account = Account::new();
        let late = SECOND * 9 / 10;
        for step in [0, 1, 5, 6, 9] {
            account.take(&before, step * SECOND / 10, Demand::units(3));
        }
        assert!(remaining(&account, &after, late) <= 5);
        account.take(&after, late, Demand::units(1));
        assert!(remaining(&account, &before, late) <= 4);
        // The charge was made in the last period, so it still counts in full.
        assert!(remaining(&account, &after, SECOND) <= 4);

        for cost in 6..20 {
            let passes = |t| remaining(&account, &after, t) >= cost;
            let wait = Row::from(account.look(&after, late, Demand::units(cost)).snapshot).retry;
            assert!(
                passes(late + wait) && !passes(late + wait - 1),
                "{wait} for {cost}"
            );
        }
    }
}

#[test]
fn finer_buckets_count_a_charge_at_the_latest_possible_instant() {
    let of = |buckets| Quota::per_second(20).with_algorithm(Algorithm::SlidingWindow { buckets });
    let mut account = Account::new();
    account.take(&of(1), 0, Demand::units(1));
    account.take(&of(1), SECOND * 9 / 10, Demand::units(8));
    assert!(remaining(&account, &of(10), SECOND * 18 / 10) <= 12);
}

#[test]
fn a_changed_algorithm_starts_with_a_new_account() {
    let windows = &kinds()[1..];
    for (before, after) in windows.iter().zip(windows.iter().skip(1)) {
        let one = before.algorithm();
        let other = after.algorithm();
        if std::mem::discriminant(&one) == std::mem::discriminant(&other) {
            continue;
        }
        let aligned = |quota: Algorithm| matches!(quota, Algorithm::FixedWindow { .. });
        let mut account = Account::new();
        account.take(before, 100, Demand::units(8));
        // Aligned and anchored windows share one kind of state.
        let expected = if aligned(one) && other == Algorithm::AnchoredWindow {
            2
        } else {
            10
        };
        assert_eq!(
            remaining(&account, after, 100),
            expected,
            "{one:?}, {other:?}"
        );
        account.take(after, 100, Demand::units(1));
        assert_eq!(remaining(&account, after, 100), expected - 1);
    }
}

/// A thread may read the clock before another thread, but charge the account after it.
#[test]
fn a_late_thread_is_neither_denied_nor_allowed_more() {
    for quota in kinds() {
        let mut account = Account::new();
        let edge = 5 * SECOND;
        account.take(&quota, edge, Demand::units(4));
        let (evaluation, _) = account.take(&quota, edge - 3, Demand::units(5));
        assert!(evaluation.allowed, "{:?}", quota.algorithm());
        assert_eq!(
            remaining(&account, &quota, edge),
            1,
            "{:?}",
            quota.algorithm()
        );
        account.take(&quota, edge, Demand::units(1));
        assert!(!account.take(&quota, edge - 1, Demand::units(1)).0.allowed);
        let later = Row::from(account.look(&quota, edge, Demand::units(1)).snapshot);
        assert!(later.retry > 3, "{:?} {later:?}", quota.algorithm());
    }
}

#[test]
fn a_denial_by_another_quota_creates_an_account_with_initial_units() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let quota = Quota::per_second(10)
            .with_initial(3)
            .with_algorithm(algorithm);
        let opened = |demand| {
            let mut account = Account::new();
            account.open(&quota, SECOND, demand);
            remaining(&account, &quota, 2 * SECOND) == 10
        };
        assert!(opened(Demand::units(1)));
        assert!(!opened(Demand::units(0)), "a look");
        assert!(!opened(Demand::units(11)), "an impossible cost");
        assert!(
            !opened(Demand {
                headroom: 10,
                ..Demand::units(1)
            }),
            "an impossible cost"
        );
    }
}
