//! How much: so many units per period, with a burst.

mod algorithm;
#[cfg(feature = "serde")]
mod algorithm_table;
mod debt;
mod error;
#[cfg(feature = "simulate")]
mod limit;
mod share;
#[cfg(feature = "serde")]
mod table;
mod text;

use std::time::Duration;

use self::error::{Fault, Wrong};
#[cfg(feature = "serde")]
pub(crate) use self::table::{read_time, time_text};
pub use self::{algorithm::Algorithm, error::QuotaError};

const SECOND: u64 = 1_000_000_000;
/// The longest time an account may take to refill: ten years of 365 days.
const LONGEST: u64 = 10 * 365 * 86_400 * SECOND;
/// The most units of a sliding log, which keeps an entry per charge.
const LONGEST_LOG: u64 = 10_000;
/// The most buckets of a sliding window, each of which is a count per account.
const MOST_BUCKETS: u32 = 1_000;
/// Period units of the text form, longest first, in nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("day", 86_400 * SECOND),
    ("h", 3_600 * SECOND),
    ("min", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// `units` per `period`, of which `burst` may be taken at once.
///
/// The default algorithm is the generic cell rate algorithm (GCRA, ITU-T I.371): one unit comes
/// back every [`interval`](Quota::interval), which is `period / units` rounded **up** to a
/// nanosecond, so that a quota is never looser than asked.
///
/// Literals are checked while compiling when the quota is a constant; numbers from outside go
/// through [`Quota::new`] or [`str::parse`], which return an error.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::Quota;
///
/// const LOGIN: Quota = Quota::per_minute(5).burst(10);
///
/// let search = Quota::new(200, Duration::from_secs(10))?;
/// assert_eq!(search, "200/10s".parse()?);
/// assert_eq!(LOGIN.to_string(), "5/min burst 10");
/// # Ok::<(), tower_sluice::QuotaError>(())
/// ```
///
/// With the feature `serde` a quota is read from a file, by any format that tells numbers from
/// text (TOML, JSON): as text, or as a table whose fields are called as the setters, with `name` for
/// [`named`](Quota::named) and `blocked = true` where a [blocked](Quota::blocked) one has a name. An
/// error names the field, its value and the fix. It is written in the shorter form that says all.
/// A name is kept for the life of the process, as [`RuleName`](crate::RuleName) says.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use tower_sluice::{Algorithm, Quota};
///
/// #[derive(serde::Deserialize)]
/// struct Limits {
///     login: Quota,
///     search: Quota,
///     report: Quota,
///     guests: Quota,
/// }
///
/// let limits: Limits = toml::from_str(
///     r#"
///     login = "5/min burst 10"
///     search = { units = 200, period = "10s", burst = 50, initial = 10, soft = 5, name = "search" }
///     report = { units = 60, period = "day", algorithm = { sliding_window = { buckets = 24 } } }
///     guests = "blocked"
///     "#,
/// )?;
/// assert_eq!(limits.login, Quota::per_minute(5).burst(10));
/// let hourly = Algorithm::SlidingWindow { buckets: 24 };
/// assert_eq!(limits.report, Quota::per_day(60).algorithm(hourly));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Quota {
    units: u32,
    burst: u32,
    period: u64,
    interval: u64,
    algorithm: Algorithm,
    initial: Option<u32>,
    soft: u32,
    max_debt: Option<u32>,
    name: Option<&'static str>,
}

impl Quota {
    /// `units` per second, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0 or above 1 000 000 000 (while compiling, for a constant).
    #[track_caller]
    pub const fn per_second(units: u32) -> Self {
        Self::of(units, SECOND)
    }

    /// `units` per minute, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0.
    #[track_caller]
    pub const fn per_minute(units: u32) -> Self {
        Self::of(units, 60 * SECOND)
    }

    /// `units` per hour, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0.
    #[track_caller]
    pub const fn per_hour(units: u32) -> Self {
        Self::of(units, 3_600 * SECOND)
    }

    /// `units` per day of 24 hours, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0.
    #[track_caller]
    pub const fn per_day(units: u32) -> Self {
        Self::of(units, 86_400 * SECOND)
    }

    /// `units` per `period`, burst `units`.
    ///
    /// # Errors
    ///
    /// When `units` or `period` is zero, the period is longer than ten years, or more than one
    /// unit would come back per nanosecond. The error names the field, its value and the fix.
    pub const fn new(units: u32, period: Duration) -> Result<Self, QuotaError> {
        let nanos = period.as_nanos();
        #[expect(clippy::cast_possible_truncation, reason = "cut to the bound first")]
        let nanos = if nanos > LONGEST as u128 { LONGEST + 1 } else { nanos as u64 };
        match Self::plain(units, nanos) {
            Ok(quota) => Ok(quota),
            Err(fault) => Err(QuotaError(Fault::Numbers(fault, units, period))),
        }
    }

    /// A quota that refuses whatever costs anything, for good: waiting does not help, so no `Retry-After` is
    /// sent and the status is 403 (see
    /// [`TooManyRequests::blocked_status`](crate::reject::TooManyRequests::blocked_status)).
    ///
    /// Its opposite is [`Rule::unlimited`](crate::Rule::unlimited).
    pub const fn blocked() -> Self {
        Self {
            units: 0,
            burst: 0,
            period: SECOND,
            interval: SECOND,
            algorithm: Algorithm::Gcra,
            initial: None,
            soft: 0,
            max_debt: None,
            name: None,
        }
    }

    /// How many units may be taken at once from a full account.
    ///
    /// ```
    /// # use tower_sluice::Quota;
    /// let quota = Quota::per_second(5).burst(10); // ten at once, then one every 200 ms
    /// assert_eq!(quota.limit(), 10);
    /// ```
    ///
    /// # Panics
    ///
    /// When `units` is 0, or refilling that many would take more than ten years (while compiling,
    /// for a constant). Numbers from outside go through [`Quota::try_burst`].
    #[track_caller]
    pub const fn burst(self, units: u32) -> Self {
        Self { burst: units, ..self }.literal()
    }

    /// [`burst`](Quota::burst) for a number from outside.
    ///
    /// # Errors
    ///
    /// When `units` is 0, refilling that many would take more than ten years, or the quota is
    /// [blocked](Quota::blocked).
    pub const fn try_burst(self, units: u32) -> Result<Self, QuotaError> {
        Self { burst: units, ..self }.checked(units)
    }

    /// Counts by `algorithm`; by GCRA unless set.
    ///
    /// ```
    /// # use tower_sluice::{Algorithm, Quota};
    /// const EXACT: Quota = Quota::per_minute(10).algorithm(Algorithm::SlidingLog);
    /// ```
    ///
    /// # Panics
    ///
    /// When the quota is not one the algorithm can count: a burst other than its units for a
    /// window, buckets that do not divide the period, more than 1 000 buckets, or more than 10 000
    /// units in a log. Choices from outside go through [`Quota::try_algorithm`].
    #[track_caller]
    pub const fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }.literal()
    }

    /// [`algorithm`](Quota::algorithm) for a choice from outside.
    ///
    /// # Errors
    ///
    /// Where [`algorithm`](Quota::algorithm) panics.
    pub const fn try_algorithm(self, algorithm: Algorithm) -> Result<Self, QuotaError> {
        Self { algorithm, ..self }.checked(self.units)
    }

    /// Starts a fresh account at `units` instead of full (GCRA and token bucket only).
    ///
    /// # Panics
    ///
    /// When `units` is above the burst, or the algorithm counts in windows.
    #[track_caller]
    pub const fn initial(self, units: u32) -> Self {
        Self { initial: Some(units), ..self }.literal()
    }

    /// [`initial`](Quota::initial) for a number from outside.
    ///
    /// # Errors
    ///
    /// Where [`initial`](Quota::initial) panics.
    pub const fn try_initial(self, units: u32) -> Result<Self, QuotaError> {
        Self { initial: Some(units), ..self }.checked(units)
    }

    /// Starts a fresh account at what comes back in `time`, rounded down.
    ///
    /// # Panics
    ///
    /// When that is above the burst, or the algorithm counts in windows.
    #[track_caller]
    pub const fn initial_worth(self, time: Duration) -> Self {
        let units = time.as_nanos().saturating_mul(self.units as u128) / self.period as u128;
        #[expect(clippy::cast_possible_truncation, reason = "cut to the bound first")]
        let units = if units > u32::MAX as u128 { u32::MAX } else { units as u32 };
        self.initial(units)
    }

    /// Admits up to `units` more than the quota has, and marks what passes so as
    /// [overage](crate::Decision::is_overage).
    ///
    /// # Panics
    ///
    /// When refilling the raised limit would take more than ten years, or the windows are paced.
    #[track_caller]
    pub const fn soft(self, units: u32) -> Self {
        Self { soft: units, ..self }.literal()
    }

    /// [`soft`](Quota::soft) as a share of the limit, in percent, rounded down.
    ///
    /// # Panics
    ///
    /// As [`soft`](Quota::soft).
    #[track_caller]
    pub const fn soft_percent(self, percent: u32) -> Self {
        let units = self.burst as u64 * percent as u64 / 100;
        #[expect(clippy::cast_possible_truncation, reason = "cut to the bound first")]
        let units = if units > u32::MAX as u64 { u32::MAX } else { units as u32 };
        self.soft(units)
    }

    /// [`soft`](Quota::soft) for a number from outside.
    ///
    /// # Errors
    ///
    /// Where [`soft`](Quota::soft) panics.
    pub const fn try_soft(self, units: u32) -> Result<Self, QuotaError> {
        Self { soft: units, ..self }.checked(units)
    }

    /// Names the quota in header fields and problem bodies; without it a quota is called after
    /// its rule and period.
    ///
    /// # Panics
    ///
    /// When `name` is not 1 to 64 printable ASCII characters.
    #[track_caller]
    pub const fn named(self, name: &'static str) -> Self {
        assert!(crate::name::is_valid(name), "quota: a name is 1 to 64 printable ASCII characters");
        Self { name: Some(name), ..self }
    }

    /// Units given back per [`period`](Quota::period).
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// The most units ever available at once.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.burst
    }

    /// The period in which [`units`](Quota::units) come back.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// The time until one unit comes back: `period / units`, rounded up to a nanosecond.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval)
    }

    /// Whether this is [`Quota::blocked`].
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.burst == 0
    }

    /// The name given with [`named`](Quota::named).
    #[must_use]
    pub const fn name(&self) -> Option<&'static str> {
        self.name
    }

    /// Which algorithm counts.
    #[must_use]
    pub const fn counted_by(&self) -> Algorithm {
        self.algorithm
    }

    /// The interval in nanoseconds; `(limit + soft) × interval` is at most ten years.
    pub(crate) const fn interval_nanos(&self) -> u64 {
        self.interval
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period
    }

    /// Units a fresh account starts at, where it does not start full.
    pub(crate) const fn initial_units(&self) -> Option<u32> {
        self.initial
    }

    /// The most units that ever pass at once, overage among them.
    pub(crate) const fn raised_limit(&self) -> u32 {
        self.burst.saturating_add(self.soft)
    }

    /// Units admitted beyond the limit, as overage.
    pub(crate) const fn soft_units(&self) -> u32 {
        self.soft
    }

    /// Whether both count alike, whatever they are called.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        Self { name: None, ..*self } == Self { name: None, ..*other }
    }

    /// The period as in the text form: `10s`, `1h`.
    pub(crate) fn period_text(&self) -> String {
        let (n, unit) = text::parts(self.period);
        format!("{n}{unit}")
    }

    /// A quota of the default algorithm whose burst is its units.
    const fn plain(units: u32, period: u64) -> Result<Self, Wrong> {
        if units == 0 {
            return Err(Wrong::NoUnits);
        } else if period == 0 {
            return Err(Wrong::NoPeriod);
        } else if period > LONGEST {
            return Err(Wrong::PeriodTooLong);
        } else if units as u64 > period {
            return Err(Wrong::TooFast);
        }
        let interval = period.div_ceil(units as u64);
        let quota = Self { units, burst: units, period, interval, ..Self::blocked() };
        match quota.fault() {
            None => Ok(quota),
            Some(fault) => Err(fault),
        }
    }

    #[track_caller]
    const fn of(units: u32, period: u64) -> Self {
        match Self::plain(units, period) {
            Ok(quota) => quota,
            Err(fault) => panic!("{}", fault.text()),
        }
    }

    /// The quota if it makes sense as a whole; a mistake in a constant does not compile.
    #[track_caller]
    const fn literal(self) -> Self {
        match self.fault() {
            None => self,
            Some(fault) => panic!("{}", fault.text()),
        }
    }

    /// The same for numbers from outside, of which `number` was just set.
    const fn checked(self, number: u32) -> Result<Self, QuotaError> {
        match self.fault() {
            None => Ok(self),
            Some(fault) => {
                let number = match self.max_debt {
                    Some(debt) if fault.is_of_debt() => debt,
                    _ => number,
                };
                Err(QuotaError(Fault::Numbers(fault, number, self.interval())))
            }
        }
    }

    /// What is wrong with the quota as a whole.
    const fn fault(&self) -> Option<Wrong> {
        if self.units == 0 {
            let changed = self.burst > 0
                || self.soft > 0
                || self.initial.is_some()
                || self.max_debt.is_some();
            return if changed { Some(Wrong::BurstOfBlocked) } else { None };
        }
        if self.burst == 0 {
            return Some(Wrong::NoBurst);
        }
        let raised = self.burst as u64 + self.soft as u64;
        if raised > LONGEST / self.interval {
            return Some(Wrong::BurstTooLong);
        }
        if let Some(fault) = self.debt_fault() {
            return Some(fault);
        }
        if let Some(initial) = self.initial
            && initial > self.burst
        {
            return Some(Wrong::InitialAboveBurst);
        }
        match self.algorithm {
            Algorithm::Gcra => return None,
            Algorithm::TokenBucket => {
                let periods = raised.div_ceil(self.units as u64);
                return if periods > LONGEST / self.period {
                    Some(Wrong::BurstTooLong)
                } else {
                    None
                };
            }
            _ if self.initial.is_some() => return Some(Wrong::InitialOfWindow),
            _ if self.burst != self.units => return Some(Wrong::BurstOfWindow),
            _ => {}
        }
        match self.algorithm {
            Algorithm::FixedWindow { paced: true, .. } if self.soft > 0 => {
                Some(Wrong::SoftAndPaced)
            }
            Algorithm::SlidingWindow { buckets } if buckets == 0 || buckets > MOST_BUCKETS => {
                Some(Wrong::Buckets)
            }
            Algorithm::SlidingWindow { buckets } if !self.period.is_multiple_of(buckets as u64) => {
                Some(Wrong::BucketsUneven)
            }
            Algorithm::SlidingLog if raised > LONGEST_LOG => Some(Wrong::LogTooLong),
            _ => None,
        }
    }
}

impl AsRef<[Self]> for Quota {
    fn as_ref(&self) -> &[Self] {
        std::slice::from_ref(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        text.parse::<Quota>().unwrap_err().to_string()
    }

    #[test]
    fn interval_is_rounded_up() {
        assert_eq!(Quota::per_second(3).interval(), Duration::from_nanos(333_333_334));
        assert_eq!(Quota::per_second(1_000_000_000).interval(), Duration::from_nanos(1));
    }

    #[test]
    fn text_form_reads_back() {
        let shown = ["200/10s", "100/min burst 20", "5/s", "1/7day", "3/250ms", "9/90s", "blocked"];
        for text in shown {
            assert_eq!(text.parse::<Quota>().expect(text).to_string(), text);
        }
        assert_eq!(" 5 / 1s ".parse(), Ok(Quota::per_second(5)));
        assert_eq!("24/1440min burst 24".parse(), Ok(Quota::per_day(24)));
    }

    #[test]
    fn errors_name_field_value_and_fix() {
        assert!(fault("0/s").contains("units is 0; to refuse everything use Quota::blocked()"));
        assert!(fault("5/0s").contains("period is 0"));
        assert!(fault("5/s burst 0").contains("burst is 0"));
        assert!(fault("5").contains("write units/period"));
        assert!(fault("x/s").contains("units is \"x\""));
        assert!(fault("+5/s").contains("units is \"+5\""));
        assert!(fault("-5/s").contains("units is \"-5\""));
        assert!(fault("5/week").contains("period is \"week\"; end it with one of"));
        assert!(fault("5/s burst many").contains("burst is \"many\""));
        assert!(fault("4294967296/s").contains("units is \"4294967296\""));
        assert!(fault("1/99999999999999999999day").contains("at most ten years"));
        assert!(fault("1/4000day").contains("longer than ten years"));
        let fast = fault("2000000000/s");
        assert!(fast.contains("1000000000/s") && fast.contains("units 2000000000"), "{fast}");
        let long = fault("1/day burst 3651");
        assert!(long.contains("burst 3651") && long.contains("86400s"), "{long}");
    }

    #[test]
    fn the_longest_burst_is_ten_years() {
        assert!(Quota::per_day(1).try_burst(3650).is_ok());
        assert!(Quota::per_day(1).try_burst(3651).is_err());
        assert!(Quota::per_second(1).try_burst(u32::MAX).is_err());
        assert!(Quota::blocked().try_burst(1).is_err());
    }
}
