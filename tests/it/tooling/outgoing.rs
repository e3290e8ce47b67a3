//! The layer for clients of the example `outgoing`, against the layer for servers.

#[path = "../../../examples/outgoing/client.rs"]
mod client;
#[path = "../../../examples/outgoing/throttle.rs"]
mod throttle;

use std::{
    convert::Infallible,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderMap, Request, Response, StatusCode, header::HeaderName};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};

use self::{
    client::{NotSent, Obey, obey},
    throttle::Throttle,
};

type Client = BoxCloneService<Request<String>, Response<String>, Infallible>;

const PATIENCE: Duration = Duration::from_secs(60);
fn request(host: &str) -> Request<String> {
    Request::get(format!("http://{host}/")).body(String::new()).expect("a request")
}

/// A host with the same answer to every request.
#[derive(Clone, Default)]
struct Host {
    status: StatusCode,
    fields: HeaderMap,
    requests: Arc<AtomicU32>,
}

impl Host {
    fn new(status: StatusCode, fields: &[(HeaderName, String)]) -> Self {
        let value = |text: &String| text.parse().expect("a value");
        let fields = fields.iter().map(|(name, text)| (name.clone(), value(text))).collect();
        Self { status, fields, requests: Arc::default() }
    }

    fn client(&self) -> Client {
        let host = self.clone();
        Client::new(service_fn(move |_| {
            host.requests.fetch_add(1, Relaxed);
            let mut response = Response::new(String::new());
            *response.status_mut() = host.status;
            response.headers_mut().clone_from(&host.fields);
            ready(Ok(response))
        }))
    }
}

async fn call(client: &Obey<Client>) -> Result<StatusCode, Option<NotSent>> {
    match client.clone().oneshot(request("api.example")).await {
        Ok(response) => Ok(response.status()),
        Err(error) => Err(error.downcast().ok().map(|error| *error)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_rejects_all_calls_soon_gets_few() {
    let host = Host::new(StatusCode::SERVICE_UNAVAILABLE, &[]);
    let client = obey(PATIENCE).layer(host.client());
    for _ in 0..1_000 {
        let called = call(&client).await;
        let expected = [Ok(StatusCode::SERVICE_UNAVAILABLE), Err(Some(NotSent::Shed))];
        assert!(expected.contains(&called), "{called:?}");
    }
    // On average 7.5: one of n, after n - 1 calls.
    let sent = host.requests.load(Relaxed);
    assert!((1..=40).contains(&sent), "{sent}");
    tokio::time::advance(Duration::from_secs(120)).await;
    assert_eq!(call(&client).await, Ok(StatusCode::SERVICE_UNAVAILABLE), "forgotten");
}

#[tokio::test(start_paused = true)]
async fn the_throttle_follows_the_formula_over_two_minutes() {
    let mut throttle = Throttle::default();
    assert_eq!(throttle.probability(Instant::now()), 0.0);
    for accepted in [false, true, false, false, false] {
        throttle.record(Instant::now(), accepted);
    }
    assert_eq!(throttle.probability(Instant::now()), 0.5, "(5 - 2) / 6");
    tokio::time::advance(Duration::from_secs(60)).await;
    for accepted in [true, true, false] {
        throttle.record(Instant::now(), accepted);
    }
    assert_eq!(throttle.probability(Instant::now()), 2.0 / 9.0, "(8 - 6) / 9");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(throttle.probability(Instant::now()), 0.0, "the last three");
    throttle.record(Instant::now(), false);
    throttle.record(Instant::now(), false);
    assert_eq!(throttle.probability(Instant::now()), 1.0 / 6.0, "(5 - 4) / 6");
}
