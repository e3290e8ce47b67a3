//! The most that late charges may owe.

use super::{Algorithm, LONGEST, LONGEST_LOG, Quota, QuotaError, Wrong};

impl Quota {
    /// Caps what late charges may owe beyond the limit, in units. Defaults to the limit.
    ///
    /// A late charge (a reservation that is adjusted to a higher cost, or
    /// [`Limiter::settle`](crate::Limiter::settle) below 0) never fails, and stops where `limit +
    /// max_debt` units are charged. **Units beyond that are lost**: they were spent, and nobody pays
    /// for them. With `max_debt(0)` a late charge empties an account and no more.
    ///
    /// # What parallel requests can spend
    ///
    /// Requests that run at the same time are admitted by what they reserve, before any of them is
    /// adjusted. If each reserves *r* units and costs *a*, a key with a full account has *n* = *limit*
    /// / *r* requests open at once (and more by what comes back while they are open), spends *n·a*,
    /// and is charged at most `limit + max_debt`. So nothing is lost if
    ///
    /// `max_debt ≥ n·a − limit`, which is `limit · (a / r − 1)` for requests that start together.
    ///
    /// A quota of 1 000 units per minute, with requests that reserve 1 and cost 100 000, 1 000 at a
    /// time: by default each wave spends 10⁸ units, is charged 2 000, and the next one starts after two
    /// minutes. That is **3·10⁹ units an hour; the quota has 61 000**. With
    /// `max_debt(99_999_000)` the first wave spends 10⁸ units and is waited off, for 69 days.
    /// Reserving more is better than a large debt: requests that reserve what they can cost at most
    /// spend no more than the quota has.
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// // at most 10 requests at a time reserve 100 tokens, and none costs more than 500
    /// const TOKENS: Quota = Quota::per_minute(1_000).max_debt(10 * 500 - 1_000);
    ///
    /// let limiter = Limiter::local();
    /// assert!(limiter.take("alice", &TOKENS, 100).now().is_allowed());
    /// limiter.settle("alice", &TOKENS, -400).now(); // it cost 500
    /// assert!(!limiter.take("alice", &TOKENS, 501).now().is_allowed());
    /// ```
    ///
    /// # Panics
    ///
    /// When waiting off that many units would take more than ten years (GCRA and token bucket),
    /// above 10 000 units of a sliding log, or when the quota is [blocked](Quota::blocked). Numbers
    /// from outside go through [`Quota::try_max_debt`].
    ///
    /// # Limitations
    ///
    /// It bounds what is charged, not what is spent: that is bounded by what requests reserve, and by
    /// the number of requests that a key may have open. A refund of units that were cut gives back more
    /// than was charged, at most until the account is full.
    #[track_caller]
    pub const fn max_debt(self, units: u32) -> Self {
        Self { max_debt: Some(units), ..self }.literal()
    }

    /// [`max_debt`](Quota::max_debt) for a number from outside.
    ///
    /// # Errors
    ///
    /// In the cases in which [`max_debt`](Quota::max_debt) panics.
    pub const fn try_max_debt(self, units: u32) -> Result<Self, QuotaError> {
        Self { max_debt: Some(units), ..self }.checked(units)
    }

    /// Units that late charges may owe beyond the limit.
    pub(crate) const fn max_debt_units(&self) -> u32 {
        match self.max_debt {
            Some(units) => units,
            None => self.burst,
        }
    }

    /// Units charged at which a late charge stops.
    pub(crate) const fn late_limit(&self) -> u64 {
        self.burst as u64 + self.max_debt_units() as u64
    }

    /// The fault of a debt that takes too long to wait off, or too much memory.
    pub(super) const fn debt_fault(&self) -> Option<Wrong> {
        let Some(debt) = self.max_debt else { return None };
        if debt as u64 <= self.longest_debt() {
            return None;
        }
        match self.algorithm {
            Algorithm::SlidingLog => Some(Wrong::DebtOfLog),
            _ => Some(Wrong::DebtTooLong),
        }
    }

    /// The most units of debt: those that come back in ten years. A window ends with its debt, and a
    /// log keeps an entry per unit at most.
    pub(super) const fn longest_debt(&self) -> u64 {
        let by_interval = LONGEST / self.interval;
        let by_period = (self.units as u64).saturating_mul(LONGEST / self.period);
        match self.algorithm {
            Algorithm::Gcra => by_interval,
            Algorithm::TokenBucket if by_period < by_interval => by_period,
            Algorithm::TokenBucket => by_interval,
            Algorithm::SlidingLog => LONGEST_LOG,
            _ => u32::MAX as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_debt_is_ten_years() {
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
    fn the_default_debt_follows_the_limit() {
        assert_eq!(Quota::per_second(5).burst(9).late_limit(), 18);
        assert_eq!(Quota::per_second(5).max_debt(1).burst(9).late_limit(), 10);
        assert_eq!(Quota::per_second(5).max_debt(0).late_limit(), 5);
    }
}
