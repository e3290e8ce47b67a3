//! An admin page that shows limits and changes them at run time.
//!
//! Run `cargo run -p dev --features admin --example admin`, then the commands that it prints, or
//! open the page in a browser. `ADMIN_PASSWORD` sets the password, which is random by default;
//! `ADDR` sets the address.
#![allow(clippy::print_stdout)]

use std::{env, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::Response,
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_sluice::{
    Headers, Key, LocalStore, PeerIp, Quota, RateLimitLayer, RequestHead, Rule,
    admin::Admin,
    fingerprint::FingerprintKey,
    key::HeaderKey,
    middleware::{Adjustment, ChargeHandle},
    rule::Applies,
};

/// HTTP Basic authentication of one operator. The password is sent with every request: serve it
/// over TLS.
async fn basic(
    State(wanted): State<Arc<str>>,
    request: Request,
    next: Next,
) -> Result<Response, (StatusCode, [(HeaderName, &'static str); 1])> {
    let sent = request.headers().get(header::AUTHORIZATION);
    let sent = sent.map_or(&b""[..], |sent| sent.as_bytes());
    // A comparison that ends at the first difference would leak the correct prefix.
    if !bool::from(sent.ct_eq(wanted.as_bytes())) {
        let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"admin\"")];
        return Err((StatusCode::UNAUTHORIZED, ask));
    }
    // Refund now: the page sends many requests at once, and some answers take time.
    if let Some(guess) = request.extensions().get::<ChargeHandle>() {
        guess.adjust_to(0);
    }
    Ok(next.run(request).await)
}

/// A limit of wrong guesses: each address has five per minute.
///
/// The address is the key of the rule, so that guesses from elsewhere lock no operator out. For the
/// same reason no limit covers all addresses together, so the password must be long. Behind a
/// proxy, use `ClientIp::behind` as the extractor.
fn guesses() -> RateLimitLayer<Rule<PeerIp>, LocalStore> {
    // Browsers first send a request without a password, which is not a guess.
    let guesses = Rule::new("password", PeerIp::new(), Quota::per_minute(5)).applies(
        |head: &RequestHead<'_>| match head.headers.contains_key(header::AUTHORIZATION) {
            true => Applies::Charge,
            false => Applies::Skip,
        },
    );
    // A guess is charged before it is checked, so at most five concurrent guesses are possible.
    RateLimitLayer::rules(guesses, LocalStore::new())
        .headers(Headers::RateLimit.only_when_denied())
        .expose_charge(Adjustment::Keep)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let random = || Key::from("password").fingerprint(&FingerprintKey::random()).to_string();
    let password = env::var("ADMIN_PASSWORD").unwrap_or_else(|_| random());

    let wanted: Arc<str> = format!("Basic {}", STANDARD.encode(format!("admin:{password}"))).into();
    let guard = ServiceBuilder::new().layer(guesses()).layer(from_fn_with_state(wanted, basic));

    let store = LocalStore::new();
    let mut admin = Admin::new();
    let ip = Rule::new("ip", PeerIp::new(), Quota::per_second(5).with_burst(20));
    let site = admin.watch("site", RateLimitLayer::rules(ip, store.clone()));
    let user = Rule::new("user", HeaderKey::new("x-api-key"), Quota::per_hour(3));
    let api = admin.watch("api", RateLimitLayer::rules(user, store));

    let app = Router::new()
        .route("/api", get(async || "served\n").layer(api))
        .route("/", get(async || "hello\n"))
        .layer(site)
        // The admin page has no layer in front that it controls, so that no limit locks out its
        // operators.
        .nest("/admin", admin.router(guard));

    let address = env::var("ADDR").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    let here = listener.local_addr()?;
    let ask = format!("curl -u admin:{password} http://{here}/admin/api");
    let tell = "-H 'content-type: application/json' -d";
    println!(
        "listening on http://{here}; the page is http://{here}/admin (admin, {password}); try:"
    );
    println!("for n in 1 2 3 4; do curl -i -H 'x-api-key: alice' http://{here}/api; done");
    println!("{ask}/layers\n{ask}/health");
    let account = r#""layer": "api", "rule": "user", "key": "alice""#;
    println!("{ask}/peek {tell} '{{{account}}}'");
    println!("{ask}/reset {tell} '{{{account}}}'");
    println!("{ask}/block {tell} '{{{account}, \"for\": \"10min\"}}'");
    println!("{ask}/switch {tell} '{{\"layer\": \"api\", \"on\": false}}'");
    let ended = async { drop(tokio::signal::ctrl_c().await) };
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).with_graceful_shutdown(ended).await?)
}
