//! What would refuse or confuse every request, found when a layer is built.

use std::{fmt, time::Duration};

use super::{Shape, plan::MOST};
use crate::{
    key::Key,
    name::RuleName,
    store::{Charge, Store, Unsupported},
};

/// Why rules cannot be a layer: found when it is built, so that no request meets it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleError {
    /// Two rules have one name, and would charge one account.
    SameName(RuleName),
    /// Two quotas would be called the same in header fields.
    SameQuotaName(String),
    /// A rule has more quotas than a decision can tell apart: 255.
    TooManyQuotas(RuleName, usize),
    /// Every request of the rule would be refused: its fixed cost is above a quota's limit.
    CostAboveLimit {
        /// The rule.
        rule: RuleName,
        /// What a request costs.
        cost: u32,
        /// What the quota ever has.
        limit: u32,
    },
    /// Every request that costs anything would be refused: its cost and what it must leave over are
    /// together above a quota's limit.
    HeadroomAboveLimit {
        /// The rule.
        rule: RuleName,
        /// What a request costs, at least.
        cost: u32,
        /// What it must leave over.
        headroom: u32,
        /// What the quota ever has.
        limit: u32,
    },
    /// The store cannot do what the rules ask.
    Unsupported(Unsupported),
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameName(name) => write!(f, "two rules are named {name:?}; rename one"),
            Self::SameQuotaName(name) => {
                write!(
                    f,
                    "two quotas are called {name:?} in header fields; give them different periods \
                     or names (Quota::named)"
                )
            }
            Self::TooManyQuotas(rule, n) => {
                write!(f, "rule {rule}: {n} quotas; give at most {MOST}")
            }
            Self::CostAboveLimit { rule, cost, limit } => write!(
                f,
                "rule {rule}: cost {cost} is above the quota's limit {limit}, so that every \
                 request would be refused; lower the cost or raise the burst"
            ),
            Self::HeadroomAboveLimit { rule, cost, headroom, limit } => write!(
                f,
                "rule {rule}: cost {cost} and headroom {headroom} are together above the quota's \
                 limit {limit}, so that every request would be refused; lower the headroom or \
                 raise the burst"
            ),
            Self::Unsupported(what) => write!(f, "the store cannot do this: {what}"),
        }
    }
}

impl std::error::Error for RuleError {}

/// Looks for what would refuse or confuse every request.
pub(crate) fn check<S: Store>(shapes: &[Shape<'_>], store: &S) -> Result<(), RuleError> {
    let limits = |shape: &&Shape<'_>| shape.quotas.is_none_or(|quotas| !quotas.is_empty());
    let limiting: Vec<_> = shapes.iter().filter(limits).collect();
    for (at, shape) in limiting.iter().enumerate() {
        let rule = shape.name;
        if limiting[..at].iter().any(|earlier| earlier.name == rule) {
            return Err(RuleError::SameName(rule));
        }
        let quotas = shape.quotas.unwrap_or_default();
        if quotas.len() > MOST {
            return Err(RuleError::TooManyQuotas(rule, quotas.len()));
        }
        for quota in quotas.iter().filter(|quota| !quota.is_blocked()) {
            let (cost, limit) = (shape.cost.unwrap_or(0), quota.raised_limit());
            if cost > limit {
                return Err(RuleError::CostAboveLimit { rule, cost, limit });
            }
            if shape.least_need() > limit.into() {
                let (cost, headroom) = (shape.cost.unwrap_or(1), shape.headroom.unwrap_or(0));
                return Err(RuleError::HeadroomAboveLimit { rule, cost, headroom, limit });
            }
        }
    }
    if limiting.is_empty() {
        return Ok(());
    }
    let anyone = Key::everyone();
    let (mut charges, mut asked) = (Vec::new(), Vec::new());
    for shape in limiting {
        if let Some(quotas) = shape.quotas {
            let wait = if shape.queues { Duration::from_nanos(1) } else { Duration::ZERO };
            let charge = Charge::new(shape.name, &anyone, quotas).cost(shape.cost.unwrap_or(1));
            let charge = charge.max_wait(wait);
            charges.push(charge);
            // what is read from the request is above 0 now and then
            let charge = charge.headroom(shape.headroom.unwrap_or(1));
            asked.push(if shape.report_only || shape.may_report {
                charge.report_only()
            } else {
                charge
            });
        }
    }
    let fit = store.check(&asked).and_then(|()| store.announce(&charges));
    fit.map_err(RuleError::Unsupported)
}
