//! Quotas: units per period with a burst, or slots for requests that run at the same time.

mod algorithm;
#[cfg(feature = "serde")]
mod algorithm_table;
mod debt;
mod error;
mod fault;
#[cfg(feature = "simulate")]
mod limit;
mod share;
#[cfg(feature = "serde")]
mod table;
mod text;

use std::time::Duration;

use self::error::{ErrorKind, Repr};
#[cfg(feature = "serde")]
pub(crate) use self::table::max_wait;
#[cfg(feature = "admin")]
pub(crate) use self::table::read_time;
pub use self::{algorithm::Algorithm, error::QuotaError};

const SECOND: u64 = 1_000_000_000;
/// The longest time in which an account may refill: ten years.
const MAX_REFILL: u64 = 10 * 365 * 86_400 * SECOND;
/// The maximum units of a sliding log, which keeps one entry per charge.
const MAX_LOG_UNITS: u64 = 10_000;
/// The maximum buckets of a sliding window, which keeps one count per bucket.
const MAX_BUCKETS: u32 = 1_000;
/// Names of time units with their nanoseconds, the longest first.
const UNITS: [(&str, u64); 7] = [
    ("day", 86_400 * SECOND),
    ("h", 3_600 * SECOND),
    ("min", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Limit of `units` per `period`, with a `burst` that may be used at once.
///
/// A quota is a rate or, by [`Quota::concurrent`], a number of requests that run at the same time.
///
/// By default, one unit is refilled every [`interval`](Quota::interval) (GCRA, ITU-T I.371). The
/// interval is rounded up to a nanosecond.
///
/// Invalid numbers in a constant are compile errors. [`Quota::new`] and [`str::parse`] return an
/// error instead.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::Quota;
///
/// const LOGIN: Quota = Quota::per_minute(5).burst(10);
/// const SEARCH: Quota = Quota::per(200, Duration::from_secs(10));
///
/// assert_eq!(SEARCH, "200/10s".parse()?);
/// assert_eq!(LOGIN.to_string(), "5/min burst 10");
/// # Ok::<(), tower_sluice::quota::QuotaError>(())
/// ```
///
/// # Configuration files
///
/// With feature `serde`, a quota is read from text or from a table, for example in TOML or JSON.
///
/// Most fields of the table are named after the setters. `name` is [`named`](Quota::named),
/// `blocked = true` is a [blocked](Quota::blocked) quota, and `concurrent = 5` is a [number of
/// slots](Quota::concurrent). Errors name the field, its value and the fix.
///
/// A quota is written as text if possible. Names that were read stay in memory until the process
/// ends, see [`RuleName`](crate::rule::RuleName).
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
    /// The unit, or `None` for requests.
    unit: Option<&'static str>,
    /// `true` for an [adaptive](crate::rule::Adaptive) limit.
    sheds: bool,
}

/// Returns `true` for a unit of the parameter `qu`, whose registry is closed.
pub(crate) fn is_registered_unit(unit: &str) -> bool {
    matches!(unit, "requests" | "content-bytes" | "concurrent-requests")
}

impl Quota {
    /// Creates a quota of `units` per second, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0 or above 1 000 000 000. In a constant, this is a compile error.
    #[track_caller]
    pub const fn per_second(units: u32) -> Self {
        Self::of_nanos(units, SECOND)
    }

    /// Creates a quota of `units` per minute, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_minute(units: u32) -> Self {
        Self::of_nanos(units, 60 * SECOND)
    }

    /// Creates a quota of `units` per hour, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_hour(units: u32) -> Self {
        Self::of_nanos(units, 3_600 * SECOND)
    }

    /// Creates a quota of `units` per day of 24 hours, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_day(units: u32) -> Self {
        Self::of_nanos(units, 86_400 * SECOND)
    }

    /// Creates a quota of `units` per `period`, with a burst of `units`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::Quota;
    ///
    /// const SEARCHES: Quota = Quota::per(200, Duration::from_secs(10));
    /// assert_eq!(SEARCHES.to_string(), "200/10s");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if [`new`](Quota::new) would fail. In a constant, this is a compile error.
    #[track_caller]
    pub const fn per(units: u32, period: Duration) -> Self {
        Self::of_nanos(units, clamped_nanos(period))
    }

    /// Fallible form of [`per`](Quota::per), for numbers known only at run time.
    ///
    /// # Errors
    ///
    /// Fails in these cases:
    ///
    /// - `units` or `period` is zero.
    /// - The period is longer than ten years.
    /// - More than one unit would be refilled per nanosecond.
    pub const fn new(units: u32, period: Duration) -> Result<Self, QuotaError> {
        match Self::plain(units, clamped_nanos(period)) {
            Ok(quota) => Ok(quota),
            Err(fault) => Err(QuotaError(Repr::Numbers(fault, units, period))),
        }
    }

    /// Creates a quota that denies all requests.
    ///
    /// Waiting does not help, so the response has no `Retry-After`. Its status is 403 by default,
    /// see [`TooManyRequests::blocked_status`](crate::reject::TooManyRequests::blocked_status). A
    /// request with cost 0 is still allowed.
    ///
    /// For no limit at all, use an empty list of [`Quotas`](crate::rule::Quotas).
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
            unit: None,
            sheds: false,
        }
    }

    /// Creates a quota of `limit` slots: the number of requests that may run at the same time.
    ///
    /// A request holds its slots from the decision until its response body ends or is dropped. The
    /// cost of a request is the number of its slots. See the
    /// [guide](crate::guide::slots).
    ///
    /// ```
    /// use tower_sluice::{LocalStore, Quota, RateLimitLayer, key::HeaderKey};
    ///
    /// // Five exports at a time for each customer, and a hundred per minute.
    /// let quotas = [Quota::concurrent(5), Quota::per_minute(100)];
    /// let layer = RateLimitLayer::new(HeaderKey::new("x-api-key"), quotas, LocalStore::new());
    /// assert_eq!(Quota::concurrent(5), "5 concurrent".parse()?);
    /// # Ok::<(), tower_sluice::quota::QuotaError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0. In a constant, this is a compile error. For a number known only at
    /// run time, use [`Quota::try_concurrent`].
    #[track_caller]
    pub const fn concurrent(limit: u32) -> Self {
        Self::slots(limit).or_panic()
    }

    /// Fallible form of [`concurrent`](Quota::concurrent), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if `limit` is 0.
    pub const fn try_concurrent(limit: u32) -> Result<Self, QuotaError> {
        Self::slots(limit).checked(limit)
    }

    const fn slots(limit: u32) -> Self {
        let quota = Self { units: limit, burst: limit, ..Self::blocked() };
        Self { period: 0, interval: 1, algorithm: Algorithm::Concurrent, ..quota }
    }

    /// Marks the quota of an [adaptive](crate::rule::Adaptive) limit.
    pub(crate) const fn shedding(self) -> Self {
        Self { sheds: true, ..self }
    }

    /// Sets the burst: the maximum number of units that can be taken at once.
    ///
    /// ```
    /// # use tower_sluice::Quota;
    /// let quota = Quota::per_second(5).burst(10); // ten at once, then one every 200 ms
    /// assert_eq!(quota.limit(), 10);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0, or if the burst takes more than ten years to refill. In a constant,
    /// this is a compile error. For a number known only at run time, use [`Quota::try_burst`].
    #[track_caller]
    pub const fn burst(self, units: u32) -> Self {
        Self { burst: units, ..self }.or_panic()
    }

    /// Fallible form of [`burst`](Quota::burst), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if `units` is 0, if the burst takes more than ten years to refill, or if the quota is
    /// [blocked](Quota::blocked).
    pub const fn try_burst(self, units: u32) -> Result<Self, QuotaError> {
        Self { burst: units, ..self }.checked(units)
    }

    /// Sets the algorithm. Defaults to [`Algorithm::Gcra`].
    ///
    /// ```
    /// # use tower_sluice::{Algorithm, Quota};
    /// const EXACT: Quota = Quota::per_minute(10).algorithm(Algorithm::SlidingLog);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the algorithm cannot count the quota, for example:
    ///
    /// - A window has a burst that differs from its units.
    /// - The buckets do not divide the period, or are more than 1 000.
    /// - A log has more than 10 000 units.
    /// - A window has [`initial`](Quota::initial) units, or a paced window has
    ///   [`soft`](Quota::soft) units.
    ///
    /// For an algorithm known only at run time, use [`Quota::try_algorithm`].
    #[track_caller]
    pub const fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }.or_panic()
    }

    /// Fallible form of [`algorithm`](Quota::algorithm), for an algorithm known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`algorithm`](Quota::algorithm) would panic.
    pub const fn try_algorithm(self, algorithm: Algorithm) -> Result<Self, QuotaError> {
        Self { algorithm, ..self }.checked(self.units)
    }

    /// Sets the number of units in a new account. Defaults to the burst.
    ///
    /// # Panics
    ///
    /// Panics if `units` is above the burst, or if the algorithm counts in windows.
    #[track_caller]
    pub const fn initial(self, units: u32) -> Self {
        Self { initial: Some(units), ..self }.or_panic()
    }

    /// Fallible form of [`initial`](Quota::initial), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`initial`](Quota::initial) would panic.
    pub const fn try_initial(self, units: u32) -> Result<Self, QuotaError> {
        Self { initial: Some(units), ..self }.checked(units)
    }

    /// Allows up to `units` units beyond the limit, for a soft limit.
    ///
    /// Requests beyond the limit are marked as [overage](crate::Decision::is_overage).
    ///
    /// # Panics
    ///
    /// Panics if the limit plus `units` takes more than ten years to refill, or if the quota is a
    /// paced window.
    #[track_caller]
    pub const fn soft(self, units: u32) -> Self {
        Self { soft: units, ..self }.or_panic()
    }

    /// Fallible form of [`soft`](Quota::soft), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`soft`](Quota::soft) would panic.
    pub const fn try_soft(self, units: u32) -> Result<Self, QuotaError> {
        Self { soft: units, ..self }.checked(units)
    }

    /// Sets the name of the quota in header fields and problem bodies.
    ///
    /// Defaults to the name of the rule. If the rule has several quotas, the default also contains
    /// the period.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not 1 to 64 printable ASCII characters.
    #[track_caller]
    pub const fn named(self, name: &'static str) -> Self {
        assert!(crate::name::is_valid(name), "quota: a name is 1 to 64 printable ASCII characters");
        Self { name: Some(name), ..self }
    }

    /// Sets the unit, for a quota that does not count requests.
    ///
    /// Clients see the unit `content-bytes` in the field `RateLimit-Policy`. The registry of units
    /// is closed: a quota with any other unit, such as tokens, is in no header field. The text of its
    /// rejection has its numbers.
    ///
    /// ```
    /// use tower_sluice::Quota;
    ///
    /// const UPLOADS: Quota = Quota::per_minute(50 << 20).unit("content-bytes");
    /// const TOKENS: Quota = Quota::per_minute(100_000).unit("tokens");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `unit` is not 1 to 64 printable ASCII characters, or if the quota is
    /// [concurrent](Quota::concurrent), whose unit is `concurrent-requests`.
    #[track_caller]
    pub const fn unit(self, unit: &'static str) -> Self {
        assert!(crate::name::is_valid(unit), "quota: a unit is 1 to 64 printable ASCII characters");
        self.with_unit(unit).or_panic()
    }

    const fn with_unit(self, unit: &'static str) -> Self {
        let unit = if matches!(unit.as_bytes(), b"requests") { None } else { Some(unit) };
        Self { unit, ..self }
    }

    /// Returns the number of units that are refilled per [`period`](Quota::period), or the limit of
    /// a [concurrent](Quota::concurrent) quota.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Returns the limit: the maximum number of units or slots that are available at once.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.burst
    }

    /// Returns the period in which [`units`](Quota::units) are refilled, or zero for a
    /// [concurrent](Quota::concurrent) quota.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// Returns the time until one unit is refilled: `period / units`, rounded up to a nanosecond.
    ///
    /// The time is zero for a [concurrent](Quota::concurrent) quota.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        if self.is_concurrent() { Duration::ZERO } else { Duration::from_nanos(self.interval) }
    }

    /// Returns `true` for a [blocked](Quota::blocked) quota.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        self.burst == 0
    }

    /// Returns `true` for a number of [slots](Quota::concurrent), and `false` for a rate.
    #[must_use]
    pub const fn is_concurrent(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrent)
    }

    /// Returns `true` for the quota of an [adaptive](crate::rule::Adaptive) limit: a denial is an
    /// overload, and the slots are free at the head of the response.
    pub(crate) const fn sheds(&self) -> bool {
        self.sheds
    }

    /// Returns the name set with [`named`](Quota::named).
    #[must_use]
    pub const fn name(&self) -> Option<&'static str> {
        self.name
    }

    /// Returns the unit, or `None` for requests.
    ///
    /// The unit of a [concurrent](Quota::concurrent) quota is `concurrent-requests`.
    #[must_use]
    pub const fn unit_name(&self) -> Option<&'static str> {
        if self.is_concurrent() { Some("concurrent-requests") } else { self.unit }
    }

    /// Returns the algorithm.
    #[must_use]
    pub const fn counted_by(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the interval in nanoseconds. `(limit + soft) × interval` is at most ten years.
    pub(crate) const fn interval_nanos(&self) -> u64 {
        self.interval
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period
    }

    /// Returns the units of a new account, or `None` if a new account is full.
    pub(crate) const fn initial_units(&self) -> Option<u32> {
        self.initial
    }

    /// Returns the limit plus the soft units.
    pub(crate) const fn raised_limit(&self) -> u32 {
        self.burst.saturating_add(self.soft)
    }

    /// Returns the number of units beyond the limit that a soft limit allows.
    #[must_use]
    pub const fn soft_units(&self) -> u32 {
        self.soft
    }

    /// Returns the period in the text form: `10s`, `1h`. For slots, returns `concurrent`.
    pub(crate) fn period_text(&self) -> String {
        if self.is_concurrent() {
            return "concurrent".to_owned();
        }
        let (n, unit) = text::in_largest_unit(self.period);
        format!("{n}{unit}")
    }

    /// Creates a quota with the default algorithm and burst.
    const fn plain(units: u32, period: u64) -> Result<Self, ErrorKind> {
        if units == 0 {
            return Err(ErrorKind::NoUnits);
        } else if period == 0 {
            return Err(ErrorKind::NoPeriod);
        } else if period > MAX_REFILL {
            return Err(ErrorKind::PeriodTooLong);
        } else if units as u64 > period {
            return Err(ErrorKind::TooFast);
        }
        let interval = period.div_ceil(units as u64);
        let quota = Self { units, burst: units, period, interval, ..Self::blocked() };
        match quota.fault() {
            None => Ok(quota),
            Some(fault) => Err(fault),
        }
    }

    #[track_caller]
    const fn of_nanos(units: u32, period: u64) -> Self {
        match Self::plain(units, period) {
            Ok(quota) => quota,
            Err(fault) => panic!("{}", fault.text()),
        }
    }

    /// Returns the quota, or panics if it is invalid.
    #[track_caller]
    const fn or_panic(self) -> Self {
        match self.fault() {
            None => self,
            Some(fault) => panic!("{}", fault.text()),
        }
    }

    /// Returns the quota, or an error if it is invalid.
    ///
    /// The error contains `number`, the value that was set last.
    const fn checked(self, number: u32) -> Result<Self, QuotaError> {
        match self.fault() {
            None => Ok(self),
            Some(fault) => {
                let number = match self.max_debt {
                    Some(debt) if fault.is_about_debt() => debt,
                    _ => number,
                };
                Err(QuotaError(Repr::Numbers(fault, number, self.interval())))
            }
        }
    }
}

/// Returns the period in nanoseconds. Periods above the bound stay above it.
const fn clamped_nanos(period: Duration) -> u64 {
    let max = Duration::from_nanos(MAX_REFILL);
    if period.as_secs() > max.as_secs() {
        return MAX_REFILL + 1;
    }
    period.as_secs() * SECOND + period.subsec_nanos() as u64
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
        let shown = [
            "5 concurrent",
            "200/10s",
            "100/min burst 20",
            "5/s",
            "1/7day",
            "3/250ms",
            "9/90s",
            "blocked",
        ];
        for text in shown {
            assert_eq!(text.parse::<Quota>().expect(text).to_string(), text);
        }
        assert_eq!(" 5 / 1s ".parse(), Ok(Quota::per_second(5)));
        assert_eq!("24/1440min burst 24".parse(), Ok(Quota::per_day(24)));
    }

    #[test]
    fn errors_name_field_value_and_fix() {
        assert!(fault("0/s").contains("units is \"0\"; give at least 1, or \"blocked\" to deny"));
        assert!(fault("5/0s").contains("period is 0"));
        assert!(fault("5/s burst 0").contains("burst is \"0\"; give at least 1, or \"blocked\""));
        assert!(fault("0 concurrent").contains("concurrent is \"0\"; give at least 1"));
        assert!(fault("x concurrent").contains("concurrent is \"x\""));
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
    fn the_buckets_of_a_blocked_quota_are_checked() {
        let blocked =
            |buckets| Quota::blocked().try_algorithm(Algorithm::SlidingWindow { buckets });
        for buckets in [0, MAX_BUCKETS + 1] {
            assert!(blocked(buckets).unwrap_err().to_string().contains("buckets"), "{buckets}");
        }
        assert!(blocked(7).is_ok_and(|quota| quota.is_blocked()));
    }

    #[test]
    fn a_quota_is_a_rate_or_a_number_of_slots() {
        let (slots, rate) = (Quota::concurrent(5), Quota::per_second(5));
        let algorithms = [Algorithm::Gcra, Algorithm::SlidingLog];
        let mixed = algorithms.map(|algorithm| slots.try_algorithm(algorithm));
        let others = [slots.try_burst(9), slots.try_initial(1), slots.try_max_debt(1)];
        for error in mixed.into_iter().chain(others) {
            let error = error.expect_err("invalid").to_string();
            assert!(error.contains("is set on a concurrent quota; drop it"), "{error}");
        }
        let error = rate.try_algorithm(Algorithm::Concurrent).expect_err("invalid").to_string();
        assert!(error.contains("use Quota::concurrent(limit)"), "{error}");
        assert!(slots.is_concurrent() && !rate.is_concurrent());
        assert_eq!((slots.limit(), slots.period()), (5, Duration::ZERO));
        assert_eq!(slots.soft(2).raised_limit(), 7);
        assert!(
            Quota::try_concurrent(u32::MAX).is_ok_and(|quota| quota.try_soft(u32::MAX).is_ok())
        );
    }

    #[test]
    fn the_maximum_burst_refills_in_ten_years() {
        assert!(Quota::per_day(1).try_burst(3650).is_ok());
        assert!(Quota::per_day(1).try_burst(3651).is_err());
        assert!(Quota::per_second(1).try_burst(u32::MAX).is_err());
        assert!(Quota::blocked().try_burst(1).is_err());
    }
}
