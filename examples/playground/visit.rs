//! Visitors, identified by the page's `x-visitor` header. Each has its own limit and its own
//! accounts.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use axum::{
    Json, Router,
    extract::{FromRequestParts, Request, State},
    http::{HeaderValue, StatusCode, request::Parts},
    response::Response,
    routing::{get, post},
};
use serde::Serialize;
use tower::ServiceExt;
use tower_sluice::{Algorithm, Decision, Quota, store::DynStore};

use crate::{
    limit::{Asked, Told, limiter},
    naive::Naive,
};

/// All visits are dropped together at this number. An open page then sets its limit again.
const MOST: usize = 1_000;
const UNKNOWN: &str = "no limit was set for this x-visitor; POST one to /limit";

#[derive(Clone)]
pub(crate) struct Visits {
    store: Arc<DynStore<Infallible>>,
    /// A shared store may have accounts of an earlier run.
    run: u128,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    visits: HashMap<String, Arc<Visit>>,
    limits: u32,
}

pub(crate) struct Visit {
    account: String,
    quota: Quota,
    limited: Router,
    naive: Naive,
}

impl Visits {
    pub(crate) fn new(store: Arc<DynStore<Infallible>>) -> Self {
        let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { store, run: run.as_nanos(), known: Arc::default() }
    }

    /// Each new limit gets a new account, so that it starts full.
    fn set(&self, visitor: String, asked: &Asked) -> Result<Quota, String> {
        let quota = asked.quota()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.limits += 1;
        let account = format!("{visitor} {} {}", self.run, known.limits);
        let limited = asked.serve(account.clone(), self.store.clone())?;
        let naive = Naive::new(quota.units(), quota.period());
        if known.visits.len() >= MOST {
            known.visits.clear();
        }
        known.visits.insert(visitor, Arc::new(Visit { account, quota, limited, naive }));
        Ok(quota)
    }

    pub(crate) fn of(&self, visitor: &str) -> Result<Arc<Visit>, ErrorResponse> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.visits.get(visitor).cloned().ok_or((StatusCode::NOT_FOUND, UNKNOWN.to_owned()))
    }
}

pub(crate) type ErrorResponse = (StatusCode, String);

pub(crate) fn router(visits: Visits) -> Router {
    Router::new()
        .route("/limit", post(set))
        .route("/try", get(ask))
        .route("/state", get(look))
        .with_state(visits)
}

async fn set(
    State(visits): State<Visits>,
    Visitor(visitor): Visitor,
    Json(asked): Json<Asked>,
) -> Result<String, ErrorResponse> {
    let quota = visits.set(visitor, &asked);
    let quota = quota.map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, why))?;
    let wait = match asked.max_wait_ms {
        0 => String::new(),
        most => format!(", waits up to {most} ms"),
    };
    Ok(format!("{quota}{wait}\n"))
}

/// Sends one request through both; a header field reports the naive window's decision.
async fn ask(
    State(visits): State<Visits>,
    Visitor(visitor): Visitor,
    request: Request,
) -> Result<Response, ErrorResponse> {
    let visit = visits.of(&visitor)?;
    let naive = if visit.naive.take() { "admitted" } else { "denied" };
    let Ok(mut response) = visit.limited.clone().oneshot(request).await;
    response.headers_mut().insert("x-naive", HeaderValue::from_static(naive));
    Ok(response)
}

#[derive(Serialize)]
struct Look {
    source: &'static str,
    /// Set if `reset_ms` of our limit is the end of a window.
    window: bool,
    /// `null` if the store does not report it.
    ours: Option<Told>,
    naive: Told,
}

async fn look(
    State(visits): State<Visits>,
    Visitor(visitor): Visitor,
) -> Result<Json<Look>, ErrorResponse> {
    let visit = visits.of(&visitor)?;
    let peeked = limiter(visits.store.clone()).peek(visit.account.as_str(), &visit.quota).await;
    let Ok(decision): Result<Decision, Infallible> = peeked;
    let algorithm = visit.quota.counted_by();
    Ok(Json(Look {
        source: decision.source().as_str(),
        window: matches!(algorithm, Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow),
        ours: decision.outcomes().first().map(Told::from),
        naive: visit.naive.told(),
    }))
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
