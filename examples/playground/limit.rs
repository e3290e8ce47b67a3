//! The limit that a page sets, and its state.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Extension, Router, http::HeaderValue, response::IntoResponse, routing::get};
use serde::{Deserialize, Serialize};
use tower_sluice::{
    Decision, Limiter, LivePlan, LocalStore, Quota, RateLimitLayer, Rule, decision::Outcome,
    key::Everyone, key_fn, store::DynStore,
};

use crate::algorithm::counted_by;

const NAME: &str = "playground";

/// A limit as `{"algorithm": "gcra", "units": 5, "period_ms": 1000, "burst": 10, "max_wait_ms":
/// 0}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    algorithm: String,
    units: u32,
    period_ms: u64,
    /// Defaults to the algorithm's own burst.
    burst: Option<u32>,
    #[serde(default)]
    pub(crate) max_wait_ms: u64,
}

impl Asked {
    pub(crate) fn quota(&self) -> Result<Quota, String> {
        let quota = Quota::new(self.units, Duration::from_millis(self.period_ms));
        let quota = quota.and_then(|quota| match self.burst {
            Some(burst) => quota.try_burst(burst),
            None => Ok(quota),
        });
        let algorithm = counted_by(&self.algorithm)?;
        quota.and_then(|quota| quota.try_algorithm(algorithm)).map_err(|error| error.to_string())
    }

    /// Creates the real layer around a service that reports the wait. All requests charge
    /// `account`, regardless of the sender.
    pub(crate) fn serve(
        &self,
        account: String,
        store: Arc<DynStore<Infallible>>,
    ) -> Result<Router, String> {
        let quota = self.quota()?;
        let max_wait = Duration::from_millis(self.max_wait_ms);
        // A layer with fixed quotas is validated: an algorithm without a queue must not get a
        // `max_wait`.
        let trial = Rule::new(NAME, Everyone, quota).max_wait(max_wait);
        let checked = RateLimitLayer::try_rules(trial, LocalStore::with_capacity(16));
        drop(checked.map_err(|error| error.to_string())?);
        let key = key_fn(move |_| Some(account.clone()));
        let rule = Rule::new(NAME, key, &LivePlan::new(quota)).max_wait(max_wait);
        let layer = RateLimitLayer::try_rules(rule, store).map_err(|error| error.to_string())?;
        Ok(Router::new().route("/try", get(answer)).layer(layer.expose_decision()))
    }
}

async fn answer(Extension(decision): Extension<Decision>) -> impl IntoResponse {
    let waited = HeaderValue::from(millis(decision.wait()));
    ([("x-waited-ms", waited)], "admitted\n")
}

/// Returns a limiter on the accounts of the layer.
pub(crate) fn limiter(store: Arc<DynStore<Infallible>>) -> Limiter<Arc<DynStore<Infallible>>> {
    Limiter::named(NAME.parse().expect("a name"), store)
}

/// The state of a limit; times are in milliseconds, rounded up.
#[derive(Serialize)]
pub(crate) struct Told {
    limit: u32,
    remaining: u32,
    next_ms: u64,
    reset_ms: u64,
}

impl Told {
    pub(crate) fn new(limit: u32, remaining: u32, next: Duration, reset: Duration) -> Self {
        Self { limit, remaining, next_ms: millis(next), reset_ms: millis(reset) }
    }
}

impl From<&Outcome> for Told {
    fn from(outcome: &Outcome) -> Self {
        let (next, reset) = (outcome.next_after(), outcome.reset_after());
        Self::new(outcome.limit(), outcome.remaining(), next, reset)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
