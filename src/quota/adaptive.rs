//! Algorithms that find the limit of an adaptive quota.

use std::{fmt, time::Duration};

use super::text::{in_largest_unit, parse_time};

/// Algorithm of an [adaptive](crate::Quota::adaptive) quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Adaptive {
    /// Follows the mean latency.
    Gradient(Gradient),
    /// Follows a timeout.
    Aimd(Aimd),
}

/// Lowers the limit when the mean latency rises above 1.5 times its long-term mean.
///
/// The guide has the [formulas](crate::guide::slots#adaptive-limits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Gradient;

/// Lowers the limit by a tenth when a tenth of the responses take longer than a timeout, and otherwise
/// raises it by one (additive increase, multiplicative decrease).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aimd {
    timeout_ms: u32,
}

impl Aimd {
    /// Creates the algorithm. The timeout is rounded up to a millisecond, at most 49 days.
    ///
    /// # Panics
    ///
    /// Panics if `timeout` is zero. In a constant, this is a compile error.
    #[track_caller]
    #[must_use]
    pub const fn new(timeout: Duration) -> Self {
        assert!(!timeout.is_zero(), "aimd: the timeout is 0; give at least 1 ms");
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        #[expect(clippy::cast_possible_truncation, reason = "clamped to the bound")]
        let timeout_ms = if ms > u32::MAX as u128 { u32::MAX } else { ms as u32 };
        Self { timeout_ms }
    }

    /// Returns the latency of an overload.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms as u64)
    }
}

/// Writes `gradient`, or `aimd` and the timeout.
impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gradient(_) => f.write_str("gradient"),
            Self::Aimd(Aimd { timeout_ms }) => {
                let (n, unit) = in_largest_unit(u64::from(*timeout_ms) * 1_000_000);
                write!(f, "aimd {n}{unit}")
            }
        }
    }
}

impl Adaptive {
    /// Reads the text form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None if text == "gradient" => Some(Self::Gradient(Gradient)),
            Some(("aimd", timeout)) => {
                let timeout = parse_time(timeout.trim()).ok().filter(|time| !time.is_zero())?;
                Some(Self::Aimd(Aimd::new(timeout)))
            }
            _ => None,
        }
    }
}

impl From<Gradient> for Adaptive {
    fn from(gradient: Gradient) -> Self {
        Self::Gradient(gradient)
    }
}

impl From<Aimd> for Adaptive {
    fn from(aimd: Aimd) -> Self {
        Self::Aimd(aimd)
    }
}
