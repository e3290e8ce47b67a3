//! What is known of a layer's header fields before the first request.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::{
    Headers,
    digits::number,
    kept::Kept,
    lines::{self, Lines, Reading},
    retry_seconds,
};
use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
    quota::Quota,
    rule::{RuleError, Shape},
    store::Charge,
};

/// A quota as it is called on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    rule: RuleName,
    place: usize,
    name: Cow<'static, str>,
    pub(super) limit: u32,
    /// The limit as a field.
    pub(super) told: HeaderValue,
    window: u64,
}

impl Item {
    /// The quotas that one request is charged under.
    pub(crate) fn charged(charges: &[Charge<'_>]) -> Vec<Self> {
        let shapes: Vec<_> = charges.iter().map(Shape::of).collect();
        Self::named(&shapes)
    }

    /// The quotas of the rules, in order. Their names are unique.
    pub(crate) fn list(shapes: &[Shape<'_>]) -> Result<Vec<Self>, RuleError> {
        let items = Self::named(shapes);
        for (at, item) in items.iter().enumerate() {
            if items[..at].iter().any(|earlier| earlier.name == item.name) {
                return Err(RuleError::SameQuotaName(item.name.to_string()));
            }
        }
        Ok(items)
    }

    /// What clients read it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn named(shapes: &[Shape<'_>]) -> Vec<Self> {
        let of = |shape: &Shape<'_>| {
            let quotas = shape.quotas.filter(|_| !shape.report_only).unwrap_or_default();
            let (rule, alone) = (shape.name, quotas.len() == 1);
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
            };
            quotas.iter().enumerate().map(item).collect::<Vec<_>>()
        };
        shapes.iter().flat_map(of).collect()
    }
}

/// What is known of the header fields before the first request.
#[derive(Debug)]
pub(crate) struct Template {
    pub(super) family: Headers,
    pub(super) items: Vec<Item>,
    /// A string of structured fields (RFC 9651) per item: quoted, escaped.
    pub(super) quoted: Vec<String>,
    pub(super) policy: Option<HeaderValue>,
    /// The fields of a response that has none of its own, where the numbers are filled in.
    prepared: OnceLock<HeaderMap>,
    /// The same of a refusal in plain text.
    refusal: OnceLock<HeaderMap>,
    /// Where it serves many requests, and they tell of one quota.
    pub(super) kept: Option<OnceLock<Kept>>,
    /// Whether quotas are chosen per request.
    dynamic: bool,
}

impl Template {
    pub(crate) fn new(family: Headers, items: Vec<Item>, dynamic: bool) -> Self {
        let escape = |item: &Item| item.name.replace('\\', "\\\\").replace('"', "\\\"");
        let quoted: Vec<_> = items.iter().map(|item| format!("\"{}\"", escape(item))).collect();
        let policy = |(item, name): (&Item, &String)| match family {
            Headers::Draft11 => format!("{name};q={};w={}", item.limit, item.window),
            _ => format!("{};w={}", item.limit, item.window),
        };
        let policies: Vec<_> = items.iter().zip(&quoted).map(policy).collect();
        let policy = HeaderValue::try_from(policies.join(", ")).ok();
        let policy = policy.filter(|_| !items.is_empty());
        let (prepared, refusal) = (OnceLock::new(), OnceLock::new());
        Self { family, items, quoted, policy, prepared, refusal, kept: None, dynamic }
    }

    /// For many requests.
    pub(crate) fn for_all(self) -> Self {
        let one = self.family == Headers::Draft11 && self.items.len() == 1;
        Self { kept: one.then(OnceLock::new), ..self }
    }

    /// A template for one request, where its quotas are not those known beforehand.
    #[inline]
    pub(crate) fn for_charges(&self, charges: &[Charge<'_>]) -> Option<Arc<Self>> {
        self.dynamic.then(|| Arc::new(Self::new(self.family, Item::charged(charges), false)))
    }

    pub(super) fn prepared(&self) -> HeaderMap {
        let prepare = || lines::prepared(self.family, self.policy.as_ref());
        self.prepared.get_or_init(prepare).clone()
    }

    /// All fields of the refusal of `decision`, in plain text, where every quota of it is known.
    pub(crate) fn refusal(
        self: &Arc<Self>,
        decision: &Decision,
        wait: Duration,
    ) -> Option<HeaderMap> {
        let lines = self.read(decision);
        if lines.is_none() && self.family != Headers::None || decision.is_overage() {
            return None;
        }
        let prepare = || lines::refusal(self.family, self.policy.as_ref());
        let mut headers = self.refusal.get_or_init(prepare).clone();
        let mut fields = headers.values_mut();
        *fields.next()? = number(retry_seconds(wait));
        if let Some(lines) = lines {
            lines.fill_in(fields);
        }
        Some(headers)
    }

    /// The name on the wire of the quota an outcome speaks of.
    pub(crate) fn name(&self, outcome: &Outcome) -> &str {
        self.find(outcome).map_or(outcome.rule().as_str(), |at| &self.items[at].name)
    }

    fn find(&self, outcome: &Outcome) -> Option<usize> {
        let known = |item: &Item| item.rule == outcome.rule() && item.place == outcome.place();
        self.items.iter().position(known)
    }

    /// The numbers to tell, small enough to wait for the response with.
    #[inline]
    pub(crate) fn read(self: &Arc<Self>, decision: &Decision) -> Option<Lines> {
        if self.family == Headers::None { None } else { self.readings(decision) }
    }

    fn readings(self: &Arc<Self>, decision: &Decision) -> Option<Lines> {
        let listed = match self.family {
            Headers::Draft11 => decision.outcomes(),
            _ => decision.binding().map_or(&[][..], std::slice::from_ref),
        };
        let known = listed.iter().filter(|outcome| outcome.is_known());
        let reading = |outcome: &Outcome| {
            let item = u16::try_from(self.find(outcome)?).ok()?;
            let (remaining, next) = outcome.remaining_and_next();
            let next = u32::try_from(next.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
            Some(Reading { item, overage: decision.is_overage(), remaining, next })
        };
        let readings: SmallVec<_> = known.filter_map(reading).collect();
        (!readings.is_empty()).then(|| Lines { template: self.clone(), readings })
    }
}

/// The seconds an empty account takes to refill at the rate asked for. The interval would not do:
/// it is rounded up, and three a second would be told as `q=3;w=2`.
fn window(quota: &Quota) -> u64 {
    let nanos = quota.period().as_nanos() * u128::from(quota.limit());
    let refill = nanos.div_ceil(quota.units().max(1).into()).div_ceil(1_000_000_000);
    u64::try_from(refill).unwrap_or(u64::MAX).max(1)
}
