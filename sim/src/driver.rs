//! Runs seeds, and prints their results.

use std::{ops::Range, time::Duration};

use crate::{
    node::Mutant,
    world::{self, Report},
};

/// The seeds that found a violation once, each with its cause.
const FOUND: &str = include_str!("../seeds.txt");
/// The violations after which a run of many seeds ends.
const MOST: usize = 20;

/// The seeds after which the sums so far are printed.
const PROGRESS: usize = 1_000;

/// Parses `0..1000`.
pub fn range(text: &str) -> Option<Range<u64>> {
    let (first, end) = text.split_once("..")?;
    Some(first.parse().ok()?..end.parse().ok()?)
}

/// Runs a seed without a result, so that all later runs find the same state of the process, such as
/// the interned names of rules.
fn warm_up() {
    world::run(0, false, None);
}

/// Runs one seed. Prints its story if `recorded`.
pub fn one(seed: u64, recorded: bool, mutant: Option<&'static Mutant>) -> bool {
    warm_up();
    let report = world::run(seed, recorded, mutant);
    report.events.iter().for_each(|event| println!("{event}"));
    for violation in &report.violations {
        println!("seed {seed}: {violation}");
    }
    let Report { simulated, decisions, commands, faults, .. } = report;
    println!(
        "{simulated:.1?} simulated, {faults} faults, {decisions} decisions, {commands} commands"
    );
    report.violations.is_empty()
}

fn found() -> impl Iterator<Item = u64> {
    let seed = |line: &'static str| line.split_whitespace().next()?.parse().ok();
    FOUND.lines().filter_map(seed)
}

/// Runs many seeds, for at most some minutes of CPU time, or until the `first` violation.
pub fn many(range: Range<u64>, minutes: Option<u64>, first: bool) -> bool {
    warm_up();
    let (mut sum, mut ran, mut bad) = (Report::default(), 0_usize, 0_usize);
    let end = minutes.map(|minutes| Duration::from_secs(60 * minutes));
    for seed in found().chain(range) {
        let report = world::run(seed, false, None);
        report.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
        ran += 1;
        bad += usize::from(!report.violations.is_empty());
        sum.simulated += report.simulated;
        sum.decisions += report.decisions;
        sum.commands += report.commands;
        sum.faults += report.faults;
        if ran % PROGRESS == 0 {
            print(ran, bad, &sum);
        }
        if bad >= if first { 1 } else { MOST } || end.is_some_and(|end| cpu_time() > end) {
            break;
        }
    }
    print(ran, bad, &sum);
    bad == 0
}

fn print(ran: usize, bad: usize, sum: &Report) {
    let Report { simulated, decisions, commands, faults, .. } = sum;
    let (simulated, spent) = (simulated.as_secs_f64(), cpu_time());
    let hours = simulated / 3_600.0;
    println!(
        "{ran} seeds: {bad} with violations; {hours:.1} h simulated, {faults} faults, {decisions} \
         decisions, {commands} commands",
    );
    let speed = simulated / spent.as_secs_f64();
    println!("{spent:.1?} of CPU time, {speed:.0} simulated seconds per second");
}

/// Returns the CPU time of this process, as Linux reports it. The clock stands still: the source of
/// randomness comes with a clock for another kind of simulation.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    Duration::from_millis(10 * ticks.filter_map(|it| it.parse::<u64>().ok()).sum::<u64>())
}
