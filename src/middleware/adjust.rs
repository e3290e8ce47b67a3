//! Adjusts charges to the actual cost of a request, after the response.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::AcqRel},
    },
    time::Duration,
};

use http::{Extensions, Response};
use smallvec::SmallVec;
use tokio::runtime;

use crate::{
    decision::{Cause, Decision},
    head::ResponseHead,
    observe,
    rule::{LivePlan, Quotas, RuleError, RuleInfo, RuleName},
    store::{self, Answer, BlockError, Charge, DynStore, OwnedCharges, Store, StoreExt},
};

/// Change of a charge to the actual cost of the request.
///
/// [`adjust`](crate::RateLimitLayer::adjust) makes it by the response, and
/// [`expose_charge`](crate::RateLimitLayer::expose_charge) if no handler has adjusted the charge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adjustment {
    /// Keeps the charge. A [`ChargeHandle`] can still adjust the charge later.
    #[default]
    Keep,
    /// Refunds the charge. Units that were already refilled over time are not refunded again.
    ///
    /// **With `expose_charge`, clients that disconnect are not limited.** A client can send a request,
    /// close the connection before the response, and repeat this at any rate. The handler runs each
    /// time until it is dropped. Use this only if unfinished work costs nothing. Otherwise, keep the
    /// charge, and call [`ChargeHandle::adjust_to`] in the handler.
    Refund,
    /// Changes the charge to this number of units.
    ///
    /// A lower number refunds the difference, but not units that were already refilled over time. A
    /// higher number charges the difference, even beyond the limit.
    Charge(u32),
    /// Raises the charge to this number of units, such as the usual cost of a request that ends early.
    AtLeast(u32),
}

impl Adjustment {
    /// Returns the units of a charge after the adjustment.
    fn units(self, charged: u32) -> u32 {
        match self {
            Self::Keep => charged,
            Self::Refund => 0,
            Self::Charge(units) => units,
            Self::AtLeast(units) => charged.max(units),
        }
    }
}

/// Handle by which a handler adjusts the charges of a request to the actual cost.
///
/// [`expose_charge`](crate::RateLimitLayer::expose_charge) inserts the handle into the extensions
/// of each request. With the feature `axum`, the handle is also an extractor. If several layers around
/// each other do so, the handler gets the handle of the innermost.
///
/// The charge of each rule can be adjusted once. Later adjustments are ignored.
///
/// - A lower cost refunds the difference, but not units that were already refilled over time.
/// - A higher cost charges the difference, even beyond the limit, under the current quotas of a
///   [`LivePlan`].
/// - Without an adjustment, the layer makes the [`Adjustment`] of `expose_charge`.
///
/// A handler may move the handle into a streamed body, and adjust the charge when the body ends.
///
/// ```
/// use tower_sluice::{middleware::ChargeHandle, rule::RuleError};
///
/// async fn complete(charge: ChargeHandle) -> Result<String, String> {
///     let (text, tokens) = (String::from("…"), 42);
///     let adjusted: Result<(), RuleError> = charge.adjust_rule_to("tokens", tokens);
///     adjusted.map_err(|wrong| wrong.to_string())?;
///     Ok(text)
/// }
/// ```
#[derive(Clone)]
pub struct ChargeHandle(Arc<OpenCharges>);

/// Charges that a handle can adjust.
struct OpenCharges {
    config: AdjustConfig,
    charges: OwnedCharges,
    decision: Decision,
    /// `true` if the request was charged, and no failure has undone that.
    is_charged: bool,
    /// The runtime of the request. A handle may be used, or dropped, by a thread without one.
    runtime: Option<runtime::Handle>,
    /// One flag per charge. `true` once the charge was adjusted.
    adjusted: SmallVec<[AtomicBool; 8]>,
}

/// Settings for the adjustment of charges.
#[derive(Clone)]
pub(crate) struct AdjustConfig {
    store: Arc<DynStore<Infallible>>,
    /// The rules of the layer. The share of a pool is adjusted with its pool.
    rules: Arc<[AdjustableRule]>,
    /// The adjustment of a charge that nobody adjusts, if handlers get a handle.
    pub(crate) exposed: Option<Adjustment>,
    pub(crate) classify: Option<Classify>,
}

struct AdjustableRule {
    name: RuleName,
    /// The plan, if its quotas can be replaced.
    live: Option<LivePlan>,
}

impl AdjustConfig {
    /// Creates the settings of a layer that adjusts nothing yet.
    pub(super) fn new(infos: &[RuleInfo<'_>], store: Arc<DynStore<Infallible>>) -> Self {
        let known = infos.iter().filter(|info| !info.is_hidden());
        let rules = known.map(|info| AdjustableRule {
            name: info.name,
            live: info.live.cloned(),
        });
        Self {
            store,
            rules: rules.collect(),
            exposed: None,
            classify: None,
        }
    }
}

pub(crate) type Classify = Arc<dyn Fn(&ResponseHead<'_>) -> Adjustment + Send + Sync>;

impl ChargeHandle {
    /// Creates the handle for the extensions of a request.
    ///
    /// Uncharged requests get a handle as well, because handlers may extract it.
    pub(crate) fn new(
        config: &AdjustConfig,
        charges: &[Charge<'_>],
        decision: Decision,
        is_charged: bool,
    ) -> Self {
        let adjusted = charges.iter().map(|_| AtomicBool::new(false)).collect();
        Self(Arc::new(OpenCharges {
            config: config.clone(),
            charges: charges.into(),
            decision,
            is_charged,
            runtime: runtime::Handle::try_current().ok(),
            adjusted,
        }))
    }

    /// Inserts a clone into the extensions of the request, if the layer exposes it.
    pub(crate) fn expose(&self, extensions: &mut Extensions) {
        if self.0.config.exposed.is_some() {
            extensions.insert(self.clone());
        }
    }

    /// Returns the decision about the request.
    pub fn decision(&self) -> &Decision {
        &self.0.decision
    }

    /// Adjusts the charge of every rule to `units`. 0 refunds the charge, except for units that were
    /// already refilled over time.
    pub fn adjust_to(&self, units: u32) {
        self.0.adjust(None, Adjustment::Charge(units));
    }

    /// Adjusts the charge of the rule `name` to `units`.
    ///
    /// Does nothing if the rule did not charge the request.
    ///
    /// # Errors
    ///
    /// Fails if the layer has no rule of this name. The error lists the rules of the layer.
    pub fn adjust_rule_to(&self, name: &str, units: u32) -> Result<(), RuleError> {
        let mut rules = self.0.config.rules.iter();
        if !rules.any(|rule| rule.name.as_str() == name) {
            let known = self.0.config.rules.iter().map(|rule| rule.name);
            return Err(RuleError::Unknown {
                name: name.into(),
                known: known.collect(),
            });
        }
        self.0.adjust(Some(name), Adjustment::Charge(units));
        Ok(())
    }

    /// Blocks the keys of this request for `time`, under every rule that applied to the request.
    ///
    /// Use a block to penalize a client. Denials alone charge nothing. Only keys of [one
    /// client](crate::Key::is_client) are blocked: not the key of all requests, of a route or of a proxy,
    /// or the account of requests without an identity. **A key of your own that identifies no client is
    /// blocked for all clients**, unless its extractor [says so](crate::KeyExtractor::can_be_client).
    ///
    /// The call does not wait for a remote store such as Redis. `Ok` then means that the block was
    /// sent.
    ///
    /// # Errors
    ///
    /// Returns the first error, such as [`BlockError::Full`]. The other keys are still blocked.
    pub fn block(&self, time: Duration) -> Result<(), BlockError> {
        let block = |charge: &Charge<'_>| match store::block(&self.0.config.store, charge, time) {
            Answer::Now(blocked) => blocked.map(drop),
            later => {
                later.detach(drop);
                Ok(())
            }
        };
        self.0
            .with(|charges| of_client(charges).map(block).fold(Ok(()), Result::and))
    }

    /// Ends a [`block`](ChargeHandle::block) of the keys of this request.
    pub fn unblock(&self) {
        let store = &self.0.config.store;
        self.0.with(|charges| {
            of_client(charges).for_each(|charge| store.unblock(charge).detach(drop));
        });
    }

    /// Resets the charged accounts of this request to those of new keys, except accounts that other
    /// clients use too, as for a [`block`](ChargeHandle::block).
    pub fn reset(&self) {
        let store = &self.0.config.store;
        self.0.with(|charges| {
            of_client(charges)
                .filter(|charge| self.0.charged(charge.rule))
                .for_each(|charge| store.reset(charge).detach(drop));
        });
    }

    /// Makes the adjustment that the function of the layer returns for a charged request.
    pub(crate) fn classify<B>(&self, response: &Response<B>) {
        let classify = self
            .0
            .config
            .classify
            .as_ref()
            .filter(|_| self.0.is_charged);
        if let Some(classify) = classify {
            self.0.adjust(None, classify(&ResponseHead::from(response)));
        }
    }
}

/// Returns the charges of accounts that only this client uses.
fn of_client<'c, 'a>(charges: &'c [Charge<'a>]) -> impl Iterator<Item = &'c Charge<'a>> {
    charges.iter().filter(|charge| charge.key.is_client())
}

impl OpenCharges {
    /// Calls `call` with the charges, in the runtime of the request, because remote stores spawn tasks.
    fn with<T>(&self, call: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        // A thread that ends cannot enter a runtime any more.
        let is_thread_ending =
            runtime::Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        let _inside = self
            .runtime
            .as_ref()
            .filter(|_| !is_thread_ending)
            .map(runtime::Handle::enter);
        self.charges.with(call)
    }

    /// Returns `true` if the request was charged under `rule`.
    fn charged(&self, rule: RuleName) -> bool {
        self.is_charged && self.decision.charged(rule)
    }

    /// Adjusts the charges of a rule, or of all rules, unless it keeps them: they can then be adjusted later.
    fn adjust(&self, rule: Option<&str>, adjustment: Adjustment) {
        if adjustment == Adjustment::Keep {
            return;
        }
        self.with(|charges| {
            for (charge, adjusted) in charges.iter().zip(&self.adjusted) {
                let is_meant = rule.is_none_or(|name| charge.known_name() == name);
                let may_adjust = is_meant && self.charged(charge.rule);
                if may_adjust && !adjusted.swap(true, AcqRel) {
                    self.adjust_to(charge, adjustment.units(charge.cost));
                }
            }
        });
    }

    fn adjust_to(&self, charge: &Charge<'_>, cost: u32) {
        if cost > charge.cost {
            self.charge_late(charge, cost - charge.cost);
        } else if cost < charge.cost {
            let refund = Some(charge.cost - cost);
            self.config.store.undo(&[*charge], &self.decision, refund);
        }
    }

    /// Charges more units under the current quotas of the rule. A charge of an older quota, such as one of
    /// another algorithm, could replace the account.
    fn charge_late(&self, charge: &Charge<'_>, units: u32) {
        let rule = charge.rule;
        let mut rules = self.config.rules.iter();
        let live = rules.find(|known| known.name == rule);
        let live = live.and_then(|known| known.live.as_ref());
        let current = live.map(LivePlan::quotas);
        let quotas = current.as_ref().map_or(charge.quotas, Quotas::charged);
        let report = move |Ok(made): Result<Decision, Infallible>| {
            let cause = made.cause();
            if cause.is_undone() || cause == Cause::Unsupported {
                observe::late_charge_lost(rule);
            }
        };
        let charge = charge.with_quotas(quotas);
        let store = &self.config.store;
        store.adjust(&charge, units.into()).detach(report);
    }
}

impl Drop for OpenCharges {
    fn drop(&mut self) {
        self.adjust(None, self.config.exposed.unwrap_or_default());
    }
}

impl fmt::Debug for ChargeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeHandle").finish_non_exhaustive()
    }
}
