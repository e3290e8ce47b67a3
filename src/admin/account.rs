//! Operations on one account: peek, reset, block and unblock.

use std::{
    fmt::Display,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Problem, key,
    managed::{self, ManagedLayer, millis},
};
use crate::{
    decision::{Decision, Source},
    explain::Explanation,
    key::Key,
    quota::{Quota, read_time},
    rule::{Quotas, RuleInfo},
    store::{Charge, Op, Store, StoreExt},
};

/// An account. Each route uses some of the optional fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountBody {
    layer: String,
    rule: String,
    key: Option<Value>,
    /// The fingerprint of a listed key.
    fingerprint: Option<String>,
    quotas: Option<Value>,
    r#for: Option<String>,
}

impl AccountBody {
    /// Returns the given quotas. A quota with a name is an error, because the memory of names is never
    /// freed.
    fn quotas(&self) -> Result<Option<Quotas>, Problem> {
        let Some(value) = &self.quotas else { return Ok(None) };
        let named = |value: &Value| value.get("name").is_some();
        if named(value) || value.as_array().is_some_and(|list| list.iter().any(named)) {
            let why = "quotas have a name, which accounts do not use; remove it";
            return Err(Problem::body(why));
        }
        Quotas::deserialize(value).map(Some).map_err(|error| Problem::body(error.to_string()))
    }

    /// Returns the time, which only a block has.
    pub(super) fn time(&self, is_block: bool) -> Result<Option<Duration>, Problem> {
        match (&self.r#for, is_block) {
            (None, false) => Ok(None),
            (Some(_), false) => Err(Problem::body("for has no use here; remove it")),
            (None, true) => Err(Problem::body("for is missing; add it, as \"for\": \"10min\"")),
            (Some(text), true) => match read_time("for", text).map_err(Problem::body)? {
                Duration::ZERO => {
                    Err(Problem::body("for is 0s; give a time above 0s, or unblock the key"))
                }
                time => Ok(Some(time)),
            },
        }
    }
}

/// The account that a request body names.
pub(super) struct ManagedAccount<'a> {
    layer: &'a ManagedLayer,
    rule: RuleInfo<'a>,
    key: Key,
    /// The prefix length, if the key is a network.
    prefix: Option<u8>,
    quotas: Quotas,
}

impl<'a> ManagedAccount<'a> {
    /// Finds the account that `body` names. A block needs no quotas.
    pub(super) fn find(
        layers: &'a [ManagedLayer],
        body: &AccountBody,
        needs_quotas: bool,
    ) -> Result<Self, Problem> {
        let layer = managed::find(layers, &body.layer)?;
        let rule = layer.rule(&body.rule)?;
        let name = rule.name;
        let key = match (&body.key, &body.fingerprint) {
            (Some(key), None) => key::parse(key),
            (None, Some(given)) => layer.listed_key(name, given).map(|key| (key, None)),
            (Some(_), Some(_)) => Err("key and fingerprint are given; remove one".into()),
            (None, None) => Err("key is missing; add it, as \"key\": \"alice\"".into()),
        };
        let (key, prefix) = key.map_err(Problem::body)?;
        let quotas = match (managed::own_quotas(&rule), body.quotas()?) {
            (Some(_), Some(_)) => Err(Problem::body(format!(
                "quotas are given, and rule {name:?} has its own; remove them"
            ))),
            (Some(all), None) | (None, Some(all)) if !all.charged().is_empty() => Ok(all),
            _ if !needs_quotas => Ok(Quota::per_second(1).into()),
            (Some(_), None) => Err(Problem::new(
                StatusCode::CONFLICT,
                format!("rule is {name:?}, which has no quotas and therefore no accounts"),
            )),
            (None, _) => Err(Problem::body(format!(
                "quotas are missing, and rule {name:?} chooses them per request; add the quotas of \
                 the key, as \"quotas\": [\"5/s burst 20\"]"
            ))),
        };
        let account = Self { layer, rule, key, prefix, quotas: quotas? };
        let charge = account.charge().with_cost(0);
        layer.store.supports(&[charge]).map_err(unsupported)?;
        Ok(account)
    }

    /// Returns the units left, the remaining time of a block, and an explanation of the next
    /// decision.
    pub(super) async fn peek(self) -> Result<Value, Problem> {
        let store = &self.layer.store;
        let Ok(current) = store.peek(&[self.charge().with_cost(0)]).await;
        check("peek", &current)?;
        let next = managed::usual_charge(&self.rule, &self.key, &self.quotas);
        let next = next.with_cost(next.cost().max(1));
        let Ok(would) = Explanation::look(store, &[next]).await;
        let blocked = would.decision().filter(|decision| decision.is_blocked());
        let quotas = current.outcomes().iter().map(|outcome| {
            json!({
                "text": self.quotas.charged().get(outcome.quota_index()).map(Quota::to_string),
                "limit": outcome.limit(),
                "remaining": outcome.remaining(),
                "held": outcome.held(),
                "reset_after_ms": millis(outcome.reset_after()),
                "next_after_ms": millis(outcome.next_after()),
            })
        });
        let mut response = self.response(&current);
        response["quotas"] = quotas.collect();
        response["blocked_ms"] = json!(blocked.and_then(Decision::retry_after).map(millis));
        response["would"] = would.fingerprint(self.layer.secret).to_string().into();
        Ok(response)
    }

    /// Resets, blocks or unblocks the account. A block has a time.
    pub(super) async fn change(
        &self,
        operation: &str,
        time: Option<Duration>,
    ) -> Result<Value, Problem> {
        let charge = self.charge();
        let op = match (operation, time) {
            (_, Some(time)) => Op::Block(&charge, time),
            ("reset", None) => Op::Reset(&charge),
            _ => Op::Unblock(&charge),
        };
        let Ok(decision) = self.layer.store.call(op).await;
        check(operation, &decision)?;
        let fingerprint = self.key.fingerprint(&self.layer.secret);
        let record = self.layer.denial_log.find(self.rule.name).filter(|_| operation != "reset");
        if let Some(record) = record {
            let until = time.and_then(|time| SystemTime::now().checked_add(time));
            record.set_blocked(fingerprint, until);
        }
        let mut response = self.response(&decision);
        response["done"] = operation.into();
        Ok(response)
    }

    fn charge(&self) -> Charge<'_> {
        Charge::new(self.rule.name, &self.key, self.quotas.charged())
    }

    /// Returns the fields that all responses have.
    fn response(&self, decision: &Decision) -> Value {
        json!({
            "layer": &*self.layer.name,
            "rule": self.rule.name,
            "key": self.key.fingerprint(&self.layer.secret),
            "prefix": self.prefix,
            "by": decision.source().as_str(),
        })
    }
}

fn unsupported(why: impl Display) -> Problem {
    Problem::new(StatusCode::NOT_IMPLEMENTED, format!("the store does not support this: {why}"))
}

/// Returns an error if the store did not do the operation.
fn check(operation: &str, decision: &Decision) -> Result<(), Problem> {
    let is_change = operation != "peek";
    let (status, why) = match decision.source() {
        Source::Unsupported => return Err(unsupported(format!("cannot {operation}"))),
        Source::FailedOpen | Source::FailedClosed => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the store did not {operation}: it failed (see api/health), or does not support \
                 this"
            ),
        ),
        Source::Fallback if is_change => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "the shared store failed, so the {operation} was done in this process only; \
                 repeat it when api/health reports no failure"
            ),
        ),
        _ if is_change && !decision.is_allowed() => (
            StatusCode::INSUFFICIENT_STORAGE,
            "the store has no room for the block; unblock other keys, or raise its capacity".into(),
        ),
        _ => return Ok(()),
    };
    Err(Problem::new(status, why))
}
