//! gRPC and plain HTTP on one port, charged to one account.

use std::net::SocketAddr;

use axum::{Router, body::Body, routing::get};
use http::Method;
use tonic::{Code, Request, Status, service::Routes, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;
use tower::ServiceExt as _;
use tower_sluice::{
    LocalStore, PeerIp, Quota, RateLimitLayer, Rule, by_route, key::HeaderKey, rule::OnMissingKey,
};

use crate::support::{
    echo::{channel, incoming},
    programs::{ANY_PORT, Answer, Server, example},
};

/// A client of both protocols. The metadata of a call are header fields.
struct Client {
    address: SocketAddr,
    rpc: HealthClient<Channel>,
}

impl Client {
    async fn of(address: SocketAddr) -> Self {
        Self { address, rpc: HealthClient::new(channel(address).await) }
    }

    async fn http(&self, key: &'static str) -> Answer {
        let address = self.address;
        let more = if key.is_empty() { String::new() } else { format!("x-api-key: {key}\r\n") };
        let asking = move || {
            let stream = std::net::TcpStream::connect(address).expect("connects");
            crate::support::programs::ask(stream, "/", &more)
        };
        tokio::task::spawn_blocking(asking).await.expect("an answer")
    }

    async fn rpc(&mut self, key: &'static str) -> Result<(), Status> {
        let mut request = Request::new(HealthCheckRequest { service: String::new() });
        if !key.is_empty() {
            request.metadata_mut().insert("x-api-key", key.parse().expect("text"));
        }
        self.rpc.check(request).await.map(drop)
    }

    async fn assert_denied(&mut self, key: &'static str, quota: &str) {
        let status = self.rpc(key).await.expect_err("denied");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let failure = status.get_details_quota_failure().expect("QuotaFailure");
        assert_eq!(failure.violations[0].subject, format!("policy:{quota}"));
        let reported = status.get_details_retry_info().and_then(|info| info.retry_delay);
        let answer = self.http(key).await;
        assert_eq!(answer.status, 429, "{answer:?}");
        let wait: u64 = answer.header("retry-after").expect("a wait").parse().expect("seconds");
        assert_eq!(answer.body, format!("Quota exhausted; retry in {wait} s.\n"));
        // the plain request was sent later
        assert!(wait <= reported.expect("a delay").as_secs() + 1, "{wait} s after {reported:?}");
    }
}

/// Checks that a key has 3 calls and a peer has 10, as in the example.
async fn one_account_is_charged_by_both(address: SocketAddr) {
    let mut client = Client::of(address).await;
    for _ in 0..3 {
        assert_eq!(client.http("alice").await.status, 200);
    }
    client.assert_denied("alice", "key").await;
    for _ in 0..3 {
        client.rpc("bob").await.expect("admitted");
    }
    client.assert_denied("bob", "key").await;
    // denied requests are not charged, so the peer has four left
    for _ in 0..2 {
        assert_eq!(client.http("").await.status, 200);
        client.rpc("").await.expect("admitted");
    }
    client.assert_denied("", "peer").await;
    client.assert_denied("carol", "peer").await;
    another_peer_is_admitted(address).await;
}

/// Uses a second loopback address: Linux assigns all of 127.0.0.0/8 to the loopback interface.
async fn another_peer_is_admitted(address: SocketAddr) {
    if cfg!(target_os = "linux") {
        let other = Channel::from_shared(format!("http://{address}")).expect("a uri");
        let other = other.local_address(Some([127, 0, 0, 2].into()));
        let channel = other.connect().await.expect("a connection");
        let mut client = Client { address, rpc: HealthClient::new(channel) };
        client.rpc("").await.expect("admitted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_serves_tonic_inside_axum() {
    let mut command = example("grpc");
    command.env("ADDR", ANY_PORT);
    let server = Server::start(command);
    for part in ["curl -i", "--http2-prior-knowledge"] {
        assert!(server.line_with(part).contains(&format!("http://{}/", server.address)));
    }
    one_account_is_charged_by_both(server.address).await;
}

/// This server passes the peer address on without axum.
#[tokio::test(flavor = "multi_thread")]
async fn a_tonic_server_limits_plain_routes_too() {
    let key = Rule::new("key", HeaderKey::new("x-api-key"), Quota::per_hour(3))
        .on_missing_key(OnMissingKey::Skip);
    let rules = (Rule::new("peer", PeerIp::new(), Quota::per_hour(10)), key);
    let (_reporter, health) = tonic_health::server::health_reporter();
    let router = Router::new().route("/", get(async || "hello"));
    let routes = Routes::from(router).add_service(health);
    let (incoming, address) = incoming();
    let server = tonic::transport::Server::builder()
        .accept_http1(true)
        .layer(RateLimitLayer::rules(rules, LocalStore::with_capacity(64)))
        .add_routes(routes)
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    one_account_is_charged_by_both(address).await;
}

/// tonic ignores the method, so a GET also runs the handler.
#[tokio::test]
async fn a_call_is_charged_for_any_method() {
    let (_reporter, health) = tonic_health::server::health_reporter();
    for template in ["/grpc.health.v1.Health/{*rest}", "/grpc.health.v1.Health/Check"] {
        let rules =
            by_route([(Method::POST, template, Quota::per_hour(3))], Quota::per_hour(1_000));
        let layer = RateLimitLayer::rules(rules, LocalStore::with_capacity(64));
        let app = Routes::new(health.clone()).into_axum_router().layer(layer);
        let mut served = 0;
        for method in ["POST", "GET", "HEAD", "PUT", "OPTIONS", "PURGE"].repeat(5) {
            let request = http::Request::builder().method(method).version(http::Version::HTTP_2);
            let request = request.uri("/grpc.health.v1.Health/Check");
            let request = request.header("content-type", "application/grpc");
            let request = request.body(Body::from(vec![0; 5])).expect("a request");
            let response = app.clone().oneshot(request).await.expect("infallible");
            // the handler's status is in the trailers
            let denied = response.headers().contains_key("grpc-status");
            served += usize::from(response.status() == 200 && !denied);
        }
        assert_eq!(served, 3, "{template}");
    }
}
