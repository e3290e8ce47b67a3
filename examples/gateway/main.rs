//! A server with limits from flags, which answers with its decisions as JSON: `cargo run -p dev
//! --example gateway -- --help`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../support/rule.rs"]
mod rule;
#[path = "../support/store.rs"]
mod store;

use std::{convert::Infallible, io, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use axum::{Json, Router, routing::any};
use clap::{CommandFactory, Parser, error::ErrorKind};
use serde_json::{Value, json};
use tokio::{net::TcpListener, signal::ctrl_c};
use tower_sluice::{
    ClientIp, Decision, Headers, RateLimitLayer, decision::Outcome, store::DynStore,
};

use crate::{rule::RuleFlag, store::StoreFlags};

const EXAMPLES: &str = r#"Examples:
  each address 5 per second, with a burst of 10:
    gateway --rule 'name=ip key=peer quota="5/s burst 10"'
  and each API key, if sent, per second and per day:
    gateway --rule 'name=ip key=peer quota=20/s' \
            --rule 'name=user key=header:x-api-key quota=5/s,10000/day missing=skip'
  each client of a proxy that appends to x-forwarded-for:
    gateway --trusted-proxy 127.0.0.1 --rule 'name=ip key=client quota="5/s burst 10"'

A rule is one argument of field=value pairs:
  name=NAME    the name in header fields; must be unique
  key=KEY      the charged key: peer (the address), client (behind trusted proxies),
               header:NAME, everyone, route (its template)
  quota=QUOTA  units/period [burst n], as 5/s, 200/10s or "100/min burst 20"; several,
               separated by commas, are charged together
  algorithm=A  gcra, token_bucket, fixed_window, paced_window, anchored_window,
               sliding_window:BUCKETS or sliding_log [default: gcra]
  soft=N       units allowed beyond the quota, marked as overage [default: 0]
  cost=N       units per request [default: 1]
  headroom=N   units that must remain after a request [default: 0]
  max_wait=MS  longest wait in the queue before a denial, as 500ms [default: 0ms]
  missing=HOW  policy without a key: reject (with 400), skip or share [default: reject]
  report_only  count without denying

A request charges all rules or none. Routes are /, /users/{id} and /orders/{id}; all other paths
are one more route together."#;

/// Answers every request with the limiter's decision, as JSON.
#[derive(Parser)]
#[command(name = "gateway", after_help = EXAMPLES)]
struct Flags {
    /// Address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000")]
    addr: SocketAddr,
    /// A limit, as below; may be repeated
    #[arg(long, value_name = "RULE", default_value = r#"name=ip key=peer quota="5/s burst 10""#)]
    rule: Vec<RuleFlag>,
    /// A trusted proxy, whose x-forwarded-for is used for key=client; may be repeated
    #[arg(long, value_name = "CIDR")]
    trusted_proxy: Vec<String>,
    /// Header fields that report the limit to clients: ratelimit, draft07, draft06, x-ratelimit,
    /// x-ratelimit-delta, by-unit or none
    #[arg(long, value_name = "FAMILY", default_value = "ratelimit", value_parser = family)]
    headers: Headers,
    #[command(flatten)]
    store: StoreFlags,
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().init();
    let flags = Flags::parse();
    let address = flags.addr;
    let wrong = |text: String| -> ! {
        Flags::command().error(ErrorKind::ValueValidation, text).exit();
    };
    let store = flags.store.open().await.unwrap_or_else(|error| wrong(error));
    let app = router(&flags, store).unwrap_or_else(|error| wrong(error));
    let Err(error) = serve(address, app).await else { return ExitCode::SUCCESS };
    eprintln!("error: cannot serve on {address}: {error}; give a free address with --addr");
    ExitCode::FAILURE
}

async fn serve(address: SocketAddr, app: Router) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{0}; try: curl -i http://{0}/users/7", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { drop(ctrl_c().await) })
        .await
}

/// Real routes, so that `key=route` has an effect, all under the rules of the flags.
fn router(flags: &Flags, store: Arc<DynStore<Infallible>>) -> Result<Router, String> {
    let client = match &flags.trusted_proxy[..] {
        [] => None,
        proxies => Some(ClientIp::behind(proxies).map_err(|error| error.to_string())?),
    };
    let rules = flags.rule.iter().map(|flag| flag.rule(client.as_ref()));
    let layer = RateLimitLayer::try_rules(rules.collect::<Result<Vec<_>, _>>()?, store);
    let layer = layer.map_err(|error| error.to_string())?.headers(flags.headers);
    Ok(Router::new()
        .route("/", any(show))
        .route("/users/{id}", any(show))
        .route("/orders/{id}", any(show))
        .fallback(show)
        .layer(layer.expose_decision()))
}

async fn show(decision: Decision) -> Json<Value> {
    Json(json!({
        "allowed": decision.is_allowed(),
        "overage": decision.is_overage(),
        "would_deny": decision.would_deny(),
        "waited_ms": millis(decision.wait()),
        "source": decision.source().as_str(),
        "outcomes": decision.outcomes().iter().map(shown).collect::<Vec<_>>(),
    }))
}

/// Times are in milliseconds, rounded up. `retry_after_ms` is null if waiting does not help.
fn shown(outcome: &Outcome) -> Value {
    json!({
        "rule": outcome.rule().as_str(),
        "limit": outcome.limit(),
        "remaining": outcome.remaining(),
        "reset_after_ms": millis(outcome.reset_after()),
        "next_after_ms": millis(outcome.next_after()),
        "retry_after_ms": outcome.retry_after().map(millis),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn family(word: &str) -> Result<Headers, String> {
    serde_json::from_value(word.into()).map_err(|error| error.to_string())
}
