//! Custom keys.
//!
//! `cargo run -p dev --example own_key`
#![allow(clippy::print_stdout)]

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{
    Key, KeyExtractor, LocalStore, Quota, RateLimitLayer, RequestHead, Rule, key::KeyError, key_fn,
};

/// Takes the tenant from the first label of the host name.
#[derive(Clone, Debug)]
struct Tenant;

impl KeyExtractor for Tenant {
    fn extract(&self, head: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        // HTTP/2 has the host in the URI, which counts before the header (RFC 9112, section 3.2.2).
        let header = head.headers.get("host").and_then(|host| host.to_str().ok());
        let host = head.uri().authority().map(|it| it.as_str()).or(header);
        let host = host.ok_or_else(|| KeyError::missing("host"))?;
        // All spellings that the server accepts for one tenant have to be one key.
        Ok(host.split(['.', ':']).next().map(str::to_ascii_lowercase).map(Key::from))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A type suits shared extractors; a closure suits local ones.
    let language = key_fn(|head| head.headers.get("accept-language").cloned());
    let rules = (
        Rule::new("tenant", Tenant, Quota::per_minute(3)),
        Rule::new("language", language, Quota::per_minute(5)),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::new());
    let app = Router::new().route("/", get(|| async {})).layer(layer);

    for host in ["red.example", "Red.example:443", "blue.example", "red.example", "red.example"] {
        let request = Request::get("/").header("host", host).header("accept-language", "en");
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        println!("{host}: {}", response.status());
    }
    let nobody = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    println!("no host: {}", nobody.status());
    Ok(())
}
