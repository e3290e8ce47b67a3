//! Quotas in files: as text where that says all, else as a table.

use std::time::Duration;

use serde::{
    de::{Deserialize, Deserializer},
    ser::{Error, Serialize, SerializeMap, Serializer},
};

use super::{
    Algorithm, LONGEST, Quota, QuotaError,
    text::{parts, time},
};
use crate::{
    fields::{self, Table},
    name::RuleName,
};

const FIELDS: &str = "give units, period, burst, algorithm, initial, soft, max_debt, name or \
                      blocked";
const PERIOD: &str = "give text, as \"10s\" or \"day\"";

/// As [text](str::parse), or as a table of what the setters are called; see [`Quota`].
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        fields::read::<QuotaTable, D>(value)
    }
}

#[derive(Default)]
struct QuotaTable {
    blocked: bool,
    units: Option<u32>,
    period: Option<Duration>,
    burst: Option<u32>,
    algorithm: Option<Algorithm>,
    initial: Option<u32>,
    soft: Option<u32>,
    max_debt: Option<u32>,
    name: Option<RuleName>,
}

impl Table for QuotaTable {
    type Read = Quota;

    const SHAPE: &'static str =
        "a quota, as \"100/min burst 20\" or { units = 100, period = \"1min\", burst = 20 }";

    fn text(text: &str) -> Result<Quota, String> {
        text.parse().map_err(|error: QuotaError| error.to_string())
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        match name {
            "blocked" => self.blocked = fields::flag(name, value)?,
            "units" => self.units = Some(fields::number(name, value, 1..=u32::MAX)?),
            "period" => self.period = Some(read_time(name, value, PERIOD)?),
            "burst" => self.burst = Some(fields::number(name, value, 1..=u32::MAX)?),
            "algorithm" => self.algorithm = Some(Algorithm::deserialize(value)?),
            "initial" => self.initial = Some(fields::number(name, value, 0..=u32::MAX)?),
            "soft" => self.soft = Some(fields::number(name, value, 0..=u32::MAX)?),
            "max_debt" => self.max_debt = Some(fields::number(name, value, 0..=u32::MAX)?),
            "name" => self.name = Some(RuleName::deserialize(value)?),
            _ => return Err(fields::unknown(name, value, FIELDS)),
        }
        Ok(())
    }

    /// In this order a quota that is valid is so at every step.
    fn read(self) -> Result<Quota, String> {
        let numbers = [self.units, self.burst, self.initial, self.soft, self.max_debt];
        if self.blocked && (self.period.is_some() || numbers.iter().any(Option::is_some)) {
            return Err("blocked is true beside numbers, of which a blocked quota has none; drop \
                        them, or blocked"
                .into());
        }
        let told = |error: QuotaError| error.to_string();
        let mut quota = if self.blocked {
            Quota::blocked()
        } else {
            let units = self.units.ok_or("units is missing; add it, as units = 100")?;
            let period = self.period.ok_or("period is missing; add it, as period = \"1min\"")?;
            Quota::new(units, period).map_err(told)?
        };
        if let Some(burst) = self.burst {
            quota = quota.try_burst(burst).map_err(told)?;
        }
        quota = quota.try_algorithm(self.algorithm.unwrap_or_default()).map_err(told)?;
        if let Some(soft) = self.soft {
            quota = quota.try_soft(soft).map_err(told)?;
        }
        if let Some(initial) = self.initial {
            quota = quota.try_initial(initial).map_err(told)?;
        }
        if let Some(debt) = self.max_debt {
            quota = quota.try_max_debt(debt).map_err(told)?;
        }
        Ok(Quota { name: self.name.map(|name| name.as_str()), ..quota })
    }
}

/// A time as in the text form of a quota.
pub(crate) fn read_time<'de, D: Deserializer<'de>>(
    field: &str,
    value: D,
    fix: &str,
) -> Result<Duration, D::Error> {
    fields::text(field, value, fix, |text| match time(text.trim()) {
        Ok(time) if time.as_nanos() <= LONGEST.into() => Ok(time),
        Ok(_) => Err(format!("{field} is {text:?}; it is at most ten years")),
        Err(fix) => Err(format!("{field} is {text:?}; {fix}")),
    })
}

/// A time as [`read_time`] reads it, if it is at most ten years.
pub(crate) fn time_text(time: Duration) -> Option<String> {
    let nanos = u64::try_from(time.as_nanos()).ok().filter(|nanos| *nanos <= LONGEST)?;
    let (n, unit) = if nanos == 0 { (0, "s") } else { parts(nanos) };
    Some(format!("{n}{unit}"))
}

/// The shorter of the two forms that reads back as the same quota.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.interval != self.period.div_ceil(self.units.max(1).into()) {
            let why = "quota: the share that a Fallback asks its local store for has no form of its \
                       own; write the whole quota";
            return Err(S::Error::custom(why));
        }
        let plain = Self { burst: self.burst, ..Self::blocked() };
        let plain =
            Self { units: self.units, period: self.period, interval: self.interval, ..plain };
        if *self == plain {
            return serializer.collect_str(self);
        }
        let mut table = serializer.serialize_map(None)?;
        if self.is_blocked() {
            table.serialize_entry("blocked", &true)?;
        } else {
            table.serialize_entry("units", &self.units)?;
            table.serialize_entry("period", &self.period_text())?;
        }
        if self.burst != self.units {
            table.serialize_entry("burst", &self.burst)?;
        }
        if self.algorithm != Algorithm::default() {
            table.serialize_entry("algorithm", &self.algorithm)?;
        }
        if let Some(initial) = self.initial {
            table.serialize_entry("initial", &initial)?;
        }
        if self.soft > 0 {
            table.serialize_entry("soft", &self.soft)?;
        }
        if let Some(debt) = self.max_debt {
            table.serialize_entry("max_debt", &debt)?;
        }
        if let Some(name) = self.name {
            table.serialize_entry("name", name)?;
        }
        table.end()
    }
}
