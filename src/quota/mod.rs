//! Quotas: units per period with a burst, or slots for requests that run at the same time.

mod address;
mod algorithm;
#[cfg(feature = "calendar")]
mod anchor;
mod calendar;
mod part;
#[cfg(feature = "serde")]
mod table;
mod text;

use std::time::Duration;

pub(crate) use self::address::QuotaAddress;
#[cfg(test)]
pub(crate) use self::algorithm::EXAMPLES;
use self::calendar::Anchor;
#[cfg(feature = "serde")]
pub(crate) use self::table::{max_wait, read_time};
pub use self::{algorithm::Algorithm, text::QuotaError};

const SECOND: u64 = 1_000_000_000;
const WEEK: u64 = 7 * 86_400 * SECOND;
/// The longest time in which an account may refill: ten years.
const MAX_REFILL: u64 = 10 * 365 * 86_400 * SECOND;
/// The maximum units of a sliding log, which keeps one entry per charge.
const MAX_LOG_UNITS: u64 = 10_000;
const UNIT_OF_SLOTS: &str = "quota: unit is set on a concurrent quota, or is concurrent-requests; drop it, or use \
     Quota::concurrent(limit)";
/// The maximum buckets of a sliding window, which keeps one count per bucket.
const MAX_BUCKETS: u32 = 1_000;
/// Time units with their nanoseconds, the longest first. The first name is the canonical one.
const UNITS: [(&[&str], u64); 8] = [
    (&["week", "weeks"], WEEK),
    (&["day", "days", "d"], 86_400 * SECOND),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600 * SECOND),
    (&["min", "mins", "m", "minute", "minutes"], 60 * SECOND),
    (&["s", "sec", "secs", "second", "seconds"], SECOND),
    (&["ms"], 1_000_000),
    (&["us"], 1_000),
    (&["ns"], 1),
];

/// The edges of three consecutive calendar periods: one period, and its two neighbours. In
/// nanoseconds of Unix time.
type Edges = [u64; 4];

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
/// const LOGIN: Quota = Quota::per_minute(5).with_burst(10);
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
/// Most fields of the table are named after the setters. `name` is [`with_name`](Quota::with_name),
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
/// assert_eq!(limits.login, Quota::per_minute(5).with_burst(10));
/// let hourly = Algorithm::SlidingWindow { buckets: 24 };
/// assert_eq!(limits.report, Quota::per_day(60).with_algorithm(hourly));
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
    /// `true` for the [share](crate::Rule::fair_by) of a client.
    is_client_share: bool,
    /// The anchor of calendar periods, if the quota counts in them.
    anchor: Option<Anchor>,
    /// Identifies the account of the quota within those of a rule and a key. A part of a quota keeps
    /// the address of the whole.
    address: QuotaAddress,
}

impl Quota {
    /// Creates a quota of `units` per second, with a burst of `units`.
    ///
    /// For less than one unit per second, use a longer period. One unit in two seconds is
    /// `Quota::per(1, Duration::from_secs(2))`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0 or above 1 000 000 000. In a constant, this is a compile error.
    #[track_caller]
    pub const fn per_second(units: u32) -> Self {
        unwrap(Self::rate(units, SECOND))
    }

    /// Creates a quota of `units` per minute, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_minute(units: u32) -> Self {
        unwrap(Self::rate(units, 60 * SECOND))
    }

    /// Creates a quota of `units` per hour, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_hour(units: u32) -> Self {
        unwrap(Self::rate(units, 3_600 * SECOND))
    }

    /// Creates a quota of `units` per day of 24 hours, with a burst of `units`.
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_day(units: u32) -> Self {
        unwrap(Self::rate(units, 86_400 * SECOND))
    }

    /// Creates a quota of `units` per week of seven days, with a burst of `units`.
    ///
    /// ```
    /// use tower_sluice::Quota;
    ///
    /// const REPORTS: Quota = Quota::per_week(50);
    /// assert_eq!(REPORTS, "50/week".parse()?);
    /// # Ok::<(), tower_sluice::quota::QuotaError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `units` is 0.
    #[track_caller]
    pub const fn per_week(units: u32) -> Self {
        unwrap(Self::rate(units, WEEK))
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
        unwrap(Self::rate(units, nanos(period)))
    }

    /// Fallible form of [`per`](Quota::per), for numbers known only at run time.
    ///
    /// # Errors
    ///
    /// Fails in these cases:
    ///
    /// - `units` or `period` is zero.
    /// - The period, or all units one after another, take longer than ten years.
    /// - More than one unit would be refilled per nanosecond.
    pub fn new(units: u32, period: Duration) -> Result<Self, QuotaError> {
        Ok(Self::rate(units, nanos(period))?)
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
            is_client_share: false,
            anchor: None,
            address: QuotaAddress::BLOCKED,
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
        unwrap(Self::slots(limit))
    }

    /// Fallible form of [`concurrent`](Quota::concurrent), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if `limit` is 0.
    pub fn try_concurrent(limit: u32) -> Result<Self, QuotaError> {
        Ok(Self::slots(limit)?)
    }

    #[allow(
        clippy::result_large_err,
        reason = "a constant function cannot allocate"
    )]
    const fn slots(limit: u32) -> Result<Self, Invalid> {
        let quota = Self {
            units: limit,
            burst: limit,
            ..Self::blocked()
        };
        Self {
            period: 0,
            interval: 1,
            algorithm: Algorithm::Concurrent,
            ..quota
        }
        .checked()
    }

    /// Marks the quota of an [adaptive](crate::rule::Adaptive) limit.
    pub(crate) const fn shedding(self) -> Self {
        Self {
            sheds: true,
            ..self
        }
    }

    /// Sets the burst: the maximum number of units that can be taken at once.
    ///
    /// ```
    /// # use tower_sluice::Quota;
    /// let quota = Quota::per_second(5).with_burst(10); // ten at once, then one every 200 ms
    /// assert_eq!(quota.limit(), 10);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if [`try_with_burst`](Quota::try_with_burst) would fail. In a constant, this is a compile
    /// error.
    #[doc(alias = "burst")]
    #[track_caller]
    pub const fn with_burst(self, units: u32) -> Self {
        unwrap(
            Self {
                burst: units,
                ..self
            }
            .checked(),
        )
    }

    /// Fallible form of [`with_burst`](Quota::with_burst), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails in these cases:
    ///
    /// - `units` is 0, or takes more than ten years to refill.
    /// - The quota counts windows or slots, or is [blocked](Quota::blocked).
    /// - The burst is below the [`initial`](Quota::with_initial) units.
    pub fn try_with_burst(self, units: u32) -> Result<Self, QuotaError> {
        Ok(Self {
            burst: units,
            ..self
        }
        .checked()?)
    }

    /// Sets the algorithm. Defaults to [`Algorithm::Gcra`].
    ///
    /// ```
    /// # use tower_sluice::{Algorithm, Quota};
    /// const EXACT: Quota = Quota::per_minute(10).with_algorithm(Algorithm::SlidingLog);
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the algorithm cannot count the quota, for example:
    ///
    /// - A window has a burst that differs from its units.
    /// - The buckets do not divide the period, or are more than 1 000.
    /// - A log has more than 10 000 units.
    /// - A window has [`initial`](Quota::with_initial) units, or a paced window has
    ///   [`soft`](Quota::with_soft) units.
    ///
    /// For an algorithm known only at run time, use [`Quota::try_with_algorithm`].
    #[track_caller]
    pub const fn with_algorithm(self, algorithm: Algorithm) -> Self {
        unwrap(Self { algorithm, ..self }.checked())
    }

    /// Fallible form of [`with_algorithm`](Quota::with_algorithm).
    ///
    /// # Errors
    ///
    /// Fails if [`with_algorithm`](Quota::with_algorithm) would panic.
    pub fn try_with_algorithm(self, algorithm: Algorithm) -> Result<Self, QuotaError> {
        Ok(Self { algorithm, ..self }.checked()?)
    }

    /// Sets the number of units in a new account. Defaults to the burst.
    ///
    /// A [refund](crate::StoreExt::adjust) to a key without an account creates the account, and adds to
    /// these units.
    ///
    /// # Panics
    ///
    /// Panics if `units` is above the burst, if the algorithm counts in windows, or if the quota counts
    /// slots or is [blocked](Quota::blocked).
    #[track_caller]
    pub const fn with_initial(self, units: u32) -> Self {
        unwrap(
            Self {
                initial: Some(units),
                ..self
            }
            .checked(),
        )
    }

    /// Fallible form of [`with_initial`](Quota::with_initial), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`with_initial`](Quota::with_initial) would panic.
    pub fn try_with_initial(self, units: u32) -> Result<Self, QuotaError> {
        Ok(Self {
            initial: Some(units),
            ..self
        }
        .checked()?)
    }

    /// Allows up to `units` units beyond the limit, for a soft limit.
    ///
    /// Requests beyond the limit are marked as [overage](crate::Decision::is_overage).
    ///
    /// # Panics
    ///
    /// Panics if the limit plus `units` takes more than ten years to refill, or is more than 10 000 in a
    /// sliding log, or if the quota is a paced window or [blocked](Quota::blocked).
    #[track_caller]
    pub const fn with_soft(self, units: u32) -> Self {
        unwrap(
            Self {
                soft: units,
                ..self
            }
            .checked(),
        )
    }

    /// Fallible form of [`with_soft`](Quota::with_soft), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`soft`](Quota::with_soft) would panic.
    pub fn try_with_soft(self, units: u32) -> Result<Self, QuotaError> {
        Ok(Self {
            soft: units,
            ..self
        }
        .checked()?)
    }

    /// Sets the maximum debt of an account, in units. Defaults to the limit.
    ///
    /// An account gets into debt if a request costs more than was charged, and the handler charges
    /// the difference (see [`ChargeHandle`](crate::middleware::ChargeHandle) and
    /// [`Limiter::charge`](crate::Limiter::charge)). Such a charge never fails, but stops when the
    /// debt reaches `max_debt`. **Further units are never charged.** With `with_max_debt(0)`, an account
    /// can be emptied, but not put into debt. Units that a window
    /// [carried over](Algorithm::FixedWindow) do not raise this bound: a late charge that stops at it may not
    /// have used them up.
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
    /// - With `with_max_debt(99_999_000)`, the first 1 000 requests put the account into debt for 69
    ///   days.
    ///
    /// A larger first charge is better than a large debt. Requests that are first charged their
    /// maximum cost never use more than the quota.
    ///
    /// ```
    /// use tower_sluice::{Limiter, Quota};
    ///
    /// // At most 10 parallel requests reserve 100 tokens each, and each costs at most 500.
    /// const TOKENS: Quota = Quota::per_minute(1_000).with_max_debt(10 * 500 - 1_000);
    ///
    /// let limiter = Limiter::local();
    /// assert!(limiter.take("alice", &TOKENS, 100).now().is_allowed());
    /// let _late = limiter.charge("alice", &TOKENS, 400).now(); // the request cost 500
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
    /// - The quota is [blocked](Quota::blocked) or counts slots.
    ///
    /// For a number known only at run time, use [`Quota::try_with_max_debt`].
    ///
    /// # Limitations
    ///
    /// This setting bounds the charged units, not the used units. If uncharged units are refunded,
    /// the account gets back more units than were charged.
    #[track_caller]
    pub const fn with_max_debt(self, units: u32) -> Self {
        unwrap(
            Self {
                max_debt: Some(units),
                ..self
            }
            .checked(),
        )
    }

    /// Fallible form of [`with_max_debt`](Quota::with_max_debt), for a number known only at run time.
    ///
    /// # Errors
    ///
    /// Fails if [`with_max_debt`](Quota::with_max_debt) would panic.
    pub fn try_with_max_debt(self, units: u32) -> Result<Self, QuotaError> {
        Ok(Self {
            max_debt: Some(units),
            ..self
        }
        .checked()?)
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
    pub const fn with_name(self, name: &'static str) -> Self {
        assert!(
            crate::name::is_valid(name),
            "quota: a name is 1 to 64 printable ASCII characters"
        );
        Self {
            name: Some(name),
            ..self
        }
    }

    /// Sets the unit, for a quota that does not count requests.
    ///
    /// Clients see the unit `content-bytes` in the field `RateLimit-Policy`. The registry of units
    /// is closed: a quota with any other unit, such as tokens, is in the fields of
    /// [`Headers::ByUnit`](crate::Headers::ByUnit) only. The text of its rejection has its numbers.
    ///
    /// ```
    /// use tower_sluice::Quota;
    ///
    /// const UPLOADS: Quota = Quota::per_minute(50 << 20).with_unit("content-bytes");
    /// const TOKENS: Quota = Quota::per_minute(100_000).with_unit("tokens");
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `unit` is not 1 to 64 printable ASCII characters. The unit `concurrent-requests` is
    /// that of [concurrent](Quota::concurrent) quotas, and of no other.
    #[track_caller]
    pub const fn with_unit(self, unit: &'static str) -> Self {
        assert!(
            crate::name::is_valid(unit),
            "quota: a unit is 1 to 64 printable ASCII characters"
        );
        unwrap(self.having_unit(unit).checked())
    }

    const fn having_unit(self, unit: &'static str) -> Self {
        let unit = if matches!(unit.as_bytes(), b"requests") && !self.is_concurrent() {
            None
        } else {
            Some(unit)
        };
        Self { unit, ..self }
    }

    /// Returns the number of units that are refilled per [`period`](Quota::period), or the limit of
    /// a [concurrent](Quota::concurrent) quota.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// Returns the limit: the maximum number of units or slots that are available at once, and 0 for a
    /// [blocked](Quota::blocked) quota. [`with_burst`](Quota::with_burst) sets it.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.burst
    }

    /// Returns the period in which [`units`](Quota::units) are refilled, or zero for a
    /// [concurrent](Quota::concurrent) quota.
    ///
    /// A calendar month counts as 31 days, and a year as 366 days.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// Returns the time until one unit is refilled: `period / units`, rounded up to a nanosecond.
    ///
    /// The time is zero for a [concurrent](Quota::concurrent) quota.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        if self.is_concurrent() {
            Duration::ZERO
        } else {
            Duration::from_nanos(self.interval)
        }
    }

    /// Returns `true` for a [blocked](Quota::blocked) quota.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.burst == 0
    }

    /// Returns `true` for a number of [slots](Quota::concurrent), and `false` for a rate.
    pub(crate) const fn is_concurrent(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrent)
    }

    pub(crate) const fn is_gcra(&self) -> bool {
        matches!(self.algorithm, Algorithm::Gcra)
    }

    /// Returns `true` for the quota of an [adaptive](crate::rule::Adaptive) limit: a denial is an
    /// overload, and the slots are free at the head of the response.
    pub(crate) const fn sheds(&self) -> bool {
        self.sheds
    }

    /// Returns the name set with [`with_name`](Quota::with_name).
    #[must_use]
    pub const fn name(&self) -> Option<&'static str> {
        self.name
    }

    /// Returns the unit, or `None` for requests.
    ///
    /// The unit of a [concurrent](Quota::concurrent) quota is `concurrent-requests`.
    #[must_use]
    pub const fn unit(&self) -> Option<&'static str> {
        if self.is_concurrent() {
            Some("concurrent-requests")
        } else {
            self.unit
        }
    }

    /// Returns the algorithm, [`Algorithm::Concurrent`] for a number of slots.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the interval in nanoseconds. `(limit + soft) × interval` is at most ten years.
    pub(crate) const fn interval_nanos(&self) -> u64 {
        self.interval
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period
    }

    pub(crate) const fn address(&self) -> QuotaAddress {
        self.address
    }

    /// Returns this quota on the account of another one. For models of the shares of a quota.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub const fn on_account_of(self, other: &Self) -> Self {
        Self {
            address: other.address,
            ..self
        }
    }

    /// Returns the units of a new account, or `None` if a new account is full.
    #[must_use]
    pub const fn initial(&self) -> Option<u32> {
        self.initial
    }

    /// Returns the maximum debt of an account, or `None` for the default, which is the burst.
    #[must_use]
    pub const fn max_debt(&self) -> Option<u32> {
        self.max_debt
    }

    /// Returns the limit plus the soft units.
    pub(crate) const fn raised_limit(&self) -> u64 {
        self.burst as u64 + self.soft as u64
    }

    /// Returns the most units that a request can ever take.
    pub(crate) fn most_at_once(&self) -> u32 {
        let carried = u64::from(self.algorithm.max_carry_over());
        u32::try_from(self.raised_limit() + carried).unwrap_or(u32::MAX)
    }

    /// Returns the number of units beyond the limit that a soft limit allows.
    #[must_use]
    pub const fn soft(&self) -> u32 {
        self.soft
    }

    /// Returns the period in the text form: `10s`, `1h`. For slots, returns `concurrent`.
    pub(crate) fn period_text(&self) -> String {
        if self.is_concurrent() {
            return "concurrent".to_owned();
        }
        if let Some((unit, _)) = self.calendar_text() {
            return unit.to_owned();
        }
        let (n, unit) = text::in_largest_unit(self.period);
        format!("{n}{unit}")
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

    /// Creates a quota with the default algorithm and burst.
    #[allow(
        clippy::result_large_err,
        reason = "a constant function cannot allocate"
    )]
    const fn rate(units: u32, period: u64) -> Result<Self, Invalid> {
        let quota = Self {
            units,
            burst: units,
            period,
            ..Self::blocked()
        };
        let fault = if units == 0 {
            "quota: units is 0; use Quota::blocked() to deny all requests"
        } else if period == 0 {
            "quota: period is 0; give at least 1 ns per unit"
        } else if period > MAX_REFILL {
            "quota: period is longer than ten years; shorten it"
        } else if units as u64 > period {
            "quota: units come back faster than one per nanosecond (1000000000/s); lower units or \
             lengthen period"
        } else {
            return Self {
                interval: period.div_ceil(units as u64),
                ..quota
            }
            .checked();
        };
        Err(Invalid(fault, quota))
    }

    /// Returns the quota, or an error if it is invalid.
    #[allow(
        clippy::result_large_err,
        reason = "a constant function cannot allocate"
    )]
    const fn checked(self) -> Result<Self, Invalid> {
        match self.fault() {
            None => Ok(Self {
                address: QuotaAddress::of(&self),
                ..self
            }),
            Some(fault) => Err(Invalid(fault, self)),
        }
    }

    /// Returns the fault of an invalid quota, with the fix.
    const fn fault(&self) -> Option<&'static str> {
        // Only a number of slots has no period.
        if self.period == 0 {
            return self.fault_of_slots();
        }
        let buckets = self.algorithm.buckets();
        let fault = if self.is_concurrent() {
            "quota: algorithm Concurrent is set on a rate; use Quota::concurrent(limit)"
        } else if matches!(self.unit, Some(unit) if is_unit_of_slots(unit)) {
            UNIT_OF_SLOTS
        } else if buckets == 0 || buckets > MAX_BUCKETS {
            "quota: buckets of a sliding window is outside 1 to 1000"
        } else if self.units == 0 {
            return self.fault_of_blocked();
        } else {
            return match self.fault_of_numbers() {
                None => self.fault_of_algorithm(),
                fault => fault,
            };
        };
        Some(fault)
    }

    const fn fault_of_slots(&self) -> Option<&'static str> {
        let is_rate = !self.is_concurrent() || self.burst != self.units;
        let fault = if self.units == 0 {
            "quota: concurrent is 0; use Quota::blocked() to deny all requests"
        } else if is_rate || self.max_debt.is_some() || self.initial.is_some() {
            "quota: burst, algorithm, initial or max_debt is set on a concurrent quota; drop it"
        } else if self.unit.is_some() {
            UNIT_OF_SLOTS
        } else {
            return None;
        };
        Some(fault)
    }

    const fn fault_of_blocked(&self) -> Option<&'static str> {
        let has_units = self.burst > 0 || self.soft > 0;
        if has_units || self.initial.is_some() || self.max_debt.is_some() {
            Some("quota: burst, soft, initial or max_debt is set on a blocked quota; drop it")
        } else {
            None
        }
    }

    /// Returns the fault of the numbers of a rate.
    const fn fault_of_numbers(&self) -> Option<&'static str> {
        let fault = if self.burst == 0 {
            "quota: burst is 0; use Quota::blocked() to deny all requests"
        } else if self.raised_limit() > self.longest_refill() {
            "quota: burst \u{d7} interval is longer than ten years; lower burst or raise the rate"
        } else if matches!(self.max_debt, Some(units) if units as u64 > self.longest_debt()) {
            if self.algorithm.is_window() {
                "quota: max_debt of a sliding log is above 10000; lower it, or use SlidingWindow \
                 or Gcra"
            } else {
                "quota: max_debt \u{d7} interval is longer than ten years; lower max_debt or raise \
                 the rate"
            }
        } else if matches!(self.initial, Some(units) if units > self.burst) {
            "quota: initial is above burst; lower it or raise burst"
        } else {
            return None;
        };
        Some(fault)
    }

    /// Returns the fault of a rate whose algorithm cannot count it.
    const fn fault_of_algorithm(&self) -> Option<&'static str> {
        let window = self.algorithm.is_window();
        let is_plain_window = matches!(
            self.algorithm,
            Algorithm::FixedWindow {
                carry_over: 0,
                paced: false
            }
        );
        let is_log = matches!(self.algorithm, Algorithm::SlidingLog);
        let fault = if self.initial.is_some() && window {
            "quota: initial is set on a window; it is for Gcra and TokenBucket only"
        } else if self.burst != self.units && window {
            "quota: burst is set on a window, where it equals units; drop it"
        } else if self.is_calendar() && !is_plain_window {
            "quota: algorithm is set on calendar periods, which are fixed windows; drop it"
        } else if self.soft > 0 && self.algorithm.is_paced() {
            "quota: soft is set on a paced window; choose one of them"
        } else if !self.period.is_multiple_of(self.algorithm.buckets() as u64) {
            "quota: buckets does not divide the period into whole nanoseconds; choose another"
        } else if self.raised_limit() > MAX_LOG_UNITS && is_log {
            "quota: a sliding log of more than 10000 units; use SlidingWindow or Gcra"
        } else {
            return None;
        };
        Some(fault)
    }
}

/// The fault of an invalid quota, with the fix.
#[derive(Clone, Copy, Debug)]
struct Invalid(&'static str, Quota);

/// Returns a valid quota.
#[track_caller]
const fn unwrap(quota: Result<Quota, Invalid>) -> Quota {
    match quota {
        Ok(quota) => quota,
        Err(Invalid(fault, _)) => panic!("{}", fault),
    }
}

/// Returns `true` for a unit of the parameter `qu`, whose registry is closed.
pub(crate) fn is_registered_unit(unit: &str) -> bool {
    matches!(unit, "requests" | "content-bytes" | "concurrent-requests")
}

const fn is_unit_of_slots(unit: &str) -> bool {
    matches!(unit.as_bytes(), b"concurrent-requests")
}

/// Returns the period in nanoseconds, at most 584 years.
const fn nanos(period: Duration) -> u64 {
    let nanos = period.as_nanos();
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the bound")]
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
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
        assert_eq!(
            Quota::per_second(3).interval(),
            Duration::from_nanos(333_333_334)
        );
        assert_eq!(
            Quota::per_second(1_000_000_000).interval(),
            Duration::from_nanos(1)
        );
    }

    #[test]
    fn text_form_reads_back() {
        let shown = [
            "5 concurrent",
            "200/10s",
            "100/min burst 20",
            "5/s",
            "1/week",
            "3/2week",
            "3/250ms",
            "9/90s",
            "blocked",
        ];
        for text in shown {
            assert_eq!(text.parse::<Quota>().expect(text).to_string(), text);
        }
        assert_eq!(" 5 / 1s ".parse(), Ok(Quota::per_second(5)));
        assert_eq!("24/1440min burst 24".parse(), Ok(Quota::per_day(24)));
        assert_eq!("50/7days".parse(), Ok(Quota::per_week(50)));
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
        assert!(fault("0.5/s").contains("for less than one, lengthen the period, as 1/2s"));
        assert!(fault("5/fortnight").contains("period is \"fortnight\"; end it with one of"));
        assert!(fault("5/s burst many").contains("burst is \"many\""));
        assert!(fault("4294967296/s").contains("units is \"4294967296\""));
        assert!(fault("1/99999999999999999999day").contains("at most ten years"));
        assert!(fault("1/4000day").contains("longer than ten years"));
        let fast = fault("2000000000/s");
        assert!(
            fast.contains("1000000000/s") && fast.contains("units 2000000000"),
            "{fast}"
        );
        let long = fault("1/day burst 3651");
        assert!(
            long.contains("burst 3651") && long.contains("86400s"),
            "{long}"
        );
    }

    /// A quota that is read has no other text with the feature.
    #[cfg(not(feature = "calendar"))]
    #[test]
    fn the_text_of_a_calendar_period_names_the_feature() {
        for text in [
            "5/month",
            "5/months",
            "5/year",
            "5/week from 2024-01-01[Europe/Berlin]",
        ] {
            let error = fault(text);
            assert!(
                error.contains("enable the feature `calendar` of tower-sluice"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_buckets_of_a_blocked_quota_are_checked() {
        let blocked =
            |buckets| Quota::blocked().try_with_algorithm(Algorithm::SlidingWindow { buckets });
        for buckets in [0, MAX_BUCKETS + 1] {
            assert!(
                blocked(buckets)
                    .unwrap_err()
                    .to_string()
                    .contains("buckets"),
                "{buckets}"
            );
        }
        assert!(blocked(7).is_ok_and(|quota| quota.is_blocked()));
    }

    #[test]
    fn a_quota_is_a_rate_or_a_number_of_slots() {
        let (slots, rate) = (Quota::concurrent(5), Quota::per_second(5));
        let algorithms = [Algorithm::Gcra, Algorithm::SlidingLog];
        let mixed = algorithms.map(|algorithm| slots.try_with_algorithm(algorithm));
        let others = [
            slots.try_with_burst(9),
            slots.try_with_initial(1),
            slots.try_with_max_debt(1),
        ];
        for error in mixed.into_iter().chain(others) {
            let error = error.expect_err("invalid").to_string();
            assert!(
                error.contains("is set on a concurrent quota; drop it"),
                "{error}"
            );
        }
        let error = rate
            .try_with_algorithm(Algorithm::Concurrent)
            .expect_err("invalid")
            .to_string();
        assert!(error.contains("use Quota::concurrent(limit)"), "{error}");
        assert!(slots.is_concurrent() && !rate.is_concurrent());
        assert_eq!((slots.limit(), slots.period()), (5, Duration::ZERO));
        assert_eq!(slots.with_soft(2).raised_limit(), 7);
        assert!(
            Quota::try_concurrent(u32::MAX)
                .is_ok_and(|quota| quota.try_with_soft(u32::MAX).is_ok())
        );
    }

    #[test]
    fn the_maximum_burst_refills_in_ten_years() {
        assert!(Quota::per_day(1).try_with_burst(3650).is_ok());
        assert!(Quota::per_day(1).try_with_burst(3651).is_err());
        assert!(Quota::per_second(1).try_with_burst(u32::MAX).is_err());
        assert!(Quota::blocked().try_with_burst(1).is_err());
    }

    #[test]
    fn the_maximum_debt_lasts_ten_years() {
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
            let daily = Quota::per_day(1).with_algorithm(algorithm);
            assert!(daily.try_with_max_debt(3_650).is_ok());
            let error = daily
                .try_with_max_debt(3_651)
                .expect_err("ten years and a day")
                .to_string();
            assert!(
                error.contains("longer than ten years; lower max_debt"),
                "{error}"
            );
            assert!(error.ends_with(", max_debt 3651)"), "{error}");
        }
        // Three years contain only three whole periods.
        let years = Quota::new(1_000, Duration::from_secs(3 * 365 * 86_400)).expect("a quota");
        for (algorithm, most) in [(Algorithm::Gcra, 3_333), (Algorithm::TokenBucket, 3_000)] {
            let quota = years.with_algorithm(algorithm);
            assert!(quota.try_with_max_debt(most).is_ok(), "{algorithm:?}");
            assert!(quota.try_with_max_debt(most + 1).is_err(), "{algorithm:?}");
        }
        let window = Quota::per_day(1).with_algorithm(Algorithm::fixed_window());
        assert!(
            window.try_with_max_debt(u32::MAX).is_ok(),
            "a window ends with its debt"
        );
        let log = Quota::per_day(1).with_algorithm(Algorithm::SlidingLog);
        assert!(log.try_with_max_debt(10_000).is_ok() && log.try_with_max_debt(10_001).is_err());
        let late = Quota::per_day(1).with_max_debt(3_000);
        assert!(late.try_with_algorithm(Algorithm::SlidingLog).is_ok());
        let error = Quota::per_second(1)
            .with_max_debt(20_000)
            .try_with_algorithm(Algorithm::SlidingLog);
        let error = error.expect_err("too many entries").to_string();
        assert!(error.contains(", max_debt 20000)"), "{error}");
        assert!(Quota::blocked().try_with_max_debt(1).is_err());
    }

    #[test]
    fn the_default_debt_equals_the_limit() {
        assert_eq!(Quota::per_second(5).with_burst(9).late_limit(), 18);
        assert_eq!(
            Quota::per_second(5)
                .with_max_debt(1)
                .with_burst(9)
                .late_limit(),
            10
        );
        assert_eq!(Quota::per_second(5).with_max_debt(0).late_limit(), 5);
    }
}
