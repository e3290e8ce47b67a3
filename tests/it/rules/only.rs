//! Charges of one of several quotas.

use tower_sluice::{
    Algorithm, Decision, Key, Quota, Store, StoreExt,
    rule::RuleName,
    store::{Charge, Op, OwnedOp},
    testing::FakeClock,
};

use crate::support::driven::secs;

const QUOTAS: [Quota; 3] = [
    Quota::per_second(10),
    Quota::per_hour(20).with_algorithm(Algorithm::fixed_window()),
    Quota::per_day(30),
];

fn charge(key: &Key) -> Charge<'_> {
    Charge::new(RuleName::default(), key, &QUOTAS)
}

/// Returns the quota indexes of the outcomes, with the units left.
fn left(decision: &Decision) -> Vec<(usize, u32)> {
    decision.outcomes().iter().map(|outcome| (outcome.quota_index(), outcome.remaining())).collect()
}

/// Returns the indices of the charged quotas.
fn indices(charge: &Charge<'_>) -> Vec<usize> {
    charge.charged_quotas().map(|(index, _)| index).collect()
}

#[test]
fn only_the_chosen_quota_is_charged_adjusted_and_reset() {
    let (clock, key) = (FakeClock::new(), Key::from("alice"));
    let store = clock.store(64);
    let all = charge(&key);
    let look = || left(&store.take(&[all.with_cost(0)]).now());
    for (place, has) in [10, 20, 30].into_iter().enumerate() {
        let only = all.with_quota_index(place);
        assert_eq!((indices(&only), indices(&all)), (vec![place], vec![0, 1, 2]));
        assert_eq!(left(&store.take(&[only.with_cost(2)]).now()), [(place, has - 2)]);
        assert_eq!(left(&store.adjust(&only, 3).now()), [(place, has - 5)]);
        assert_eq!(left(&store.adjust(&only, -1).now()), [(place, has - 4)]);
    }
    assert_eq!(look(), [(0, 6), (1, 16), (2, 26)]);
    assert_eq!(left(&store.reset(&all.with_quota_index(1)).now()), [(1, 20)]);
    assert_eq!(look(), [(0, 6), (1, 20), (2, 26)]);
    // a reset may void receipts of other accounts that were charged before it
    clock.advance(std::time::Duration::from_nanos(1));
    let taken = store.take(&[all.with_quota_index(2).with_cost(5)]).now();
    store.undo(&[all.with_quota_index(2).with_cost(5)], &taken, None);
    assert_eq!(look(), [(0, 6), (1, 20), (2, 26)]);
}

#[test]
fn another_quota_does_not_deny_it() {
    let (store, key) = (FakeClock::new().store(64), Key::from("alice"));
    assert!(store.take(&[charge(&key).with_cost(10)]).now().is_allowed());
    assert!(!store.take(&[charge(&key)]).now().is_allowed());
    assert!(store.take(&[charge(&key).with_quota_index(2)]).now().is_allowed());
    assert!(!store.take(&[charge(&key).with_quota_index(0)]).now().is_allowed());
}

#[test]
fn a_single_quota_and_an_index_out_of_range_work() {
    let (store, key) = (FakeClock::new().store(64), Key::from("alice"));
    let one = Charge::new(RuleName::default(), &key, &QUOTAS[..1]);
    assert_eq!(left(&store.take(&[one.with_quota_index(0)]).now()), [(0, 9)]);
    for nowhere in [1, 255, 256, usize::MAX] {
        let nothing = store.take(&[one.with_quota_index(nowhere).with_cost(10)]).now();
        assert_eq!((nothing.is_allowed(), left(&nothing)), (true, vec![]), "{nowhere}");
    }
    assert_eq!(left(&store.take(&[one.with_cost(0)]).now()), [(0, 9)]);
}

#[test]
fn the_account_is_the_same_and_a_block_applies() {
    let clock = FakeClock::new();
    let (store, key) = (clock.store(64), Key::from("alice"));
    let all = charge(&key);
    assert!(
        store.take(&[all.with_cost(4), all.with_quota_index(0).with_cost(6)]).now().is_allowed()
    );
    assert_eq!(left(&store.take(&[all.with_cost(0)]).now()), [(0, 0), (1, 16), (2, 26)]);
    drop(store.block(&all, secs(9)).now());
    assert_eq!(store.take(&[all.with_quota_index(2)]).now().retry_after(), Some(secs(9)));
}

#[test]
fn owned_charges_keep_the_quota_index() {
    let key = Key::from("alice");
    let charges = [charge(&key), charge(&key).with_quota_index(2)];
    let owned = OwnedOp::from(Op::Take(&charges));
    let places = owned.with(|op| op.charges().iter().map(indices).collect::<Vec<_>>());
    assert_eq!(places, [vec![0, 1, 2], vec![2]]);
}
