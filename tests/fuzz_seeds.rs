//! The fuzz targets over their seeds and over random changes of them: seconds of what
//! `scripts/release-check fuzz` does for minutes.

#[path = "../fuzz/bodies/mod.rs"]
mod bodies;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// A generator of its own (Knuth's MMIX), so that every run does the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }

    fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }

    /// One seed with a few changes, such as a fuzzer makes.
    fn change(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(4) {
            let (at, to) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            let (at, to) = (at.min(to), at.max(to));
            let other = &seeds[self.below(seeds.len())];
            match self.below(8) {
                0 => bytes.truncate(to),
                1 => bytes.insert(at, self.byte()),
                2 => drop(bytes.drain(at..to.min(at + 8))),
                3 => bytes.extend_from_within(at..to),
                4 => drop(bytes.splice(at..to, other.iter().copied().skip(at).take(to - at))),
                5 => bytes.insert(at, b"\n,\"0/;=%]\xff"[self.below(10)]),
                _ => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            }
        }
        bytes
    }
}

/// The seeds of a target, by name.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let entries = fs::read_dir(&folder).expect("a folder of seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

fn holds(target: &str, changes: usize, check: impl Fn(&[u8])) {
    let (seeds, mut random) = (seeds(target), Random(1));
    assert!(!seeds.is_empty(), "{target} has no seeds");
    let changed = (0..changes).map(|_| random.change(&seeds)).collect::<Vec<_>>();
    for bytes in seeds.iter().chain(&changed) {
        let held = catch_unwind(AssertUnwindSafe(|| check(bytes)));
        assert!(held.is_ok(), "{target} of \"{}\"", bytes.escape_ascii());
    }
}

#[test]
fn whatever_is_forwarded_counts_for_the_client_of_the_definition() {
    holds("forwarded", 10_000, bodies::forwarded::check);
}

#[test]
fn whatever_is_read_as_a_quota_reads_back() {
    holds("quota", 10_000, bodies::quota::check);
}

#[test]
fn whatever_is_decided_reads_back_from_the_header_fields() {
    holds("headers", 3_000, bodies::headers::check);
}

#[test]
fn whatever_a_server_replies_admits_nobody_by_accident() {
    holds("replies", 10_000, bodies::replies::check);
}

#[test]
fn whatever_a_scenario_says_is_played_or_refused() {
    holds("scenario", 1_000, bodies::scenario::check);
}
