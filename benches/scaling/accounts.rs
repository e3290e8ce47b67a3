//! Keys, rules and quotas, on the store alone.

use std::{
    array::from_fn,
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use tower_sluice::{Algorithm, Key, LocalStore, Quota, StoreExt, rule::RuleName, store::Charge};

use crate::rounds::{Case, each, many, random, table};

/// Consecutive decisions before the next case's turn.
pub(crate) const BATCH: usize = 1_000;
/// A quota whose account, once half used, stays in debt until the bench ends and is never
/// exhausted.
pub(crate) const DEEP: Quota = Quota::per_hour(4_000_000_000);
const HALF: u32 = 2_000_000_000;
const NAMES: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];

pub(crate) fn tables(time: Duration) {
    let window = DEEP.with_algorithm(Algorithm::fixed_window());
    let known = |keys, quota| {
        let store = LocalStore::with_capacity(keys as usize);
        put_in_debt(&store, keys, quota);
        Case::new(format!("{keys} keys"), decide(store, keys, quota))
    };
    let all = [1_000, 10_000, 100_000, 1_000_000].map(|keys| known(keys, DEEP));
    table("store, keys, at the capacity", time, all.into());
    let all = [1_000, 10_000, 100_000].map(|keys| known(keys, window));
    table("store, keys, at the capacity, fixed windows", time, all.into());
    let all = vec![rules::<1>(), rules::<2>(), rules::<4>(), rules::<8>()];
    table("store, rules of one quota", time, all);
    let quotas = |quota: Quota| {
        [1, 2, 3, 4, 5].map(|count| {
            let (store, quotas) = (LocalStore::new(), vec![quota; count]);
            let run = batches(move |address| {
                let key = Key::from(address);
                let decision = store.take(&[Charge::new(RuleName::default(), &key, &quotas)]);
                decision.now().is_allowed()
            });
            Case::new(many(count, "quota"), run)
        })
    };
    table("store, quotas of a rule", time, quotas(DEEP).into());
    table("store, quotas of a rule, fixed windows", time, quotas(window).into());
}

/// Builds a case with `N` rules that all charge one address.
fn rules<const N: usize>() -> Case<'static> {
    let store = LocalStore::new();
    let names: [RuleName; N] = from_fn(|at| RuleName::new(NAMES[at]).expect("a name"));
    let run = batches(move |address| {
        let key = Key::from(address);
        let charges = names.each_ref().map(|name| Charge::new(*name, &key, DEEP.as_ref()));
        store.take(&charges).now().is_allowed()
    });
    Case::new(many(N, "rule"), run)
}

pub(crate) fn names(count: usize) -> &'static [&'static str] {
    &NAMES[..count]
}

pub(crate) fn address(key: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a00_0000 + key).into()
}

/// Decides for an address.
pub(crate) fn take(store: &LocalStore, address: IpAddr, quota: Quota, cost: u32) -> bool {
    let key = Key::from(address);
    let charge = Charge::new(RuleName::default(), &key, quota.as_ref()).with_cost(cost);
    store.take(&[charge]).now().is_allowed()
}

/// Puts the accounts of `keys` keys in debt for the rest of the bench.
pub(crate) fn put_in_debt(store: &LocalStore, keys: u32, quota: Quota) {
    for key in 0..keys {
        take(store, address(key), quota, HALF);
    }
}

/// Returns batches of decisions for random keys.
pub(crate) fn decide(store: LocalStore, keys: u32, quota: Quota) -> impl FnMut() -> f64 {
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

/// Returns batches of decisions for one address.
fn batches(mut decide: impl FnMut(IpAddr) -> bool) -> impl FnMut() -> f64 {
    assert!(decide(address(0)));
    move || {
        each(BATCH, || {
            for _ in 0..BATCH {
                black_box(decide(black_box(address(0))));
            }
        })
    }
}
