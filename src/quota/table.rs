//! The serde forms of quotas and algorithms: text or a table.

use std::{error::Error, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, value},
    ser::Error as _,
};

use super::{
    Algorithm, MAX_REFILL, Quota, QuotaError,
    text::{in_largest_unit, parse_time},
};
use crate::{
    config::{self, Setting},
    name::RuleName,
};

/// Reads the [text form](str::parse) or a table. See [`Quota`].
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        config::read(value)
    }
}

impl Setting for Quota {
    const FORM: &'static str =
        "a quota, as \"100/min burst 20\" or { units = 100, period = \"1min\", burst = 20 }";

    fn from_text(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: QuotaError| error.to_string())
    }

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        QuotaTable::deserialize(table)?
            .quota()
            .map_err(D::Error::custom)
    }
}

#[derive(Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
struct QuotaTable {
    #[serde(skip_serializing_if = "is_default")]
    blocked: bool,
    #[serde(skip_serializing_if = "is_default")]
    concurrent: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    units: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    period: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    burst: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    algorithm: Option<Algorithm>,
    #[serde(skip_serializing_if = "is_default")]
    initial: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    soft: u32,
    #[serde(skip_serializing_if = "is_default")]
    max_debt: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    name: Option<RuleName>,
    #[serde(skip_serializing_if = "is_default")]
    unit: Option<RuleName>,
}

/// Returns `true` for a field that is not written.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl QuotaTable {
    /// Builds the quota from its text form, and then sets the other fields.
    fn quota(self) -> Result<Quota, Box<dyn Error>> {
        let quota: Quota = self.text()?.parse()?;
        let quota = Quota {
            algorithm: self.algorithm.unwrap_or(quota.algorithm),
            initial: self.initial,
            soft: self.soft,
            max_debt: self.max_debt,
            name: self.name.map(|name| name.as_str()),
            ..quota
        };
        let quota = self
            .unit
            .map_or(quota, |unit| quota.having_unit(unit.as_str()));
        Ok(quota.checked().map_err(QuotaError::from)?)
    }

    /// Returns the settings of a quota that its text form lacks.
    fn settings(quota: &Quota) -> Self {
        let has_one_algorithm = quota.is_concurrent() || quota.is_calendar();
        let is_set = !has_one_algorithm && quota.algorithm != Algorithm::default();
        Self {
            algorithm: is_set.then_some(quota.algorithm),
            initial: quota.initial,
            soft: quota.soft,
            max_debt: quota.max_debt,
            name: quota.name.and_then(|name| RuleName::new(name).ok()),
            unit: quota.unit.and_then(|unit| RuleName::new(unit).ok()),
            ..Self::default()
        }
    }

    /// Adds the fields of the text form.
    fn with_text(self, quota: &Quota) -> Self {
        let is_rate = quota.is_rate();
        let anchor = quota.calendar_text().map(|(_, anchor)| anchor);
        Self {
            blocked: quota.is_blocked(),
            concurrent: quota.is_concurrent().then_some(quota.burst),
            units: is_rate.then_some(quota.units),
            period: is_rate.then(|| quota.period_text() + &anchor.unwrap_or_default()),
            burst: (quota.burst != quota.units).then_some(quota.burst),
            ..self
        }
    }

    /// Returns the text form, without the fields that it lacks.
    fn text(&self) -> Result<String, &'static str> {
        let text = match (self.blocked, self.concurrent, self.units, &self.period) {
            (false, None, Some(units), Some(period)) => format!("{units}/{period}"),
            (false, None, None, _) => return Err("units is missing; add it, as units = 100"),
            (false, None, _, None) => {
                return Err("period is missing; add it, as period = \"1min\"");
            }
            (true, None, None, None) => "blocked".to_owned(),
            (false, Some(limit), None, None) => format!("{limit} concurrent"),
            _ => {
                return Err(
                    "units and period, concurrent and blocked exclude each other; give \
                            one of them",
                );
            }
        };
        match self.burst {
            Some(_) if self.units.is_none() => {
                Err("burst is set on a blocked or concurrent quota; drop it")
            }
            Some(burst) => Ok(format!("{text} burst {burst}")),
            None => Ok(text),
        }
    }
}

/// Writes the text form if possible, and a table otherwise.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_rate() && self.interval != self.period.div_ceil(self.units.into()) {
            return Err(S::Error::custom(
                "quota: a share that Fallback computed cannot be written; write the whole quota",
            ));
        }
        let settings = QuotaTable::settings(self);
        if is_default(&settings) {
            return serializer.collect_str(self);
        }
        settings.with_text(self).serialize(serializer)
    }
}

impl Quota {
    /// Returns `true` for units per period.
    fn is_rate(&self) -> bool {
        !self.is_blocked() && !self.is_concurrent()
    }
}

/// Reads an algorithm from a word or a table.
///
/// - `"gcra"`, `"token_bucket"`, `"fixed_window"`, `"anchored_window"` or `"sliding_log"`
/// - `{ sliding_window = { buckets = 60 } }`
/// - `{ fixed_window = { carry_over = 30, paced = true } }`, where both fields are optional
impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        config::read(value)
    }
}

impl Setting for Algorithm {
    const FORM: &'static str = "an algorithm, as \"sliding_log\", \
                                { sliding_window = { buckets = 60 } } or \
                                { fixed_window = { carry_over = 30, paced = true } }";

    fn from_text(text: &str) -> Result<Self, String> {
        if text == "fixed_window" {
            return Ok(Self::fixed_window());
        }
        // `Self::deserialize` is the derived form.
        Self::deserialize(value::StrDeserializer::<value::Error>::new(text))
            .map_err(|error| format!("algorithm is {text:?}: {error}; give {}", Self::FORM))
    }

    fn from_table<'de, D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        Self::deserialize(table)
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::fixed_window() {
            return serializer.serialize_str("fixed_window");
        }
        Self::serialize(self, serializer)
    }
}

/// Reads the value of a field that is a time in the text form of a quota.
pub(crate) fn read_time(field: &str, text: &str) -> Result<Duration, String> {
    match parse_time(text.trim()) {
        Ok(time) if time.as_nanos() <= MAX_REFILL.into() => Ok(time),
        Ok(_) => Err(format!("{field} is {text:?}; give at most ten years")),
        Err(fix) => Err(format!("{field} is {text:?}; {fix}")),
    }
}

/// The serde form of a time that is the field `max_wait`.
pub(crate) mod max_wait {
    use super::*;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(value: D) -> Result<Duration, D::Error> {
        read_time("max_wait", &String::deserialize(value)?).map_err(D::Error::custom)
    }

    pub(crate) fn serialize<S: Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
        let nanos = time.as_nanos().min(MAX_REFILL.into());
        let (n, unit) = in_largest_unit(u64::try_from(nanos).unwrap_or(MAX_REFILL));
        out.collect_str(&format_args!("{n}{unit}"))
    }
}
