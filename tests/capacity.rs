//! What a capacity means: how much memory a key of it takes, and what becomes of keys when a store
//! holds as many as it was made for.

use tower_sluice::{Algorithm, Charge, LocalStore, Quota, RuleName, Store};

/// Of each key of the capacity, and of a store however small.
const BYTES_PER_KEY: u64 = 36;
const BYTES_ANYWAY: u64 = 3_072;
/// Of a thousand keys: those without a slot of their own, and newcomers who are refused early.
const DISPLACED: usize = 3;
const REFUSED: usize = 15;

const ONE: Quota = Quota::per_hour(1);

fn admits(store: &LocalStore, quota: &Quota, key: u32) -> bool {
    let key = key.into();
    store.take(&[Charge::new(RuleName::default(), &key, quota.as_ref())]).now().is_allowed()
}

/// A store with as many exhausted keys as it was made for.
fn filled(keys: u32, quota: &Quota) -> LocalStore {
    let store = LocalStore::with_capacity(keys as usize);
    (0..keys).for_each(|key| _ = admits(&store, quota, key));
    store
}

#[test]
fn a_key_takes_at_most_36_bytes_at_any_capacity() {
    for keys in [1, 1_000, 10_000, 131_072, 1_000_000] {
        // opening accounts is part of it
        let allocated = allocation_counter::measure(|| drop(filled(keys, &ONE)));
        let (bytes, most) = (allocated.bytes_max, BYTES_PER_KEY * u64::from(keys) + BYTES_ANYWAY);
        assert!(bytes <= most, "{keys} keys: {bytes} bytes, {most} are promised");
    }
    let bytes = allocation_counter::measure(|| drop(LocalStore::new())).bytes_max;
    assert!(bytes <= BYTES_PER_KEY * 131_072, "by default: {bytes} bytes");
}

/// A table has two slots a key, and yet some sets have no room. Their newcomers share an account:
/// whoever owes something is held to it, with a slot or without, and nobody else feels it, however
/// many sets there are.
fn displaces_few_and_forgets_no_debt(quota: &Quota) {
    // small stores vary: several of them
    for (stores, keys) in [(20, 10_000), (1, 131_072), (1, 500_000)] {
        let (mut displaced, mut refused, newcomers) = (0, 0, 10_000 / stores);
        for _ in 0..stores {
            let store = filled(keys, quota);
            displaced += keys as usize - store.stats().in_debt;
            let freed = (0..keys).filter(|key| admits(&store, quota, *key)).count();
            assert_eq!(freed, 0, "{keys} keys: exhausted ones were forgotten");
            let late = keys..keys + newcomers;
            refused += late.filter(|key| !admits(&store, quota, *key)).count();
        }
        let all = (stores * keys) as usize;
        assert!(displaced * 1_000 < DISPLACED * all, "{keys} keys: {displaced} of {all} displaced");
        assert!(refused * 1_000 < REFUSED * 10_000, "{keys} keys: {refused} newcomers refused");
    }
}

#[test]
fn at_its_capacity_a_store_displaces_few_and_forgets_no_debt() {
    displaces_few_and_forgets_no_debt(&ONE);
}

#[test]
fn nor_does_it_where_accounts_are_windows() {
    displaces_few_and_forgets_no_debt(&ONE.algorithm(Algorithm::fixed_window()));
}
