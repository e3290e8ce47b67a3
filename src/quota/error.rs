//! What is wrong with a quota.

use std::{fmt, time::Duration};

/// Why a [`Quota`](crate::Quota) was refused: the field, its value and the fix are in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError(pub(super) Fault);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The number refused, and the period or interval it met.
    Numbers(Wrong, u32, Duration),
    Text {
        text: String,
        field: &'static str,
        value: String,
        fix: &'static str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    NoUnits,
    NoPeriod,
    PeriodTooLong,
    TooFast,
    NoBurst,
    BurstTooLong,
    BurstOfBlocked,
    InitialAboveBurst,
    InitialOfWindow,
    BurstOfWindow,
    SoftAndPaced,
    Buckets,
    BucketsUneven,
    LogTooLong,
    DebtTooLong,
    DebtOfLog,
}

impl Wrong {
    /// What is said where no number can be printed: in a constant.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::NoUnits => "quota: units is 0; to refuse everything use Quota::blocked()",
            Self::NoPeriod => "quota: period is 0; give at least 1 ns per unit",
            Self::PeriodTooLong => "quota: period is longer than ten years; shorten it",
            Self::TooFast => {
                "quota: units come back faster than one per nanosecond (1000000000/s); \
                 lower units or lengthen period"
            }
            Self::NoBurst => "quota: burst is 0; to refuse everything use Quota::blocked()",
            Self::BurstTooLong => {
                "quota: burst × interval is longer than ten years; lower burst or raise the rate"
            }
            Self::BurstOfBlocked => {
                "quota: burst, soft, initial or max_debt is set on a blocked quota, which has none"
            }
            Self::InitialAboveBurst => "quota: initial is above burst; lower it or raise burst",
            Self::InitialOfWindow => {
                "quota: initial is set on a window; it is for Gcra and TokenBucket only"
            }
            Self::BurstOfWindow => {
                "quota: burst is set on a window, whose burst is its units; drop it"
            }
            Self::SoftAndPaced => "quota: soft is set on a paced window; choose one of them",
            Self::Buckets => "quota: buckets of a sliding window is outside 1 to 1000",
            Self::BucketsUneven => {
                "quota: buckets does not divide the period into whole nanoseconds; choose another"
            }
            Self::LogTooLong => {
                "quota: a sliding log of more than 10000 units; use SlidingWindow or Gcra"
            }
            Self::DebtTooLong => {
                "quota: max_debt × interval is longer than ten years; lower max_debt or raise the \
                 rate"
            }
            Self::DebtOfLog => {
                "quota: max_debt of a sliding log is above 10000; lower it, or use SlidingWindow or \
                 Gcra"
            }
        }
    }

    /// Returns whether the number at fault is the one of `max_debt`.
    pub(super) const fn is_of_debt(self) -> bool {
        matches!(self, Self::DebtTooLong | Self::DebtOfLog)
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Fault::Text { text, field, value, fix } => {
                write!(f, "quota {text:?}: {field} is {value:?}; {fix}")
            }
            Fault::Numbers(wrong, units, time) => {
                f.write_str(wrong.text())?;
                match wrong {
                    Wrong::NoUnits | Wrong::NoPeriod | Wrong::NoBurst => Ok(()),
                    Wrong::InitialAboveBurst | Wrong::InitialOfWindow => {
                        write!(f, " (initial {units})")
                    }
                    Wrong::DebtTooLong => {
                        write!(f, " (max_debt {units}, interval {time:?})")
                    }
                    Wrong::DebtOfLog => write!(f, " (max_debt {units})"),
                    Wrong::SoftAndPaced => write!(f, " (soft {units})"),
                    Wrong::Buckets | Wrong::BucketsUneven | Wrong::LogTooLong => {
                        write!(f, " (units {units}, interval {time:?})")
                    }
                    Wrong::PeriodTooLong | Wrong::TooFast => {
                        write!(f, " (units {units}, period {time:?})")
                    }
                    Wrong::BurstTooLong | Wrong::BurstOfBlocked | Wrong::BurstOfWindow => {
                        write!(f, " (burst {units}, interval {time:?})")
                    }
                }
            }
        }
    }
}

impl std::error::Error for QuotaError {}
