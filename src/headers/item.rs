//! Names and limits of quotas, as clients see them.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;

use super::{Headers, digits::number, whole_seconds};
use crate::{
    decision::Outcome,
    fingerprint::FingerprintKey,
    quota::{Quota, is_registered_unit},
    rule::{RuleError, RuleInfo, RuleName},
    store::Charge,
};

/// The quotas of a layer, or of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Items {
    pub(super) list: Vec<Item>,
    /// The report-only rules. Header fields omit them.
    reporting: Vec<RuleName>,
    /// `true` if a rule chooses its quotas per request.
    dynamic: bool,
    /// The number of rules with quotas.
    rules: usize,
}

impl Items {
    /// Collects the quotas of a layer. Fails if two quotas have the same name.
    ///
    /// Report-only rules are included, because they can be enforced at run time.
    pub(crate) fn new(infos: &[RuleInfo<'_>]) -> Result<Self, RuleError> {
        let list = Item::named(infos);
        for (at, item) in list.iter().enumerate() {
            if list[..at].iter().any(|earlier| earlier.name == item.name) {
                return Err(RuleError::SameQuotaName(item.name.to_string()));
            }
        }
        let reporting = infos.iter().filter(|info| info.report_only);
        let reporting = reporting.map(|info| info.name).collect();
        let limits = |info: &&RuleInfo<'_>| info.quotas.is_none_or(|quotas| !quotas.is_empty());
        let rules = infos.iter().filter(limits).count();
        let dynamic = infos.iter().any(|info| info.quotas.is_none());
        Ok(Self { list, reporting, dynamic, rules })
    }

    /// Collects the quotas that these charges use. With a secret, each has a partition key.
    pub(crate) fn charged(charges: &[Charge<'_>], secret: Option<&FingerprintKey>) -> Self {
        let infos: Vec<_> = charges.iter().map(RuleInfo::of).collect();
        let mut list = Item::named(&infos);
        if let Some(secret) = secret {
            for item in &mut list {
                let charge = charges.iter().find(|charge| charge.rule() == item.rule);
                let key = charge.map(|charge| charge.key().fingerprint(secret).to_bytes());
                item.pk = key.map(|key| format!(";pk=:{}:", STANDARD.encode(key)));
            }
        }
        Self::of(list, charges)
    }

    /// Returns the quotas of the rules that charge the request.
    pub(super) fn only(&self, charges: &[Charge<'_>]) -> Self {
        let charged = |item: &&Item| charges.iter().any(|charge| charge.rule() == item.rule);
        Self::of(self.list.iter().filter(charged).cloned().collect(), charges)
    }

    fn of(list: Vec<Item>, charges: &[Charge<'_>]) -> Self {
        let reporting = charges.iter().filter(|charge| charge.is_report_only());
        let reporting = reporting.map(Charge::rule).collect();
        Self { list, reporting, dynamic: false, rules: charges.len() }
    }

    /// Returns `true` if a rule chooses its quotas per request.
    #[inline]
    pub(super) fn are_chosen(&self) -> bool {
        self.dynamic
    }

    /// Returns `true` if every rule with quotas charges the request, and no report-only flag has
    /// changed.
    #[inline]
    pub(super) fn are_all(&self, charges: &[Charge<'_>]) -> bool {
        charges.len() == self.rules
            && charges.iter().all(|it| it.is_report_only() == self.only_reports(it.rule()))
    }

    pub(super) fn rules(&self) -> usize {
        self.rules
    }

    pub(super) fn only_reports(&self, rule: RuleName) -> bool {
        self.reporting.contains(&rule)
    }

    pub(super) fn find(&self, outcome: &Outcome) -> Option<usize> {
        let known = |item: &Item| item.rule == outcome.rule() && item.place == outcome.place();
        self.list.iter().position(known)
    }
}

/// A quota as clients see it.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(super) rule: RuleName,
    pub(super) place: usize,
    pub(super) name: Cow<'static, str>,
    pub(super) limit: u32,
    /// The limit as a header value.
    pub(super) told: HeaderValue,
    /// The seconds in which an empty account refills, or 0 for slots.
    pub(super) window: u64,
    /// The seconds in which one unit is refilled.
    pub(super) interval: u32,
    /// The unit, or `None` for requests.
    pub(super) unit: Option<&'static str>,
    /// `true` if the limit is not a policy, because it follows the measured latency.
    pub(super) is_adaptive: bool,
    /// The parameter `pk`, if partition keys are enabled.
    pub(super) pk: Option<String>,
}

impl Item {
    /// Returns `true` if the fields of `family` can express the unit.
    pub(super) fn is_listed(&self, family: Headers) -> bool {
        match self.unit {
            None => true,
            Some(unit) => family == Headers::RateLimit && is_registered_unit(unit),
        }
    }

    /// Returns the seconds in which clients may use `units`, so that their rate is at most the
    /// limit per window.
    #[inline]
    pub(super) fn time_for(&self, units: u32) -> u32 {
        let seconds = u64::from(units).saturating_mul(self.window);
        u32::try_from(seconds.div_ceil(self.limit.max(1).into())).unwrap_or(u32::MAX)
    }

    pub(crate) fn named(infos: &[RuleInfo<'_>]) -> Vec<Self> {
        let of = |info: &RuleInfo<'_>| {
            let quotas = info.quotas.unwrap_or_default();
            let (rule, alone) = (info.name, quotas.len() == 1);
            let item = move |(place, quota): (usize, &Quota)| Self {
                rule,
                place,
                name: match quota.name() {
                    Some(name) => name.into(),
                    None if alone => rule.as_str().into(),
                    None => format!("{rule}-{}", quota.period_text()).into(),
                },
                limit: quota.limit(),
                told: number(quota.limit().into()),
                window: window(quota),
                interval: whole_seconds(quota.interval_nanos()),
                unit: quota.unit_name(),
                is_adaptive: quota.sheds(),
                pk: None,
            };
            quotas.iter().enumerate().map(item).collect::<Vec<_>>()
        };
        infos.iter().flat_map(of).collect()
    }
}

/// Returns the seconds in which an empty account refills, or 0 for slots.
///
/// The time is computed from the period. The rounded interval would give 2 seconds for three units
/// per second.
fn window(quota: &Quota) -> u64 {
    if quota.is_concurrent() {
        return 0;
    }
    let nanos = quota.period().as_nanos() * u128::from(quota.limit());
    let refill = nanos.div_ceil(quota.units().max(1).into()).div_ceil(1_000_000_000);
    u64::try_from(refill).unwrap_or(u64::MAX).max(1)
}
