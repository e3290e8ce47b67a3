//! Runs seeds, and prints their results.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    node::Mutant,
    world::{self, Report},
};

/// The seeds that found a violation once, each with its cause.
const FOUND: &str = include_str!("../seeds.txt");
/// The violations after which a run of many seeds ends.
const MOST: usize = 20;

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

/// Runs many seeds on several threads, for at most some minutes.
pub fn many(range: Range<u64>, jobs: u64, minutes: Option<u64>) -> bool {
    warm_up();
    let seeds: Vec<_> = found().chain(range).collect();
    let (start, next) = (Instant::now(), AtomicU64::new(0));
    let (sum, bad) = (Mutex::new(Report::default()), Mutex::new(Vec::new()));
    let end = minutes.map(|minutes| start + Duration::from_secs(60 * minutes));
    let work = || {
        while let Some(seed) =
            usize::try_from(next.fetch_add(1, Relaxed)).ok().and_then(|at| seeds.get(at))
        {
            let report = world::run(*seed, false, None);
            let mut bad = bad.lock().unwrap_or_else(PoisonError::into_inner);
            if !report.violations.is_empty() {
                report.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
                bad.push(*seed);
            }
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.simulated += report.simulated;
            sum.decisions += report.decisions;
            sum.commands += report.commands;
            sum.faults += report.faults;
            if bad.len() >= MOST || end.is_some_and(|end| Instant::now() > end) {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(work);
        }
    });
    let (sum, bad) = (sum.into_inner(), bad.into_inner());
    let (sum, bad) = (sum.unwrap_or_default(), bad.unwrap_or_default());
    let ran = next.load(Relaxed).min(seeds.len() as u64);
    let speed =
        sum.simulated.as_secs_f64() / cpu_time().unwrap_or_else(|| start.elapsed()).as_secs_f64();
    println!(
        "{ran} seeds: {} with violations; {:.1} h simulated, {} faults, {} decisions, {} commands",
        bad.len(),
        sum.simulated.as_secs_f64() / 3_600.0,
        sum.faults,
        sum.decisions,
        sum.commands,
    );
    println!("{:.1?}, {speed:.0} simulated seconds per second of CPU time", start.elapsed());
    bad.is_empty()
}

/// Returns the CPU time of this process, where the system reports it as Linux does.
fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.collect::<Result<Vec<_>, _>>().ok()?.into_iter().sum();
    Some(Duration::from_millis(10 * ticks))
}
