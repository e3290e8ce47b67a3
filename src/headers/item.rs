//! The quotas of a layer as clients see them.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::Headers;
use crate::{
    fingerprint::FingerprintKey,
    name::RuleName,
    quota::{Quota, is_registered_unit},
    store::Charge,
};

/// The quotas of a rule.
#[derive(Clone, Copy)]
pub(super) struct RuleQuotas<'a> {
    pub(super) rule: RuleName,
    pub(super) quotas: &'a [Quota],
    /// `true` for a report-only rule.
    pub(super) is_reporting: bool,
}

/// A quota as clients see it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) rule: RuleName,
    pub(super) place: usize,
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
    pub(super) window: u64,
    /// The unit, if it is not one of those that `qu` can name.
    pub(super) unregistered_unit: Option<&'static str>,
    /// The parameter `pk`, if partition keys are enabled.
    pub(super) pk: Option<String>,
    /// The limit, remaining and reset fields of the unit, if the family has some.
    pub(super) unit_fields: Option<[HeaderName; 3]>,
}

/// The starts of the names of limit, remaining and reset fields. The name of the unit follows.
pub(super) const UNIT_FIELDS: [&str; 3] = [
    "x-ratelimit-limit-",
    "x-ratelimit-remaining-",
    "x-ratelimit-reset-",
];

/// Returns the fields of the unit of a rate, unless its name cannot be part of a field name.
fn unit_fields(quota: &Quota) -> Option<[HeaderName; 3]> {
    if quota.is_concurrent() {
        return None;
    }
    let unit = quota.unit().unwrap_or("requests");
    let name = |field| HeaderName::try_from(format!("{field}{unit}")).ok();
    let [limit, remaining, reset] = UNIT_FIELDS.map(name);
    Some([limit?, remaining?, reset?])
}

/// Returns the policy of a quota. A policy of a list has the quoted name and the unit.
fn policy_text(quota: &Quota, name: Option<&String>) -> String {
    let limit = quota.limit();
    let window = window(quota);
    let w = if window == 0 {
        String::new()
    } else {
        format!(";w={window}")
    };
    let Some(name) = name else {
        return format!("{limit}{w}");
    };
    let unit = quota
        .unit()
        .map(|unit| format!(";qu=\"{unit}\""))
        .unwrap_or_default();
    format!("{name};q={limit}{unit}{w}")
}

impl Item {
    /// Returns the quotas of these rules, for the fields of `family`.
    pub(super) fn named<'a>(
        rules: impl Iterator<Item = RuleQuotas<'a>>,
        family: Headers,
    ) -> Vec<Self> {
        let mut items = Vec::new();
        for rule in rules {
            for place in 0..rule.quotas.len() {
                items.push(Self::new(rule, place, family));
            }
        }
        items
    }

    fn new(
        RuleQuotas {
            rule,
            quotas,
            is_reporting,
        }: RuleQuotas<'_>,
        place: usize,
        family: Headers,
    ) -> Self {
        let quota = &quotas[place];
        let name = quota.name_in(rule, quotas);
        let is_list = family.has_lists();
        let limit = quota.limit();
        let window = window(quota);
        let unit = quota.unit();
        let quoted = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let unregistered_unit = unit.filter(|unit| !is_registered_unit(unit));
        let is_listed = unit.is_none() || is_list && unregistered_unit.is_none();
        let policy = policy_text(quota, is_list.then_some(&quoted));
        let is_policy = is_listed && !quota.sheds();
        Self {
            rule,
            place,
            name,
            limit,
            is_reporting,
            prefix: if is_listed {
                format!("{quoted};r=")
            } else {
                String::new()
            },
            policy: HeaderValue::try_from(policy).ok().filter(|_| is_policy),
            window,
            unregistered_unit,
            pk: None,
            unit_fields: unit_fields(quota).filter(|_| family == Headers::ByUnit),
        }
    }

    /// Adds the partition key of the charge.
    pub(super) fn set_partition_key(&mut self, charges: &[Charge<'_>], secret: &FingerprintKey) {
        let Some(charge) = Charge::find(charges, self.rule) else {
            return;
        };
        let key = charge.key.fingerprint(secret).0.to_be_bytes();
        let pk = format!(";pk=:{}:", STANDARD.encode(key));
        let policy = self
            .policy
            .as_ref()
            .map(|policy| [policy.as_bytes(), pk.as_bytes()].concat());
        self.policy = policy.and_then(|policy| HeaderValue::try_from(policy).ok());
        self.pk = Some(pk);
    }

    /// Returns `true` if the fields other than those by unit report the quota.
    pub(super) fn is_listed(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// Returns the seconds in which clients may use `units`, so that their rate is at most the
    /// limit per window.
    #[inline]
    pub(super) fn time_for(&self, units: u32) -> u32 {
        let seconds = u64::from(units).saturating_mul(self.window);
        u32::try_from(seconds.div_ceil(self.limit.max(1).into())).unwrap_or(u32::MAX)
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
    let refill = nanos
        .div_ceil(quota.units().max(1).into())
        .div_ceil(1_000_000_000);
    u64::try_from(refill).unwrap_or(u64::MAX).max(1)
}

/// Returns the policy field of some quotas.
pub(super) fn policy<'a>(items: impl Iterator<Item = &'a Item>) -> Option<HeaderValue> {
    let mut policies = items.filter_map(|item| item.policy.as_ref());
    let first = policies.next()?;
    let Some(second) = policies.next() else {
        return Some(first.clone());
    };
    let mut text = SmallVec::<[u8; 128]>::from_slice(first.as_bytes());
    for policy in [second].into_iter().chain(policies) {
        text.extend_from_slice(b", ");
        text.extend_from_slice(policy.as_bytes());
    }
    HeaderValue::from_bytes(&text).ok()
}
