//! Precomputed header fields of a layer.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue};

use super::{
    HeaderPolicy, Headers,
    cache::ValueCache,
    digits::number,
    item::{Item, Items},
    lines::{self, Lines, Reading, Readings},
    retry_seconds,
    variants::Variants,
    whole_seconds, write_retry_after,
};
use crate::{
    decision::{Decision, Outcome},
    fingerprint::FingerprintKey,
    key::Key,
    quota::Quota,
    store::Charge,
};

/// The maximum number of rules with which the variants of a template have a value cache.
const FEW: usize = 16;

/// Precomputed header fields for a layer, or for one request.
#[derive(Debug)]
pub(crate) struct Template {
    pub(super) family: Headers,
    pub(super) items: Arc<Items>,
    /// The start of each list member: the name as a structured field string (RFC 9651), and `;r=`.
    ///
    /// Empty for a quota that the fields leave out.
    pub(super) prefixes: Vec<String>,
    pub(super) policy: Option<HeaderValue>,
    /// Set in templates that serve many requests.
    pub(super) prepared: Option<Prepared>,
    /// Templates for requests that only some rules charge.
    variants: Variants,
    /// The secret of partition keys, if they are enabled.
    secret: Option<FingerprintKey>,
    /// `true` if a quota has a unit that no field can express.
    omits_units: bool,
}

/// Header fields with placeholder values. A copy costs less than a new map, which hashes each name.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The fields of a response.
    pub(super) fields: HeaderMap,
    /// The fields of a plain-text rejection, `Retry-After` first.
    denial: HeaderMap,
    pub(super) values: Option<ValueCache>,
}

impl Template {
    pub(crate) fn new(policy: HeaderPolicy, items: Arc<Items>) -> Self {
        let HeaderPolicy { family, secret, .. } = policy;
        let quoted = |item: &Item| {
            let name = item.name.replace('\\', "\\\\").replace('"', "\\\"");
            format!("\"{name}\"")
        };
        let policy = |item: &Item| {
            let limit = item.limit;
            let window = match item.window {
                0 => String::new(),
                seconds => format!(";w={seconds}"),
            };
            if family != Headers::RateLimit {
                return format!("{limit}{window}");
            }
            let unit = item.unit.map(|unit| format!(";qu=\"{unit}\"")).unwrap_or_default();
            let pk = item.pk.as_deref().unwrap_or_default();
            format!("{};q={limit}{unit}{window}{pk}", quoted(item))
        };
        let list = &items.list;
        let is_policy = |item: &&Item| {
            item.is_listed(family) && !item.is_adaptive && !items.only_reports(item.rule)
        };
        let policies: Vec<_> = list.iter().filter(is_policy).map(policy).collect();
        let policy = HeaderValue::try_from(policies.join(", ")).ok();
        let policy = policy.filter(|_| !policies.is_empty());
        let prefix = |item: &Item| match item.is_listed(family) {
            true => format!("{};r=", quoted(item)),
            false => String::new(),
        };
        let prefixes = list.iter().map(prefix).collect();
        let variants = Variants::new(items.rules());
        let omits = |item: &Item| !item.is_listed(Headers::RateLimit);
        let omits_units = list.iter().any(omits);
        Self { family, items, prefixes, policy, prepared: None, variants, secret, omits_units }
    }

    /// Creates the template for the quotas of one call of a limiter.
    pub(crate) fn of_call(family: Headers, decision: &Decision, quotas: &[Quota]) -> Arc<Self> {
        let rule = decision.outcomes().first().map(Outcome::rule).unwrap_or_default();
        let key = Key::everyone();
        let charge = Charge::new(rule, &key, quotas);
        Arc::new(Self::new(family.into(), Arc::new(Items::charged(&[charge], None))))
    }

    /// Prepares the fields for many requests, with a cache of values if `cached` is `true`.
    pub(crate) fn prepared(self, cached: bool) -> Self {
        let prepared = Prepared {
            fields: lines::fields(self.family, self.policy.as_ref()),
            denial: lines::denial(self.family, self.policy.as_ref()),
            values: (cached && self.items.list.len() == 1).then(ValueCache::default),
        };
        Self { prepared: Some(prepared), ..self }
    }

    /// Returns another template if this template does not fit the charges of a request.
    #[inline]
    pub(crate) fn for_charges(&self, charges: &[Charge<'_>]) -> Option<Arc<Self>> {
        let items = &*self.items;
        let fits = self.family == Headers::None || items.are_all(charges);
        let fits = fits && !items.are_chosen() && self.secret.is_none();
        if fits { None } else { Some(self.of_charges(charges)) }
    }

    #[inline(never)]
    fn of_charges(&self, charges: &[Charge<'_>]) -> Arc<Self> {
        let policy = HeaderPolicy { secret: self.secret, ..self.family.into() };
        if self.items.are_chosen() || self.secret.is_some() {
            let items = Items::charged(charges, self.secret.as_ref());
            return Arc::new(Self::new(policy, Arc::new(items)));
        }
        let few = self.items.rules() <= FEW;
        self.variants.get(charges, || {
            let made = Self::new(policy, Arc::new(self.items.only(charges)));
            made.prepared(few)
        })
    }

    /// Adds the fields of a rejection. An existing `Retry-After` is kept.
    pub(crate) fn complete(
        &self,
        headers: &mut HeaderMap,
        decision: &Decision,
        retry_after: Option<Duration>,
    ) {
        if let Some(wait) = retry_after {
            write_retry_after(headers, wait);
        }
        self.write(&self.read(decision), headers);
    }

    /// Returns all fields of a plain-text rejection.
    ///
    /// Returns `None` if the prepared fields do not fit the decision.
    pub(crate) fn denial(&self, decision: &Decision, wait: Duration) -> Option<HeaderMap> {
        let readings = self.read(decision);
        if readings.is_empty() && self.family != Headers::None || decision.is_overage() {
            return None;
        }
        let mut headers = self.prepared.as_ref()?.denial.clone();
        let mut fields = headers.values_mut();
        *fields.next()? = number(retry_seconds(wait));
        self.fill_in(&readings, fields);
        Some(headers)
    }

    /// Returns the quota fields of a decision, if any.
    #[inline]
    pub(crate) fn lines(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        decision: &Decision,
    ) -> Option<Lines> {
        if self.family == Headers::None { None } else { self.some_lines(charges, decision) }
    }

    #[inline(never)]
    fn some_lines(self: &Arc<Self>, charges: &[Charge<'_>], decision: &Decision) -> Option<Lines> {
        let chosen = self.for_charges(charges);
        let template = chosen.as_ref().unwrap_or(self);
        let readings = template.read(decision);
        (!readings.is_empty()).then(|| Lines { template: template.clone(), readings })
    }

    /// Returns the numbers of the quotas that clients see.
    #[inline(always)]
    fn read(&self, decision: &Decision) -> Readings {
        let mut readings = Readings::new();
        match self.family {
            Headers::None => {}
            Headers::RateLimit => {
                for outcome in decision.outcomes() {
                    if let Some(reading) = self.reading(decision, outcome) {
                        readings.push(reading);
                    }
                }
            }
            _ => {
                let decides = |outcome: &Outcome| {
                    (decision.is_allowed() || outcome.is_denied())
                        && self.reading(decision, outcome).is_some()
                };
                let binding = decision.binding_among(decides);
                readings.extend(binding.and_then(|outcome| self.reading(decision, outcome)));
            }
        }
        readings
    }

    /// Returns the numbers of a quota, or `None` if the fields leave it out.
    #[inline(always)]
    fn reading(&self, decision: &Decision, outcome: &Outcome) -> Option<Reading> {
        if !outcome.is_known() || outcome.is_report_only() {
            return None;
        }
        let at = self.items.find(outcome)?;
        if self.prefixes[at].is_empty() {
            return None;
        }
        let (left, next) = outcome.remaining_and_next();
        let next = whole_seconds(next);
        let needed = self.items.list[at].time_for(left);
        let (remaining, time) = match decision.is_allowed() {
            true => (left, next.max(needed)),
            false if outcome.is_denied() => (0, next),
            // A window could end after `Retry-After`.
            false => (left, 0),
        };
        let (item, overage) = (u16::try_from(at).ok()?, decision.is_overage());
        Some(Reading { item, overage, is_usual: time == needed, remaining, time })
    }

    /// Returns the rendered value of one reading, from the cache if there is one.
    pub(super) fn value(
        &self,
        reading: &Reading,
        render: impl Fn() -> Option<HeaderValue>,
    ) -> Option<HeaderValue> {
        match (&self.prepared, &*self.items.list) {
            (Some(Prepared { values: Some(values), .. }), [item]) => {
                values.get(item, reading, render)
            }
            _ => render(),
        }
    }

    /// Returns the name of a quota as clients see it.
    pub(crate) fn name(&self, outcome: &Outcome) -> &str {
        let found = self.items.find(outcome);
        found.map_or(outcome.rule().as_str(), |at| &self.items.list[at].name)
    }

    /// Returns the decisive quota and its unit, if no header field can express the unit.
    pub(crate) fn unregistered_unit<'d>(
        &self,
        decision: &'d Decision,
    ) -> Option<(&'d Outcome, &'static str)> {
        if !self.omits_units {
            return None;
        }
        let outcome = decision.binding()?;
        let item = &self.items.list[self.items.find(outcome)?];
        let unit = item.unit.filter(|_| !item.is_listed(Headers::RateLimit))?;
        Some((outcome, unit))
    }
}
