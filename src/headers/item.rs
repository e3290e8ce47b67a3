//! What a layer's quotas are called on the wire.

use std::borrow::Cow;

use http::HeaderValue;

use super::digits::number;
use crate::{
    decision::Outcome,
    name::RuleName,
    quota::Quota,
    rule::{RuleError, Shape},
    store::Charge,
};

/// The quotas of a layer, or of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Items {
    pub(super) list: Vec<Item>,
    /// The rules that refuse nobody: clients are told of none of theirs.
    reporting: Vec<RuleName>,
    /// Whether a rule chooses its quotas per request.
    dynamic: bool,
}

impl Items {
    /// Those of the rules, in order. Their names are unique, also of rules that only report: those
    /// may be flipped.
    pub(crate) fn new(shapes: &[Shape<'_>]) -> Result<Self, RuleError> {
        let list = Item::named(shapes);
        for (at, item) in list.iter().enumerate() {
            if list[..at].iter().any(|earlier| earlier.name == item.name) {
                return Err(RuleError::SameQuotaName(item.name.to_string()));
            }
        }
        let reporting = shapes.iter().filter(|shape| shape.report_only);
        let reporting = reporting.map(|shape| shape.name).collect();
        Ok(Self { list, reporting, dynamic: shapes.iter().any(|shape| shape.quotas.is_none()) })
    }

    /// Those that one request is charged under.
    pub(super) fn charged(charges: &[Charge<'_>]) -> Self {
        let shapes: Vec<_> = charges.iter().map(Shape::of).collect();
        Self { list: Item::named(&shapes), ..Self::default() }.flipped(charges)
    }

    /// The same where the rules of these charges refuse and report as they do.
    pub(super) fn flipped(&self, charges: &[Charge<'_>]) -> Self {
        let as_now = |rule: &RuleName| !charges.iter().any(|charge| charge.rule() == *rule);
        let now = charges.iter().filter(|charge| charge.is_report_only()).map(Charge::rule);
        let unasked = self.reporting.iter().copied().filter(as_now);
        Self { reporting: unasked.chain(now).collect(), ..self.clone() }
    }

    /// Whether the quotas of a request are not known beforehand.
    #[inline]
    pub(super) fn are_chosen(&self) -> bool {
        self.dynamic
    }

    /// Whether the rules of these charges refuse and report as when this was made.
    #[inline]
    pub(super) fn are_as(&self, charges: &[Charge<'_>]) -> bool {
        charges.iter().all(|charge| charge.is_report_only() == self.only_reports(charge.rule()))
    }

    pub(super) fn only_reports(&self, rule: RuleName) -> bool {
        self.reporting.contains(&rule)
    }

    pub(super) fn find(&self, outcome: &Outcome) -> Option<usize> {
        let known = |item: &Item| item.rule == outcome.rule() && item.place == outcome.place();
        self.list.iter().position(known)
    }
}

/// A quota as it is called on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(super) rule: RuleName,
    pub(super) place: usize,
    pub(super) name: Cow<'static, str>,
    pub(super) limit: u32,
    /// The limit as a field.
    pub(super) told: HeaderValue,
    pub(super) window: u64,
}

impl Item {
    /// What clients read it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn named(shapes: &[Shape<'_>]) -> Vec<Self> {
        let of = |shape: &Shape<'_>| {
            let quotas = shape.quotas.unwrap_or_default();
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

/// The seconds an empty account takes to refill at the rate asked for. The interval would not do:
/// it is rounded up, and three a second would be told as `q=3;w=2`.
fn window(quota: &Quota) -> u64 {
    let nanos = quota.period().as_nanos() * u128::from(quota.limit());
    let refill = nanos.div_ceil(quota.units().max(1).into()).div_ceil(1_000_000_000);
    u64::try_from(refill).unwrap_or(u64::MAX).max(1)
}
