//! The serde form of a quota: text or a table.

use std::{error::Error, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};

use super::{
    Algorithm, MAX_REFILL, Quota, QuotaError,
    text::{in_largest_unit, parse_time},
};
use crate::{config, name::RuleName};

const FORM: &str =
    "a quota, as \"100/min burst 20\" or { units = 100, period = \"1min\", burst = 20 }";

/// Reads the [text form](str::parse) or a table. See [`Quota`].
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let text = |text: &str| text.parse().map_err(|error: QuotaError| error.to_string());
        config::text_or_table::<_, QuotaTable, _>(value, FORM, text)
    }
}

#[derive(Default, Deserialize, Serialize)]
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
    soft: Option<u32>,
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

/// Builds the quota from its text form, and applies the other fields in an order that keeps the
/// quota valid.
impl TryFrom<QuotaTable> for Quota {
    type Error = Box<dyn Error>;

    fn try_from(table: QuotaTable) -> Result<Self, Box<dyn Error>> {
        let is_rate = table.units.is_some() || table.period.is_some();
        let mut text = match (table.blocked, table.concurrent, is_rate) {
            (true, None, false) => "blocked".to_owned(),
            (false, Some(limit), false) => format!("{limit} concurrent"),
            (false, None, _) => {
                let units = table.units.ok_or("units is missing; add it, as units = 100")?;
                let period =
                    table.period.ok_or("period is missing; add it, as period = \"1min\"")?;
                format!("{units}/{period}")
            }
            _ => {
                let why =
                    "units and period, concurrent and blocked exclude each other; give one of them";
                return Err(why.into());
            }
        };
        if let Some(burst) = table.burst {
            text += &format!(" burst {burst}");
        }
        let mut quota: Self = text.parse()?;
        let set = |quota, value: Option<u32>, set: fn(Self, u32) -> Result<Self, QuotaError>| {
            value.map_or(Ok(quota), |units| set(quota, units))
        };
        if let Some(algorithm) = table.algorithm {
            quota = quota.try_algorithm(algorithm)?;
        }
        quota = set(quota, table.soft, Self::try_soft)?;
        quota = set(quota, table.initial, Self::try_initial)?;
        quota = set(quota, table.max_debt, Self::try_max_debt)?;
        if let Some(unit) = table.unit {
            quota = quota.with_unit(unit.as_str()).checked(quota.units)?;
        }
        Ok(Self { name: table.name.map(|name| name.as_str()), ..quota })
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
        let nanos = u64::try_from(time.as_nanos()).ok().filter(|nanos| *nanos <= MAX_REFILL);
        let long = || S::Error::custom("max_wait is longer than ten years; shorten it");
        let (n, unit) = match nanos.ok_or_else(long)? {
            0 => (0, "s"),
            nanos => in_largest_unit(nanos),
        };
        out.collect_str(&format_args!("{n}{unit}"))
    }
}

/// Writes the text form if possible, and a table otherwise.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let slots = self.is_concurrent();
        if !slots && self.interval != self.period.div_ceil(self.units.max(1).into()) {
            let why = "quota: a share that Fallback computed cannot be written; write the whole \
                       quota";
            return Err(S::Error::custom(why));
        }
        let Self { units, burst, period, interval, .. } = *self;
        let algorithm = if slots { Algorithm::Concurrent } else { Algorithm::default() };
        let plain = Self { units, burst, period, interval, algorithm, ..Self::blocked() };
        if *self == plain {
            return serializer.collect_str(self);
        }
        let is_rate = !self.is_blocked() && !slots;
        QuotaTable {
            blocked: self.is_blocked(),
            concurrent: slots.then_some(burst),
            units: is_rate.then_some(units),
            period: is_rate.then(|| self.period_text()),
            burst: (burst != units).then_some(burst),
            algorithm: (self.algorithm != algorithm).then_some(self.algorithm),
            initial: self.initial,
            soft: (self.soft != 0).then_some(self.soft),
            max_debt: self.max_debt,
            name: self.name.and_then(|name| RuleName::new(name).ok()),
            unit: self.unit.and_then(|unit| RuleName::new(unit).ok()),
        }
        .serialize(serializer)
    }
}
