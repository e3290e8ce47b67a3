//! Checks of rules, made when a layer is built.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    RuleInfo, RuleName,
    choice::{Candidates, Choice},
    plan::LivePlan,
    quotas::{MAX_QUOTAS, Quotas},
};
use crate::{
    key::Key,
    quota::Quota,
    store::{Charge, Store, Unsupported},
};

/// Error in the rules of a layer, found when the rules or the layer are built, or for an unknown rule.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleError {
    /// Two rules have the same name, so they would share accounts.
    SameName(RuleName),
    /// Two quotas of a rule count the same, so the larger has no effect.
    SameAccount {
        /// The rule.
        rule: RuleName,
        /// The two quotas.
        quotas: Box<[Quota; 2]>,
    },
    /// Two quotas have the same name in header fields.
    SameQuotaName(String),
    /// A rule has more than 255 quotas.
    TooManyQuotas(RuleName, usize),
    /// The cost of a request, plus its headroom, is above the limit of a quota, also under every
    /// [alternative](crate::Rule::or). Every request with a cost above 0 would be denied.
    CostAboveLimit {
        /// The rule.
        rule: RuleName,
        /// The minimum cost of a request.
        cost: u32,
        /// The headroom of a request.
        headroom: u32,
        /// The limit of the quota.
        limit: u64,
    },
    /// Requests of the rule need more than one slot of a [concurrent](Quota::concurrent) quota, and have
    /// a [`max_wait`](crate::Rule::max_wait). Such requests do not wait.
    SeveralSlotsWait {
        /// The rule.
        rule: RuleName,
        /// The cost of a request.
        cost: u32,
    },
    /// Requests of an [alternative](crate::Rule::or) need a slot, and have a
    /// [`max_wait`](crate::Rule::max_wait). Alternatives do not wait for slots.
    AlternativeWaits(RuleName),
    /// No request can match a route of `by_route`, or two routes have the same method and path.
    Route(String),
    /// The layer has no rule of the name that a
    /// [`ChargeHandle`](crate::middleware::ChargeHandle::adjust_rule_to) was given.
    Unknown {
        /// The name.
        name: Box<str>,
        /// The rules of the layer.
        known: Arc<[RuleName]>,
    },
    /// The store does not support the rules.
    Unsupported(Unsupported),
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameName(name) => write!(f, "two rules are named {name:?}; rename one"),
            Self::SameAccount { rule, quotas } => {
                let [first, second] = &**quotas;
                write!(
                    f,
                    "rule {rule}: the quotas {first} and {second} count the same, so the larger has no \
                     effect; remove one, or give them different periods, algorithms or units"
                )
            }
            Self::SameQuotaName(name) => {
                write!(
                    f,
                    "two quotas are called {name:?} in header fields; give them different periods \
                     or names (Quota::with_name)"
                )
            }
            Self::TooManyQuotas(rule, n) => {
                write!(f, "rule {rule}: {n} quotas; give at most {MAX_QUOTAS}")
            }
            Self::CostAboveLimit {
                rule,
                cost,
                headroom,
                limit,
            } => {
                write!(f, "rule {rule}: cost {cost}")?;
                if *headroom > 0 {
                    write!(f, " plus headroom {headroom}")?;
                }
                write!(
                    f,
                    " is above the quota's limit {limit}, so every request would be denied; lower \
                     the cost or raise the burst"
                )
            }
            Self::SeveralSlotsWait { rule, cost } => write!(
                f,
                "rule {rule}: max_wait with a cost of {cost} slots, but a request for more than one \
                 slot does not wait; lower the cost to 1 or remove the max_wait"
            ),
            Self::AlternativeWaits(rule) => {
                write!(
                    f,
                    "rule {rule}: max_wait of an alternative for slots; remove the max_wait"
                )
            }
            Self::Route(fault) => f.write_str(fault),
            Self::Unknown { name, known } => {
                write!(f, "unknown rule `{name}`, expected one of ")?;
                for (at, rule) in known.iter().enumerate() {
                    write!(f, "{}`{rule}`", if at == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::Unsupported(what) => write!(f, "the store cannot do this: {what}"),
        }
    }
}

impl std::error::Error for RuleError {}

/// Checks that no two quotas of a rule count the same.
fn check_accounts(rule: RuleName, quotas: &[Quota]) -> Result<(), RuleError> {
    match Quotas::first_equal(quotas) {
        Some(quotas) => Err(RuleError::SameAccount {
            rule,
            quotas: Box::new(quotas),
        }),
        None => Ok(()),
    }
}

/// Returns the rules that may have quotas.
fn limiting<'i, 'a>(infos: &'i [RuleInfo<'a>]) -> Vec<&'i RuleInfo<'a>> {
    let is_limiting = |info: &&RuleInfo<'_>| info.quotas.is_none_or(|quotas| !quotas.is_empty());
    infos.iter().filter(is_limiting).collect()
}

/// Checks the rules of a layer, without its store.
pub(crate) fn check(infos: &[RuleInfo<'_>]) -> Result<(), RuleError> {
    let limiting = limiting(infos);
    for (at, info) in limiting.iter().enumerate() {
        if limiting[..at].iter().any(|other| other.name == info.name) {
            return Err(RuleError::SameName(info.name));
        }
        check_quotas(info)?;
        check_cost(info, &limiting)?;
    }
    Ok(())
}

/// Checks that the store supports the rules, and registers them with it.
pub(crate) fn register<S: Store>(infos: &[RuleInfo<'_>], store: &S) -> Result<(), RuleError> {
    let limiting = limiting(infos);
    if limiting.is_empty() {
        return Ok(());
    }
    let key = Key::everyone();
    let live = limiting.iter().map(|info| info.live.map(LivePlan::quotas));
    let live: Vec<_> = live.collect();
    checked_charges(&limiting, &live, &key)?.register(store)
}

fn check_quotas(info: &RuleInfo<'_>) -> Result<(), RuleError> {
    let quotas = info.quotas.unwrap_or_default();
    if quotas.len() > MAX_QUOTAS {
        return Err(RuleError::TooManyQuotas(info.name, quotas.len()));
    }
    check_accounts(info.name, quotas)?;
    match info.live {
        Some(live) => check_accounts(info.name, live.quotas().as_ref()),
        None => Ok(()),
    }
}

/// Checks that a request can fit the rule. An alternative may be above its limit if another one is not.
fn check_cost(info: &RuleInfo<'_>, limiting: &[&RuleInfo<'_>]) -> Result<(), RuleError> {
    let exceeded = |info: &RuleInfo<'_>| info.exceeded(info.quotas.unwrap_or_default());
    let Some(limit) = exceeded(info) else {
        return Ok(());
    };
    let first = info.first_alternative;
    let mut alternatives = limiting
        .iter()
        .filter(|other| first.is_some() && other.first_alternative == first);
    if alternatives.any(|other| exceeded(other).is_none()) {
        return Ok(());
    }
    Err(RuleError::CostAboveLimit {
        rule: info.name,
        cost: info.cost.unwrap_or(1),
        headroom: info.headroom.unwrap_or(0),
        limit,
    })
}

/// The charges that a store is asked about when a layer is built.
#[derive(Default)]
struct CheckedCharges<'a> {
    charges: Vec<Charge<'a>>,
    choices: Vec<Choice>,
    /// The charges whose quotas are fixed.
    fixed: Vec<Charge<'a>>,
}

impl<'a> CheckedCharges<'a> {
    /// Asks the store if it supports the charges, and registers those with fixed quotas.
    fn register<S: Store>(&self, store: &S) -> Result<(), RuleError> {
        let all = Candidates {
            charges: &self.charges,
            choices: &self.choices,
        };
        for charges in all.attempts() {
            store.supports(&charges).map_err(RuleError::Unsupported)?;
        }
        if self.fixed.is_empty() {
            return Ok(());
        }
        store.register(&self.fixed).map_err(RuleError::Unsupported)
    }

    /// Adds the charge of a rule. It may continue the choice of the rule whose charge was added before.
    fn add(&mut self, info: &RuleInfo<'_>, charge: Charge<'a>, before: Option<&RuleInfo<'_>>) {
        let at = self.charges.len();
        self.charges.push(charge);
        if info.quotas.is_some() {
            self.fixed.push(charge);
        }
        let first = info.first_alternative;
        if first.is_none() {
            return;
        }
        let continues = before.is_some_and(|before| before.first_alternative == first);
        match self.choices.last_mut().filter(|_| continues) {
            Some(choice) => choice.add(1),
            None => self.choices.push(Choice::new(at, [1])),
        }
    }
}

/// A quota as that of a share, which depends on the clients of the moment.
const SAMPLE: &[Quota] = &[Quota::per_second(1)];

/// Returns a charge for each rule whose quotas are known. `live` has the current quotas of each live plan.
fn checked_charges<'a>(
    limiting: &[&RuleInfo<'a>],
    live: &'a [Option<Quotas>],
    key: &'a Key,
) -> Result<CheckedCharges<'a>, RuleError> {
    let mut checked = CheckedCharges::default();
    let mut before: Option<&RuleInfo<'_>> = None;
    for (info, live) in limiting.iter().zip(live) {
        let current = live.as_ref().map(AsRef::as_ref);
        let current = current.filter(|quotas| !quotas.is_empty());
        let sample = info.is_hidden().then_some(SAMPLE);
        if let Some(quotas) = info.quotas.or(current).or(sample) {
            let charge = charge_of(info, quotas, key);
            check_wait(info, &charge)?;
            checked.add(info, charge, before);
            before = Some(info);
        }
    }
    Ok(checked)
}

/// Checks that requests of the rule can wait for slots, if they would.
fn check_wait(info: &RuleInfo<'_>, charge: &Charge<'_>) -> Result<(), RuleError> {
    if !info.queues {
        return Ok(());
    }
    let is_alternative = info.first_alternative.is_some();
    if is_alternative && charge.quotas.iter().any(Quota::is_concurrent) {
        return Err(RuleError::AlternativeWaits(info.name));
    }
    if charge.takes_several_slots() {
        return Err(RuleError::SeveralSlotsWait {
            rule: info.name,
            cost: charge.cost,
        });
    }
    Ok(())
}

/// Returns a charge of a rule, for a store that is asked about it.
///
/// The wait and the headroom of a request may differ: a store only reads whether they are above zero.
fn charge_of<'a>(info: &RuleInfo<'_>, quotas: &'a [Quota], key: &'a Key) -> Charge<'a> {
    let charge = Charge::new(info.name, key, quotas).with_cost(info.cost.unwrap_or(1));
    let wait = if info.queues {
        Duration::from_nanos(1)
    } else {
        Duration::ZERO
    };
    let may_report = info.report_only.is_on() || !info.report_only.is_fixed();
    // A headroom from the request may be above zero, and a reserve is.
    let headroom = info.headroom.unwrap_or(1).max(info.has_reserve.into());
    charge
        .with_max_wait(wait)
        .with_headroom(headroom)
        .with_report_only(may_report)
}
