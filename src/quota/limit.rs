//! Copies of quotas with another limit, to search for the smallest limit.

use super::{Algorithm, MAX_LOG_UNITS, MAX_REFILL, Quota, QuotaError};

impl Quota {
    /// Returns this quota with the largest possible limit and without soft units.
    ///
    /// The result may be invalid as a quota. Use it only to count units.
    pub(crate) fn widest(&self) -> Self {
        if self.is_blocked() {
            return *self;
        }
        let saturate = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        let refilling = MAX_REFILL / self.interval;
        match self.algorithm {
            Algorithm::Gcra => Self { burst: saturate(refilling), soft: 0, ..*self },
            Algorithm::TokenBucket => {
                let refills = u64::from(self.units).saturating_mul(MAX_REFILL / self.period);
                Self { burst: saturate(refilling.min(refills)), soft: 0, ..*self }
            }
            Algorithm::SlidingLog => self.wide_window(saturate(MAX_LOG_UNITS)),
            _ => self.wide_window(u32::MAX),
        }
    }

    /// Returns this quota with another limit.
    ///
    /// The limit is the burst, or the units of a window.
    ///
    /// # Errors
    ///
    /// Fails if the new quota is not valid.
    pub(crate) fn with_limit(&self, units: u32) -> Result<Self, QuotaError> {
        match self.algorithm {
            Algorithm::Concurrent => Self { units, burst: units, ..*self }.checked(),
            Algorithm::Gcra | Algorithm::TokenBucket => self.try_with_burst(units),
            _ => {
                let Self { interval, .. } = Self::new(units, self.period())?;
                Self { units, burst: units, interval, ..*self }.checked()
            }
        }
    }

    /// Returns this window quota with a limit of `units`, but no soft units, pacing or carry-over.
    fn wide_window(&self, units: u32) -> Self {
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
    fn the_widest_burst_is_the_largest_valid_burst() {
        for quota in [HOURLY, Quota::per_day(1), Quota::per_second(7)] {
            for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
                let quota = quota.with_algorithm(algorithm);
                let widest = quota.widest().burst();
                assert!(quota.with_limit(widest).is_ok(), "{quota} {widest}");
                assert!(quota.with_limit(widest + 1).is_err(), "{quota} {widest}");
            }
        }
        assert_eq!(HOURLY.with_algorithm(Algorithm::SlidingLog).widest().burst(), 10_000);
        assert!(Quota::blocked().widest().is_blocked());
    }

    #[test]
    fn with_limit_sets_the_burst_or_the_units_of_a_window() {
        assert_eq!(HOURLY.with_soft(2).with_limit(9), Ok(HOURLY.with_burst(9).with_soft(2)));
        let window = HOURLY.with_algorithm(Algorithm::AnchoredWindow).with_name("page");
        let nine = Quota::per_hour(9).with_algorithm(Algorithm::AnchoredWindow).with_name("page");
        assert_eq!(window.with_limit(9), Ok(nine));
        assert!(window.with_limit(0).is_err());
        let log = HOURLY.with_algorithm(Algorithm::SlidingLog);
        assert!(log.with_limit(10_000).is_ok() && log.with_limit(10_001).is_err());
        let brief =
            "5/10ns".parse::<Quota>().expect("a quota").with_algorithm(Algorithm::fixed_window());
        assert!(brief.with_limit(10).is_ok() && brief.with_limit(11).is_err());
    }
}
