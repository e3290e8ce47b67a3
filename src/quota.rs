//! How much: so many units per period, with a burst.

use std::{fmt, str::FromStr, time::Duration};

const SECOND: u64 = 1_000_000_000;
/// The longest time an account may take to refill: ten years of 365 days.
const LONGEST: u64 = 10 * 365 * 86_400 * SECOND;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Quota {
    units: u32,
    burst: u32,
    period: u64,
    interval: u64,
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
        Self::literal(units, SECOND)
    }

    /// `units` per minute, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0.
    #[track_caller]
    pub const fn per_minute(units: u32) -> Self {
        Self::literal(units, 60 * SECOND)
    }

    /// `units` per hour, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0.
    #[track_caller]
    pub const fn per_hour(units: u32) -> Self {
        Self::literal(units, 3_600 * SECOND)
    }

    /// `units` per day of 24 hours, burst `units`.
    ///
    /// # Panics
    ///
    /// When `units` is 0.
    #[track_caller]
    pub const fn per_day(units: u32) -> Self {
        Self::literal(units, 86_400 * SECOND)
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
        match check(units, nanos) {
            Ok(interval) => Ok(Self { units, burst: units, period: nanos, interval, name: None }),
            Err(fault) => Err(QuotaError(Fault::Numbers(fault, units, nanos))),
        }
    }

    /// A quota that refuses everything, for good: waiting does not help, so no `Retry-After` is
    /// sent and the status is 403 (see
    /// [`TooManyRequests::blocked_status`](crate::reject::TooManyRequests::blocked_status)).
    ///
    /// Its opposite is [`Rule::unlimited`](crate::Rule::unlimited).
    pub const fn blocked() -> Self {
        Self { units: 0, burst: 0, period: SECOND, interval: SECOND, name: None }
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
        match self.check_burst(units) {
            Ok(()) => Self { burst: units, ..self },
            Err(fault) => panic!("{}", fault.text()),
        }
    }

    /// [`burst`](Quota::burst) for a number from outside.
    ///
    /// # Errors
    ///
    /// When `units` is 0, refilling that many would take more than ten years, or the quota is
    /// [blocked](Quota::blocked).
    pub const fn try_burst(self, units: u32) -> Result<Self, QuotaError> {
        match self.check_burst(units) {
            Ok(()) => Ok(Self { burst: units, ..self }),
            Err(fault) => Err(QuotaError(Fault::Numbers(fault, units, self.interval))),
        }
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

    /// The interval in nanoseconds; `limit × interval` is at most ten years.
    pub(crate) const fn interval_nanos(&self) -> u64 {
        self.interval
    }

    /// The period as in the text form: `10s`, `1h`.
    pub(crate) fn period_text(&self) -> String {
        let (unit, n) = self.period_parts();
        format!("{n}{unit}")
    }

    fn period_parts(&self) -> (&'static str, u64) {
        let whole = UNITS.iter().find(|(_, nanos)| self.period.is_multiple_of(*nanos));
        whole.map_or(("ns", self.period), |(unit, nanos)| (*unit, self.period / nanos))
    }

    const fn check_burst(&self, units: u32) -> Result<(), Wrong> {
        if self.is_blocked() {
            Err(Wrong::BurstOfBlocked)
        } else if units == 0 {
            Err(Wrong::NoBurst)
        } else if units as u64 > LONGEST / self.interval {
            Err(Wrong::BurstTooLong)
        } else {
            Ok(())
        }
    }

    #[track_caller]
    const fn literal(units: u32, period: u64) -> Self {
        match check(units, period) {
            Ok(interval) => Self { units, burst: units, period, interval, name: None },
            Err(fault) => panic!("{}", fault.text()),
        }
    }
}

impl AsRef<[Self]> for Quota {
    fn as_ref(&self) -> &[Self] {
        std::slice::from_ref(self)
    }
}

/// The interval of a quota whose burst is `units`, or what is wrong with it.
const fn check(units: u32, period: u64) -> Result<u64, Wrong> {
    if units == 0 {
        Err(Wrong::NoUnits)
    } else if period == 0 {
        Err(Wrong::NoPeriod)
    } else if period > LONGEST {
        Err(Wrong::PeriodTooLong)
    } else if units as u64 > period {
        Err(Wrong::TooFast)
    } else if units as u64 * period.div_ceil(units as u64) > LONGEST {
        Err(Wrong::BurstTooLong)
    } else {
        Ok(period.div_ceil(units as u64))
    }
}

/// `units "/" [n] (ms|s|min|h|day) [" burst " n]`, or `blocked`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_blocked() {
            return f.write_str("blocked");
        }
        match self.period_parts() {
            (unit, 1) => write!(f, "{}/{unit}", self.units)?,
            (unit, n) => write!(f, "{}/{n}{unit}", self.units)?,
        }
        if self.burst != self.units {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

/// Reads `"5/s"`, `"200/10s"`, `"100/min burst 20"` or `"blocked"`.
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let wrong = |field, value: &str, fix| {
            let (text, value) = (text.to_owned(), value.to_owned());
            QuotaError(Fault::Text { text, field, value, fix })
        };
        let whole = text.trim();
        if whole == "blocked" {
            return Ok(Self::blocked());
        }
        const SHAPE: &str = "write units/period, as 5/s, 200/10s or 100/min burst 20";
        let (units, rest) = whole.split_once('/').ok_or_else(|| wrong("quota", whole, SHAPE))?;
        let (period, burst) = match rest.split_once(" burst ") {
            Some((period, burst)) => (period.trim(), Some(burst.trim())),
            None => (rest.trim(), None),
        };
        const COUNT: &str = "give a whole number from 1 to 4294967295";
        let units =
            whole_number(units.trim()).ok_or_else(|| wrong("units", units.trim(), COUNT))?;
        let digits = period.len() - period.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (n, unit) = (&period[..digits], period[digits..].trim_start());
        let (_, nanos) = *UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| {
            wrong("period", period, "end it with one of ns, us, ms, s, min, h or day")
        })?;
        let n: u64 = match n {
            "" => 1,
            n => n.parse().map_err(|_| wrong("period", period, "it is at most ten years"))?,
        };
        let period = Duration::from_nanos(n.saturating_mul(nanos));
        let quota = Self::new(units, period)?;
        match burst {
            None => Ok(quota),
            Some(n) => quota.try_burst(whole_number(n).ok_or_else(|| wrong("burst", n, COUNT))?),
        }
    }
}

/// Digits only: `u32::from_str` would also take a sign.
fn whole_number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Why a [`Quota`] was refused: the field, its value and the fix are in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError(Fault);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// The number refused, and the period or interval it met, in nanoseconds.
    Numbers(Wrong, u32, u64),
    Text {
        text: String,
        field: &'static str,
        value: String,
        fix: &'static str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    NoUnits,
    NoPeriod,
    PeriodTooLong,
    TooFast,
    NoBurst,
    BurstTooLong,
    BurstOfBlocked,
}

impl Wrong {
    /// What is said where no number can be printed: in a constant.
    const fn text(self) -> &'static str {
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
            Self::BurstOfBlocked => "quota: burst is set on a blocked quota, which has none",
        }
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Fault::Text { text, field, value, fix } => {
                write!(f, "quota {text:?}: {field} is {value:?}; {fix}")
            }
            Fault::Numbers(wrong, units, nanos) => {
                let time = Duration::from_nanos(*nanos);
                f.write_str(wrong.text())?;
                match wrong {
                    Wrong::NoUnits | Wrong::NoPeriod | Wrong::NoBurst => Ok(()),
                    Wrong::PeriodTooLong => write!(f, " (units {units})"),
                    Wrong::TooFast => write!(f, " (units {units}, period {time:?})"),
                    Wrong::BurstTooLong | Wrong::BurstOfBlocked => {
                        write!(f, " (burst {units}, interval {time:?})")
                    }
                }
            }
        }
    }
}

impl std::error::Error for QuotaError {}

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
