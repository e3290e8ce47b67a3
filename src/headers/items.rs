//! Quotas as clients see them: their names, numbers and rendered values.

use std::{borrow::Cow, sync::OnceLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;

use super::{Headers, template::Reading, whole_seconds};
use crate::{
    decision::Outcome,
    fingerprint::FingerprintKey,
    quota::{Quota, is_registered_unit},
    rule::{RuleError, RuleInfo, RuleName},
    store::Charge,
};

/// Checks that no two quotas of a layer have the same name in header fields.
///
/// Report-only rules are included, because they can be enforced at run time.
pub(crate) fn check_names(infos: &[RuleInfo<'_>]) -> Result<(), RuleError> {
    let list = Item::named(infos, Headers::None);
    for (at, item) in list.iter().enumerate() {
        if list[..at].iter().any(|earlier| earlier.name == item.name) {
            return Err(RuleError::SameQuotaName(item.name.to_string()));
        }
    }
    Ok(())
}

/// A quota as clients see it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) rule: RuleName,
    place: usize,
    pub(super) name: Cow<'static, str>,
    pub(super) limit: u32,
    /// The start of a list member: the name as a structured field string (RFC 9651), and `;r=`.
    ///
    /// Empty for a quota that the fields leave out.
    pub(super) prefix: String,
    /// `true` for a report-only rule.
    pub(super) is_reporting: bool,
    /// The quota as a policy, if it is one.
    pub(super) policy: Option<HeaderValue>,
    /// The seconds in which an empty account refills, or 0 for slots.
    window: u64,
    /// The seconds in which one unit is refilled.
    interval: u32,
    /// The unit, if no header field can express it.
    pub(super) unregistered_unit: Option<&'static str>,
    /// The parameter `pk`, if partition keys are enabled.
    pub(super) pk: Option<String>,
    values: ValueCache,
}

impl Item {
    /// Returns the quotas of these rules, for the fields of `family`.
    pub(super) fn named(infos: &[RuleInfo<'_>], family: Headers) -> Vec<Self> {
        let of = |info: &RuleInfo<'_>| {
            let quotas = info.quotas.unwrap_or_default().iter().enumerate();
            quotas.map(|(place, quota)| Self::new(info, place, quota, family)).collect::<Vec<_>>()
        };
        infos.iter().flat_map(of).collect()
    }

    fn new(info: &RuleInfo<'_>, place: usize, quota: &Quota, family: Headers) -> Self {
        let rule = info.name;
        let name: Cow<'static, str> = match quota.name() {
            Some(name) => name.into(),
            None if info.quotas.is_some_and(|it| it.len() == 1) => rule.as_str().into(),
            None => format!("{rule}-{}", quota.period_text()).into(),
        };
        let is_list = family == Headers::RateLimit;
        let (limit, window, unit) = (quota.burst(), window(quota), quota.unit());
        let quoted = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let unregistered_unit = unit.filter(|unit| !is_registered_unit(unit));
        let is_listed = unit.is_none() || is_list && unregistered_unit.is_none();
        let w = if window == 0 { String::new() } else { format!(";w={window}") };
        let policy = if is_list {
            let unit = unit.map(|unit| format!(";qu=\"{unit}\"")).unwrap_or_default();
            format!("{quoted};q={limit}{unit}{w}")
        } else {
            format!("{limit}{w}")
        };
        let is_policy = is_listed && !quota.sheds();
        Self {
            rule,
            place,
            name,
            limit,
            is_reporting: info.report_only,
            prefix: if is_listed { format!("{quoted};r=") } else { String::new() },
            policy: HeaderValue::try_from(policy).ok().filter(|_| is_policy),
            window,
            interval: whole_seconds(quota.interval_nanos()),
            unregistered_unit,
            pk: None,
            values: ValueCache::default(),
        }
    }

    /// Adds the partition key of the charge.
    pub(super) fn set_partition_key(&mut self, charges: &[Charge<'_>], secret: &FingerprintKey) {
        let Some(charge) = charges.iter().find(|charge| charge.rule() == self.rule) else { return };
        let key = charge.key().fingerprint(secret).to_bytes();
        let pk = format!(";pk=:{}:", STANDARD.encode(key));
        let policy = self.policy.as_ref().map(|policy| [policy.as_bytes(), pk.as_bytes()].concat());
        self.policy = policy.and_then(|policy| HeaderValue::try_from(policy).ok());
        self.pk = Some(pk);
    }

    /// Returns `true` if the fields report the quota.
    pub(super) fn is_listed(&self) -> bool {
        !self.prefix.is_empty()
    }

    pub(super) fn is_of(&self, outcome: &Outcome) -> bool {
        self.rule == outcome.rule() && self.place == outcome.quota_index()
    }

    /// Returns the seconds in which clients may use `units`, so that their rate is at most the
    /// limit per window.
    #[inline]
    pub(super) fn time_for(&self, units: u32) -> u32 {
        let seconds = u64::from(units).saturating_mul(self.window);
        u32::try_from(seconds.div_ceil(self.limit.max(1).into())).unwrap_or(u32::MAX)
    }

    /// Returns the value of a field with this reading only. `render` creates the value, unless it is
    /// cached.
    #[inline]
    pub(super) fn cached(
        &self,
        reading: &Reading,
        render: impl Fn() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        let Some(slot) = self.slot(reading) else { return render() };
        let new = || (0..UNITS + SECONDS + USED).map(|_| OnceLock::new()).collect();
        let slot = self.values.get_or_init(new).get(slot)?;
        if slot.get().is_none() {
            slot.set(render()?).ok();
        }
        slot.get().cloned()
    }

    /// Returns the slot of a reading in the cache, or `None` if it is not cached.
    #[inline]
    fn slot(&self, reading: &Reading) -> Option<usize> {
        let Reading { is_usual, remaining, time, .. } = *reading;
        let (units, seconds) = (remaining as usize, time as usize);
        if units == 0 && seconds < SECONDS {
            return Some(UNITS + seconds);
        }
        let is_usual = if units == 0 { time == self.interval } else { is_usual };
        if !is_usual {
            return None;
        }
        if units < UNITS {
            return Some(units);
        }
        // Units that a window carried over may exceed the limit.
        let used = self.limit.checked_sub(remaining)? as usize;
        (used < USED).then_some(UNITS + SECONDS + used)
    }
}

/// Rendered values, allocated on first use.
type ValueCache = OnceLock<Box<[OnceLock<HeaderValue>]>>;

/// The limit of units left. Values below the limit are cached.
const UNITS: usize = 128;
/// The limit of the wait in seconds. A value below the limit is cached if no units are left.
const SECONDS: usize = 64;
/// The limit of used units. Values below the limit are cached.
const USED: usize = 64;

/// Returns the seconds in which an empty account refills, or 0 for slots.
///
/// The time is computed from the period. The rounded interval would give 2 seconds for three units
/// per second.
fn window(quota: &Quota) -> u64 {
    if quota.is_concurrent() {
        return 0;
    }
    let nanos = quota.period().as_nanos() * u128::from(quota.burst());
    let refill = nanos.div_ceil(quota.units().max(1).into()).div_ceil(1_000_000_000);
    u64::try_from(refill).unwrap_or(u64::MAX).max(1)
}
