//! A store that is almost empty, at its capacity, and full.

use std::{hint::black_box, time::Duration};

use tower_sluice::{Key, LocalStore, StoreExt, rule::RuleName, store::Charge};

use crate::{
    accounts::{BATCH, DEEP, address, decide, put_in_debt, take},
    rounds::{Case, each, table},
};

const KEYS: u32 = 131_072;
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

/// Frees the key's slot, so that the load of the store stays constant.
fn forget(store: &LocalStore, key: u32) {
    let key = Key::from(address(key));
    store.reset(&Charge::new(RuleName::default(), &key, DEEP.as_ref())).now();
}
