//! A real axum server over TCP, limited by address.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use http::{HeaderMap, Method, Request, StatusCode, Version};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tower::{ServiceBuilder, ServiceExt, limit::GlobalConcurrencyLimitLayer};
use tower_sluice::{
    Headers, LocalStore, PeerIp, Quota, RateLimitLayer, key::Everyone, testing::FakeClock,
};

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
}

/// Starts a server whose `/` has this quota for each address, and whose `/free` has no limit.
async fn limited(quota: &str, store: LocalStore) -> SocketAddr {
    let quota: Quota = quota.parse().expect("a quota");
    let app = Router::new()
        .route("/", get(async || "served").post(async |body: String| body))
        .layer(RateLimitLayer::new(PeerIp::new(), quota, store))
        .route("/free", get(async || "free"));
    serve(app).await
}

/// A clock that stands still.
fn still() -> LocalStore {
    FakeClock::new().store(64)
}

struct Http(Client<HttpConnector, Body>);

impl Http {
    fn new(version: Version) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        Self(builder.http2_only(version == Version::HTTP_2).build_http())
    }

    async fn ask(&self, method: Method, address: SocketAddr, path: &str) -> Answer {
        let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        let request = request.body(Body::empty()).expect("a request");
        let (head, body) = self.0.request(request).await.expect("an answer").into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let body = String::from_utf8(body.into()).expect("text");
        Answer { status: head.status, version: head.version, headers: head.headers, body }
    }

    async fn get(&self, address: SocketAddr, path: &str) -> Answer {
        self.ask(Method::GET, address, path).await
    }
}

struct Answer {
    status: StatusCode,
    version: Version,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }
}

/// Sends `request` on a new connection and returns everything until the server closes it.
async fn raw(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    timeout(Duration::from_secs(10), read).await.expect("an end").expect("read");
    String::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn the_burst_is_exact_and_a_retry_after_the_reported_wait_passes() {
    let (address, http) =
        (limited("1/2s burst 5", LocalStore::new()).await, Http::new(Version::HTTP_11));
    let (start, mut admitted) = (Instant::now(), Vec::new());
    let denied = loop {
        let answer = http.get(address, "/").await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        assert_eq!(answer.body, "served");
        admitted.push(answer.header("ratelimit").to_owned());
    };
    assert!(admitted[0].starts_with("\"default\";r=4;t="), "{admitted:?}");
    // one unit refills every two seconds, even if the machine is slow
    let back = usize::try_from(start.elapsed().as_secs() / 2).expect("few");
    assert!((5..=5 + back).contains(&admitted.len()), "{admitted:?}");
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    let wait = denied.header("retry-after").parse().expect("seconds");
    assert!((1..=2).contains(&wait), "{wait}");
    sleep(Duration::from_secs(wait)).await;
    assert_eq!(http.get(address, "/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn many_connections_of_one_address_share_its_burst() {
    let address = limited("10/h", still()).await;
    let ask = |_| tokio::spawn(async move { Http::new(Version::HTTP_11).get(address, "/").await });
    let answers = futures::future::join_all((0..40).map(ask)).await;
    let statuses: Vec<_> =
        answers.into_iter().map(|answer| answer.expect("joined").status).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)), (10, 30));
}

#[tokio::test]
async fn a_route_outside_the_layer_is_not_limited() {
    let (address, http) = (limited("1/h", still()).await, Http::new(Version::HTTP_11));
    for _ in 0..20 {
        let free = http.get(address, "/free").await;
        assert_eq!((free.status, free.header("ratelimit")), (StatusCode::OK, ""));
    }
    assert_eq!(http.get(address, "/").await.status, StatusCode::OK);
    assert_eq!(http.get(address, "/").await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn http_1_and_2_share_an_account() {
    let address = limited("2/h", still()).await;
    for version in [Version::HTTP_2, Version::HTTP_11] {
        let admitted = Http::new(version).get(address, "/").await;
        assert_eq!((admitted.status, admitted.version), (StatusCode::OK, version));
    }
    for version in [Version::HTTP_2, Version::HTTP_11] {
        let denied = Http::new(version).get(address, "/").await;
        assert_eq!((denied.status, denied.version), (StatusCode::TOO_MANY_REQUESTS, version));
        assert_eq!(denied.header("retry-after"), "1800");
        assert_eq!(denied.header("content-length"), denied.body.len().to_string());
        assert_eq!(denied.body, "Quota exhausted; retry in 1800 s.\n");
    }
}

#[tokio::test]
async fn a_rejected_head_has_the_length_of_get_and_no_body() {
    let (address, http) = (limited("1/h", still()).await, Http::new(Version::HTTP_11));
    assert_eq!(http.get(address, "/").await.status, StatusCode::OK);
    let get = http.get(address, "/").await;
    for version in [Version::HTTP_2, Version::HTTP_11] {
        let head = Http::new(version).ask(Method::HEAD, address, "/").await;
        assert_eq!((head.status, head.body.as_str()), (StatusCode::TOO_MANY_REQUESTS, ""));
        assert_eq!(head.header("content-length"), get.body.len().to_string());
    }
    let head = raw(address, "HEAD / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n") && head.matches("\r\n\r\n").count() == 1, "{head}");
    let old = raw(address, "GET / HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 429 Too Many Requests\r\n"), "{old}");
    assert!(old.ends_with(&get.body), "{old}");
}

#[tokio::test]
async fn a_rejection_does_not_wait_for_the_body() {
    let (address, http) = (limited("1/h", still()).await, Http::new(Version::HTTP_11));
    assert_eq!(http.get(address, "/").await.status, StatusCode::OK);
    // none of the announced megabyte is sent
    let head = "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\n";
    assert!(raw(address, head).await.starts_with("HTTP/1.1 429 Too Many Requests\r\n"));
}

#[tokio::test]
async fn problem_json_and_legacy_fields_go_over_the_wire() {
    let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_hour(1), still());
    let layer = layer.headers(Headers::XRateLimitDelta);
    let address = serve(Router::new().route("/", get(async || "served")).layer(layer)).await;
    assert_eq!(
        Http::new(Version::HTTP_11).get(address, "/").await.header("x-ratelimit-limit"),
        "1"
    );
    let accept =
        "GET / HTTP/1.1\r\nhost: x\r\naccept: application/json\r\nconnection: close\r\n\r\n";
    let answer = raw(address, accept).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    for line in [
        "content-type: application/problem+json",
        "cache-control: no-store",
        "x-ratelimit-remaining: 0",
        "retry-after: 3600",
        &format!("content-length: {}", body.len()),
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
    let json: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!((&json["status"], &json["violated-policies"][0]), (&429.into(), &"default".into()));
}

#[tokio::test]
async fn a_denied_client_gets_what_the_readme_shows() {
    let quota = Quota::per_second(5).with_burst(10);
    let layer = RateLimitLayer::new(PeerIp::new(), quota, still());
    let app = Router::new().route("/", get(async || "hello\n")).layer(layer);
    let address = serve(app).await;
    let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    for _ in 0..10 {
        assert!(raw(address, request).await.starts_with("HTTP/1.1 200 OK"));
    }
    let readme = include_str!("../../../README.md");
    let shown = readme.split("```text\n").find(|block| block.starts_with("HTTP/1.1 429"));
    let shown =
        shown.and_then(|block| block.split("```").next()).expect("a response in the README");
    let lines = |response: &str| {
        let is_fixed = |line: &&str| !line.starts_with("date: ") && *line != "connection: close";
        let lines = response.lines().filter(is_fixed).map(str::to_owned);
        lines.collect::<BTreeSet<_>>()
    };
    let denied = raw(address, request).await;
    assert_eq!(lines(&denied), lines(shown));
    assert!(shown.ends_with("s.\n") && denied.ends_with("s.\n"), "the body ends its line");
}

/// axum polls the readiness of each added layer within the call. The layers of one `ServiceBuilder`
/// are polled at once.
#[tokio::test(start_paused = true)]
async fn a_denial_does_not_wait_for_inner_layers_that_are_added_one_by_one() {
    const BUSY: Duration = Duration::from_millis(153);

    async fn denial(add: impl Fn(Router) -> Router) -> Duration {
        let app = add(Router::new().route("/", get(|| sleep(BUSY))));
        let ask = async || {
            let response = app.clone().oneshot(Request::new(Body::empty())).await;
            response.expect("an answer").status()
        };
        let start = tokio::time::Instant::now();
        let denying = async { (ask().await, start.elapsed()) };
        let (served, (denied, waited)) = tokio::join!(ask(), denying);
        assert_eq!((served, denied), (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS));
        waited
    }
    let limit = || RateLimitLayer::new(Everyone, Quota::per_hour(1), LocalStore::new());
    let one = || GlobalConcurrencyLimitLayer::new(1);
    assert_eq!(denial(|app| app.layer(one()).layer(limit())).await, Duration::ZERO);
    let together = || ServiceBuilder::new().layer(limit()).layer(one());
    assert_eq!(denial(|app| app.layer(together())).await, BUSY);
}
