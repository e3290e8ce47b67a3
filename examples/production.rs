//! A server to copy: limits in Redis, a local fallback, metrics, logs and a router for operators.
//!
//! ```sh
//! export ADMIN_TOKEN=$(openssl rand -hex 32)
//! cargo run -p dev --features redis,metrics,admin --example production
//! ```
//!
//! The variables of the environment are listed at `Config`. The guide has a chapter about this
//! server: `tower_sluice::guide::production`.
#![allow(clippy::print_stdout)]

use std::{env, error::Error, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::Response,
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tower_sluice::{
    ClientIp, LocalStore, Quota, RateLimitLayer, RedisStore, Rule, StoreExt, admin::Admin,
    fingerprint::FingerprintKey, middleware::RetryAfter, store::Timeout,
};
use tracing::{Instrument, field::Empty, info_span, warn};
use tracing_subscriber::fmt::format::FmtSpan;

type BoxError = Box<dyn Error + Send + Sync>;

/// The upper bounds of the histogram, in seconds. The timeout of the store, 100 ms, is one of them.
const BUCKETS: [f64; 11] =
    [0.000_01, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.25];
/// The upper bounds of the used share of a quota.
const SHARES: [f64; 6] = [0.1, 0.25, 0.5, 0.8, 0.9, 1.0];

struct Config {
    /// `ADDR`: the address for clients.
    address: String,
    /// `OPERATORS_ADDR`: the address for Prometheus and operators, which clients must not reach.
    operators: String,
    /// `REDIS_URL`.
    redis: String,
    /// `TRUSTED_PROXIES`: the networks of the proxies, separated by commas.
    proxies: String,
    /// `INSTANCES`: the usual number of processes, which share the quotas while Redis is down.
    instances: u32,
    /// `ADMIN_TOKEN`: the password of the user `admin`, and the secret of the fingerprints.
    token: String,
}

impl Config {
    fn read() -> Result<Self, BoxError> {
        let or = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        let token = or("ADMIN_TOKEN", "");
        if token.len() < 32 {
            return Err("ADMIN_TOKEN: give at least 32 random characters".into());
        }
        Ok(Self {
            address: or("ADDR", "127.0.0.1:3000"),
            operators: or("OPERATORS_ADDR", "127.0.0.1:9000"),
            redis: or("REDIS_URL", "redis://127.0.0.1"),
            proxies: or("TRUSTED_PROXIES", "127.0.0.1,::1"),
            instances: or("INSTANCES", "1").parse()?,
            token,
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // One line per request, with the fields of its span.
    tracing_subscriber::fmt().with_span_events(FmtSpan::CLOSE).init();
    // Install the recorder before the first request: counters register on first use.
    let of = |name: &str| Matcher::Full(name.to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(of("ratelimit.decision.duration"), &BUCKETS)?
        .set_buckets_for_metric(of("ratelimit.utilization"), &SHARES)?
        .set_buckets_for_metric(of("ratelimit.attempts"), &[1.0, 2.0, 3.0])?
        .install_recorder()?;
    let config = Config::read()?;

    // A server that is down at the start is no reason to be down as well.
    let redis = RedisStore::connect(&config.redis).lazy()?;
    match redis.probe().await {
        Ok(warnings) => warnings.iter().for_each(|warning| warn!("redis: {warning}")),
        Err(error) => warn!("starting without Redis: {error}"),
    }
    let local = LocalStore::with_capacity(200_000);
    let store = redis
        .timeout(Timeout::DEFAULT)
        .breaker()
        .deny_cache()
        .fallback(local.clone(), config.instances);

    // Both rules are charged, or none.
    let client = ClientIp::behind(config.proxies.split(','))?;
    let rules = (
        Rule::new("client", client.clone(), Quota::per_second(10).with_burst(20)),
        Rule::new("site", client.clone().ipv6_prefix(48), Quota::per_second(100)),
    );
    let mut admin = Admin::new();
    let limit = RateLimitLayer::try_rules(rules, store)?
        .fingerprint(FingerprintKey::new(&config.token)?)
        .retry_after(RetryAfter::Jitter(10));
    let limit = admin.watch("api", limit);

    let app = Router::new()
        .route("/", get(async || "hello\n"))
        .layer(limit)
        .route("/health", get(async || "ok\n")) // not limited: it is below the layer
        .layer(from_fn(trace));
    let wanted = STANDARD.encode(format!("admin:{}", config.token));
    let wanted: Arc<str> = format!("Basic {wanted}").into();
    let operators = Router::new()
        .nest("/admin", admin.router(from_fn_with_state(wanted, password)))
        .route("/address", get(async move |request: Request| address(&client, &request)))
        .route("/metrics", get(async move || scrape(&local, &recorder)));

    let (app_at, operators_at) =
        (TcpListener::bind(config.address).await?, TcpListener::bind(config.operators).await?);
    println!("listening on http://{}", app_at.local_addr()?);
    println!("operators on http://{}/admin (admin, ADMIN_TOKEN)", operators_at.local_addr()?);
    tokio::try_join!(serve(app_at, app), serve(operators_at, operators))?;
    Ok(())
}

/// Shows the address of the client, and the header with it.
fn address(client: &ClientIp, request: &Request) -> String {
    let sent = request.headers().get("x-forwarded-for");
    format!("{:?} by {sent:?}\n", client.address(request))
}

/// Serves until the process is asked to stop.
async fn serve(listener: TcpListener, app: Router) -> std::io::Result<()> {
    // `ClientIp` needs the peer's address, which the server must provide.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stopped())
        .await
}

async fn stopped() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    drop(tokio::signal::ctrl_c().await);
}

/// A span per request. The limiter fills the fields that begin with `ratelimit`.
async fn trace(request: Request, next: Next) -> Response {
    let span = info_span!(
        "request",
        method = %request.method(),
        path = request.uri().path(),
        status = Empty,
        ratelimit.result = Empty,
        ratelimit.policy = Empty,
        ratelimit.store = Empty,
        ratelimit.key = Empty,
    );
    async {
        let response = next.run(request).await;
        tracing::Span::current().record("status", response.status().as_u16());
        response
    }
    .instrument(span)
    .await
}

/// Reading the statistics updates the gauges of the local store.
fn scrape(local: &LocalStore, recorder: &metrics_exporter_prometheus::PrometheusHandle) -> String {
    let _ = local.stats();
    recorder.run_upkeep();
    recorder.render()
}

/// HTTP Basic authentication. A random password of 32 characters cannot be guessed; a shorter one
/// needs a limit of guesses, as in `examples/admin.rs`.
async fn password(
    State(wanted): State<Arc<str>>,
    request: Request,
    next: Next,
) -> Result<Response, (StatusCode, [(HeaderName, &'static str); 1])> {
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent.map_or(&b""[..], |sent| sent.as_bytes());
    // A comparison that ends at the first difference would leak the correct prefix.
    match bool::from(sent.ct_eq(wanted.as_bytes())) {
        true => Ok(next.run(request).await),
        false => {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"admin\"")];
            Err((StatusCode::UNAUTHORIZED, ask))
        }
    }
}
