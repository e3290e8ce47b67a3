//! Visitors, identified by the page's `x-visitor` header. Each has two lanes: two limits that
//! receive the same requests.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use axum::{
    Json, Router,
    extract::{FromRequestParts, Path, Request, State},
    http::{HeaderValue, StatusCode, request::Parts},
    response::Response,
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;
use tower_sluice::{Algorithm, Quota, store::DynStore};

use crate::limit::{AccountState, LimitForm, limiter};

/// All visits are dropped together at this number. An open page then sets its limits again.
const MOST: usize = 1_000;
const UNKNOWN: &str = "no limits were set for this x-visitor; POST two to /limits";

#[derive(Clone)]
pub(crate) struct Visits {
    store: Arc<DynStore<Infallible>>,
    /// A shared store may have accounts of an earlier run.
    run: u128,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    visits: HashMap<String, Arc<[Lane; 2]>>,
    accounts: u32,
}

pub(crate) struct Lane {
    account: String,
    quota: Quota,
    limited: Router,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsForm {
    lanes: [LimitForm; 2],
}

/// One limit in words, and its code.
#[derive(Serialize)]
struct Shown {
    text: String,
    rust: String,
    toml: String,
}

#[derive(Serialize)]
struct Lanes<T> {
    lanes: Vec<T>,
}

#[derive(Serialize)]
struct LaneState {
    source: &'static str,
    /// Set if `reset_ms` is the end of a window.
    window: bool,
    /// `null` if the store does not report it.
    account: Option<AccountState>,
}

impl Visits {
    pub(crate) fn new(store: Arc<DynStore<Infallible>>) -> Self {
        Self { store, run: unix_time().as_nanos(), known: Arc::default() }
    }

    /// Gives each new limit a new account, so that it starts full.
    fn set(&self, visitor: String, form: &LimitsForm) -> Result<Lanes<Shown>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = Vec::new();
        let mut shown = Vec::new();
        for form in &form.lanes {
            let limit = form.limit()?;
            known.accounts += 1;
            let account = format!("{visitor} {} {}", self.run, known.accounts);
            let limited = limit.serve(account.clone(), self.store.clone())?;
            lanes.push(Lane { account, quota: limit.quota, limited });
            let text = match limit.max_wait.as_millis() {
                0 => limit.quota.to_string(),
                most => format!("{}, waits up to {most} ms", limit.quota),
            };
            shown.push(Shown { text, rust: limit.rust(), toml: limit.toml()? });
        }
        if known.visits.len() >= MOST {
            known.visits.clear();
        }
        let lanes: Result<[Lane; 2], _> = lanes.try_into();
        known.visits.insert(visitor, Arc::new(lanes.map_err(|_| UNKNOWN)?));
        Ok(Lanes { lanes: shown })
    }

    pub(crate) fn of(&self, visitor: &str) -> Result<Arc<[Lane; 2]>, ErrorResponse> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.visits.get(visitor).cloned().ok_or((StatusCode::NOT_FOUND, UNKNOWN.to_owned()))
    }
}

impl Lane {
    pub(crate) fn period(&self) -> Duration {
        self.quota.period()
    }

    async fn state(&self, store: Arc<DynStore<Infallible>>) -> LaneState {
        let decision = limiter(store).peek(self.account.as_str(), &self.quota).await;
        let algorithm = self.quota.algorithm();
        LaneState {
            source: decision.source().as_str(),
            window: matches!(algorithm, Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow),
            account: decision.outcomes().first().map(AccountState::from),
        }
    }
}

pub(crate) type ErrorResponse = (StatusCode, String);

pub(crate) fn router(visits: Visits) -> Router {
    Router::new()
        .route("/limits", post(set))
        .route("/try/{lane}", get(ask))
        .route("/state", get(look))
        .with_state(visits)
}

async fn set(
    State(visits): State<Visits>,
    Visitor(visitor): Visitor,
    Json(form): Json<LimitsForm>,
) -> Result<Json<Lanes<Shown>>, ErrorResponse> {
    let shown = visits.set(visitor, &form);
    shown.map(Json).map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, why))
}

/// Sends one request through a lane; a header field reports its arrival.
async fn ask(
    State(visits): State<Visits>,
    Visitor(visitor): Visitor,
    Path(lane): Path<usize>,
    request: Request,
) -> Result<Response, ErrorResponse> {
    let arrived = u64::try_from(unix_time().as_millis()).unwrap_or_default();
    let lanes = visits.of(&visitor)?;
    let lane = lanes.get(lane).ok_or((StatusCode::NOT_FOUND, "give lane 0 or 1".to_owned()))?;
    let Ok(mut response) = lane.limited.clone().oneshot(request).await;
    response.headers_mut().insert("x-arrived-ms", HeaderValue::from(arrived));
    Ok(response)
}

async fn look(
    State(visits): State<Visits>,
    Visitor(visitor): Visitor,
) -> Result<Json<Lanes<LaneState>>, ErrorResponse> {
    let mut lanes = Vec::new();
    for lane in visits.of(&visitor)?.iter() {
        lanes.push(lane.state(visits.store.clone()).await);
    }
    Ok(Json(Lanes { lanes }))
}

pub(crate) fn unix_time() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

pub(crate) struct Visitor(pub(crate) String);

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorResponse> {
        let sent = parts.headers.get("x-visitor").and_then(|value| value.to_str().ok());
        let fits = |sent: &&str| (1..=64).contains(&sent.len());
        sent.filter(fits).map(|sent| Self(sent.to_owned())).ok_or_else(|| {
            let text = "x-visitor is missing or longer than 64; send one, as x-visitor: me";
            (StatusCode::BAD_REQUEST, text.to_owned())
        })
    }
}
