//! How do operators see my limits, and change what must not wait?
//!
//! `cargo run --features admin --example admin`, then the lines that it prints, or the page in a
//! browser. `ADMIN_PASSWORD` sets the password, which is random otherwise, and `ADDR` the address.
#![allow(clippy::print_stdout)]

use std::{env, net::SocketAddr};

use axum::{
    Router,
    http::{StatusCode, header, request::Parts},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tower_sluice::{
    Key, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, Secret,
    admin::{Admin, Guard},
    key::Header,
};

/// HTTP Basic, of one operator. It sends the password with every request: serve it over TLS.
fn basic(password: &str) -> Guard {
    let wanted = format!("Basic {}", STANDARD.encode(format!("admin:{password}")));
    Guard::from_fn(move |parts: &Parts| {
        let sent =
            parts.headers.get(header::AUTHORIZATION).map_or(&b""[..], |sent| sent.as_bytes());
        // a comparison that ends at the first difference tells how much of a guess is right
        match bool::from(sent.ct_eq(wanted.as_bytes())) {
            true => Ok(()),
            false => Err((
                StatusCode::UNAUTHORIZED,
                [(header::WWW_AUTHENTICATE, "Basic realm=\"admin\"")],
            )),
        }
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let random = || Key::from("password").fingerprint(&Secret::random()).to_string();
    let password = env::var("ADMIN_PASSWORD").unwrap_or_else(|_| random());

    let store = LocalStore::new();
    let mut admin = Admin::new();
    let ip = Rule::new("ip", PeerIp::new(), Quota::per_second(5).burst(20));
    let site = admin.watch("site", RateLimitLayer::rules(ip, store.clone()));
    let user = Rule::new("user", Header::new("x-api-key"), Quota::per_hour(3));
    let api = admin.watch("api", RateLimitLayer::rules(user, store));

    let app = Router::new()
        .route("/api", get(async || "served\n").layer(api))
        .route("/", get(async || "hello\n"))
        .layer(site)
        // behind no layer that it watches, so that none can shut its operators out
        .nest("/admin", admin.router(basic(&password)));

    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    let here = listener.local_addr()?;
    let ask = format!("curl -u admin:{password} http://{here}/admin/api");
    let tell = "-H 'content-type: application/json' -d";
    println!(
        "listening on http://{here}; the page is http://{here}/admin (admin, {password}); try:"
    );
    println!("for n in 1 2 3 4; do curl -i -H 'x-api-key: alice' http://{here}/api; done");
    println!("{ask}/layers\n{ask}/refusals\n{ask}/health");
    let account = r#""layer": "api", "rule": "user", "key": "alice""#;
    println!("{ask}/peek {tell} '{{{account}}}'");
    println!("{ask}/reset {tell} '{{{account}}}'");
    println!("{ask}/block {tell} '{{{account}, \"for\": \"10min\"}}'");
    println!("{ask}/switch {tell} '{{\"layer\": \"api\", \"on\": false}}'");
    let ended = async { drop(tokio::signal::ctrl_c().await) };
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).with_graceful_shutdown(ended).await?)
}
