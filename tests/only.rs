//! A charge of one quota of several leaves the accounts of the others alone.

mod support;

use support::driven::secs;
use tower_sluice::{
    Algorithm, Charge, Decision, Key, Quota, RuleName, Store, store::OwnedCharges,
    testing::FakeClock,
};

const QUOTAS: [Quota; 3] = [
    Quota::per_second(10),
    Quota::per_hour(20).algorithm(Algorithm::fixed_window()),
    Quota::per_day(30),
];

fn charge(key: &Key) -> Charge<'_> {
    Charge::new(RuleName::default(), key, &QUOTAS)
}

/// The places of the outcomes and what is left there.
fn left(decision: &Decision) -> Vec<(usize, u32)> {
    decision.outcomes().iter().map(|outcome| (outcome.place(), outcome.remaining())).collect()
}

#[test]
fn only_the_named_quota_is_charged_settled_and_reset() {
    let (clock, key) = (FakeClock::new(), Key::from("alice"));
    let store = clock.store(64);
    let all = charge(&key);
    let look = || left(&store.take(&[all.cost(0)]).now());
    for (place, has) in [10, 20, 30].into_iter().enumerate() {
        let only = all.only(place);
        assert_eq!((only.place(), all.place()), (Some(place), None));
        assert_eq!(left(&store.take(&[only.cost(2)]).now()), [(place, has - 2)]);
        assert_eq!(left(&store.settle(&only, -3).now()), [(place, has - 5)]);
        assert_eq!(left(&store.settle(&only, 1).now()), [(place, has - 4)]);
    }
    assert_eq!(look(), [(0, 6), (1, 16), (2, 26)]);
    assert_eq!(left(&store.reset(&all.only(1)).now()), [(1, 20)]);
    assert_eq!(look(), [(0, 6), (1, 20), (2, 26)]);
    // a reset may void receipts of neighbours that were charged up to then
    clock.advance(std::time::Duration::from_nanos(1));
    let taken = store.take(&[all.only(2).cost(5)]).now();
    store.undo(&[all.only(2).cost(5)], &taken, None);
    assert_eq!(look(), [(0, 6), (1, 20), (2, 26)]);
}

#[test]
fn another_quota_does_not_refuse_it() {
    let (store, key) = (FakeClock::new().store(64), Key::from("alice"));
    assert!(store.take(&[charge(&key).cost(10)]).now().is_allowed());
    assert!(!store.take(&[charge(&key)]).now().is_allowed());
    assert!(store.take(&[charge(&key).only(2)]).now().is_allowed());
    assert!(!store.take(&[charge(&key).only(0)]).now().is_allowed());
}

#[test]
fn a_single_quota_and_places_that_do_not_exist() {
    let (store, key) = (FakeClock::new().store(64), Key::from("alice"));
    let one = Charge::new(RuleName::default(), &key, &QUOTAS[..1]);
    assert_eq!(left(&store.take(&[one.only(0)]).now()), [(0, 9)]);
    for nowhere in [1, 255, 256, usize::MAX] {
        let nothing = store.take(&[one.only(nowhere).cost(10)]).now();
        assert_eq!((nothing.is_allowed(), left(&nothing)), (true, vec![]), "{nowhere}");
    }
    assert_eq!(left(&store.take(&[one.cost(0)]).now()), [(0, 9)]);
}

#[test]
fn it_is_the_same_account_and_a_block_holds() {
    let clock = FakeClock::new();
    let (store, key) = (clock.store(64), Key::from("alice"));
    let all = charge(&key);
    assert!(store.take(&[all.cost(4), all.only(0).cost(6)]).now().is_allowed());
    assert_eq!(left(&store.take(&[all.cost(0)]).now()), [(0, 0), (1, 16), (2, 26)]);
    store.block(&all, secs(9)).now();
    assert_eq!(store.take(&[all.only(2)]).now().retry_after(), Some(secs(9)));
}

#[test]
fn owned_charges_carry_it() {
    let key = Key::from("alice");
    let owned = OwnedCharges::from(&[charge(&key), charge(&key).only(2)][..]);
    let places = owned.with(|charges| charges.iter().map(Charge::place).collect::<Vec<_>>());
    assert_eq!(places, [None, Some(2)]);
}
