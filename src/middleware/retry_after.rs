//! The wait that a denial reports.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::queue::{Bounds, Queue};
use crate::{
    decision::{Decision, Outcome, Source},
    head::RequestHead,
    quota::Quota,
    reject,
    rule::{RuleInfo, RuleName, longest_wait},
    store::{Charge, Clock},
};

/// The wait that denials report, set by
/// [`RateLimitLayer::retry_after`](crate::RateLimitLayer::retry_after).
///
/// The wait is sent as `Retry-After`, in problem+json and in the gRPC `RetryInfo`. It is never
/// shorter than the time until an identical request would be allowed, with the exceptions of
/// [`Decision::retry_after`]. After a time of `Queue`, a request may also wait in the layer. The `t` of the
/// field `RateLimit` is not changed.
///
/// If a thousand clients are denied at once, and each receives the same time, all of them return at
/// that time, and most are denied again. For a quota of ten per second, with a burst of ten, and a
/// thousand clients that obey `Retry-After`:
///
/// | | requests until all were allowed | last one allowed after |
/// |---|--:|--:|
/// | `Earliest` | 50 500 | 99 s |
/// | `Jitter(10)` | about 34 000 | 100 s |
/// | `Queue` | 2 370 | 99 s |
///
/// The table comes from a simulation, which the test `herd` repeats.
///
/// # Whole seconds
///
/// `Retry-After` counts whole seconds, so all clients that were denied together, and whose times are in
/// one second, return together. No more of them are admitted than the burst has units: with a burst of
/// 1, two hundred clients need 199 s, at any rate. Three settings help, each with `Queue`. For two hundred
/// clients that are denied at once:
///
/// | quota | ideal | whole seconds | with `max_wait` of 1 s | [`retry_after_ms`] |
/// |---|--:|--:|--:|--:|
/// | `10/s` | 19 s | 19 s | 19 s | 19 s |
/// | `10/s burst 3` | 20 s | 66 s | 20 s | 20 s |
/// | `10/s burst 1` | 20 s | 199 s | 20 s | 22 s |
/// | `100/s burst 1` | 2 s | 199 s | 2 s | 2.2 s |
/// | `30/min burst 1` | 398 s | 398 s | 398 s | 438 s |
///
/// - A burst of at least the units of one second.
/// - [`Rule::max_wait`](crate::Rule::max_wait) of one second, and a
///   [`max_waiters_per_key`](crate::RateLimitLayer::max_waiters_per_key) of at least the units of one
///   second: the requests of a second then wait in the layer for their pace.
/// - [`retry_after_ms`], for clients that read it. gRPC clients over HTTP/2 read exact waits without it.
///
/// [`retry_after_ms`]: crate::RateLimitLayer::retry_after_ms
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryAfter {
    /// The time until an identical request would be allowed. The default.
    #[default]
    Earliest,
    /// The earliest time, increased at random by up to this number of percent, at most 10, or by up to
    /// one second if that is longer. 0 increases nothing.
    Jitter(u8),
    /// A time of its own for each denial of a key, one after another at the rate of the quota.
    ///
    /// The layer remembers the last time that it reported for a key. The next denial of that key
    /// gets the time of one more charge, at most a minute after the earliest time. In whole seconds, as
    /// many requests have the same time as the account admits at once: the units of the burst, and those
    /// whose turn comes within [`max_wait`](crate::Rule::max_wait).
    ///
    /// The times follow the clock of the embedded store, also that of a `FakeClock`, and that of the
    /// process for other stores.
    ///
    /// # Limitations
    ///
    /// - **Not for keys that unrelated clients share**, such as the address of a NAT. Each denial
    ///   delays the next time by its cost. The retries of a client that ignores `Retry-After` are
    ///   free, but the other clients of its key soon wait a minute longer than necessary. Use
    ///   `Jitter` there.
    /// - **Each share of a [fair rule](crate::Rule::fair_by) has its own queue**, at the rate of the
    ///   share. Clients without a share have one together. Different clients may receive the same
    ///   time.
    /// - **Nothing is reserved.** A client that returns early, or for the first time, takes the
    ///   units that another client waits for.
    /// - Each process has its own queue. With several processes, clients of different processes
    ///   receive the same times.
    /// - [Whole seconds](#whole-seconds) are too coarse for a burst below the units of one second.
    /// - Exact times (`retry_after_ms`, gRPC) are a tenth of the interval further apart if the burst is
    ///   one request, since a request that is a millisecond early would be denied.
    /// - The layer remembers 4 096 keys, in 32 KiB. A key beyond that may replace another, whose
    ///   queue then starts again at the earliest time.
    /// - A block, and a wait that is [estimated](crate::decision::Outcome::is_estimated), have no queue.
    Queue,
}

/// The waits that the denials of a layer report.
#[derive(Clone, Default)]
pub(crate) struct Retries {
    policy: RetryAfter,
    /// `true` if rejections have the field `retry-after-ms`.
    pub(super) in_milliseconds: bool,
    queueing: Arc<[QueueingRule]>,
    promises: Arc<Promises>,
}

/// A rule whose requests may wait in the layer.
struct QueueingRule {
    name: RuleName,
    max_wait: Duration,
}

impl QueueingRule {
    fn new(info: &RuleInfo<'_>) -> Option<Self> {
        Some(Self {
            name: info.name,
            max_wait: info.max_wait?,
        })
    }
}

impl Retries {
    /// Creates the default settings of a layer with these rules.
    pub(super) fn new(infos: &[RuleInfo<'_>]) -> Self {
        Self {
            queueing: infos.iter().filter_map(QueueingRule::new).collect(),
            ..Self::default()
        }
    }

    /// Sets the policy, whose queues are empty.
    pub(super) fn set_policy(&mut self, policy: RetryAfter) {
        self.policy = policy;
        self.promises = Arc::default();
    }

    /// Returns the unit in which the client reads waits.
    fn step(&self, head: &RequestHead<'_>) -> Duration {
        let is_exact = self.in_milliseconds || reject::is_grpc_call(head);
        if is_exact { MILLISECOND } else { SECOND }
    }
}

/// The queue of a layer, whose waits a promise takes into account.
#[derive(Clone, Copy)]
pub(super) struct LayerQueue<'a> {
    pub(super) queue: &'a Queue,
    pub(super) bounds: Bounds,
}

impl Retries {
    /// Returns the wait that a denial reports, or `None` if waiting does not help.
    #[inline]
    pub(super) fn reported_wait(
        &self,
        layer: LayerQueue<'_>,
        head: &RequestHead<'_>,
        denial: &Decision,
        charges: &[Charge<'_>],
    ) -> Option<Duration> {
        let earliest = denial.retry_after()?;
        match self.policy {
            RetryAfter::Earliest | RetryAfter::Jitter(0) => Some(earliest),
            RetryAfter::Jitter(percent) => Some(with_jitter(earliest, percent, self.step(head))),
            RetryAfter::Queue => match Pace::of(self, layer, head, denial, charges) {
                Some(pace) => Some(self.promises.promise(&pace, now(denial), earliest)),
                None => Some(earliest),
            },
        }
    }

    /// Returns the longest time for which the retry of a request waits in the layer for the turn of a
    /// charge. At most [`Bounds::of`](super::queue::Bounds::of) requests of a key wait, each an interval
    /// after the one before.
    ///
    /// The charge itself has what is left of this time: nothing if the request found the queue full.
    fn longest_queue_wait(
        &self,
        layer: LayerQueue<'_>,
        head: &RequestHead<'_>,
        charges: &[Charge<'_>],
        charge: &Charge<'_>,
        quota: &Quota,
    ) -> Duration {
        // A quota with soft units has no queue.
        let never_queues = quota.soft() > 0
            || charges.iter().any(Charge::takes_several_slots)
            || layer.queue.is_closed();
        if never_queues {
            return Duration::ZERO;
        }
        let mut queueing = self.queueing.iter();
        let rule = queueing.find(|rule| rule.name == charge.rule);
        let max_wait = rule.map_or(Duration::ZERO, |rule| longest_wait(head, rule.max_wait));
        let bound = layer.bounds.of(&charge.with_max_wait(max_wait));
        let waiters = u32::try_from(bound).unwrap_or(u32::MAX);
        max_wait.min(quota.interval().saturating_mul(waiters))
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn with_jitter(earliest: Duration, percent: u8, step: Duration) -> Duration {
    let earliest = round_up(earliest, step);
    let longest = (earliest.saturating_mul(percent.into()) / 100).max(SECOND);
    let steps = longest.as_nanos() / step.as_nanos();
    let random = u128::from(RandomState::new().hash_one(0)) % (steps + 1);
    earliest.saturating_add(step.saturating_mul(u32::try_from(random).unwrap_or(u32::MAX)))
}

/// Returns a time in whole steps, at least one.
fn round_up(time: Duration, step: Duration) -> Duration {
    let steps = time.as_nanos().div_ceil(step.as_nanos()).max(1);
    u32::try_from(steps).map_or(time, |steps| step.saturating_mul(steps))
}

/// Returns the instant of a denial, by the clock of the embedded store or of the process.
fn now(denial: &Decision) -> Duration {
    let is_embedded = matches!(denial.source(), Source::Local | Source::Overflow);
    let by_store = denial.instant().filter(|_| is_embedded);
    Duration::from_nanos(by_store.unwrap_or_else(|| Clock::shared().now()))
}

/// The account that denied a request, and the times at which it admits such requests.
struct Pace<'a> {
    rule: RuleName,
    key: &'a crate::Key,
    quota_index: usize,
    /// The time in which the units of one request are refilled.
    interval: Duration,
    /// The time by which a request may come early, because the burst has more units than it needs.
    tolerance: Duration,
    /// The time by which it may also come early, because it waits in the layer.
    max_wait: Duration,
    /// Clients wait for multiples of this time.
    step: Duration,
}

impl<'a> Pace<'a> {
    /// Finds the account, or returns `None` if its denials have no queue.
    fn of(
        retries: &Retries,
        layer: LayerQueue<'_>,
        head: &RequestHead<'_>,
        denial: &Decision,
        charges: &'a [Charge<'_>],
    ) -> Option<Self> {
        let has_queue = |outcome: &&Outcome| !denial.is_blocked() && !outcome.is_estimated();
        let outcome = denial.binding().filter(has_queue)?;
        // If a pool denies, this finds the share of the client, which comes first: its queue delays only
        // this client.
        let has_rule = |charge: &&Charge<'_>| {
            charge.rule == outcome.rule() || charge.known_name() == outcome.rule().as_str()
        };
        let charge = charges.iter().find(has_rule)?;
        let is_denying = |(index, _): &(usize, &Quota)| *index == outcome.quota_index();
        let (quota_index, quota) = charge.charged_quotas().find(is_denying)?;
        let extra_units = quota.raised_limit().saturating_sub(charge.demand().need());
        let extra_units = u32::try_from(extra_units).unwrap_or(u32::MAX);
        Some(Self {
            rule: charge.rule,
            key: charge.key,
            quota_index,
            interval: quota.interval().saturating_mul(charge.cost),
            tolerance: quota.interval().saturating_mul(extra_units),
            max_wait: retries.longest_queue_wait(layer, head, charges, charge, quota),
            step: retries.step(head),
        })
    }

    /// Returns the time by which a request may come before it would be admitted at once.
    fn early(&self) -> Duration {
        self.tolerance.saturating_add(self.max_wait)
    }

    /// Returns the time between two requests.
    ///
    /// Without a tolerance, a request that comes at the exact time is denied if the one before came
    /// late. Whole seconds are late anyway.
    fn spacing(&self) -> Duration {
        let is_exact = self.step < SECOND;
        let margin = if is_exact {
            self.interval / 10
        } else {
            Duration::ZERO
        };
        self.interval
            .saturating_add(margin.saturating_sub(self.early()))
    }

    /// Returns the time until the account is free again after a request that may come at this time.
    fn after(&self, ahead: Duration) -> Duration {
        // Clients come on whole steps, so perhaps after that time. A delay of up to `early` costs nothing,
        // and the rest of it delays the next client.
        let delay = round_up(ahead, self.step).saturating_sub(ahead);
        let lost = delay.saturating_sub(self.early());
        ahead.saturating_add(lost).saturating_add(self.spacing())
    }
}

/// The number of keys with a promise.
const CELLS: usize = 4_096;
/// The longest time by which a queue delays a retry.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The next free instant of each denied key.
///
/// A cell holds 16 bits of the key's hash and the instant in microseconds, modulo 48 bits.
#[derive(Default)]
pub(crate) struct Promises {
    seed: RandomState,
    /// Allocated on first use.
    cells: OnceLock<Box<[AtomicU64]>>,
}

impl Promises {
    /// Returns the wait until the next free instant, in steps, and takes the time of a request from
    /// there.
    fn promise(&self, pace: &Pace<'_>, now: Duration, earliest: Duration) -> Duration {
        // `earliest` ignores that the request may wait here, and may therefore come earlier by `max_wait`.
        let first = earliest.saturating_sub(pace.max_wait);
        let last = first.saturating_add(MAX_DELAY);
        if last.saturating_add(pace.spacing()) > FARTHEST {
            return earliest;
        }
        let key = self.seed.hash_one((pace.rule, pace.key, pace.quota_index));
        let tag = key >> INSTANT_BITS;
        let now = micros(now);
        // The time until the account is free for one more request.
        let free = |cell| time_ahead(cell, tag, now).clamp(first, last);
        let taken = self
            .cell(key)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cell| {
                let next = now.wrapping_add(micros(pace.after(free(cell))));
                Some(tag << INSTANT_BITS | next & INSTANT)
            });
        round_up(free(taken.unwrap_or(0)), pace.step)
    }

    /// Returns the cell of a key with this hash.
    fn cell(&self, key: u64) -> &AtomicU64 {
        let new = || (0..CELLS).map(|_| AtomicU64::new(0)).collect();
        let cells = self.cells.get_or_init(new);
        &cells[usize::try_from(key % CELLS as u64).unwrap_or(0)]
    }
}

/// Returns the time until the instant of a cell, or zero if it is past, or that of another key.
fn time_ahead(cell: u64, tag: u64, now: u64) -> Duration {
    let ahead = cell.wrapping_sub(now) & INSTANT;
    // An empty cell is that of no key, also of one whose hash begins with zeros.
    let is_known = cell != 0 && cell >> INSTANT_BITS == tag && ahead <= micros(FARTHEST);
    Duration::from_micros(if is_known { ahead } else { 0 })
}

const INSTANT_BITS: u32 = 48;
const INSTANT: u64 = (1 << INSTANT_BITS) - 1;
/// The longest time ahead that a cell can hold: a farther instant counts as past.
const FARTHEST: Duration = Duration::from_micros(1 << (INSTANT_BITS - 1));

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_cell_has_no_instant_at_any_time() {
        for now in [0, 1, 1 << 47, (1 << 47) + 1, INSTANT] {
            assert_eq!(time_ahead(0, 0, now), Duration::ZERO, "{now}");
        }
        assert_eq!(time_ahead(8, 0, 3), Duration::from_micros(5));
    }
}
