//! Keeps outgoing calls under an upstream's limit.
//!
//! `cargo run -p dev --example outgoing`
#![allow(clippy::print_stdout)]

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use http::{Request, Response};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Stands in for an HTTP client; hyper-util's is also a service.
    let client = service_fn(|request: Request<String>| async move {
        Ok::<_, Infallible>(Response::new(format!("{} answers", request.uri())))
    });
    // Each host gets five calls per second, evenly spaced. A call waits up to ten seconds.
    let host = key_fn(|head| head.uri().host().map(str::to_owned));
    let rule = Rule::new("upstream", host, Quota::per_second(5).with_burst(1))
        .max_wait(Duration::from_secs(10));
    let layer = RateLimitLayer::rules(rule, LocalStore::new());
    let mut limited = ServiceBuilder::new().layer(layer).service(client);

    let start = Instant::now();
    for host in ["a.example", "a.example", "b.example", "a.example", "b.example"] {
        let request = Request::get(format!("http://{host}/")).body(String::new())?;
        let response = limited.ready().await?.call(request).await?;
        println!("{:>4} ms: {}", start.elapsed().as_millis(), response.body());
    }
    Ok(())
}
