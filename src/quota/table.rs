//! The serde form of a quota: text or a table.

use std::time::Duration;

use serde::{
    de::{Deserialize, Deserializer},
    ser::{Error, Serialize, SerializeMap, Serializer},
};

use super::{
    Adaptive, Algorithm, MAX_REFILL, Quota, QuotaError,
    text::{in_largest_unit, parse_time},
};
use crate::{
    config::de::{self, TableForm},
    name::RuleName,
};

const FIELDS: &str = "give units, period, burst, algorithm, initial, soft, max_debt, name, \
                      unit, concurrent, adaptive or blocked";
const PERIOD: &str = "give text, as \"10s\" or \"day\"";

/// Reads the [text form](str::parse) or a table. See [`Quota`].
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        de::read::<QuotaTable, D>(value)
    }
}

#[derive(Default)]
struct QuotaTable {
    blocked: bool,
    concurrent: Option<u32>,
    adaptive: Option<Quota>,
    units: Option<u32>,
    period: Option<Duration>,
    burst: Option<u32>,
    algorithm: Option<Algorithm>,
    initial: Option<u32>,
    soft: Option<u32>,
    max_debt: Option<u32>,
    name: Option<RuleName>,
    unit: Option<RuleName>,
}

impl TableForm for QuotaTable {
    type Read = Quota;

    const SHAPE: &'static str =
        "a quota, as \"100/min burst 20\" or { units = 100, period = \"1min\", burst = 20 }";

    fn text(text: &str) -> Result<Quota, String> {
        text.parse().map_err(|error: QuotaError| error.to_string())
    }

    fn field<'de, D: Deserializer<'de>>(&mut self, name: &str, value: D) -> Result<(), D::Error> {
        match name {
            "blocked" => self.blocked = de::flag(name, value)?,
            "concurrent" => self.concurrent = Some(de::number(name, value, 1..=u32::MAX)?),
            "adaptive" => {
                let fix = "give text, as \"gradient\" or \"aimd 500ms\"";
                let read = |text: &str| match Adaptive::parse(text.trim()) {
                    Some(adaptive) => Ok(Quota::adaptive(adaptive)),
                    None => Err(format!("adaptive is {text:?}; {fix}")),
                };
                self.adaptive = Some(de::text(name, value, fix, read)?);
            }
            "units" => self.units = Some(de::number(name, value, 1..=u32::MAX)?),
            "period" => self.period = Some(read_time(name, value, PERIOD)?),
            "burst" => self.burst = Some(de::number(name, value, 1..=u32::MAX)?),
            "algorithm" => self.algorithm = Some(Algorithm::deserialize(value)?),
            "initial" => self.initial = Some(de::number(name, value, 0..=u32::MAX)?),
            "soft" => self.soft = Some(de::number(name, value, 0..=u32::MAX)?),
            "max_debt" => self.max_debt = Some(de::number(name, value, 0..=u32::MAX)?),
            "name" => self.name = Some(RuleName::deserialize(value)?),
            "unit" => self.unit = Some(RuleName::deserialize(value)?),
            _ => return Err(de::unknown(name, value, FIELDS)),
        }
        Ok(())
    }

    /// Builds the quota. The fields are applied in an order that keeps the quota valid.
    fn read(self) -> Result<Quota, String> {
        let numbers = [self.units, self.burst, self.initial, self.soft, self.max_debt];
        let is_rate = self.units.or(self.burst).or(self.initial).or(self.max_debt).is_some();
        let is_rate = is_rate || self.period.is_some() || self.algorithm.is_some();
        if self.concurrent.is_some() && (is_rate || self.blocked) {
            return Err("concurrent is a number of slots, which have no units, period, burst, \
                        algorithm, initial, max_debt or blocked; drop them, or concurrent"
                .into());
        }
        let has_units = self.units.is_some() || self.period.is_some() || self.algorithm.is_some();
        if self.adaptive.is_some()
            && (has_units || self.max_debt.is_some() || self.blocked || self.concurrent.is_some())
        {
            return Err("adaptive is a number of slots, which have no units, period, algorithm, \
                        max_debt, concurrent or blocked; drop them, or adaptive"
                .into());
        }
        if self.blocked && (self.period.is_some() || numbers.iter().any(Option::is_some)) {
            return Err("blocked is true, but a blocked quota has no period and no numbers; drop \
                        them, or blocked"
                .into());
        }
        let message = |error: QuotaError| error.to_string();
        let mut quota = if self.blocked {
            Quota::blocked()
        } else if let Some(adaptive) = self.adaptive {
            adaptive
        } else if let Some(limit) = self.concurrent {
            Quota::try_concurrent(limit).map_err(message)?
        } else {
            let units = self.units.ok_or("units is missing; add it, as units = 100")?;
            let period = self.period.ok_or("period is missing; add it, as period = \"1min\"")?;
            Quota::new(units, period).map_err(message)?
        };
        if let Some(burst) = self.burst {
            quota = quota.try_burst(burst).map_err(message)?;
        }
        if let Some(algorithm) = self.algorithm {
            quota = quota.try_algorithm(algorithm).map_err(message)?;
        }
        if let Some(soft) = self.soft {
            quota = quota.try_soft(soft).map_err(message)?;
        }
        if let Some(initial) = self.initial {
            quota = quota.try_initial(initial).map_err(message)?;
        }
        if let Some(debt) = self.max_debt {
            quota = quota.try_max_debt(debt).map_err(message)?;
        }
        if let Some(unit) = self.unit {
            quota = quota.with_unit(unit.as_str()).checked(quota.units).map_err(message)?;
        }
        Ok(Quota { name: self.name.map(|name| name.as_str()), ..quota })
    }
}

/// Reads a time in the text form of a quota.
pub(crate) fn read_time<'de, D: Deserializer<'de>>(
    field: &str,
    value: D,
    fix: &str,
) -> Result<Duration, D::Error> {
    de::text(field, value, fix, |text| match parse_time(text.trim()) {
        Ok(time) if time.as_nanos() <= MAX_REFILL.into() => Ok(time),
        Ok(_) => Err(format!("{field} is {text:?}; give at most ten years")),
        Err(fix) => Err(format!("{field} is {text:?}; {fix}")),
    })
}

/// Writes a time for [`read_time`]. Returns `None` if the time is longer than ten years.
pub(crate) fn time_text(time: Duration) -> Option<String> {
    let nanos = u64::try_from(time.as_nanos()).ok().filter(|nanos| *nanos <= MAX_REFILL)?;
    let (n, unit) = if nanos == 0 { (0, "s") } else { in_largest_unit(nanos) };
    Some(format!("{n}{unit}"))
}

/// Writes the text form if possible, and a table otherwise.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !self.is_concurrent() && self.interval != self.period.div_ceil(self.units.max(1).into())
        {
            let why = "quota: a share that Fallback computed cannot be written; write the whole \
                       quota";
            return Err(S::Error::custom(why));
        }
        let Self { units, burst, period, interval, .. } = *self;
        let algorithm =
            if self.is_concurrent() { Algorithm::Concurrent } else { Algorithm::default() };
        let adaptive = self.adaptive;
        let plain = Self { units, burst, period, interval, algorithm, adaptive, ..Self::blocked() };
        if *self == plain {
            return serializer.collect_str(self);
        }
        let mut table = serializer.serialize_map(None)?;
        if self.is_blocked() {
            table.serialize_entry("blocked", &true)?;
        } else if let Some(adaptive) = self.adaptive {
            table.serialize_entry("adaptive", &adaptive.to_string())?;
        } else if self.is_concurrent() {
            table.serialize_entry("concurrent", &self.burst)?;
        } else {
            table.serialize_entry("units", &self.units)?;
            table.serialize_entry("period", &self.period_text())?;
        }
        de::entry(&mut table, "burst", &self.burst, &self.units)?;
        de::entry(&mut table, "algorithm", &self.algorithm, &algorithm)?;
        de::entry(&mut table, "initial", &self.initial, &None)?;
        de::entry(&mut table, "soft", &self.soft, &0)?;
        de::entry(&mut table, "max_debt", &self.max_debt, &None)?;
        de::entry(&mut table, "name", &self.name, &None)?;
        de::entry(&mut table, "unit", &self.unit, &None)?;
        table.end()
    }
}
