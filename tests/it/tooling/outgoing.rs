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
    time::{Duration, SystemTime},
};

use axum::{Router, routing::get};
use http::{
    HeaderMap, Request, Response, StatusCode,
    header::{HeaderName, RETRY_AFTER},
};
use hyper_util::{client::legacy, rt::TokioExecutor};
use tokio::{net::TcpListener, task::JoinSet, time::Instant};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};
use tower_sluice::{
    Headers, LocalStore, Quota, RateLimitLayer,
    key::Everyone,
    middleware::{DecisionEvent, RetryAfter},
    testing::FakeClock,
};

use self::{
    client::{NotSent, Obey, obey},
    throttle::Throttle,
};

type Client = BoxCloneService<Request<String>, Response<String>, Infallible>;

const PATIENCE: Duration = Duration::from_secs(60);
const CLIENTS: u32 = 200;
/// A request for each client, and a denial for each that the burst does not serve.
const IDEAL: u32 = CLIENTS + (CLIENTS - 10);

fn request(host: &str) -> Request<String> {
    Request::get(format!("http://{host}/")).body(String::new()).expect("a request")
}

/// A server with ten requests per second for everyone, whose clock is that of Tokio.
#[derive(Clone)]
struct Server {
    layer: RateLimitLayer<tower_sluice::Rule<Everyone>, LocalStore>,
    clock: FakeClock,
    start: Instant,
    requests: Arc<AtomicU32>,
}

impl Server {
    fn new(headers: Headers, retry_after: RetryAfter) -> Self {
        let clock = FakeClock::new();
        let layer = RateLimitLayer::new(Everyone, Quota::per_second(10), clock.store(64));
        let layer = layer.headers(headers).retry_after(retry_after);
        Self { layer, clock, start: Instant::now(), requests: Arc::default() }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let handler = service_fn(async |_: Request<String>| {
            Ok::<_, Infallible>(Response::new("hello".to_owned()))
        });
        let limited = self.layer.layer(handler);
        Client::new(service_fn(move |request| {
            server.requests.fetch_add(1, Relaxed);
            let now = server.start.elapsed();
            server.clock.advance(now.saturating_sub(server.clock.now()));
            limited.clone().oneshot(request)
        }))
    }

    fn requests(&self) -> u32 {
        self.requests.load(Relaxed)
    }
}

/// Calls the host once by each client, at the same moment. Every call is accepted.
async fn call_all(clients: impl Iterator<Item = Obey<Client>>) {
    let calls: JoinSet<_> = clients.map(|client| client.oneshot(request("api.example"))).collect();
    for called in calls.join_all().await {
        assert_eq!(called.expect("sent").status(), StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_processes_need_the_ideal_number_of_requests() {
    let server = Server::new(Headers::RateLimit, RetryAfter::Queue);
    call_all((0..CLIENTS).map(|_| obey(PATIENCE).layer(server.client()))).await;
    assert_eq!(server.requests(), IDEAL);
    assert_eq!(server.start.elapsed().as_secs(), 19);
}

#[tokio::test(start_paused = true)]
async fn two_hundred_calls_of_one_process_need_the_ideal_number_without_a_queue_of_the_server() {
    let server = Server::new(Headers::RateLimit, RetryAfter::Earliest);
    let one = obey(PATIENCE).layer(server.client());
    call_all((0..CLIENTS).map(|_| one.clone())).await;
    assert!(server.requests() * 10 <= IDEAL * 12, "{}", server.requests());
    assert!(server.start.elapsed() <= Duration::from_secs(21), "{:?}", server.start.elapsed());
}

/// The server gives all clients the same wait, which grows at random.
#[tokio::test(start_paused = true)]
async fn processes_with_the_same_wait_spread_by_themselves() {
    let server = Server::new(Headers::None, RetryAfter::Earliest);
    call_all((0..CLIENTS).map(|_| obey(PATIENCE).layer(server.client()))).await;
    // Without jitter, these are 2,100.
    assert!(server.requests() < 1_400, "{}", server.requests());
}

/// Over real connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_need_at_most_a_fifth_more_requests_than_the_ideal() {
    let requests = Arc::new(AtomicU32::new(0));
    let layer = RateLimitLayer::new(Everyone, Quota::per_second(100), LocalStore::new());
    let counted = requests.clone();
    let layer = layer.retry_after(RetryAfter::Queue).on_decision(move |_: &DecisionEvent<'_>| {
        counted.fetch_add(1, Relaxed);
    });
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let serving = tokio::spawn(axum::serve(listener, app).into_future());
    let mut calls = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = legacy::Client::builder(TokioExecutor::new()).build_http::<String>();
        calls.spawn(obey(PATIENCE).layer(client).oneshot(request(&address)));
    }
    for called in calls.join_all().await {
        assert_eq!(called.expect("sent").status(), StatusCode::OK);
    }
    serving.abort();
    let ideal = CLIENTS + (CLIENTS - 100);
    let requests = requests.load(Relaxed);
    assert!(requests * 10 <= ideal * 12, "{requests}");
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
async fn a_call_whose_turn_is_after_its_patience_is_not_sent() {
    let limit = HeaderName::from_static("ratelimit");
    let host = Host::new(StatusCode::OK, &[(limit, "\"day\";r=0;t=61".to_owned())]);
    let client = obey(PATIENCE).layer(host.client());
    assert_eq!(call(&client).await, Ok(StatusCode::OK));
    let early = NotSent::TooEarly(Duration::from_secs(61));
    assert_eq!(call(&client).await, Err(Some(early)));
    tokio::time::advance(Duration::from_secs(1)).await;
    let start = Instant::now();
    assert_eq!(call(&client).await, Ok(StatusCode::OK));
    assert_eq!(start.elapsed(), PATIENCE);
    assert_eq!(host.requests.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_denial_whose_time_is_after_the_patience_is_returned() {
    for wait in ["61".to_owned(), httpdate::fmt_http_date(SystemTime::now() + PATIENCE * 2)] {
        let host = Host::new(StatusCode::TOO_MANY_REQUESTS, &[(RETRY_AFTER, wait)]);
        let client = obey(PATIENCE).layer(host.client());
        assert_eq!(call(&client).await, Ok(StatusCode::TOO_MANY_REQUESTS));
        assert_eq!(host.requests.load(Relaxed), 1);
    }
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
