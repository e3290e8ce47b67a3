//! Quotas as text.

use std::{fmt, str::FromStr, time::Duration};

use super::{Quota, QuotaError, UNITS, error::Fault};

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
