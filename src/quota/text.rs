//! The text form of a quota, and its errors.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use super::{Algorithm, Invalid, Quota, UNITS};
use crate::name::RuleName;

/// Writes `units "/" [n] (ns|us|ms|s|min|h|day|week) [" burst " n]`, `limit " concurrent"`,
/// or `blocked`. A calendar period is a unit with an anchor, as
/// `month from 2024-01-31T09:00:00+01:00[Europe/Berlin]`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_blocked() {
            return f.write_str("blocked");
        }
        if self.is_concurrent() {
            return write!(f, "{} concurrent", self.burst);
        }
        if let Some((unit, anchor)) = self.calendar_text() {
            return write!(f, "{}/{unit}{anchor}", self.units);
        }
        match in_largest_unit(self.period) {
            (1, unit) => write!(f, "{}/{unit}", self.units)?,
            (n, unit) => write!(f, "{}/{n}{unit}", self.units)?,
        }
        if self.burst != self.units {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

impl Quota {
    /// Returns the name in header fields and metrics, as one of the quotas of a rule.
    pub(crate) fn name_in(&self, rule: RuleName, quotas: &[Self]) -> Cow<'static, str> {
        match self.name() {
            Some(name) => name.into(),
            None if quotas.len() == 1 => rule.as_str().into(),
            None if self.shares_period(quotas) => {
                let algorithm = self.algorithm().to_string().replace(' ', "-");
                format!("{rule}-{}-{algorithm}", self.period_text()).into()
            }
            None => format!("{rule}-{}", self.period_text()).into(),
        }
    }

    /// Returns `true` if several of these quotas have the period of this one, and no name.
    fn shares_period(&self, quotas: &[Self]) -> bool {
        let unnamed = quotas.iter().filter(|quota| quota.name().is_none());
        unnamed
            .filter(|quota| quota.period() == self.period())
            .count()
            > 1
    }
}

/// Reads `"5/s"`, `"200/10s"`, `"100/min burst 20"`, `"50/week"`, `"5 concurrent"`,
/// or `"blocked"`. A day has 24 hours, and a week has seven days.
///
/// With the feature `calendar`, also `"5000/month"`, `"5000/year"`, and a `day`, `week`, `month` or
/// `year` with an anchor: `"5000/month from 2024-01-31T09:00[Europe/Berlin]"`.
///
/// Other spellings of time units are `sec`, `second`, `m`, `minute`, `hr`, `hour`, `d`, and their
/// plurals.
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let form = TextForm(text);
        let whole = text.trim();
        if whole == "blocked" {
            return Ok(Self::blocked());
        }
        if let Some(limit) = whole.strip_suffix(" concurrent") {
            return Self::try_concurrent(form.count("concurrent", limit)?);
        }
        const FORM: &str = "write units/period, as 5/s, 200/10s or 100/min burst 20";
        let Some((units, rest)) = whole.split_once('/') else {
            return Err(form.error("quota", whole, FORM));
        };
        form.rate(units, rest)
    }
}

/// The text of a quota, for its errors.
pub(super) struct TextForm<'a>(&'a str);

impl TextForm<'_> {
    /// Reads the units, and the period with an optional burst.
    fn rate(&self, units: &str, rest: &str) -> Result<Quota, QuotaError> {
        let (period, burst) = match rest.split_once(" burst ") {
            Some((period, burst)) => (period.trim(), Some(burst)),
            None => (rest.trim(), None),
        };
        let units = self.count("units", units)?;
        let mut quota = match self.calendar(units, period)? {
            Some(quota) => quota,
            None => Quota::new(units, self.time(period)?)?,
        };
        if let Some(burst) = burst {
            quota = quota.try_with_burst(self.count("burst", burst)?)?;
        }
        Ok(quota)
    }

    fn time(&self, period: &str) -> Result<Duration, QuotaError> {
        parse_time(period).map_err(|fix| self.error("period", period, fix))
    }

    /// Returns no quota, and fails for a period that only a calendar has.
    #[cfg(not(feature = "calendar"))]
    fn calendar(&self, _: u32, period: &str) -> Result<Option<Quota>, QuotaError> {
        const FIX: &str = "enable the feature `calendar` of tower-sluice";
        if is_calendar(period) {
            return Err(self.error("period", period, FIX));
        }
        Ok(None)
    }

    fn count(&self, field: &str, text: &str) -> Result<u32, QuotaError> {
        const ZERO: &str = "give at least 1, or \"blocked\" to deny all requests";
        const WHOLE: &str = "give a whole number from 1 to 4294967295";
        const FRACTION: &str =
            "give a whole number; for less than one, lengthen the period, as 1/2s";
        match whole_number(text.trim()) {
            Some(0) => Err(self.error(field, "0", ZERO)),
            Some(n) => Ok(n),
            None => {
                let fix = if text.contains('.') { FRACTION } else { WHOLE };
                Err(self.error(field, text.trim(), fix))
            }
        }
    }

    pub(super) fn error(&self, field: &str, value: &str, fix: &str) -> QuotaError {
        let text = excerpt(self.0);
        let value = excerpt(value);
        QuotaError(format!("quota {text}: {field} is {value}; {fix}"))
    }
}

#[cfg(not(feature = "calendar"))]
fn is_calendar(period: &str) -> bool {
    period.contains(" from ") || matches!(period, "month" | "months" | "year" | "years")
}

/// Reads a time such as `"10s"`, or `"min"` for one minute. The error describes the fix.
pub(crate) fn parse_time(text: &str) -> Result<Duration, &'static str> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let n = &text[..digits];
    let unit = text[digits..].trim_start();
    let unit = UNITS.iter().find(|(names, _)| names.contains(&unit));
    let (_, nanos) = unit.ok_or("end it with one of ns, us, ms, s, min, h, day or week")?;
    let n: u64 = match n {
        "" => 1,
        n => n.parse().map_err(|_| "give at most ten years")?,
    };
    Ok(Duration::from_nanos(n.saturating_mul(*nanos)))
}

/// Returns the time as a whole number of the largest suitable unit.
pub(super) fn in_largest_unit(nanos: u64) -> (u64, &'static str) {
    let whole = UNITS
        .iter()
        .find(|(_, unit)| nanos >= *unit && nanos.is_multiple_of(*unit));
    whole.map_or((nanos, "ns"), |(names, unit)| (nanos / unit, names[0]))
}

/// Parses a whole number without a sign.
fn whole_number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// Error for an invalid [`Quota`](crate::Quota).
///
/// The message has the field, the value and the fix.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaError(String);

/// Reports the fault, and the settings of the invalid quota.
impl From<Invalid> for QuotaError {
    fn from(Invalid(fault, quota): Invalid) -> Self {
        let mut text = format!(
            "{fault} (units {}, period {:?}",
            quota.units,
            quota.period()
        );
        if quota.algorithm != Algorithm::default() {
            text += &format!(", algorithm {:?}", quota.algorithm);
        }
        let burst = Some(quota.burst).filter(|burst| *burst != quota.units);
        let soft = Some(quota.soft).filter(|units| *units > 0);
        for (name, value) in [
            ("burst", burst),
            ("soft", soft),
            ("initial", quota.initial),
            ("max_debt", quota.max_debt),
        ] {
            if let Some(value) = value {
                text += &format!(", {name} {value}");
            }
        }
        Self(text + ")")
    }
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuotaError {}

/// Returns the first bytes of a text in quotes.
fn excerpt(text: &str) -> String {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let cut = &text[..ends.take_while(|end| *end <= 40).last().unwrap_or(0)];
    format!("{cut:?}{}", if cut.len() < text.len() { ".." } else { "" })
}
