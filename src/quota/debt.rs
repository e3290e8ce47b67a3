//! The maximum debt of an account.

use super::{Algorithm, ErrorKind, MAX_LOG_UNITS, MAX_REFILL, Quota, QuotaError};

impl Quota {
    /// Sets the maximum debt of an account, in units. Defaults to the limit.
    ///
    /// An account gets into debt if a request costs more than was charged, and the handler charges
    /// the difference (see [`ChargeHandle`](crate::middleware::ChargeHandle) and
    /// [`Limiter::adjust`](crate::Limiter::adjust)). Such a charge never fails, but stops when the
    /// debt reaches `max_debt`. **Further units are never charged.** With `max_debt(0)`, an account
    /// can be emptied, but not put into debt.
    ///
    /// # Parallel requests
    ///
    /// Parallel requests are admitted before their charges are adjusted. Suppose that each request
    /// is first charged *r* units and actually costs *a* units. A full account then admits *limit*
    /// / *r* requests at once. All their units are charged only if
    /// `max_debt ≥ limit · (a / r − 1)`.
    ///
    /// For example, a quota has 1 000 units per minute. Each request is first charged 1 unit and
    /// costs 100 000 units. Clients send 1 000 requests at once, as often as they can.
    ///
    /// - By default, these requests use 10⁸ units but are charged only 2 000, so the next 1 000
    ///   requests start after two minutes. **The quota allows 61 000 units per hour, and clients
    ///   use 3·10⁹.**
    /// - With `max_debt(99_999_000)`, the first 1 000 requests put the account into debt for 69
    ///   days.
    ///
    /// A larger first charge is better than a large debt. Requests that are first charged their
    /// maximum cost never use more than the quota.
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// // At most 10 parallel requests reserve 100 tokens each, and each costs at most 500.
    /// const TOKENS: Quota = Quota::per_minute(1_000).max_debt(10 * 500 - 1_000);
    ///
    /// let limiter = Limiter::local();
    /// assert!(limiter.take("alice", &TOKENS, 100).now().is_allowed());
    /// limiter.adjust("alice", &TOKENS, 400).now(); // the request cost 500
    /// assert!(!limiter.take("alice", &TOKENS, 501).now().is_allowed());
    /// ```
    ///
    /// # Panics
    ///
    /// Panics in these cases:
    ///
    /// - The account would need more than ten years to recover from the debt (GCRA and token
    ///   bucket).
    /// - The debt of a sliding log is above 10 000 units.
    /// - The quota is [blocked](Quota::blocked).
    ///
    /// For a number known only at run time, use [`Quota::try_max_debt`].
    ///
    /// # Limitations
    ///
    /// This setting bounds the charged units, not the used units. If uncharged units are refunded,
    /// the account gets back more units than were charged.
    #[track_caller]
    pub const fn max_debt(self, units: u32) -> Self {
        Self { max_debt: Some(units), ..self }.or_panic()
    }

    /// Fallible form of [`max_debt`](Quota::max_debt), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`max_debt`](Quota::max_debt) would panic.
    pub const fn try_max_debt(self, units: u32) -> Result<Self, QuotaError> {
        Self { max_debt: Some(units), ..self }.checked(units)
    }

    /// Returns the maximum debt beyond the limit, in units.
    pub(crate) const fn max_debt_units(&self) -> u32 {
        match self.max_debt {
            Some(units) => units,
            None => self.burst,
        }
    }

    /// Returns the limit plus the maximum debt.
    pub(crate) const fn late_limit(&self) -> u64 {
        self.burst as u64 + self.max_debt_units() as u64
    }

    /// Returns an error if the maximum debt is too large.
    pub(super) const fn debt_fault(&self) -> Option<ErrorKind> {
        let Some(debt) = self.max_debt else { return None };
        if debt as u64 <= self.longest_debt() {
            return None;
        }
        match self.algorithm {
            Algorithm::SlidingLog => Some(ErrorKind::DebtOfLog),
            _ => Some(ErrorKind::DebtTooLong),
        }
    }

    /// Returns the maximum valid debt.
    pub(super) const fn longest_debt(&self) -> u64 {
        if self.is_concurrent() {
            return 0;
        }
        let by_interval = MAX_REFILL / self.interval;
        let by_period = (self.units as u64).saturating_mul(MAX_REFILL / self.period);
        match self.algorithm {
            Algorithm::Gcra => by_interval,
            Algorithm::TokenBucket if by_period < by_interval => by_period,
            Algorithm::TokenBucket => by_interval,
            Algorithm::SlidingLog => MAX_LOG_UNITS,
            _ => u32::MAX as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_maximum_debt_lasts_ten_years() {
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
            let daily = Quota::per_day(1).algorithm(algorithm);
            assert!(daily.try_max_debt(3_650).is_ok());
            let error = daily.try_max_debt(3_651).expect_err("ten years and a day").to_string();
            assert_eq!(
                error,
                "quota: max_debt \u{d7} interval is longer than ten years; lower max_debt or raise \
                 the rate (max_debt 3651, interval 86400s)"
            );
        }
        // Three years contain only three whole periods.
        let years = Quota::new(1_000, Duration::from_secs(3 * 365 * 86_400)).expect("a quota");
        for (algorithm, most) in [(Algorithm::Gcra, 3_333), (Algorithm::TokenBucket, 3_000)] {
            let quota = years.algorithm(algorithm);
            assert!(quota.try_max_debt(most).is_ok(), "{algorithm:?}");
            assert!(quota.try_max_debt(most + 1).is_err(), "{algorithm:?}");
        }
        let window = Quota::per_day(1).algorithm(Algorithm::fixed_window());
        assert!(window.try_max_debt(u32::MAX).is_ok(), "a window ends with its debt");
        let log = Quota::per_day(1).algorithm(Algorithm::SlidingLog);
        assert!(log.try_max_debt(10_000).is_ok() && log.try_max_debt(10_001).is_err());
        let late = Quota::per_day(1).max_debt(3_000);
        assert!(late.try_algorithm(Algorithm::SlidingLog).is_ok());
        let error = Quota::per_second(1).max_debt(20_000).try_algorithm(Algorithm::SlidingLog);
        let error = error.expect_err("too many entries").to_string();
        assert!(error.contains("(max_debt 20000)"), "{error}");
        assert!(Quota::blocked().try_max_debt(1).is_err());
    }

    #[test]
    fn the_default_debt_equals_the_limit() {
        assert_eq!(Quota::per_second(5).burst(9).late_limit(), 18);
        assert_eq!(Quota::per_second(5).max_debt(1).burst(9).late_limit(), 10);
        assert_eq!(Quota::per_second(5).max_debt(0).late_limit(), 5);
    }
}
