//! Keeps outgoing calls under an upstream's limit, and obeys what the upstream says.
//!
//! `cargo run -p dev --example outgoing`
#![allow(clippy::print_stdout)]

mod client;
mod throttle;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use http::{Request, Response, StatusCode};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key_fn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Stands in for an HTTP client; hyper-util's is also a service.
    let sent = Arc::new(AtomicU32::new(0));
    let counted = sent.clone();
    let client = service_fn(move |request: Request<String>| {
        counted.fetch_add(1, Relaxed);
        async move { Ok::<_, Infallible>(answer(&request)) }
    });
    // Each host gets five calls per second, evenly spaced. A call waits up to ten seconds.
    let host = key_fn(|head| head.uri().host().map(str::to_owned));
    let rule = Rule::new("upstream", host, Quota::per_second(5).with_burst(1))
        .max_wait(Duration::from_secs(10));
    let own_limit = RateLimitLayer::rules(rule, LocalStore::new());
    let obey = client::obey(Duration::from_secs(10));
    let mut limited =
        ServiceBuilder::new().layer(own_limit).layer(obey.clone()).service(client.clone());

    let start = Instant::now();
    for host in ["a.example", "a.example", "b.example", "a.example", "b.example"] {
        let request = Request::get(format!("http://{host}/")).body(String::new())?;
        let response = limited.ready().await?.call(request).await?;
        println!("{:>4} ms: {}", start.elapsed().as_millis(), response.body());
    }

    // A host that rejects all calls soon gets few.
    sent.store(0, Relaxed);
    let mut obeying = ServiceBuilder::new().layer(obey).service(client);
    for _ in 0..1_000 {
        let request = Request::get("http://down.example/").body(String::new())?;
        drop(obeying.ready().await?.call(request).await);
    }
    println!("down.example got {} of 1000 calls", sent.load(Relaxed));
    Ok(())
}

/// The hosts of this example.
fn answer(request: &Request<String>) -> Response<String> {
    let mut response = Response::new(format!("{} answers", request.uri()));
    if request.uri().host() == Some("down.example") {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}
