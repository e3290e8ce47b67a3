//! The capacity of a store: memory per key, and keys beyond it.

use tower_sluice::{LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};

/// Bytes for each key of the capacity, and for a store of any size.
const BYTES_PER_KEY: u64 = 36;
const BYTES_ANYWAY: u64 = 3_072;
/// Per thousand keys: those without an entry of their own, and new keys that are denied early.
const DISPLACED: usize = 3;
const DENIED: usize = 15;

const ONE: Quota = Quota::per_hour(1);

fn admits(store: &LocalStore, quota: &Quota, key: u32) -> bool {
    let key = key.into();
    store.take(&[Charge::new(RuleName::default(), &key, quota.as_ref())]).now().is_allowed()
}

/// Fills the store with as many exhausted keys as its capacity.
fn fill(store: LocalStore, keys: u32, quota: &Quota) -> LocalStore {
    (0..keys).for_each(|key| _ = admits(&store, quota, key));
    store
}

#[test]
fn a_key_takes_at_most_36_bytes_at_any_capacity() {
    for keys in [1, 1_000, 10_000, 131_072, 1_000_000] {
        // the measurement includes opening the accounts
        let allocated = allocation_counter::measure(|| {
            drop(fill(LocalStore::with_capacity(keys as usize), keys, &ONE));
        });
        let (bytes, most) = (allocated.bytes_max, BYTES_PER_KEY * u64::from(keys) + BYTES_ANYWAY);
        assert!(bytes <= most, "{keys} keys: {bytes} bytes, {most} are promised");
    }
    let bytes = allocation_counter::measure(|| drop(LocalStore::new())).bytes_max;
    assert!(bytes <= BYTES_PER_KEY * 131_072, "by default: {bytes} bytes");
}

/// A table has two entries per key, and still some sets are full. New keys of a full set share an
/// account. Every key with debt stays limited, with or without its own entry. Other keys are not
/// affected, for any number of sets.
fn displaces_few_keys_and_keeps_all_debt(quota: &Quota, new: impl Fn(usize) -> LocalStore) {
    // results of small stores vary, so several are measured
    for (stores, keys) in [(20, 10_000), (1, 131_072), (1, 500_000)] {
        let (mut displaced, mut denied, new_keys) = (0, 0, 10_000 / stores);
        for _ in 0..stores {
            let store = fill(new(keys as usize), keys, quota);
            displaced += keys as usize - store.stats().active;
            let freed = (0..keys).filter(|key| admits(&store, quota, *key)).count();
            assert_eq!(freed, 0, "{keys} keys: exhausted ones were forgotten");
            let late = keys..keys + new_keys;
            denied += late.filter(|key| !admits(&store, quota, *key)).count();
        }
        let all = (stores * keys) as usize;
        assert!(displaced * 1_000 < DISPLACED * all, "{keys} keys: {displaced} of {all} displaced");
        assert!(denied * 1_000 < DENIED * 10_000, "{keys} keys: {denied} new keys denied");
    }
}

#[test]
fn a_store_at_its_capacity_displaces_few_keys_and_keeps_all_debt() {
    displaces_few_keys_and_keeps_all_debt(&ONE, LocalStore::with_capacity);
}

/// The clock stands still, since a window of the system clock can end during the test.
#[test]
fn a_store_of_windows_at_its_capacity_displaces_few_keys_and_keeps_all_debt() {
    let clock = tower_sluice::testing::FakeClock::new();
    let quota = ONE.with_algorithm(tower_sluice::Algorithm::fixed_window());
    displaces_few_keys_and_keeps_all_debt(&quota, |keys| clock.store(keys));
}
