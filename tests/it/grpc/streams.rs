//! gRPC streams, which are charged once when they open and rejected immediately.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, channel::mpsc, stream};
use tokio::time::timeout;
use tonic::{Code, Status, transport::Server};
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_client::HealthClient},
};
use tonic_types::StatusExt;
use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, key::Everyone, testing::FakeClock,
};

use crate::support::echo::{Echo, channel, connect, echo, gather, incoming};

/// Much longer than the tests take, and much shorter than a client that hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const HOURLY: Quota = Quota::per_hour(2);

fn layer(store: &LocalStore) -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    RateLimitLayer::rules(Rule::new("calls", Everyone, HOURLY), store.clone())
}

fn left(store: &LocalStore) -> u32 {
    let limiter = Limiter::named("calls", store.clone());
    limiter.peek(Key::everyone(), &HOURLY).now().outcomes()[0].remaining()
}

fn assert_rejected(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let retry = status.get_details_retry_info().expect("RetryInfo").retry_delay;
    assert_eq!(retry, Some(Duration::from_secs(1_800)));
    let failure = status.get_details_quota_failure().expect("QuotaFailure");
    assert_eq!(failure.violations[0].subject, "policy:calls");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").expect("pushback"), "1800000");
}

#[tokio::test]
async fn a_server_stream_is_charged_once_and_rejected_like_a_call() {
    let (incoming, address) = incoming();
    let (reporter, health) = tonic_health::server::health_reporter();
    let store = FakeClock::new().store(16);
    let server = Server::builder().layer(layer(&store)).add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut client = HealthClient::new(channel(address).await);
    let asked = || HealthCheckRequest { service: String::new() };

    let mut watch = client.watch(asked()).await.expect("admitted").into_inner();
    for status in [ServingStatus::NotServing, ServingStatus::Serving].into_iter().cycle().take(20) {
        watch.message().await.expect("the stream continues").expect("a message");
        reporter.set_service_status("", status).await;
    }
    assert_eq!(left(&store), 1, "one for the stream, none for its messages");

    client.check(asked()).await.expect("admitted");
    let denied = timeout(PATIENCE, client.watch(asked())).await.expect("at once");
    assert_rejected(&denied.expect_err("denied"));
    assert_rejected(&client.check(asked()).await.expect_err("denied"));
    let open = timeout(PATIENCE, watch.message()).await.expect("at once");
    open.expect("an open stream stays open").expect("a message");
}

#[tokio::test]
async fn a_client_stream_is_charged_once_and_ends_at_once_when_rejected() {
    let (incoming, address) = incoming();
    let store = FakeClock::new().store(16);
    let server = Server::builder().layer(layer(&store)).serve_with_incoming(Echo, incoming);
    tokio::spawn(server);
    let mut client = connect(address).await;

    let messages = stream::repeat(Bytes::from_static(b"hello")).take(500);
    assert_eq!(gather(&mut client, messages).await.expect("admitted"), "500");
    assert_eq!(left(&store), 1);
    assert_eq!(echo(&mut client).await.expect("admitted"), "hello");

    // the first client never ends its stream, the second sends without end
    let (_sender, silent) = mpsc::unbounded();
    let denied = timeout(PATIENCE, gather(&mut client, silent)).await.expect("at once");
    assert_rejected(&denied.expect_err("denied"));
    let endless = stream::repeat(Bytes::from(vec![0; 10_000]));
    let denied = timeout(PATIENCE, gather(&mut client, endless)).await.expect("at once");
    assert_rejected(&denied.expect_err("denied"));
    // the connection survives both
    assert_rejected(&echo(&mut client).await.expect_err("denied"));
    assert_eq!(left(&store), 0, "a denied stream is not charged");
}
