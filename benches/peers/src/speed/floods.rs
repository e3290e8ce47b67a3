//! New keys during a flood: the share of them that a full limiter denies, and the share of exhausted
//! keys that it allows.

use crate::{
    cases::request,
    memory::memory,
    subject::{Limit, Setup, Subject},
};

/// The accounts for which the limiters have space.
const CAPACITY: u32 = 100_000;
const NEW: u32 = 10_000;
const BATCH: usize = 1_000;

/// Prints both shares for each load.
pub fn table() {
    let ratio = memory(Subject::Ours) / memory(Subject::RateNet);
    let equal = (f64::from(CAPACITY) * ratio) as u32;
    println!("\n### A flood of keys that are each exhausted for an hour, {CAPACITY} accounts\n");
    println!(
        "| keys before | | new keys denied, % | exhausted keys allowed, % |\n|---|---|---|---|"
    );
    let rivals = [
        ("tower-sluice", Subject::Ours, CAPACITY),
        ("rate-net, as many accounts", Subject::RateNet, CAPACITY),
        ("rate-net, as many bytes", Subject::RateNet, equal),
    ];
    for load in [1, 2, 4, 6, 9] {
        for (title, subject, capacity) in rivals {
            let [denied, allowed] = flooded(subject, capacity, load * CAPACITY);
            println!("| {load} × | {title} ({capacity}) | {denied:.2} | {allowed:.2} |");
        }
    }
}

fn flooded(subject: Subject, capacity: u32, keys: u32) -> [f64; 2] {
    let setup = Setup::new(Limit::Slow).with_capacity(capacity);
    let runner = &mut subject.runners(setup)[0];
    let mut admitted = |keys: Vec<u32>| -> f64 {
        let all = keys.len();
        let batches = keys.chunks(BATCH);
        let served = batches.map(|keys| runner(keys.iter().copied().map(request).collect()));
        100.0 * served.map(|served| served.admitted).sum::<usize>() as f64 / all as f64
    };
    admitted((0..keys).collect());
    let new = admitted((keys..keys + NEW).collect());
    // The last keys of the flood, and the first.
    let known = (0..NEW / 2).chain(keys - NEW / 2..keys).collect();
    [100.0 - new, admitted(known)]
}
