//! Operations on one account: peek, reset, block and unblock.

use std::{fmt, time::SystemTime};

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    body::{AccountBody, Problem},
    key::{self, ParsedKey},
    managed::{self, ManagedLayer},
    show::millis,
};
use crate::{
    decision::{Decision, Source},
    explain::Explanation,
    quota::Quota,
    rule::{Quotas, RuleName},
    store::{Charge, Op, OwnedCharges, Store, StoreExt},
};

/// The account that a request body names.
pub(super) struct ManagedAccount<'a> {
    layer: &'a ManagedLayer,
    rule: RuleName,
    key: ParsedKey,
    quotas: Quotas,
    /// The rule's fixed cost per request, or 1.
    cost: u32,
    /// The rule's fixed headroom, or 0.
    headroom: u32,
}

impl<'a> ManagedAccount<'a> {
    /// Finds the account that `body` names. A block needs no quotas.
    pub(super) fn find(
        layers: &'a [ManagedLayer],
        body: &AccountBody,
        needs_quotas: bool,
    ) -> Result<Self, Problem> {
        const ANY: Quota = Quota::per_second(1);
        let layer = managed::find(layers, &body.layer)?;
        let given = body.quotas()?;
        layer.rule(&body.rule, |info| {
            let rule = info.name;
            let key = match (&body.key, &body.fingerprint) {
                (Some(key), None) => key::parse(key),
                (None, Some(given)) => listed_key(layer, rule, given),
                (Some(_), Some(_)) => Err("key and fingerprint are given; remove one".into()),
                (None, None) => Err("key is missing; add it, as \"key\": \"alice\"".into()),
            };
            let is_empty = |quotas: &Quotas| quotas.charged().is_empty();
            let quotas = match (managed::own_quotas(info), given) {
                (Some(_), Some(_)) => Err(Problem::body(format!(
                    "quotas are given, and rule {rule:?} has its own; remove them"
                ))),
                (Some(quotas), None) | (None, Some(quotas)) if !is_empty(&quotas) => Ok(quotas),
                _ if !needs_quotas => Ok(ANY.into()),
                (Some(_), None) => Err(Problem::new(
                    StatusCode::CONFLICT,
                    format!("rule is {rule:?}, which has no quotas and therefore no accounts"),
                )),
                (None, _) => Err(Problem::body(format!(
                    "quotas are missing, and rule {rule:?} chooses them per request; add the \
                     quotas of the key, as \"quotas\": [\"5/s burst 20\"]"
                ))),
            };
            let key = key.map_err(Problem::body)?;
            let (cost, headroom) = (info.cost.unwrap_or(1).max(1), info.headroom.unwrap_or(0));
            Ok(Self { layer, rule, key, quotas: quotas?, cost, headroom })
        })
    }

    /// Returns the units left, the remaining time of a block, and an explanation of the next
    /// decision.
    pub(super) async fn peek(self) -> Result<Value, Problem> {
        let store = &self.layer.store;
        self.check_supported()?;
        let Ok(current) = store.peek(&[self.charge().with_cost(0)]).await;
        check_not_failed("peek", &current)?;
        let next = OwnedCharges::from(
            &[self.charge().with_cost(self.cost).with_headroom(self.headroom)][..],
        );
        let Ok(would) = Explanation::look_at(store, &next).await;
        let blocked = would.decision().filter(|decision| decision.is_blocked());
        let blocked = blocked.and_then(Decision::retry_after).map(millis);
        let quotas = current.outcomes().iter().map(|outcome| {
            let mut quota = json!({
                "text": self.quotas.charged().get(outcome.quota_index()).map(Quota::to_string),
                "limit": outcome.limit(),
                "remaining": outcome.remaining(),
                "reset_after_ms": millis(outcome.reset_after()),
                "next_after_ms": millis(outcome.next_after()),
            });
            if let Some(held) = outcome.held() {
                quota["held"] = held.into();
            }
            quota
        });
        let quotas: Vec<_> = quotas.collect();
        Ok(self.response(
            &current,
            json!({
                "quotas": quotas,
                "blocked_ms": blocked,
                "would": would.fingerprint(self.layer.secret).to_string(),
            }),
        ))
    }

    /// Changes the account.
    pub(super) async fn change(
        &self,
        operation: &str,
        op: impl for<'c> FnOnce(&'c Charge<'c>) -> Op<'c>,
    ) -> Result<Value, Problem> {
        self.check_supported()?;
        let charge = self.charge();
        let Ok(decision) = self.layer.store.call(op(&charge)).await;
        self.done(operation, &decision)
    }

    /// Shows in the list of the most denied keys until when the key is blocked.
    pub(super) fn show_block(&self, until: Option<SystemTime>) {
        let fingerprint = self.key.key.fingerprint(&self.layer.secret);
        self.layer.denial_log.set_blocked(self.rule, fingerprint, until);
    }

    fn charge(&self) -> Charge<'_> {
        Charge::new(self.rule, &self.key.key, self.quotas.charged())
    }

    /// Checks that the store supports the operations of this module.
    fn check_supported(&self) -> Result<(), Problem> {
        self.layer.store.supports(&[self.charge().with_cost(0)]).map_err(|why| unsupported(&why))
    }

    fn done(&self, operation: &str, decision: &Decision) -> Result<Value, Problem> {
        check_not_failed(operation, decision)?;
        if decision.source() == Source::Fallback {
            let why = format!(
                "the shared store failed, so the {operation} was done in this process only; repeat \
                 it when api/health reports no failure"
            );
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        if decision.is_allowed() {
            return Ok(self.response(decision, json!({ "done": operation })));
        }
        let why = "the store has no room for the block; unblock other keys, or raise its capacity";
        Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, why))
    }

    /// Creates a response with the layer, the rule, the fingerprint of the key, and the source of
    /// the decision.
    ///
    /// The fields of `more` are added to the response.
    fn response(&self, decision: &Decision, more: Value) -> Value {
        let mut response = json!({
            "layer": &*self.layer.name,
            "rule": self.rule,
            "key": self.key.key.fingerprint(&self.layer.secret),
            "by": decision.source().as_str(),
        });
        if let Some(bits) = self.key.prefix {
            response["prefix"] = bits.into();
        }
        if let (Value::Object(response), Value::Object(more)) = (&mut response, more) {
            response.extend(more);
        }
        response
    }
}

/// Finds a key among the most denied keys of a rule.
fn listed_key(layer: &ManagedLayer, rule: RuleName, given: &str) -> Result<ParsedKey, String> {
    let mut listed = layer.denial_log.top(rule).into_iter();
    let found = listed.find(|listed| listed.fingerprint.to_string() == given);
    found.map(|listed| ParsedKey::from(listed.key)).ok_or_else(|| {
        format!(
            "fingerprint is {given:?}, which is not in the list of the most denied keys of rule \
             {rule:?}; give the key"
        )
    })
}

fn unsupported(why: &impl fmt::Display) -> Problem {
    Problem::new(StatusCode::NOT_IMPLEMENTED, format!("the store does not support this: {why}"))
}

/// Returns an error if the store failed.
fn check_not_failed(operation: &str, decision: &Decision) -> Result<(), Problem> {
    match decision.source() {
        Source::FailedOpen | Source::FailedClosed => {}
        Source::Unsupported => return Err(unsupported(&format!("cannot {operation}"))),
        _ => return Ok(()),
    }
    let why = format!(
        "the store did not {operation}: it failed (see api/health), or does not support this"
    );
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why))
}
