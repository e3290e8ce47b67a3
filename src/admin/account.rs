//! Operations on one account: peek, reset, block and unblock.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Value, json};

use super::{
    Problem,
    denials::unix_millis,
    key,
    managed::{self, ManagedLayer},
};
use crate::{
    decision::{Cause, Decision, Outcome},
    explain::Explanation,
    key::Key,
    name::is_valid,
    quota::{Quota, read_time},
    rule::{Quotas, RuleInfo},
    store::{Charge, Context, Op, Store, StoreExt, millis},
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
    #[serde(default, deserialize_with = "read_quotas")]
    quotas: Option<Quotas>,
    #[serde(default, deserialize_with = "read_for")]
    r#for: Option<Duration>,
}

/// The largest number of names of units, such as `tokens`, that are read from requests.
const MAX_UNITS: usize = 64;

/// Reads quotas without their names, which stay in memory once they are read, and identify no account.
/// Names of units stay as well, so few are read.
fn read_quotas<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Quotas>, D::Error> {
    let mut quotas = match Value::deserialize(value)? {
        table @ Value::Object(_) => json!([table]),
        quotas => quotas,
    };
    let tables = quotas
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut);
    for table in tables {
        table.remove("name");
        if let Some(unit) = table
            .get("unit")
            .and_then(Value::as_str)
            .filter(|unit| !is_known(unit))
        {
            return Err(D::Error::custom(format!(
                "unit {unit:?} is new, and this process has read {MAX_UNITS} others; check its spelling, or \
                 start a new process"
            )));
        }
    }
    Option::deserialize(quotas).map_err(D::Error::custom)
}

/// Returns `true` for a unit that was read before, and for one of the first units.
fn is_known(unit: &str) -> bool {
    static UNITS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut units = UNITS.lock();
    if units.contains(unit) || !is_valid(unit) {
        // The error of an invalid unit is that of the quota.
        return true;
    }
    units.len() < MAX_UNITS && units.insert(unit.to_owned())
}

fn read_for<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    read_time("for", &String::deserialize(value)?)
        .map(Some)
        .map_err(D::Error::custom)
}

/// The account that a request body names.
struct ManagedAccount<'a> {
    layer: &'a ManagedLayer,
    rule: RuleInfo<'a>,
    key: Key,
    /// Empty for a block under quotas that are chosen per request.
    quotas: Quotas,
}

/// Answers a request of the route `operation`.
pub(super) async fn run(
    operation: &str,
    layers: &[ManagedLayer],
    body: AccountBody,
) -> Result<Value, Problem> {
    let time = body.r#for.filter(|time| !time.is_zero());
    if time.is_some() != (operation == "block") {
        let why = "for is the time of a block, as \"10min\"; only a block has one";
        return Err(why.to_owned().into());
    }
    let account = ManagedAccount::find(operation, layers, body)?;
    if let Err(error) = account
        .layer
        .store
        .supports(&[account.charge().with_cost(0)])
    {
        let why = format!("the store does not support this: {error}");
        return Err(Problem(StatusCode::NOT_IMPLEMENTED, why));
    }
    match operation {
        "peek" => account.peek().await,
        _ => account.change(operation, time).await,
    }
}

impl<'a> ManagedAccount<'a> {
    fn find(
        operation: &str,
        layers: &'a [ManagedLayer],
        body: AccountBody,
    ) -> Result<Self, Problem> {
        let layer = managed::find(layers, &body.layer)?;
        let rule = layer.rule(&body.rule)?;
        let key = match (&body.key, &body.fingerprint) {
            (Some(key), None) => key::parse(key)?,
            (None, Some(given)) => layer.listed_key(rule.name, given)?,
            _ => Err("give either a key, as \"key\": \"alice\", or a fingerprint".to_owned())?,
        };
        let quotas = quotas_of(&rule, body.quotas, operation)?;
        Ok(Self {
            layer,
            rule,
            key,
            quotas,
        })
    }

    /// Returns the units left, the remaining time of a block, and an explanation of the next
    /// decision.
    async fn peek(&self) -> Result<Value, Problem> {
        let store = &self.layer.store;
        let Ok(current) = store.peek(&[self.charge().with_cost(0)]).await;
        check("peek", &current)?;
        // Values that are read from a request count as 1 and 0. A cost of 0 would not show a block.
        let RuleInfo { cost, headroom, .. } = self.rule;
        let next = self.charge().with_cost(cost.unwrap_or(1).max(1));
        let next = next.with_headroom(headroom.unwrap_or(0));
        let Ok(mut would) = Explanation::look(store, &[next]).await;
        if !would.is_allowed() {
            would.allowed_because = self.layer.reason_to_allow(&self.rule);
        }
        let blocked = would
            .decision
            .as_ref()
            .ok()
            .filter(|decision| decision.is_blocked());
        let mut response = self.response(&current);
        response["quotas"] = current
            .outcomes()
            .iter()
            .map(|outcome| self.quota(outcome))
            .collect();
        response["blocked_ms"] = json!(blocked.and_then(Decision::retry_after).map(millis));
        response["would"] = would.fingerprint(self.layer.secret).to_string().into();
        Ok(response)
    }

    /// Resets, blocks or unblocks the account. A block has a time.
    async fn change(&self, operation: &str, time: Option<Duration>) -> Result<Value, Problem> {
        let charge = self.charge();
        let op = match time {
            Some(time) => Op::Block(&charge, time),
            None if operation == "reset" => Op::Reset(&charge),
            None => Op::Unblock(&charge),
        };
        let Ok(decision) = self.layer.store.call(op, &Context::default()).await;
        check(operation, &decision)?;
        if operation != "reset" {
            self.list_block(time);
        }
        let mut response = self.response(&decision);
        response["done"] = operation.into();
        Ok(response)
    }

    /// Notes the end of a block, or its removal, in the list of denied keys.
    fn list_block(&self, time: Option<Duration>) {
        let Some(record) = self.layer.denial_log.find(self.rule.name) else {
            return;
        };
        if let Some(listed) = record.listed.lock().find(&self.key) {
            let until = time.and_then(|time| SystemTime::now().checked_add(time));
            listed.blocked_until_ms = until.map(unix_millis);
        }
    }

    /// Returns the units left under one quota.
    fn quota(&self, outcome: &Outcome) -> Value {
        json!({
            "text": self.quotas.charged().get(outcome.quota_index()).map(Quota::to_string),
            "limit": outcome.limit(),
            "remaining": outcome.remaining(),
            "held": outcome.held(),
            "reset_after_ms": millis(outcome.reset_after()),
            "next_after_ms": millis(outcome.next_after()),
        })
    }

    fn charge(&self) -> Charge<'_> {
        Charge::new(self.rule.name, &self.key, self.quotas.charged())
    }

    /// Returns the fields that all responses have.
    fn response(&self, decision: &Decision) -> Value {
        json!({
            "layer": self.layer.name,
            "rule": self.rule.name,
            "key": self.key.fingerprint(&self.layer.secret),
            "by": decision.source().as_str(),
        })
    }
}

/// Returns the given quotas or, without them, those of the rule.
fn quotas_of(
    rule: &RuleInfo<'_>,
    given: Option<Quotas>,
    operation: &str,
) -> Result<Quotas, Problem> {
    let needs_quotas = matches!(operation, "peek" | "reset");
    if let Some(given) = given.filter(|quotas| !quotas.charged().is_empty()) {
        if needs_quotas {
            return Ok(given);
        }
        let why = format!("a {operation} is of the key under all quotas; remove the quotas");
        return Err(why.into());
    }
    let own = managed::own_quotas(rule).filter(|quotas| !quotas.charged().is_empty());
    match own {
        Some(own) => Ok(own),
        None if needs_quotas => Err(format!(
            "rule {:?} has no quotas of its own; add the quotas of the key, as \"quotas\": [\"5/s burst \
             20\"]",
            rule.name
        )
        .into()),
        None => Ok([].into()),
    }
}

/// Returns an error if the store did not do the operation.
fn check(operation: &str, decision: &Decision) -> Result<(), Problem> {
    const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
    let is_change = operation != "peek";
    let cause = decision.cause();
    let (status, why) = if cause == Cause::Unsupported {
        (StatusCode::NOT_IMPLEMENTED, "it does not support this")
    } else if cause == Cause::Busy {
        (UNAVAILABLE, "it did not answer in time; repeat it later")
    } else if cause.is_undone() {
        (UNAVAILABLE, "it failed (see api/health)")
    } else if is_change && cause == Cause::Fallback {
        (
            UNAVAILABLE,
            "it failed, and only this process did; repeat it later",
        )
    } else if is_change && !decision.is_allowed() {
        const FULL: &str =
            "it has no room for the block; unblock other keys, or raise its capacity";
        (StatusCode::INSUFFICIENT_STORAGE, FULL)
    } else {
        return Ok(());
    };
    Err(Problem(
        status,
        format!("the store did not {operation}: {why}"),
    ))
}
