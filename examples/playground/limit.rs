//! A limit that the page sets, and its state.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Router, http::HeaderValue, response::IntoResponse, routing::get};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tower_sluice::{
    Decision, Limiter, LivePlan, LocalStore, Quota, RateLimitLayer, Rule, decision::Outcome,
    key::Everyone, key_fn, store::DynStore,
};

use crate::algorithm::counted_by;

pub(crate) const NAME: &str = "playground";

/// A limit as `{"algorithm": "gcra", "units": 5, "period_ms": 1000, "burst": 10, "cost": 1,
/// "max_wait_ms": 0, "hold_ms": 0}`. With the algorithm `concurrent`, the units are slots.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitForm {
    algorithm: String,
    units: u32,
    period_ms: u64,
    /// Defaults to the algorithm's own burst.
    burst: Option<u32>,
    #[serde(default = "one")]
    cost: u32,
    #[serde(default)]
    max_wait_ms: u64,
    /// The time for which a request runs.
    #[serde(default)]
    hold_ms: u64,
}

fn one() -> u32 {
    1
}

/// A valid limit.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) quota: Quota,
    pub(crate) cost: u32,
    pub(crate) max_wait: Duration,
    hold: Duration,
}

/// The longest time for which a request runs.
const MAX_HOLD: Duration = Duration::from_secs(10);

impl LimitForm {
    /// Returns the limit. An error names the field, the value and the fix.
    pub(crate) fn limit(&self) -> Result<Limit, String> {
        let hold = Duration::from_millis(self.hold_ms);
        if hold > MAX_HOLD {
            return Err(format!("hold_ms is {}; give at most 10000", self.hold_ms));
        }
        if self.algorithm == "concurrent" {
            let slots = format!("{} concurrent", self.units).parse::<Quota>();
            let quota = slots.map_err(|error| error.to_string())?;
            return Limit { quota, cost: self.cost, max_wait: Duration::ZERO, hold }.checked();
        }
        let quota = Quota::new(self.units, Duration::from_millis(self.period_ms));
        let quota = quota.and_then(|quota| match self.burst {
            Some(burst) => quota.try_with_burst(burst),
            None => Ok(quota),
        });
        let algorithm = counted_by(&self.algorithm)?;
        let quota = quota.and_then(|quota| quota.try_with_algorithm(algorithm));
        let quota = quota.map_err(|error| error.to_string())?;
        let max_wait = Duration::from_millis(self.max_wait_ms);
        Limit { quota, cost: self.cost, max_wait, hold }.checked()
    }
}

impl Limit {
    /// Returns the limit if a layer with it is valid: an algorithm without a queue must not get a
    /// `max_wait`.
    fn checked(self) -> Result<Self, String> {
        let trial = self.rule(Everyone, self.quota);
        let checked = RateLimitLayer::try_rules(trial, LocalStore::with_capacity(16));
        checked.map(|_| self).map_err(|error| error.to_string())
    }

    fn rule<K>(&self, key: K, plan: impl Into<tower_sluice::Plan>) -> Rule<K> {
        Rule::new(NAME, key, plan).cost(self.cost).max_wait(self.max_wait)
    }

    /// Creates the real layer around a service that reports the wait. All requests charge
    /// `account`, regardless of the sender.
    pub(crate) fn serve(
        &self,
        account: String,
        store: Arc<DynStore<Infallible>>,
    ) -> Result<Router, String> {
        let key = key_fn(move |_| Some(account.clone()));
        // Both lanes use one store, so their quotas must not be fixed.
        let rule = self.rule(key, &LivePlan::new(self.quota));
        let layer = RateLimitLayer::try_rules(rule, store).map_err(|error| error.to_string())?;
        let hold = self.hold;
        let answer = get(move |decision| answer(decision, hold));
        Ok(Router::new().route("/try/{lane}", answer).layer(layer.expose_decision()))
    }
}

async fn answer(decision: Decision, hold: Duration) -> impl IntoResponse + use<> {
    sleep(hold).await;
    let waited = HeaderValue::from(millis(decision.wait()));
    ([("x-waited-ms", waited)], "allowed\n")
}

/// Returns a limiter on the accounts of the layer.
pub(crate) fn limiter(store: Arc<DynStore<Infallible>>) -> Limiter<Arc<DynStore<Infallible>>> {
    Limiter::named(NAME, store)
}

/// The state of an account; times are in milliseconds, rounded up.
#[derive(Serialize)]
pub(crate) struct AccountState {
    limit: u32,
    remaining: u32,
    next_ms: u64,
    reset_ms: u64,
}

impl From<&Outcome> for AccountState {
    fn from(outcome: &Outcome) -> Self {
        Self {
            limit: outcome.limit(),
            remaining: outcome.remaining(),
            next_ms: millis(outcome.next_after()),
            reset_ms: millis(outcome.reset_after()),
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
