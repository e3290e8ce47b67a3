//! What is done to one account: look, reset, block, unblock.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    body::Body,
    key::{self, Named},
    problem::Problem,
    show::millis,
    watched::{self, Watched},
};
use crate::{
    decision::{Decision, Source},
    explain::Explanation,
    name::RuleName,
    quota::Quota,
    rule::{Quotas, Shape},
    store::{Charge, OwnedCharges, Store, Unsupported},
};

/// The account that a body names.
pub(super) struct Account<'a> {
    layer: &'a Watched,
    rule: RuleName,
    named: Named,
    quotas: Quotas,
    /// What a request costs and leaves over, where that is fixed.
    cost: u32,
    headroom: u32,
}

impl<'a> Account<'a> {
    /// The account in its quotas: what is there to look at, and to reset.
    pub(super) fn with_quotas(layers: &'a [Watched], body: &Body) -> Result<Self, Problem> {
        Self::find(layers, body, |shape| quotas(shape, body.quotas.clone()))
    }

    /// The key alone: a block asks for no quota, and is of the key whatever they are.
    pub(super) fn of_key(layers: &'a [Watched], body: &Body) -> Result<Self, Problem> {
        const ANY: Quota = Quota::per_second(1);
        Self::find(layers, body, |shape| {
            let own = watched::own_quotas(shape).filter(|own| !own.charged().is_empty());
            Ok(own.unwrap_or_else(|| ANY.into()))
        })
    }

    fn find(
        layers: &'a [Watched],
        body: &Body,
        quotas: impl FnOnce(&Shape<'_>) -> Result<Quotas, Problem>,
    ) -> Result<Self, Problem> {
        let (layer, rule, key) = (body.layer()?, body.rule()?, body.key()?);
        let layer = watched::find(layers, layer)?;
        layer.rule(rule, |shape| {
            let named = key::read(key, &shape.key_kind, shape.name).map_err(Problem::body)?;
            Ok(Self {
                layer,
                rule: shape.name,
                named,
                quotas: quotas(shape)?,
                cost: shape.cost.unwrap_or(1).max(1),
                headroom: shape.headroom.unwrap_or(0),
            })
        })
    }

    /// What it has, whether it is blocked, and what a request would be answered.
    pub(super) async fn peek(self) -> Result<Value, Problem> {
        let store = &self.layer.store;
        let look = self.charge().cost(0);
        self.able()?;
        let Ok(seen) = store.take(&[look]).await;
        answered("peek", &seen)?;
        let asked =
            OwnedCharges::from(&[self.charge().cost(self.cost).headroom(self.headroom)][..]);
        Explanation::check(store, &asked).map_err(|why| unable(&why))?;
        let Ok(would) = Explanation::look_at(store, &asked).await;
        let blocked = would.decision().filter(|decision| decision.is_blocked());
        let blocked = blocked.and_then(Decision::retry_after).map(millis);
        let quotas = seen.outcomes().iter().map(|outcome| {
            json!({
                "text": self.quotas.charged().get(outcome.place()).map(Quota::to_string),
                "limit": outcome.limit(),
                "remaining": outcome.remaining(),
                "reset_after_ms": millis(outcome.reset_after()),
                "next_after_ms": millis(outcome.next_after()),
            })
        });
        let quotas: Vec<_> = quotas.collect();
        Ok(self.told(
            &seen,
            json!({
                "quotas": quotas,
                "blocked_ms": blocked,
                "would": would.fingerprint(self.layer.secret).to_string(),
            }),
        ))
    }

    pub(super) async fn reset(self) -> Result<Value, Problem> {
        self.able()?;
        let Ok(decision) = self.layer.store.reset(&self.charge()).await;
        self.done("reset", &decision)
    }

    pub(super) async fn block(self, time: Duration) -> Result<Value, Problem> {
        self.able()?;
        let Ok(decision) = self.layer.store.block(&self.charge(), time).await;
        self.done("block", &decision)
    }

    pub(super) async fn unblock(self) -> Result<Value, Problem> {
        self.able()?;
        let Ok(decision) = self.layer.store.unblock(&self.charge()).await;
        self.done("unblock", &decision)
    }

    fn charge(&self) -> Charge<'_> {
        Charge::new(self.rule, &self.named.key, self.quotas.charged())
    }

    /// A store that cannot even look, as a governor limiter, does nothing else for an operator.
    fn able(&self) -> Result<(), Problem> {
        self.layer.store.check(&[self.charge().cost(0)]).map_err(|why| unable(&why))
    }

    fn done(&self, what: &str, decision: &Decision) -> Result<Value, Problem> {
        answered(what, decision)?;
        if decision.source() == Source::Fallback {
            let why = format!(
                "the shared store fails, so that it was done in this process only: {what} again \
                 when api/health says that it is well"
            );
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        if decision.is_allowed() {
            return Ok(self.told(decision, json!({ "done": what })));
        }
        let why = "the store has no room for the record; unblock others, or give it more capacity";
        Err(Problem::new(StatusCode::INSUFFICIENT_STORAGE, why))
    }

    /// The answer: whose account, by which store, and what else there is to say.
    fn told(&self, decision: &Decision, more: Value) -> Value {
        let mut told = json!({
            "layer": &*self.layer.name,
            "rule": self.rule,
            "key": self.named.key.fingerprint(&self.layer.secret),
            "by": decision.source().as_str(),
        });
        if let Some(bits) = self.named.prefix {
            told["prefix"] = bits.into();
        }
        if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
            told.extend(more);
        }
        told
    }
}

fn unable(why: &Unsupported) -> Problem {
    Problem::new(StatusCode::NOT_IMPLEMENTED, format!("the store does not do this: {why}"))
}

/// Whether the store itself has answered, and not what stands in for it where it fails.
fn answered(what: &str, decision: &Decision) -> Result<(), Problem> {
    if !matches!(decision.source(), Source::FailedOpen | Source::FailedClosed) {
        return Ok(());
    }
    let why = format!("the store did not {what}: it fails (see api/health), or does not do this");
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, why))
}

/// The quotas of the account: those of the rule, or those given where they are chosen per request.
fn quotas(shape: &Shape<'_>, given: Option<Quotas>) -> Result<Quotas, Problem> {
    let rule = shape.name;
    match (watched::own_quotas(shape), given) {
        (Some(own), None) if own.charged().is_empty() => {
            let why = format!("rule is {rule:?}, which limits nothing: there is no account");
            Err(Problem::new(StatusCode::CONFLICT, why))
        }
        (Some(own), None) => Ok(own),
        (Some(_), Some(_)) => Err(Problem::body(format!(
            "quotas are given, and rule {rule:?} has its own; drop them"
        ))),
        (None, Some(given)) if !given.charged().is_empty() => Ok(given),
        (None, _) => Err(Problem::body(format!(
            "quotas are missing, and rule {rule:?} chooses them per request; add those that the key \
             has, as \"quotas\": [\"5/s burst 20\"]"
        ))),
    }
}
