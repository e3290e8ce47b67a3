//! Precomputed header fields of a layer.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue};

use super::{
    Headers,
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
    pub(super) prefixes: Vec<String>,
    pub(super) policy: Option<HeaderValue>,
    /// Set in templates that serve many requests.
    pub(super) prepared: Option<Prepared>,
    /// Templates for requests that only some rules charge.
    variants: Variants,
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
    pub(crate) fn new(family: Headers, items: Arc<Items>) -> Self {
        let escape = |item: &Item| item.name.replace('\\', "\\\\").replace('"', "\\\"");
        let list = &items.list;
        let quoted: Vec<_> = list.iter().map(|item| format!("\"{}\"", escape(item))).collect();
        let policy = |(item, name): (&Item, &String)| {
            let per = match item.is_concurrent {
                true => "qu=\"concurrent-requests\"".to_owned(),
                false => format!("w={}", item.window),
            };
            match family {
                Headers::RateLimit => format!("{name};q={};{per}", item.limit),
                _ => format!("{};{per}", item.limit),
            }
        };
        let told = list.iter().zip(&quoted).filter(|(item, _)| !items.only_reports(item.rule));
        let policies: Vec<_> = told.map(policy).collect();
        let policy = HeaderValue::try_from(policies.join(", ")).ok();
        let policy = policy.filter(|_| !policies.is_empty());
        let prefixes = quoted.into_iter().map(|name| name + ";r=").collect();
        let variants = Variants::new(items.rules());
        Self { family, items, prefixes, policy, prepared: None, variants }
    }

    /// Creates the template for the quotas of one call of a limiter.
    pub(crate) fn of_call(family: Headers, decision: &Decision, quotas: &[Quota]) -> Arc<Self> {
        let rule = decision.outcomes().first().map(Outcome::rule).unwrap_or_default();
        let key = Key::everyone();
        let charge = Charge::new(rule, &key, quotas);
        Arc::new(Self::new(family, Arc::new(Items::charged(&[charge]))))
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
        if fits && !items.are_chosen() { None } else { Some(self.of_charges(charges)) }
    }

    #[inline(never)]
    fn of_charges(&self, charges: &[Charge<'_>]) -> Arc<Self> {
        if self.items.are_chosen() {
            return Arc::new(Self::new(self.family, Arc::new(Items::charged(charges))));
        }
        let few = self.items.rules() <= FEW;
        self.variants.get(charges, || {
            let made = Self::new(self.family, Arc::new(self.items.only(charges)));
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
        let listed = match self.family {
            Headers::None => &[],
            Headers::RateLimit => decision.outcomes(),
            _ => decision.binding().map_or(&[][..], std::slice::from_ref),
        };
        let mut readings = Readings::new();
        for outcome in listed.iter().filter(|it| it.is_known() && !it.is_report_only()) {
            if let Some(Ok(item)) = self.items.find(outcome).map(u16::try_from) {
                let (remaining, mut next) = outcome.remaining_and_next();
                // The older families have no other way to omit the wait.
                if self.family != Headers::RateLimit && outcome.is_wait_unknown() {
                    next = nanos(outcome.expected_wait());
                }
                let (overage, next) = (decision.is_overage(), whole_seconds(next));
                readings.push(Reading { item, overage, remaining, next });
            }
        }
        readings
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
}

fn nanos(wait: Option<Duration>) -> u64 {
    wait.and_then(|wait| u64::try_from(wait.as_nanos()).ok()).unwrap_or(0)
}
