//! Precomputed header fields of a layer.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::{
    Headers,
    cache::ValueCache,
    digits::number,
    item::{Item, Items},
    lines::{self, Lines, Reading},
    retry_seconds,
    variants::Variants,
    write_retry_after,
};
use crate::{
    decision::{Decision, Outcome},
    store::Charge,
};

/// The maximum number of rules with which the variants of a template have a value cache.
const FEW: usize = 16;

/// Precomputed header fields for a layer, or for one request.
#[derive(Debug)]
pub(crate) struct Template {
    pub(super) family: Headers,
    pub(super) items: Arc<Items>,
    /// The name of each quota, quoted as a structured field string (RFC 9651).
    pub(super) quoted: Vec<String>,
    pub(super) policy: Option<HeaderValue>,
    /// The fields of a response, with placeholder values.
    prepared: OnceLock<HeaderMap>,
    /// The fields of a plain-text rejection, with placeholder values.
    denial: OnceLock<HeaderMap>,
    /// The cache of rendered values, for a template with one quota.
    pub(super) cache: Option<OnceLock<ValueCache>>,
    /// Templates for requests that only some rules charge.
    variants: Variants,
}

impl Template {
    pub(crate) fn new(family: Headers, items: Arc<Items>) -> Self {
        let escape = |item: &Item| item.name.replace('\\', "\\\\").replace('"', "\\\"");
        let list = &items.list;
        let quoted: Vec<_> = list.iter().map(|item| format!("\"{}\"", escape(item))).collect();
        let policy = |(item, name): (&Item, &String)| match family {
            Headers::Draft11 => format!("{name};q={};w={}", item.limit, item.window),
            _ => format!("{};w={}", item.limit, item.window),
        };
        let told = list.iter().zip(&quoted).filter(|(item, _)| !items.only_reports(item.rule));
        let policies: Vec<_> = told.map(policy).collect();
        let policy = HeaderValue::try_from(policies.join(", ")).ok();
        let policy = policy.filter(|_| !policies.is_empty());
        let (prepared, denial) = (OnceLock::new(), OnceLock::new());
        let variants = Variants::new(items.rules());
        Self { family, items, quoted, policy, prepared, denial, cache: None, variants }
    }

    /// Enables the cache of rendered values, if the template has one quota.
    pub(crate) fn for_all(self) -> Self {
        let one = self.family == Headers::Draft11 && self.items.list.len() == 1;
        Self { cache: one.then(OnceLock::new), ..self }
    }

    /// Returns another template if this template does not fit the charges of a request.
    #[inline]
    pub(crate) fn for_charges(&self, charges: &[Charge<'_>]) -> Option<Arc<Self>> {
        if self.items.are_chosen() {
            let charged = Items::charged(charges);
            return Some(Arc::new(Self::new(self.family, Arc::new(charged))));
        }
        let differs = self.family != Headers::None && !self.items.are_all(charges);
        differs.then(|| self.variant(charges))
    }

    fn variant(&self, charges: &[Charge<'_>]) -> Arc<Self> {
        self.variants.get(charges, || {
            let made = Self::new(self.family, Arc::new(self.items.only(charges)));
            // a value cache takes 15 kB
            if self.items.rules() <= FEW { made.for_all() } else { made }
        })
    }

    pub(super) fn prepared(&self) -> HeaderMap {
        let prepare = || lines::prepared(self.family, self.policy.as_ref());
        self.prepared.get_or_init(prepare).clone()
    }

    /// Adds the fields of a rejection. An existing `Retry-After` is kept.
    pub(crate) fn complete(
        self: &Arc<Self>,
        headers: &mut HeaderMap,
        decision: &Decision,
        retry_after: Option<Duration>,
    ) {
        if let Some(wait) = retry_after {
            write_retry_after(headers, wait);
        }
        if let Some(lines) = self.read(decision) {
            lines.write(headers);
        }
    }

    /// Returns all fields of a plain-text rejection.
    ///
    /// Returns `None` if the prepared fields do not fit the decision.
    pub(crate) fn denial(
        self: &Arc<Self>,
        decision: &Decision,
        wait: Duration,
    ) -> Option<HeaderMap> {
        let lines = self.read(decision);
        if lines.is_none() && self.family != Headers::None || decision.is_overage() {
            return None;
        }
        let prepare = || lines::denial(self.family, self.policy.as_ref());
        let mut headers = self.denial.get_or_init(prepare).clone();
        let mut fields = headers.values_mut();
        *fields.next()? = number(retry_seconds(wait));
        if let Some(lines) = lines {
            lines.fill_in(fields);
        }
        Some(headers)
    }

    /// Returns the name of a quota as clients see it.
    pub(crate) fn name(&self, outcome: &Outcome) -> &str {
        let found = self.items.find(outcome);
        found.map_or(outcome.rule().as_str(), |at| &self.items.list[at].name)
    }

    /// Returns the quota fields of a decision, if any.
    #[inline]
    pub(crate) fn lines(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        decision: &Decision,
    ) -> Option<Lines> {
        if self.family == Headers::None {
            return None;
        }
        let chosen = self.for_charges(charges);
        chosen.as_ref().unwrap_or(self).readings(decision)
    }

    fn read(self: &Arc<Self>, decision: &Decision) -> Option<Lines> {
        if self.family == Headers::None { None } else { self.readings(decision) }
    }

    fn readings(self: &Arc<Self>, decision: &Decision) -> Option<Lines> {
        let listed = match self.family {
            Headers::Draft11 => decision.outcomes(),
            _ => decision.binding().map_or(&[][..], std::slice::from_ref),
        };
        let told = |outcome: &&Outcome| outcome.is_known() && !outcome.is_report_only();
        let known = listed.iter().filter(told);
        let reading = |outcome: &Outcome| {
            let item = u16::try_from(self.items.find(outcome)?).ok()?;
            let (remaining, next) = outcome.remaining_and_next();
            let next = u32::try_from(next.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
            Some(Reading { item, overage: decision.is_overage(), remaining, next })
        };
        let readings: SmallVec<_> = known.filter_map(reading).collect();
        (!readings.is_empty()).then(|| Lines { template: self.clone(), readings })
    }
}
