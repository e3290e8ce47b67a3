//! Alternating cases: on a noisy machine, only numbers of one moment are comparable.

use std::time::{Duration, Instant};

/// The maximum number of rounds; more do not improve the result.
const MOST: usize = 2_000;

/// A row of a table.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) threads: usize,
    /// Runs a batch and returns the nanoseconds per decision.
    pub(crate) run: Box<dyn FnMut() -> f64 + 'a>,
}

impl<'a> Case<'a> {
    /// Creates a case on one thread.
    pub(crate) fn new(name: impl Into<String>, run: impl FnMut() -> f64 + 'a) -> Self {
        Self { name: name.into(), threads: 1, run: Box::new(run) }
    }
}

/// Runs the cases alternately for `time`, and prints the results.
pub(crate) fn table(title: &str, time: Duration, mut cases: Vec<Case<'_>>) {
    let (start, mut times) = (Instant::now(), vec![Vec::new(); cases.len()]);
    // The first batch finds cold caches.
    for case in &mut cases {
        (case.run)();
    }
    while times[0].is_empty() || (start.elapsed() < time && times[0].len() < MOST) {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            times.push((case.run)());
        }
    }
    println!("{title} ({} rounds)", times[0].len());
    for (case, own) in cases.iter().zip(&times) {
        let nanos = median(own.iter().copied());
        let ratio = median(own.iter().zip(&times[0]).map(|(time, first)| time / first));
        let in_all = 1_000.0 * case.threads as f64 / nanos;
        println!("  {ratio:>7.2} {nanos:>9.1} ns {in_all:>8.2} M/s  {}", case.name);
    }
    println!();
}

/// Returns the nanoseconds of each of the `count` parts of `work`.
pub(crate) fn each(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Returns uniformly distributed numbers below `bound`.
pub(crate) fn random(bound: u32) -> impl FnMut() -> u32 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from(((state >> 32) * u64::from(bound)) >> 32).expect("below the bound")
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
