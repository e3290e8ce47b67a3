//! A gateway for a language model: each customer has two streams at a time and 1,000 tokens per
//! minute, in one decision.
//!
//! `cargo run -p dev --example llm_gateway`, then in several terminals:
//! `curl -N -H 'x-api-key: alice' -d 'Why is the sky blue?' http://127.0.0.1:3000/completions`
//!
//! `ADDR=127.0.0.1:8080` chooses another address. With `-- check`, it sends requests to itself,
//! prints the results, and ends.
//!
//! Nobody knows the tokens of an answer in advance, so a request is charged an estimate, and adjusted
//! to the real number when its stream ends. A client that leaves frees its slot at once, and pays for
//! the tokens until then.
#![allow(clippy::print_stdout)]

use std::{convert::Infallible, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header::CONTENT_LENGTH},
    routing::post,
};
use futures::{Stream, stream};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};
use tower_sluice::{
    Cost, Limiter, LocalStore, Quota, RateLimitLayer, RequestHead, Rule,
    key::HeaderKey,
    middleware::{Adjustment, ChargeHandle},
};

const STREAMS: Quota = Quota::concurrent(2);
const TOKENS: Quota = Quota::per_minute(1_000).with_unit("tokens");
/// The tokens of a usual answer.
const USUAL_ANSWER: u32 = 100;

/// Estimates the tokens of a request from its head. Four bytes are about one token.
fn estimate(head: &RequestHead<'_>) -> u32 {
    let length = head.headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse().ok());
    // Without a length, the prompt may be long.
    length.map_or(500, tokens_of).saturating_add(USUAL_ANSWER)
}

fn tokens_of(bytes: u32) -> u32 {
    bytes.div_ceil(4)
}

/// The tokens of a running request. Dropping this value charges them, whether the stream has ended or
/// the client has left. To charge the estimate of a client that leaves, adjust only at the end.
struct Usage {
    charge: ChargeHandle,
    tokens: u32,
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.charge.adjust_rule_to("tokens", self.tokens).expect("the layer has this rule");
    }
}

/// Streams an answer of 25 tokens, as a model does.
fn answer(usage: Usage) -> impl Stream<Item = Result<String, Infallible>> {
    stream::unfold((0, usage), |(sent, mut usage)| async move {
        sleep(Duration::from_millis(20)).await;
        usage.tokens += 1;
        (sent < 25).then(|| (Ok(format!("word {sent}\n")), (sent + 1, usage)))
    })
}

async fn complete(charge: ChargeHandle, prompt: String) -> Body {
    let prompt = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
    Body::from_stream(answer(Usage { charge, tokens: tokens_of(prompt) }))
}

fn app(store: LocalStore) -> Router {
    let key = || HeaderKey::new("x-api-key"); // verified by your authentication
    let rules = (
        Rule::new("streams", key(), STREAMS),
        Rule::new("tokens", key(), TOKENS).cost(Cost::from_fn(estimate)),
    );
    // A request that fails before its stream starts keeps the estimate.
    let layer = RateLimitLayer::rules(rules, store).expose_charge(Adjustment::Keep);
    Router::new().route("/completions", post(complete)).layer(layer)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let checks = std::env::args().nth(1).is_some_and(|word| word == "check");
    let address = if checks { Ok("127.0.0.1:0".to_owned()) } else { std::env::var("ADDR") };
    let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:3000".to_owned())).await?;
    let (address, store) = (listener.local_addr()?, LocalStore::new());
    let server = axum::serve(listener, app(store.clone()));
    if checks {
        let server = tokio::spawn(server.into_future());
        check(address, store).await?;
        server.abort();
        return Ok(());
    }
    println!("listening on http://{address}; try:");
    println!(
        "curl -N -H 'x-api-key: alice' -d 'Why is the sky blue?' http://{address}/completions"
    );
    Ok(server.await?)
}

/// Sends requests of one customer over HTTP, and compares the accounts.
async fn check(address: SocketAddr, store: LocalStore) -> Result<(), Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<String>();
    let ask = |prompt: &str| {
        let request = Request::post(format!("http://{address}/completions"));
        client.request(request.header("x-api-key", "alice").body(prompt.to_owned()).expect("valid"))
    };
    let accounts = Limiter::named("tokens", store.clone());
    let used = || 1_000 - accounts.peek("alice", &TOKENS).now().remaining().unwrap_or_default();
    let running = async |expected: u64| {
        let start = Instant::now();
        while store.stats().held != expected && start.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(5)).await;
        }
        println!("  running: {}", store.stats().held);
    };

    println!("two streams run:");
    let (mut first, second) = (ask("Why is the sky blue?").await?, ask("And the sea?").await?);
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
    running(2).await;
    // 17 tokens return per second.
    let estimates = 105 + 103;
    assert!((estimates / 2..=estimates).contains(&used()), "{} tokens", used());
    println!("  their estimates are charged");

    let third = ask("And the grass?").await?;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(third.headers()["ratelimit"].to_str()?.contains("\"streams\";r=0"));
    println!("a third one is denied: {}", third.status());

    first.body_mut().frame().await.ok_or("the stream has a word")??;
    drop(second);
    println!("one client leaves:");
    running(1).await;
    let whole = first.into_body().collect().await?.to_bytes();
    assert!(whole.ends_with(b"word 24\n"));
    println!("the other one reads its whole answer:");
    running(0).await;
    assert!(used() <= 30 + 28, "{} tokens", used());
    println!("  their real tokens are charged");

    // A long prompt needs most of the minute. Another one is denied, and holds no slot.
    let long = "x".repeat(3_200);
    let first = ask(&long).await?;
    assert_eq!(first.status(), StatusCode::OK);
    let denied = ask(&long).await?;
    println!("the second of two long prompts: {}", denied.status());
    assert!(denied.headers().contains_key("retry-after"));
    running(1).await;
    Ok(())
}
