//! The server that the clients call.
//!
//! | path | |
//! |---|---|
//! | `GET /` | limited by `x-client`, one request a second |
//! | `GET /x` | the same limit, told by the fields of GitHub |
//! | `/grpc.health.v1.Health/…`, `/test.Echo/…` | limited by `x-client`, one call per 1.5 s |
//! | `POST /upload` | denied |
//! | `POST /large` | denied, and bodies of 1 MB are read |
//! | `POST /early` | answered with 429 without the layer, and without reading the body |
//! | `POST /exhaust/{client}/{n}` | makes the client wait the time of `n` calls, at most 9, and clears its calls |
//! | `GET /seen/{client}` | its calls, as JSON |
//! | `GET /corpus`, `/corpus/{n}` | the numbers to read in answers, and those answers |

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::StatusCode;
use tokio::net::TcpListener;
use tonic::service::Routes;
use tower::ServiceExt as _;
use tower_sluice::{
    Cost, Headers, Key, KeyExtractor, Limiter, LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, KeyError},
    rule::RuleName,
};

use crate::{
    corpus::{Case, corpus},
    seen::{CLIENT, Seen, note},
    support::echo::Echo,
};

/// A call with this field costs more than its quota ever has.
const COSTLY: &str = "x-costly";

#[derive(Clone)]
struct Server {
    store: LocalStore,
    seen: Seen,
    corpus: Arc<Vec<Case>>,
}

/// The burst of a client, which is also the debt that it may have.
const BURST: u32 = 8;

fn quotas() -> [(RuleName, Quota); 2] {
    [("http", 1_000), ("rpc", 1_500)].map(|(name, millis)| {
        let quota = Quota::new(1, Duration::from_millis(millis)).expect("a quota");
        (RuleName::new(name).expect("a name"), quota.with_burst(BURST))
    })
}

/// A client without a name is rejected with a text that needs escapes in gRPC.
#[derive(Clone, Copy, Debug)]
struct Client;

impl KeyExtractor for Client {
    fn extract(&self, head: &tower_sluice::RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        let name = head.headers.get(CLIENT);
        name.map(|name| Some(name.into())).ok_or_else(|| KeyError::missing("caf\u{e9} 100%"))
    }
}

/// Serves on any port of the loopback interface from now on.
pub(crate) async fn start() -> SocketAddr {
    let server = Server {
        store: LocalStore::with_capacity(1_024),
        seen: Seen::new(),
        corpus: Arc::new(corpus().await),
    };
    let cost =
        || Cost::from_fn(|head| if head.headers.contains_key(COSTLY) { BURST + 1 } else { 1 });
    let [http, rpc] = quotas().map(|(name, quota)| {
        RateLimitLayer::rules(
            Rule::new(name.as_str(), Client, quota).cost(cost()),
            server.store.clone(),
        )
    });
    let as_github = http.clone().headers(Headers::XRateLimit);
    let echo = Echo.map_request(|request: Request| request.map(tonic::body::Body::new));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let app = Routes::new(health)
        .into_axum_router()
        .route_service("/test.Echo/{method}", echo)
        .layer(rpc)
        .merge(Router::new().route("/x", get(async || "served\n")).layer(as_github))
        .merge(Router::new().route("/", get(async || "served\n")).layer(http))
        .merge(Router::new().route("/upload", post(async || "served\n")).layer(uploads()))
        .merge(Router::new().route("/large", post(async || "served\n")).layer(large_uploads()))
        .route("/early", post(async || StatusCode::TOO_MANY_REQUESTS))
        .layer(from_fn_with_state(server.seen.clone(), note))
        .merge(apart(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// A layer that denies each request with 429.
fn uploads() -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    let store = LocalStore::with_capacity(64);
    let quota = Quota::per_day(1);
    let name = RuleName::new("upload").expect("a name");
    drop(Limiter::named(name.as_str(), store.clone()).charge(Key::everyone(), &quota, 1).now());
    RateLimitLayer::rules(Rule::new(name.as_str(), Everyone, quota), store)
}

fn large_uploads() -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    uploads().drain(1 << 20, Duration::from_secs(5))
}

/// The routes that are neither limited nor recorded.
fn apart(server: Server) -> Router {
    Router::new()
        .route("/exhaust/{client}/{n}", post(exhaust))
        .route("/seen/{client}", get(seen))
        .route("/corpus", get(index))
        .route("/corpus/{n}", get(answer))
        .with_state(server)
}

async fn exhaust(State(server): State<Server>, Path((client, n)): Path<(String, u32)>) {
    for (name, quota) in quotas() {
        let limiter = Limiter::named(name.as_str(), server.store.clone());
        drop(limiter.reset(client.as_str(), &quota).now());
        drop(limiter.charge(client.as_str(), &quota, BURST - 1 + n).now());
    }
    server.seen.forget(&client);
}

async fn seen(State(server): State<Server>, Path(client): Path<String>) -> impl IntoResponse {
    Json(server.seen.of(&client))
}

async fn index(State(server): State<Server>) -> Response {
    Json(&*server.corpus).into_response()
}

async fn answer(State(server): State<Server>, Path(n): Path<usize>) -> Response {
    let Some(case) = server.corpus.get(n) else { return StatusCode::NOT_FOUND.into_response() };
    let status = StatusCode::from_u16(case.status).expect("a status");
    (status, case.headers.clone()).into_response()
}
