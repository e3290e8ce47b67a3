//! The wait that a denial reports.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    decision::{Decision, Outcome},
    rule::RuleName,
    store::Charge,
};

/// The wait that denials report, set by
/// [`RateLimitLayer::retry_after`](crate::RateLimitLayer::retry_after).
///
/// The wait is sent as `Retry-After`, in problem+json and in the gRPC `RetryInfo`. It is never
/// shorter than the time until an identical request would be allowed, with the exceptions of
/// [`Decision::retry_after`]. The `t` of the field `RateLimit` is not changed.
///
/// If a thousand clients are denied at once, and each receives the same time, all of them return at
/// that time, and most are denied again. For a quota of ten per second, with a burst of ten, and a
/// thousand clients that obey `Retry-After`:
///
/// | | requests until all were allowed | last one allowed after |
/// |---|--:|--:|
/// | `Earliest` | 50 500 | 99 s |
/// | `Jitter(10)` | 50 500 | 99 s |
/// | `Queue` | 2 370 | 99 s |
///
/// The table comes from a simulation, which the test `herd` repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryAfter {
    /// The time until an identical request would be allowed. The default.
    #[default]
    Earliest,
    /// The earliest time, increased at random by up to this number of percent, at most 10.
    Jitter(u8),
    /// A time of its own for each denial of a key, one after another at the rate of the quota.
    ///
    /// The layer remembers the last time that it reported for a key. The next denial of that key
    /// gets the time of one more charge, at most a minute after the earliest time.
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
    /// - `Retry-After` counts whole seconds: all clients of one second return together. With a burst below
    ///   the units of a second, most of them are denied again, unless they read
    ///   [`retry-after-ms`](crate::RateLimitLayer::retry_after_ms).
    /// - The layer remembers 4 096 keys, in 32 KiB. A key beyond that may replace another, whose
    ///   queue then starts again at the earliest time.
    /// - A block, and a wait that is unknown, have no queue.
    Queue,
}

impl RetryAfter {
    /// Returns the wait to report, or `None` if waiting does not help.
    #[inline]
    pub(super) fn wait(
        self,
        promises: &Promises,
        denial: &Decision,
        charges: &[Charge<'_>],
        shares: &[(RuleName, RuleName)],
    ) -> Option<Duration> {
        let earliest = denial.expected_wait()?;
        Some(match self {
            Self::Earliest => earliest,
            Self::Jitter(percent) => with_jitter(earliest, percent),
            Self::Queue => promises.queue(earliest, denial, charges, shares),
        })
    }
}

fn with_jitter(earliest: Duration, percent: u8) -> Duration {
    let share = RandomState::new().hash_one(0) % (u64::from(percent) + 1);
    earliest.saturating_add(earliest.mul_f64(share as f64 / 100.0))
}

/// The number of keys with a promise.
const CELLS: usize = 4_096;
/// The longest time by which a queue delays a retry.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The next free instant of each denied key.
///
/// A cell holds 16 bits of the key's hash and the instant in microseconds, in 48 bits.
pub(crate) struct Promises {
    seed: RandomState,
    created: Instant,
    /// Allocated on first use.
    cells: OnceLock<Box<[AtomicU64]>>,
}

impl Default for Promises {
    fn default() -> Self {
        Self { seed: RandomState::new(), created: Instant::now(), cells: OnceLock::new() }
    }
}

impl Promises {
    fn queue(
        &self,
        earliest: Duration,
        denial: &Decision,
        charges: &[Charge<'_>],
        shares: &[(RuleName, RuleName)],
    ) -> Duration {
        let has_queue = |outcome: &&Outcome| !denial.is_blocked() && !outcome.is_wait_unknown();
        let outcome = denial.binding().filter(has_queue);
        // The denials of a client do not lengthen the waits of others at the pool of its share.
        let Some(outcome) = outcome else { return earliest };
        let own = shares.iter().find(|(_, pool)| *pool == outcome.rule()).map(|(share, _)| *share);
        let mut all = charges.iter();
        let charge = own.and_then(|share| all.clone().find(|charge| charge.rule() == share));
        let charge = charge.or_else(|| all.find(|charge| charge.rule() == outcome.rule()));
        let Some(charge) = charge else { return earliest };
        let quota = charge.charged_quotas().find(|(place, _)| *place == outcome.quota_index());
        let Some((place, quota)) = quota else { return earliest };
        let key = self.seed.hash_one((charge.rule(), charge.key(), place));
        self.promise(key, earliest, quota.interval().saturating_mul(charge.cost()))
    }

    /// Returns the wait until the next free instant, and takes `time` from there.
    fn promise(&self, key: u64, earliest: Duration, time: Duration) -> Duration {
        let now = self.created.elapsed();
        let tag = key >> INSTANT_BITS;
        let first = now.saturating_add(earliest);
        let last = first.saturating_add(MAX_DELAY);
        let next = |cell: u64| {
            let free = if cell >> INSTANT_BITS == tag { cell & INSTANT } else { 0 };
            Duration::from_micros(free).clamp(first, last)
        };
        let new = || (0..CELLS).map(|_| AtomicU64::new(0)).collect();
        let cell = &self.cells.get_or_init(new)[usize::try_from(key % CELLS as u64).unwrap_or(0)];
        let taken = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |cell| {
            let after = next(cell).saturating_add(time).as_micros();
            let after = u64::try_from(after).unwrap_or(INSTANT).min(INSTANT);
            Some(tag << INSTANT_BITS | after)
        });
        next(taken.unwrap_or(0)).saturating_sub(now)
    }
}

const INSTANT_BITS: u32 = 48;
const INSTANT: u64 = (1 << INSTANT_BITS) - 1;
