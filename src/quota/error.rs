//! Errors of quotas.

use std::{fmt, time::Duration};

/// Error for an invalid [`Quota`](crate::Quota).
///
/// The message has the field, the value and the fix.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaError(pub(super) Repr);

// A type without a destructor, so that a constant can match on `Quota::new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repr {
    /// The kind of error, the invalid number, and the period or interval of the quota.
    Numbers(ErrorKind, u32, Duration),
    Text {
        text: Excerpt,
        field: &'static str,
        value: Excerpt,
        fix: &'static str,
    },
}

/// The first bytes of a text. Valid quotas are shorter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Excerpt {
    bytes: [u8; 40],
    length: u8,
    is_cut: bool,
}

impl Excerpt {
    pub(super) fn new(text: &str) -> Self {
        let mut bytes = [0; 40];
        let mut length = text.len().min(bytes.len());
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        let is_cut = length < text.len();
        Self { bytes, length: u8::try_from(length).unwrap_or(u8::MAX), is_cut }
    }
}

/// Writes the text in quotes, and dots if it was cut.
impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = str::from_utf8(&self.bytes[..self.length.into()]).unwrap_or_default();
        write!(f, "{text:?}{}", if self.is_cut { ".." } else { "" })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorKind {
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
    NoSlots,
    RateOfSlots,
    SlotsOfRate,
    UnitOfSlots,
}

impl ErrorKind {
    /// Returns the message without values, for panics in constants.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::NoUnits => "quota: units is 0; use Quota::blocked() to deny all requests",
            Self::NoPeriod => "quota: period is 0; give at least 1 ns per unit",
            Self::PeriodTooLong => "quota: period is longer than ten years; shorten it",
            Self::TooFast => {
                "quota: units come back faster than one per nanosecond (1000000000/s); \
                 lower units or lengthen period"
            }
            Self::NoBurst => "quota: burst is 0; use Quota::blocked() to deny all requests",
            Self::BurstTooLong => {
                "quota: burst × interval is longer than ten years; lower burst or raise the rate"
            }
            Self::BurstOfBlocked => {
                "quota: burst, soft, initial or max_debt is set on a blocked quota; drop it"
            }
            Self::InitialAboveBurst => "quota: initial is above burst; lower it or raise burst",
            Self::InitialOfWindow => {
                "quota: initial is set on a window; it is for Gcra and TokenBucket only"
            }
            Self::BurstOfWindow => {
                "quota: burst is set on a window, where it equals units; drop it"
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
            Self::NoSlots => "quota: concurrent is 0; use Quota::blocked() to deny all requests",
            Self::RateOfSlots => {
                "quota: burst, algorithm, initial or max_debt is set on a concurrent quota; drop it"
            }
            Self::SlotsOfRate => {
                "quota: algorithm Concurrent is set on a rate; use Quota::concurrent(limit)"
            }
            Self::UnitOfSlots => {
                "quota: unit is set on a concurrent quota, or is concurrent-requests; drop it, or \
                 use Quota::concurrent(limit)"
            }
        }
    }

    /// Returns `true` if the invalid number is `max_debt`.
    pub(super) const fn is_about_debt(self) -> bool {
        matches!(self, Self::DebtTooLong | Self::DebtOfLog)
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Text { text, field, value, fix } => {
                write!(f, "quota {text:?}: {field} is {value:?}; {fix}")
            }
            Repr::Numbers(kind, units, time) => {
                f.write_str(kind.text())?;
                match kind {
                    ErrorKind::NoUnits
                    | ErrorKind::NoPeriod
                    | ErrorKind::NoBurst
                    | ErrorKind::NoSlots
                    | ErrorKind::SlotsOfRate
                    | ErrorKind::UnitOfSlots => Ok(()),
                    ErrorKind::RateOfSlots => write!(f, " ({units})"),
                    ErrorKind::InitialAboveBurst | ErrorKind::InitialOfWindow => {
                        write!(f, " (initial {units})")
                    }
                    ErrorKind::DebtTooLong => {
                        write!(f, " (max_debt {units}, interval {time:?})")
                    }
                    ErrorKind::DebtOfLog => write!(f, " (max_debt {units})"),
                    ErrorKind::SoftAndPaced => write!(f, " (soft {units})"),
                    ErrorKind::Buckets | ErrorKind::BucketsUneven | ErrorKind::LogTooLong => {
                        write!(f, " (units {units}, interval {time:?})")
                    }
                    ErrorKind::PeriodTooLong | ErrorKind::TooFast => {
                        write!(f, " (units {units}, period {time:?})")
                    }
                    ErrorKind::BurstTooLong
                    | ErrorKind::BurstOfBlocked
                    | ErrorKind::BurstOfWindow => {
                        write!(f, " (burst {units}, interval {time:?})")
                    }
                }
            }
        }
    }
}

impl std::error::Error for QuotaError {}
