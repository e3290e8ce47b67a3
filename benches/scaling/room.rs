//! A store that is almost empty, at its capacity, and full.

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use tower_sluice::{
    Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

use crate::rounds::{Case, each, random, table};

/// Consecutive decisions before the next case's turn.
const BATCH: usize = 1_000;
/// A quota whose account, once half used, stays in debt until the bench ends and is never
/// exhausted.
pub(crate) const DEEP: Quota = Quota::per_hour(4_000_000_000);
const HALF: u32 = 2_000_000_000;

const KEYS: u32 = 131_072;
const ONE: Quota = Quota::per_hour(1);
/// The numbers of keys in debt, in percent of the capacity. There are twice as many slots.
const LOADS: [u32; 5] = [1, 50, 100, 150, 200];

pub(crate) fn tables(time: Duration) {
    let stores = LOADS.map(|load| {
        let (store, keys) = (LocalStore::with_capacity(KEYS as usize), KEYS / 100 * load);
        put_in_debt(&store, keys, DEEP);
        (store, keys, format!("{load} % of the capacity"))
    });
    let known = stores.each_ref().map(|(store, _, name)| {
        // Every case uses an equal number of keys, so that caches hold an equal share.
        Case::new(name, decide(store.clone(), KEYS / 100, DEEP))
    });
    table("store, a known key, by load", time, known.into());
    let new = stores.each_ref().map(|(store, keys, name)| {
        let mut next = *keys;
        Case::new(name, move || {
            let first = next;
            next += u32::try_from(BATCH).expect("few");
            let nanos = each(BATCH, || {
                (first..next).for_each(|key| {
                    black_box(take(store, address(key), DEEP, 1));
                });
            });
            (first..next).for_each(|key| forget(store, key));
            nanos
        })
    });
    table("store, a newcomer, by load", time, new.into());
}

/// Prints the shares of new keys that find no slot, and of those that are denied for it, by load of a
/// store for a million keys. Each takes the one unit of its quota. The clock stands still.
pub(crate) fn denials() {
    const KEYS: u32 = 1_000_000;
    const NEW: u32 = 20_000;
    println!("new keys without a slot, and denied, by load of a store for {KEYS} keys");
    for load in [50, 80, 100, 120, 150] {
        let (store, known) = (FakeClock::new().store(KEYS as usize), KEYS / 100 * load);
        for key in 0..known {
            take(&store, address(key), ONE, 1);
        }
        let before = store.stats().overflowed;
        let admitted = (known..known + NEW).filter(|key| take(&store, address(*key), ONE, 1));
        let denied = f64::from(NEW) - admitted.count() as f64;
        let shared = (store.stats().overflowed - before) as f64;
        let percent = |keys: f64| keys * 100.0 / f64::from(NEW);
        println!("  {load:>3} %: {:6.2} % {:6.2} %", percent(shared), percent(denied));
    }
}

/// Frees the key's slot, so that the load of the store stays constant.
fn forget(store: &LocalStore, key: u32) {
    let key = Key::from(address(key));
    drop(store.reset(&Charge::new(RuleName::default(), &key, DEEP.as_ref())).now());
}

pub(crate) fn address(key: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + key).into()
}

/// Decides for an address.
fn take(store: &LocalStore, address: IpAddr, quota: Quota, cost: u32) -> bool {
    let key = Key::from(address);
    let charge = Charge::new(RuleName::default(), &key, quota.as_ref()).with_cost(cost);
    store.take(&[charge]).now().is_allowed()
}

/// Puts the accounts of `keys` keys in debt for the rest of the bench.
fn put_in_debt(store: &LocalStore, keys: u32, quota: Quota) {
    for key in 0..keys {
        take(store, address(key), quota, HALF);
    }
}

/// Returns batches of decisions for random keys.
fn decide(store: LocalStore, keys: u32, quota: Quota) -> impl FnMut() -> f64 {
    let mut next = random(keys);
    move || {
        let batch: Vec<_> = (0..BATCH).map(|_| address(next())).collect();
        each(BATCH, || {
            for address in batch {
                black_box(take(&store, black_box(address), quota, 1));
            }
        })
    }
}
