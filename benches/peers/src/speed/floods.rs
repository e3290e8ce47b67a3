//! Newcomers in a flood: the share of new keys that a full limiter refuses, and how many of the keys
//! that owe it something it has forgotten.

use crate::{
    cases::request,
    counts,
    subject::{Limit, Setup, Subject},
};

/// The accounts for which the limiters have space.
const CAPACITY: u32 = 100_000;
const NEWCOMERS: u32 = 10_000;
const BATCH: usize = 1_000;

/// Prints, for each load, the shares of refused newcomers and of exhausted keys that are admitted.
pub fn table() {
    let bytes = |subject| counts::memory(subject)[0];
    let equal = match (bytes(Subject::Ours), bytes(Subject::RateNet)) {
        (Some(own), Some(other)) => Some((f64::from(CAPACITY) * own / other) as u32),
        _ => None,
    };
    println!("\n### A flood of keys that each owe a minute, {CAPACITY} accounts\n");
    println!(
        "| keys before | | newcomers refused, % | exhausted keys admitted, % |\n|---|---|---|---|"
    );
    let rivals = [
        ("tower-sluice", Subject::Ours, Some(CAPACITY)),
        ("rate-net, as many accounts", Subject::RateNet, Some(CAPACITY)),
        ("rate-net, as many bytes", Subject::RateNet, equal),
    ];
    for load in [1, 2, 4, 6, 9] {
        for (title, subject, capacity) in rivals {
            let Some(capacity) = capacity else { continue };
            let [refused, admitted] = flooded(subject, capacity, load * CAPACITY);
            println!("| {load} × | {title} ({capacity}) | {refused:.2} | {admitted:.2} |");
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
    let newcomers = admitted((keys..keys + NEWCOMERS).collect());
    // The last keys of the flood, and the first.
    let known = (0..NEWCOMERS / 2).chain(keys - NEWCOMERS / 2..keys).collect();
    [100.0 - newcomers, admitted(known)]
}
