//! The algorithms that count the units of a quota.

use std::fmt;

use super::{MAX_LOG_UNITS, MAX_REFILL, Quota};
use crate::store::instances::Part;

/// Algorithm that counts the units of a quota.
///
/// The guide has [pictures](crate::guide::algorithms) of all algorithms.
///
/// | | maximum burst | memory | use it for |
/// |---|---|---|---|
/// | [`Gcra`](Algorithm::Gcra) | `burst` | one instant | almost everything |
/// | [`TokenBucket`](Algorithm::TokenBucket) | `burst` | two numbers | "n more every minute" |
/// | [`FixedWindow`](Algorithm::FixedWindow) | `2 × units`, at the edge of two windows | two numbers | calendar quotas, such as "n per day" |
/// | [`AnchoredWindow`](Algorithm::AnchoredWindow) | `2 × units`, at the edge of two windows | two numbers | "n per hour from the first request" |
/// | [`SlidingWindow`](Algorithm::SlidingWindow) | `units` | `buckets` + 1 counts | smooth windows of many units |
/// | [`SlidingLog`](Algorithm::SlidingLog) | `units` | one entry per charge | exact windows of few units |
/// | [`Concurrent`](Algorithm::Concurrent) | `limit` | one count, while a request runs | requests that run at the same time |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self", rename_all = "snake_case"))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[non_exhaustive]
pub enum Algorithm {
    /// Generic cell rate algorithm (ITU-T I.371). Refills one unit every interval.
    #[default]
    Gcra,
    /// Token bucket. Refills all `units` together, once per period after the first charge.
    TokenBucket,
    /// Windows of one period, aligned to the Unix epoch.
    ///
    /// Without these settings, use [`Algorithm::fixed_window`].
    FixedWindow {
        /// The maximum number of unused units of a window that are added to the next window. A window
        /// without any charge adds nothing.
        #[cfg_attr(feature = "serde", serde(default))]
        carry_over: u32,
        /// Releases the units of a window at even intervals.
        ///
        /// A cost of several units fits only late in each window, after that many units were
        /// released. A retry that comes after the end of the window is denied again. `Retry-After` is
        /// in whole seconds, so under a window of a second a client that obeys it may never be served.
        #[cfg_attr(feature = "serde", serde(default))]
        paced: bool,
    },
    /// Window of one period that starts with the first charge.
    AnchoredWindow,
    /// Window that always covers the last period, counted in equal buckets.
    ///
    /// The oldest bucket is partly outside the period, and its units count in proportion to the
    /// part inside. With one bucket, this is the well-known algorithm with two counters.
    ///
    /// Allows at most `units` in any span of `period × (1 − 1 / buckets)`, and less than twice the
    /// units in any period. To allow at most `units` in any period, use
    /// [`SlidingLog`](Algorithm::SlidingLog).
    SlidingWindow {
        /// The number of buckets, 1 to 1 000.
        buckets: u32,
    },
    /// Log of all charges of the last period. Allows at most `units` in any period.
    SlidingLog,
    /// Slots that requests hold while they run, for [`Quota::concurrent`](crate::Quota::concurrent)
    /// only.
    #[cfg_attr(feature = "serde", serde(skip_deserializing))]
    Concurrent,
}

impl Algorithm {
    /// Creates windows of one period, aligned to the Unix epoch.
    ///
    /// ```
    /// use tower_sluice::{Algorithm, Quota};
    ///
    /// const DAILY: Quota = Quota::per_day(100).with_algorithm(Algorithm::fixed_window());
    /// let lending = Algorithm::FixedWindow { carry_over: 30, paced: false };
    /// ```
    #[must_use]
    pub const fn fixed_window() -> Self {
        Self::FixedWindow {
            carry_over: 0,
            paced: false,
        }
    }

    /// Returns `true` for windows and logs, whose burst equals their units.
    pub(crate) const fn is_window(self) -> bool {
        match self {
            Self::Gcra | Self::TokenBucket | Self::Concurrent => false,
            Self::FixedWindow { .. }
            | Self::AnchoredWindow
            | Self::SlidingWindow { .. }
            | Self::SlidingLog => true,
        }
    }

    /// Returns `true` for a window whose units are released at even intervals.
    pub(crate) const fn is_paced(self) -> bool {
        matches!(self, Self::FixedWindow { paced: true, .. })
    }

    /// Returns `true` if a charge may wait in a queue.
    pub(crate) const fn can_queue(self) -> bool {
        match self {
            Self::Gcra => true,
            Self::FixedWindow { paced, .. } => paced,
            Self::TokenBucket
            | Self::AnchoredWindow
            | Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::Concurrent => false,
        }
    }

    /// Returns `true` if units can be charged in advance, for later requests: a request before the next refill
    /// fits exactly if it would fit now.
    pub(crate) const fn can_lease(self) -> bool {
        match self {
            Self::Gcra | Self::AnchoredWindow => true,
            Self::FixedWindow { carry_over, paced } => carry_over == 0 && !paced,
            Self::TokenBucket
            | Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::Concurrent => false,
        }
    }

    /// Returns the maximum number of units that a window adds to the next window.
    pub(crate) const fn max_carry_over(self) -> u32 {
        match self {
            Self::FixedWindow { carry_over, .. } => carry_over,
            Self::Gcra
            | Self::TokenBucket
            | Self::AnchoredWindow
            | Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::Concurrent => 0,
        }
    }

    /// Returns the number of buckets of a sliding window, which is part of the address of its account.
    pub(super) const fn counted_buckets(self) -> Option<u32> {
        match self {
            Self::SlidingWindow { buckets } => Some(buckets),
            Self::Gcra
            | Self::TokenBucket
            | Self::FixedWindow { .. }
            | Self::AnchoredWindow
            | Self::SlidingLog
            | Self::Concurrent => None,
        }
    }

    /// Returns the number of buckets of a window. Other windows than sliding windows have one.
    pub(crate) const fn buckets(self) -> u32 {
        match self.counted_buckets() {
            Some(buckets) => buckets,
            None => 1,
        }
    }

    /// Returns the letter that stands for the algorithm in the address of an account.
    pub(super) const fn letter(self) -> u8 {
        match self {
            Self::Gcra => b'g',
            Self::TokenBucket => b't',
            Self::FixedWindow { .. } => b'f',
            Self::AnchoredWindow => b'a',
            Self::SlidingWindow { .. } => b's',
            Self::SlidingLog => b'l',
            Self::Concurrent => b'c',
        }
    }

    /// Returns the algorithm for one of the processes that share a quota.
    pub(super) fn for_process(self, of: Part) -> Self {
        match self {
            Self::TokenBucket => Self::Gcra,
            Self::FixedWindow { carry_over, paced } => Self::FixedWindow {
                carry_over: of.of(carry_over),
                paced,
            },
            Self::Gcra
            | Self::AnchoredWindow
            | Self::SlidingWindow { .. }
            | Self::SlidingLog
            | Self::Concurrent => self,
        }
    }
}

impl Quota {
    /// Returns the number of units that refill within ten years.
    pub(super) const fn longest_refill(&self) -> u64 {
        let by_interval = MAX_REFILL / self.interval;
        match self.algorithm {
            Algorithm::TokenBucket => {
                let by_period = (self.units as u64).saturating_mul(MAX_REFILL / self.period);
                if by_period < by_interval {
                    by_period
                } else {
                    by_interval
                }
            }
            Algorithm::Gcra
            | Algorithm::FixedWindow { .. }
            | Algorithm::AnchoredWindow
            | Algorithm::SlidingWindow { .. }
            | Algorithm::SlidingLog
            | Algorithm::Concurrent => by_interval,
        }
    }

    /// Returns the maximum valid debt.
    pub(super) const fn longest_debt(&self) -> u64 {
        match self.algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket => self.longest_refill(),
            Algorithm::SlidingLog => MAX_LOG_UNITS,
            Algorithm::Concurrent => 0,
            Algorithm::FixedWindow { .. }
            | Algorithm::AnchoredWindow
            | Algorithm::SlidingWindow { .. } => u32::MAX as u64,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "token bucket",
            Self::FixedWindow { .. } => "fixed window",
            Self::AnchoredWindow => "anchored window",
            Self::SlidingWindow { .. } => "sliding window",
            Self::SlidingLog => "sliding log",
            Self::Concurrent => "slots",
        })
    }
}

/// The algorithms that count units, some with several settings.
#[cfg(test)]
pub(crate) const EXAMPLES: [Algorithm; 8] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::fixed_window(),
    Algorithm::FixedWindow {
        carry_over: 3,
        paced: true,
    },
    Algorithm::AnchoredWindow,
    Algorithm::SlidingWindow { buckets: 1 },
    Algorithm::SlidingWindow { buckets: 5 },
    Algorithm::SlidingLog,
];

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, mem};

    use super::*;

    #[test]
    fn each_algorithm_that_counts_units_is_an_example() {
        let is_counting = |algorithm: &Algorithm| match algorithm {
            // A new algorithm belongs into the examples.
            Algorithm::Gcra
            | Algorithm::TokenBucket
            | Algorithm::FixedWindow { .. }
            | Algorithm::AnchoredWindow
            | Algorithm::SlidingWindow { .. }
            | Algorithm::SlidingLog => true,
            Algorithm::Concurrent => false,
        };
        let kinds: HashSet<_> = EXAMPLES.iter().map(mem::discriminant).collect();
        assert!(EXAMPLES.iter().all(is_counting));
        assert_eq!(kinds.len(), 6);
    }

    /// Fails to compile if an algorithm is added without a picture.
    ///
    /// A picture needs a section in `src/guide/algorithms.md`.
    fn picture(algorithm: Algorithm) -> &'static str {
        match algorithm {
            Algorithm::Gcra => include_str!("../guide/plots/gcra.svg"),
            Algorithm::TokenBucket => include_str!("../guide/plots/token_bucket.svg"),
            Algorithm::FixedWindow { paced: true, .. } => {
                include_str!("../guide/plots/paced_window.svg")
            }
            Algorithm::FixedWindow { carry_over: 0, .. } => {
                include_str!("../guide/plots/fixed_window.svg")
            }
            Algorithm::FixedWindow { .. } => include_str!("../guide/plots/carry_over.svg"),
            Algorithm::AnchoredWindow => include_str!("../guide/plots/anchored_window.svg"),
            Algorithm::SlidingWindow { .. } => include_str!("../guide/plots/sliding_window.svg"),
            Algorithm::SlidingLog => include_str!("../guide/plots/sliding_log.svg"),
            // Slots have a chapter of their own, without a picture.
            Algorithm::Concurrent => include_str!("../guide/slots.md"),
        }
    }

    #[test]
    fn every_algorithm_has_a_picture_in_the_guide() {
        for (algorithm, title) in [
            (Algorithm::Gcra, "GCRA\n"),
            (Algorithm::TokenBucket, "Token bucket"),
            (Algorithm::fixed_window(), "Fixed window\n"),
            (
                Algorithm::FixedWindow {
                    carry_over: 3,
                    paced: false,
                },
                "Fixed window, carry-over",
            ),
            (
                Algorithm::FixedWindow {
                    carry_over: 0,
                    paced: true,
                },
                "Fixed window, paced",
            ),
            (Algorithm::AnchoredWindow, "Anchored window"),
            (Algorithm::SlidingWindow { buckets: 4 }, "Sliding window"),
            (Algorithm::SlidingLog, "Sliding log"),
        ] {
            assert!(picture(algorithm).contains(title), "{algorithm:?}");
        }
    }
}
