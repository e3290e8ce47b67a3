//! The order of hash maps. The only test of its process, because all threads share the source.

#[path = "../src/source.rs"]
mod source;

use std::{collections::HashMap, thread};

fn order(seed: u64) -> Vec<u32> {
    let names = move || {
        source::seed_process(seed);
        (0..50).map(|n| (n, ())).collect::<HashMap<u32, ()>>().into_keys().collect()
    };
    thread::spawn(names).join().expect("no panic")
}

#[test]
fn hash_maps_depend_on_the_seed_alone() {
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
}
