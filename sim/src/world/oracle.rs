//! The bounds that every run must keep.

use std::time::Duration;

use tower_sluice::{Algorithm, Quota, decision::Source};

use super::story::Story;

/// A decision, with the interval in which it was made.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub process: usize,
    pub keys: [usize; 2],
    pub cost: u32,
    pub start: Duration,
    pub end: Duration,
    pub allowed: bool,
    pub source: Source,
}

/// A loss of state, after which a key may have one more burst. Units that were leased before the
/// loss are used within its interval.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub from: Duration,
    pub to: Duration,
    pub cause: Cause,
}

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// Keys were lost, or a process does not know how old its leases are.
    State,
    /// The node's clock stepped forward, which refills accounts.
    Forward,
    /// The node's clock stepped back. Only a window that is aligned to the clock may end early.
    Back,
}

/// Returns the number of limits that a key may have in addition after a loss.
fn limits(loss: &Loss, quota: &Quota) -> u64 {
    let aligned = matches!(
        quota.counted_by(),
        Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. }
    );
    match loss.cause {
        Cause::State => 1,
        Cause::Forward => 1 + u64::from(aligned),
        Cause::Back => u64::from(aligned),
    }
}

/// The log of a run.
#[derive(Debug, Default)]
pub struct Log {
    pub entries: Vec<Entry>,
    pub losses: Vec<Loss>,
    /// The processes that started again, without the accounts of their fallback.
    pub restarts: Vec<(usize, Loss)>,
}

/// Returns the most units of a quota in a window of length `window`.
pub fn limit(quota: &Quota, window: Duration) -> u64 {
    let limit = u64::from(quota.limit());
    let fits = |time: Duration| u64::try_from(window.as_nanos() / time.as_nanos()).unwrap_or(0);
    match quota.counted_by() {
        Algorithm::Gcra => limit + fits(quota.interval()),
        Algorithm::TokenBucket => limit + u64::from(quota.units()) * (fits(quota.period()) + 1),
        Algorithm::SlidingLog => limit * (fits(quota.period()) + 1),
        // A window may be spent at its end, and the next one at its start.
        _ => limit * (fits(quota.period()) + 2),
    }
}

/// Returns the largest excess over a quota in any window, and that window.
///
/// A window counts the decisions whose interval lies in it, so that an excess has no other
/// explanation. Each loss that touches the window adds a burst.
pub fn excess(
    admitted: &[Entry],
    quota: &Quota,
    losses: &[Loss],
) -> Option<(u64, Duration, Duration)> {
    let mut by_end: Vec<_> = admitted.iter().collect();
    by_end.sort_by_key(|entry| entry.end);
    let mut worst: Option<(u64, Duration, Duration)> = None;
    for first in admitted {
        let mut units = 0;
        for last in by_end.iter().filter(|entry| entry.start >= first.start) {
            units += u64::from(last.cost);
            let most = limit(quota, last.end - first.start);
            if units <= most {
                continue;
            }
            let within = |loss: &&Loss| loss.from <= last.end && loss.to >= first.start;
            let lost = losses.iter().filter(within).map(|loss| limits(loss, quota)).sum::<u64>();
            let lost = lost * u64::from(quota.limit());
            let over = units.saturating_sub(most + lost);
            if over > worst.map_or(0, |(worst, ..)| worst) {
                worst = Some((over, first.start, last.end));
            }
        }
    }
    worst
}

/// Checks that the node and each fallback kept their limits.
pub fn check(story: &Story, log: &Log, rules: &[Vec<Quota>; 2], keys: usize, processes: u32) {
    for (rule, quotas) in rules.iter().enumerate() {
        for key in 0..keys {
            let of_key = |entry: &&Entry| entry.allowed && entry.keys[rule] == key;
            let entries: Vec<_> = log.entries.iter().filter(of_key).copied().collect();
            for quota in quotas {
                let of_node = |it: &&Entry| matches!(it.source, Source::Redis | Source::Leased);
                let shared: Vec<_> = entries.iter().filter(of_node).copied().collect();
                if let Some((over, from, to)) = excess(&shared, quota, &log.losses) {
                    let details = format!("rule {rule} key {key} {quota}: {over} units too many");
                    story.violate("limit", format!("{details} from {from:?} to {to:?}"));
                }
                let name = format!("rule {rule} key {key} {quota}");
                local(story, &entries, &log.restarts, quota, processes, &name);
            }
        }
    }
}

/// Checks the share of each process that decided by itself.
fn local(
    story: &Story,
    entries: &[Entry],
    restarts: &[(usize, Loss)],
    quota: &Quota,
    processes: u32,
    name: &str,
) {
    let most = entries.iter().map(|entry| entry.process).max().unwrap_or(0);
    for process in 0..=most {
        let by_fallback = |it: &&Entry| it.source == Source::Fallback && it.process == process;
        let own: Vec<_> = entries.iter().filter(by_fallback).copied().collect();
        let losses = restarts.iter().filter(|(other, _)| *other == process);
        let losses: Vec<_> = losses.map(|(_, loss)| *loss).collect();
        if let Some((over, from, to)) = excess(&own, &share(quota, processes, &own), &losses) {
            let details = format!("process {process}, {name}: {over} units beyond its share");
            story.violate("share", format!("{details} from {from:?} to {to:?}"));
        }
    }
}

/// Returns a quota that is at least one process's share: a part of the burst, but at least a unit
/// and the largest cost, at a part of the rate.
fn share(quota: &Quota, processes: u32, entries: &[Entry]) -> Quota {
    let cost = entries.iter().map(|entry| entry.cost).max().unwrap_or(1);
    let burst = (quota.limit() / processes).max(1).max(cost);
    match quota.counted_by() {
        Algorithm::Gcra => {
            let period = quota.interval() * processes;
            Quota::new(1, period).expect("a quota").burst(burst)
        }
        Algorithm::TokenBucket => {
            let units = (quota.units() / processes).max(1);
            let base = Quota::new(units, quota.period()).expect("a quota").burst(burst);
            base.algorithm(Algorithm::TokenBucket)
        }
        other => {
            let base = Quota::new(burst, quota.period()).expect("a quota");
            base.try_algorithm(other).unwrap_or(base)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Entry {
        let at = Duration::from_millis(millis);
        Entry {
            process: 0,
            keys: [0, 0],
            cost: 1,
            start: at,
            end: at,
            allowed: true,
            source: Source::Redis,
        }
    }

    #[test]
    fn one_unit_too_many_is_found_and_a_loss_explains_a_burst() {
        let quota = Quota::per_second(10).burst(10);
        let found = |log: &[Entry], losses: &[Loss]| {
            excess(log, &quota, losses).map_or(0, |(over, ..)| over)
        };
        let burst: Vec<_> = (0..10).map(|_| at(0)).chain((1..50).map(|n| at(n * 100))).collect();
        assert_eq!(found(&burst, &[]), 0);
        let more = |extra: Vec<Entry>| burst.iter().copied().chain(extra).collect::<Vec<_>>();
        assert_eq!(found(&more(vec![at(4_999)]), &[]), 1);
        assert_eq!(found(&more(vec![at(5_000)]), &[]), 0);
        let second = more((0..9).map(|_| at(2_550)).collect());
        assert_eq!(found(&second, &[]), 9);
        let instant = Duration::from_millis(2_500);
        assert_eq!(found(&second, &[Loss { from: instant, to: instant, cause: Cause::State }]), 0);
        let late = Duration::from_millis(5_500);
        assert_eq!(found(&second, &[Loss { from: late, to: late, cause: Cause::State }]), 9);
    }
}
