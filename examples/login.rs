//! Limits for a login by address and by account, in which only failures count.
//!
//! An attacker who tries one account from many addresses must not lock its owner out. The account
//! therefore has two limits: a tight one per address that tries it, and one for all addresses that
//! have never logged in to it.
//!
//! `cargo run -p dev --example login`
#![allow(clippy::print_stdout)]

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    routing::post,
};
use tower::ServiceExt;
use tower_sluice::{
    LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::HeaderKey, middleware::Adjustment,
    rule::Applies,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let known: Arc<Mutex<HashSet<IpAddr>>> = Arc::default();
    known
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(Ipv4Addr::new(198, 51, 100, 7).into());

    let account = || HeaderKey::new("x-account"); // stands in for the field of a real login form
    let rules = (
        Rule::new("address", PeerIp::new(), Quota::per_minute(20)),
        Rule::new("pair", (account(), PeerIp::new()), Quota::per_minute(5)),
        Rule::new("strangers", account(), Quota::per_hour(50)).applies(move |head| {
            let peer = head.extensions.get::<SocketAddr>().map(SocketAddr::ip);
            let known = known.lock().unwrap_or_else(PoisonError::into_inner);
            if peer.is_some_and(|peer| known.contains(&peer)) {
                Applies::Skip
            } else {
                Applies::Charge
            }
        }),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::new()).adjust(|response| {
        // A success refunds its charge.
        if response.status == StatusCode::UNAUTHORIZED {
            Adjustment::Keep
        } else {
            Adjustment::Refund
        }
    });
    let login = |headers: HeaderMap| async move {
        let right = headers.get("x-password").is_some_and(|word| word == "right");
        if right { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
    };
    let app = Router::new().route("/login", post(login)).layer(layer);
    let attempt = async |address: Ipv4Addr, password: &str| {
        let request = Request::post("/login").header("x-account", "alice");
        let request = request.header("x-password", password);
        let request = request.extension(SocketAddr::from((address, 4711)));
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        Ok::<_, Box<dyn std::error::Error>>(response.status())
    };

    let mut tried = 0;
    for n in 0..10_000_u32 {
        let attacker = Ipv4Addr::from_bits(0x0a00_0000 + n % 1_000);
        tried += u32::from(attempt(attacker, "wrong").await? == StatusCode::UNAUTHORIZED);
    }
    println!("10000 wrong passwords from 1000 addresses: {tried} were tried, the rest denied");
    for _ in 0..100 {
        let owner = attempt(Ipv4Addr::new(198, 51, 100, 7), "right").await?;
        assert_eq!(owner, StatusCode::OK);
    }
    println!("the owner logged in 100 times during the attack");
    Ok(())
}
