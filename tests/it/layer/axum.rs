//! A real axum server over TCP, limited by address.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer};

use crate::support::{header, store};

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    address
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
    let quota: Quota = "1/2s burst 5".parse().expect("a quota");
    let layer = RateLimitLayer::new(PeerIp::new(), quota, LocalStore::new());
    let address = serve(Router::new().route("/", get(async || "served")).layer(layer)).await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let ask = async || {
        let request = Request::get(format!("http://{address}/")).body(Body::empty());
        client.request(request.expect("a request")).await.expect("an answer")
    };
    let (start, mut admitted) = (Instant::now(), Vec::new());
    let denied = loop {
        let answer = ask().await;
        if answer.status() != StatusCode::OK {
            break answer;
        }
        admitted.push(header(answer.headers(), "ratelimit").to_owned());
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "served");
    };
    assert!(admitted[0].starts_with("\"default\";r=4;t="), "{admitted:?}");
    // one unit refills every two seconds, even if the machine is slow
    let back = usize::try_from(start.elapsed().as_secs() / 2).expect("few");
    assert!((5..=5 + back).contains(&admitted.len()), "{admitted:?}");
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait = header(denied.headers(), "retry-after").parse().expect("seconds");
    assert!((1..=2).contains(&wait), "{wait}");
    sleep(Duration::from_secs(wait)).await;
    assert_eq!(ask().await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_denied_client_gets_what_the_readme_shows() {
    let quota = Quota::per_second(5).with_burst(10);
    let layer = RateLimitLayer::new(PeerIp::new(), quota, store());
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
