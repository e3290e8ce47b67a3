//! Runs the fuzz targets on their seeds and on random changes of them.
//!
//! `scripts/release-check fuzz` runs each target for an hour.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::support::dice::Dice;

impl Dice {
    fn byte(&mut self) -> u8 {
        self.index(256).to_le_bytes()[0]
    }

    /// Returns one seed with a few changes, like those of a fuzzer.
    fn change(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds[self.index(seeds.len())].clone();
        for _ in 0..=self.index(4) {
            let (at, to) = (self.index(bytes.len() + 1), self.index(bytes.len() + 1));
            let (at, to) = (at.min(to), at.max(to));
            let other = &seeds[self.index(seeds.len())];
            match self.index(8) {
                0 => bytes.truncate(to),
                1 => bytes.insert(at, self.byte()),
                2 => drop(bytes.drain(at..to.min(at + 8))),
                3 => bytes.extend_from_within(at..to),
                4 => drop(bytes.splice(at..to, other.iter().copied().skip(at).take(to - at))),
                5 => bytes.insert(at, b"\n,\"0/;=%]\xff"[self.index(10)]),
                _ => bytes[at..].iter_mut().take(1).for_each(|byte| *byte ^= 1 << self.index(8)),
            }
        }
        bytes
    }
}

/// Returns the seeds of a target, by name.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let entries = fs::read_dir(&folder).expect("a folder of seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

fn holds(target: &str, changes: usize, check: impl Fn(&[u8])) {
    let (seeds, mut random) = (seeds(target), Dice(1));
    assert!(!seeds.is_empty(), "{target} has no seeds");
    let changed = (0..changes).map(|_| random.change(&seeds)).collect::<Vec<_>>();
    for bytes in seeds.iter().chain(&changed) {
        let held = catch_unwind(AssertUnwindSafe(|| check(bytes)));
        assert!(held.is_ok(), "{target} of \"{}\"", bytes.escape_ascii());
    }
}

#[test]
fn any_forwarded_header_gives_the_client_of_the_definition() {
    holds("forwarded", 10_000, crate::bodies::forwarded::check);
}

#[cfg(feature = "admin")]
#[test]
fn any_body_of_the_admin_router_has_an_answer() {
    holds("admin", 2_000, crate::bodies::admin::check);
}

#[test]
fn any_text_that_parses_as_a_quota_reads_back() {
    holds("quota", 10_000, crate::bodies::quota::check);
}

#[test]
fn any_decision_reads_back_from_the_header_fields() {
    holds("headers", 3_000, crate::bodies::headers::check);
}

#[test]
fn no_reply_of_a_server_is_mistaken_for_an_allowed_decision() {
    holds("replies", 10_000, crate::bodies::replies::check);
}

/// Seeds of an older format would all be errors.
#[test]
fn the_seeds_of_replies_are_decisions() {
    let decisions =
        seeds("replies").iter().filter(|seed| crate::bodies::replies::decides(seed)).count();
    assert!(decisions >= 15, "{decisions}");
}

#[test]
fn any_scenario_is_played_or_is_an_error() {
    holds("scenario", 1_000, crate::bodies::scenario::check);
}
