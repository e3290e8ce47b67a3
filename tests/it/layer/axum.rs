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
use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, testing::FakeClock};

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
        Answer { status: head.status, headers: head.headers, body }
    }

    async fn get(&self, address: SocketAddr, path: &str) -> Answer {
        self.ask(Method::GET, address, path).await
    }
}

struct Answer {
    status: StatusCode,
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
