//! The same quota with another limit.

use super::{Algorithm, LONGEST, LONGEST_LOG, Quota, QuotaError};

impl Quota {
    /// The quota with the most units at once that its algorithm can count, and none beyond.
    ///
    /// It is for counting and never told: of a window it may be more than is ever a quota, and it
    /// neither paces nor lends.
    pub(crate) fn widest(&self) -> Self {
        if self.is_blocked() {
            return *self;
        }
        let cut = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        let refilling = LONGEST / self.interval;
        match self.algorithm {
            Algorithm::Gcra => Self { burst: cut(refilling), soft: 0, ..*self },
            Algorithm::TokenBucket => {
                let refills = u64::from(self.units).saturating_mul(LONGEST / self.period);
                Self { burst: cut(refilling.min(refills)), soft: 0, ..*self }
            }
            Algorithm::SlidingLog => self.of_window(cut(LONGEST_LOG)),
            _ => self.of_window(u32::MAX),
        }
    }

    /// The quota with so many units at once: of a window that is its units, otherwise its burst.
    ///
    /// # Errors
    ///
    /// When there is no such quota.
    pub(crate) fn with_limit(&self, units: u32) -> Result<Self, QuotaError> {
        match self.algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket => self.try_burst(units),
            _ => {
                let Self { interval, .. } = Self::new(units, self.period())?;
                Self { units, burst: units, interval, ..*self }.checked(units)
            }
        }
    }

    /// A plain window: what paces or lends tells less of what was counted.
    fn of_window(&self, units: u32) -> Self {
        let algorithm = match self.algorithm {
            Algorithm::FixedWindow { .. } => Algorithm::fixed_window(),
            other => other,
        };
        Self { units, burst: units, interval: 1, soft: 0, algorithm, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOURLY: Quota = Quota::per_hour(5);

    #[test]
    fn the_widest_burst_is_the_last_that_is_a_quota() {
        for quota in [HOURLY, Quota::per_day(1), Quota::per_second(7)] {
            for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
                let quota = quota.algorithm(algorithm);
                let widest = quota.widest().limit();
                assert!(quota.with_limit(widest).is_ok(), "{quota} {widest}");
                assert!(quota.with_limit(widest + 1).is_err(), "{quota} {widest}");
            }
        }
        assert_eq!(HOURLY.algorithm(Algorithm::SlidingLog).widest().limit(), 10_000);
        assert!(Quota::blocked().widest().is_blocked());
    }

    #[test]
    fn another_limit_is_the_burst_or_of_a_window_the_units() {
        assert_eq!(HOURLY.soft(2).with_limit(9), Ok(HOURLY.burst(9).soft(2)));
        let window = HOURLY.algorithm(Algorithm::AnchoredWindow).named("page");
        let nine = Quota::per_hour(9).algorithm(Algorithm::AnchoredWindow).named("page");
        assert_eq!(window.with_limit(9), Ok(nine));
        assert!(window.with_limit(0).is_err());
        let log = HOURLY.algorithm(Algorithm::SlidingLog);
        assert!(log.with_limit(10_000).is_ok() && log.with_limit(10_001).is_err());
        let brief =
            "5/10ns".parse::<Quota>().expect("a quota").algorithm(Algorithm::fixed_window());
        assert!(brief.with_limit(10).is_ok() && brief.with_limit(11).is_err());
    }
}
