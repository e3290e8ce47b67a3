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
        let host = head.headers.get("host").ok_or_else(|| KeyError::missing("host"))?;
        let host = host.to_str().map_err(|_| KeyError::missing("readable host"))?;
        // every spelling that the server takes for one tenant has to be one key
        Ok(host.split('.').next().map(str::to_ascii_lowercase).map(Key::from))
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

    for host in ["red.example", "Red.example", "blue.example", "red.example", "red.example"] {
        let request = Request::get("/").header("host", host).header("accept-language", "en");
        let response = app.clone().oneshot(request.body(Body::empty())?).await?;
        println!("{host}: {}", response.status());
    }
    let nobody = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    println!("no host: {}", nobody.status());
    Ok(())
}
