//! The bounds that every run must keep.

use std::time::Duration;

use tower_sluice::{Algorithm, Quota, decision::Source};

use super::{
    rules::{Rules, loosest},
    story::Story,
};

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
    /// `true` for a late charge, which may exceed the limit.
    pub late: bool,
}

impl Entry {
    /// Returns an admission by the node.
    pub fn allowed(process: usize, cost: u32, start: Duration, end: Duration) -> Self {
        let (keys, source) = ([0, 0], Source::Redis);
        Self { process, keys, cost, start, end, allowed: true, source, late: false }
    }
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
    /// Two servers decided at the same time.
    Split,
    /// Units came back by a refund or an undo.
    Returned(u64),
}

impl Cause {
    /// Returns the cause, if a request may run twice.
    pub fn repeated(self, repeats: bool) -> Self {
        match self {
            Self::Returned(units) if repeats => Self::Returned(2 * units),
            other => other,
        }
    }
}

/// Returns the units that a key may have in addition, within a window that a loss touches.
fn more(loss: &Loss, quota: &Quota, from: Duration, to: Duration) -> u64 {
    let aligned = matches!(
        quota.algorithm(),
        Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. }
    );
    let limits = match loss.cause {
        Cause::State => 1,
        Cause::Forward => 1 + u64::from(aligned),
        Cause::Back => u64::from(aligned),
        Cause::Split => return limit(quota, loss.to.min(to).saturating_sub(loss.from.max(from))),
        Cause::Returned(units) => return units,
    };
    limits * u64::from(quota.limit())
}

/// The log of a run.
#[derive(Debug, Default)]
pub struct Log {
    pub entries: Vec<Entry>,
    /// The processes and the starts of all operations, one of which probes a breaker.
    pub operations: Vec<(usize, Duration)>,
    pub losses: Vec<Loss>,
    /// Requests without an answer, which may be charged until the end.
    pub unanswered: Vec<Entry>,
    /// The processes that started again, without the accounts of their fallback.
    pub restarts: Vec<(usize, Loss)>,
    /// The end of the last fault.
    pub healed: Duration,
    /// The time by which the servers' clocks stepped back. Accounts refill that much later.
    pub back: Duration,
    /// `true` if requests ran twice.
    pub repeats: bool,
    /// The processes whose connections fell silent.
    pub silenced: Vec<usize>,
}

/// Returns the most units of a quota in a window of length `window`.
pub fn limit(quota: &Quota, window: Duration) -> u64 {
    let limit = u64::from(quota.limit());
    let fits = |time: Duration| u64::try_from(window.as_nanos() / time.as_nanos()).unwrap_or(0);
    match quota.algorithm() {
        Algorithm::Gcra => limit + fits(quota.interval()),
        Algorithm::TokenBucket => limit + u64::from(quota.units()) * (fits(quota.period()) + 1),
        Algorithm::SlidingLog => limit * (fits(quota.period()) + 1),
        // All units at the end of a window, then one per interval.
        Algorithm::FixedWindow { paced: true, .. } => {
            limit + 1 + fits(quota.period() / quota.limit())
        }
        Algorithm::SlidingWindow { buckets } => {
            // No more than the limit in this time or less, if there are several buckets.
            let exact = quota.period() - quota.period() / buckets + Duration::from_nanos(1);
            limit * (fits(exact) + 1).min(fits(quota.period()) + 2)
        }
        // A window may be spent at its end, and the next one at its start.
        _ => limit * (fits(quota.period()) + 2),
    }
}

/// Returns the largest excess over a quota in any window, and that window.
///
/// A window counts the decisions whose interval lies in it, so that an excess has no other
/// explanation. Each loss that touches the window adds units. `slack` is the time by which an
/// admission may take effect late. Late charges count where a debt outlasts them, if they were
/// answered before the last admission was sent: a later one may have taken effect after it.
pub fn excess(
    entries: &[Entry],
    quota: &Quota,
    losses: &[Loss],
    slack: Duration,
) -> Option<(u64, Duration, Duration)> {
    let keeps_debt = matches!(quota.algorithm(), Algorithm::Gcra | Algorithm::TokenBucket);
    let mut by_end: Vec<_> = entries.iter().filter(|entry| keeps_debt || !entry.late).collect();
    by_end.sort_by_key(|entry| entry.end);
    let mut worst: Option<(u64, Duration, Duration)> = None;
    for first in entries {
        let (mut admitted, mut late, mut sent) = (0, 0, first.start);
        let mut charges = by_end.iter().filter(|it| it.late && it.start >= first.start).peekable();
        for last in by_end.iter().filter(|it| !it.late && it.start >= first.start) {
            admitted += u64::from(last.cost);
            sent = sent.max(last.start);
            while let Some(charge) = charges.next_if(|charge| charge.end <= sent) {
                late += u64::from(charge.cost);
            }
            let (units, most) = (admitted + late, limit(quota, last.end - first.start + slack));
            if units <= most {
                continue;
            }
            let within = |loss: &&Loss| loss.from <= last.end && loss.to >= first.start;
            let lost = losses.iter().filter(within);
            // A loss of state ends a debt.
            let ends = |loss: &Loss| !matches!(loss.cause, Cause::Returned(_));
            let units = if lost.clone().any(ends) { units - late } else { units };
            let lost = lost.map(|loss| more(loss, quota, first.start, last.end)).sum::<u64>();
            let over = units.saturating_sub(most + lost);
            if over > worst.map_or(0, |(worst, ..)| worst) {
                worst = Some((over, first.start, last.end));
            }
        }
    }
    worst
}

/// Checks that the node and each fallback kept their limits.
pub fn check(story: &Story, log: &Log, rules: &Rules, keys: usize, processes: u32) {
    for rule in 0..2 {
        for key in 0..keys {
            let of_key = |entry: &&Entry| entry.allowed && entry.keys[rule] == key;
            let entries: Vec<_> = log.entries.iter().filter(of_key).copied().collect();
            for pair in rules.bounds(rule) {
                let (quota, name) = (loosest(&pair), format!("rule {rule} key {key} {}", pair[0]));
                let of_node = |it: &&Entry| matches!(it.source, Source::Redis | Source::Leased);
                let shared: Vec<_> = entries.iter().filter(of_node).copied().collect();
                if let Some((over, from, to)) = excess(&shared, &quota, &log.losses, Duration::ZERO)
                {
                    let details = format!("{name}: {over} units too many");
                    story.violate("limit", format!("{details} from {from:?} to {to:?}"));
                }
                local(story, &entries, &log.restarts, &pair, processes, &name);
            }
        }
    }
}

/// Checks the share of each process that decided by itself.
fn local(
    story: &Story,
    entries: &[Entry],
    restarts: &[(usize, Loss)],
    pair: &[Quota; 2],
    processes: u32,
    name: &str,
) {
    let most = entries.iter().map(|entry| entry.process).max().unwrap_or(0);
    for process in 0..=most {
        let by_fallback = |it: &&Entry| it.source == Source::Fallback && it.process == process;
        let own: Vec<_> = entries.iter().filter(by_fallback).copied().collect();
        let losses = restarts.iter().filter(|(other, _)| *other == process);
        let losses: Vec<_> = losses.map(|(_, loss)| *loss).collect();
        let share = loosest(&pair.map(|quota| share(&quota, processes)));
        if let Some((over, from, to)) = excess(&own, &share, &losses, Duration::ZERO) {
            let details = format!("process {process}, {name}: {over} units beyond {share}");
            story.violate("share", format!("{details} from {from:?} to {to:?}"));
        }
    }
}

/// Returns one process's share: a part of the burst, but at least a unit, at a part of the rate. A
/// run has at least two processes.
pub fn share(quota: &Quota, processes: u32) -> Quota {
    let burst = (quota.limit() / processes).max(1);
    let built = match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket => {
            let period = quota.interval() * processes;
            Quota::new(1, period).and_then(|it| it.try_with_burst(burst))
        }
        Algorithm::FixedWindow { carry_over, paced } => {
            let carry_over = carry_over / processes;
            let algorithm = Algorithm::FixedWindow { carry_over, paced };
            Quota::new(burst, quota.period()).and_then(|it| it.try_with_algorithm(algorithm))
        }
        other => Quota::new(burst, quota.period()).and_then(|it| it.try_with_algorithm(other)),
    };
    let built = built.and_then(|it| it.try_with_soft(quota.soft() / processes));
    let built = built.and_then(|it| match quota.initial() {
        Some(initial) => it.try_with_initial(initial / processes),
        None => Ok(it),
    });
    let built = built.and_then(|it| match quota.max_debt() {
        Some(debt) => it.try_with_max_debt(debt / processes),
        None => Ok(it),
    });
    built.expect("a quota")
}

/// The longest time from the start of a request to its end, if no fault delays it.
const LONGEST_CALL: Duration = Duration::from_millis(300);

/// Checks that each denial by a server or by a deny cache has a reason: charges that some account has
/// not refilled yet. A request without an answer counts as charged.
pub fn check_denials(story: &Story, log: &Log, rules: &Rules) {
    // Another clock, or another server, may deny for longer.
    let odd = |loss: &Loss| matches!(loss.cause, Cause::Forward | Cause::Back | Cause::Split);
    // A request that ran twice may have been charged by the run whose reply nobody received.
    if rules.live || log.repeats || log.losses.iter().any(odd) {
        return;
    }
    let charges = log.entries.iter().filter(|it| it.allowed || by_policy(it.source));
    let mut charges: Vec<_> = charges.chain(&log.unanswered).copied().collect();
    for charge in &mut charges {
        let known =
            matches!(charge.source, Source::Redis) && charge.end - charge.start < LONGEST_CALL;
        charge.end = if known { charge.end } else { Duration::MAX };
    }
    charges.sort_by_key(|charge| charge.start);
    let denied =
        |it: &&Entry| !it.allowed && matches!(it.source, Source::Redis | Source::DenyCache);
    for denial in log.entries.iter().filter(denied) {
        let has_reason = |rule: usize| {
            let same = |it: &&Entry| it.keys[rule] == denial.keys[rule] && it.start <= denial.end;
            let charges: Vec<_> = charges.iter().filter(same).copied().collect();
            rules.base[rule].iter().any(|quota| denies(quota, &charges, denial))
        };
        if !(0..rules.count()).any(has_reason) {
            let Entry { process, keys, cost, start, source, .. } = denial;
            let text = format!("p{process} denied cost {cost} of keys {keys:?} by {source}");
            story.violate("denial", format!("{text}, sent at {start:?}, with units left"));
            return;
        }
    }
}

fn by_policy(source: Source) -> bool {
    matches!(source, Source::Fallback | Source::FailedOpen | Source::FailedClosed | Source::Busy)
}

/// Returns `true` if a quota may deny after these charges, which are sorted by their starts.
fn denies(quota: &Quota, charges: &[Entry], denial: &Entry) -> bool {
    let (burst, cost) = (u64::from(quota.limit()), u64::from(denial.cost));
    if cost > burst {
        return true;
    }
    let unknown = charges.iter().filter(|it| it.end == Duration::MAX);
    let mut units: u64 = unknown.map(|it| u64::from(it.cost)).sum();
    let mut rest = charges.iter().rev().filter(|it| it.end < Duration::MAX).peekable();
    // The account was full before one of these charges, and has refilled since then.
    charges.iter().rev().any(|first| {
        while let Some(it) = rest.next_if(|it| it.start + LONGEST_CALL >= first.start) {
            units += u64::from(it.cost);
        }
        let since = denial.start.saturating_sub(first.end);
        let window = |more: Duration| if since > quota.period() + more { u64::MAX } else { 0 };
        let refilled = match quota.algorithm() {
            Algorithm::Gcra => fits(since, quota.interval()),
            Algorithm::TokenBucket => fits(since, quota.period()) * u64::from(quota.units()),
            Algorithm::SlidingWindow { buckets } => window(quota.period() / buckets),
            _ => window(Duration::ZERO),
        };
        units + cost > burst.saturating_add(refilled)
    })
}

fn fits(time: Duration, unit: Duration) -> u64 {
    u64::try_from(time.as_nanos() / unit.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_needs_charges_that_are_not_refilled() {
        let quota = Quota::per_second(10).with_burst(2);
        let ms = Duration::from_millis;
        let charge = |at| Entry::allowed(0, 1, ms(at), ms(at + 1));
        let denied = |at, charges: &[Entry]| denies(&quota, charges, &charge(at));
        assert!(denied(2, &[charge(0), charge(1)]));
        assert!(denied(99, &[charge(0), charge(1)]));
        assert!(!denied(2, &[charge(0)]));
        assert!(!denied(500, &[charge(0), charge(1)]));
        let lost = Entry { end: Duration::MAX, ..charge(0) };
        assert!(denied(900, &[lost, charge(850)]));
    }

    fn at(millis: u64) -> Entry {
        let at = Duration::from_millis(millis);
        Entry::allowed(0, 1, at, at)
    }

    #[test]
    fn a_window_allows_two_bursts_at_one_instant_unless_it_slides() {
        let aligned = Algorithm::FixedWindow { carry_over: 0, paced: false };
        for (algorithm, buckets, over) in [
            (aligned, 1, 0),
            (Algorithm::SlidingWindow { buckets: 1 }, 1, 10),
            (Algorithm::SlidingWindow { buckets: 5 }, 5, 10),
            (Algorithm::SlidingLog, 1, 10),
        ] {
            let quota = Quota::per_second(10).try_with_algorithm(algorithm).expect("a quota");
            let found = |second: u64| {
                let log: Vec<_> = (0..20).map(|n| at(n / 10 * second)).collect();
                excess(&log, &quota, &[], Duration::ZERO).map_or(0, |(units, ..)| units)
            };
            assert_eq!((found(0), found(1_001)), (over, 0), "{algorithm:?}");
            if buckets > 1 {
                assert_eq!((found(800), found(801)), (10, 0), "{algorithm:?}");
            }
        }
    }

    #[test]
    fn one_unit_too_many_is_found_and_a_loss_explains_a_burst() {
        let quota = Quota::per_second(10).with_burst(10);
        let found = |log: &[Entry], losses: &[Loss]| {
            excess(log, &quota, losses, Duration::ZERO).map_or(0, |(over, ..)| over)
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

    #[test]
    fn a_late_charge_counts_if_it_was_answered_before_an_admission_was_sent() {
        let quota = Quota::per_second(10).with_burst(10);
        let from = |start: u64, end: u64| {
            let (start, end) = (Duration::from_millis(start), Duration::from_millis(end));
            Entry::allowed(0, 1, start, end)
        };
        let over = |charges: &[Entry]| {
            let charges = charges.iter().map(|charge| Entry { cost: 5, late: true, ..*charge });
            // Ten units at once, and one that the account has again when it arrives.
            let admitted = (0..10).map(|_| at(0)).chain([from(40, 100)]);
            let log: Vec<_> = admitted.chain(charges).collect();
            excess(&log, &quota, &[], Duration::ZERO).map_or(0, |(over, ..)| over)
        };
        assert_eq!(over(&[from(0, 40)]), 5);
        assert_eq!(over(&[from(0, 41)]), 0);
        // Of two charges that overlap, one ended before the admission.
        assert_eq!(over(&[from(0, 40), from(20, 60)]), 5);
        assert_eq!(over(&[from(0, 40), from(20, 40)]), 10);
        assert_eq!(over(&[from(20, 60), from(30, 90)]), 0);
    }
}
