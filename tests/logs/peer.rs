//! The peer's address as a key, and the error of a server that does not provide it.

use std::{convert::Infallible, env, net::SocketAddr, process::Command};

use axum::extract::ConnectInfo;
use http::{Request, Response, StatusCode};
use tower::Layer;
use tower_sluice::{
    Key, KeyExtractor, LocalStore, PeerIp, Quota, RateLimitLayer, RequestHead, Rule, key::Everyone,
    rule::OnMissingKey,
};

use crate::{
    alone,
    log::Log,
    support::{answer, ask, get},
};

const FIX: &str = "into_make_service_with_connect_info::<SocketAddr>()";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn from<T: Clone + Send + Sync + 'static>(extension: T) -> Request<()> {
    let mut request = get("/");
    request.extensions_mut().insert(extension);
    request
}

fn key(request: Request<()>) -> Key {
    let parts = request.into_parts().0;
    PeerIp::new().extract(&RequestHead::from(&parts)).expect("a peer").expect("applies")
}

#[test]
fn every_source_of_the_peer_address_gives_one_key() {
    let _turn = alone();
    let peer = address("203.0.113.9:4711");
    let one = key(from(peer));
    assert_eq!(one, Key::from(peer.ip()));
    assert_eq!(one, key(from(ConnectInfo(peer))));
    assert_eq!(one, key(from(address("203.0.113.9:2"))), "the port is ignored");
    #[cfg(feature = "tonic")]
    {
        use tonic::transport::server::TcpConnectInfo;
        let info = TcpConnectInfo { local_addr: None, remote_addr: Some(peer) };
        assert_eq!(one, key(from(info)));
    }
    let mut both = from(ConnectInfo(peer));
    both.extensions_mut().insert(address("198.51.100.1:80"));
    assert_eq!(one, key(both), "axum's address takes precedence");
}

/// The only test of this process without a peer, because the line is logged at most every ten
/// seconds for all layers.
#[tokio::test]
async fn a_missing_peer_is_500_and_one_log_line_that_names_the_fix() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);

    // Neither another key nor `Skip` hides it.
    let rule = Rule::new("ip", PeerIp::new().or(Everyone), Quota::per_hour(1));
    let layer = RateLimitLayer::rules(
        rule.on_missing_key(OnMissingKey::Skip),
        LocalStore::with_capacity(16),
    );
    for _ in 0..50 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(response.body().contains("the server log shows the fix"), "{}", response.body());
        assert!(!response.body().contains(FIX), "the fix is not for clients");
    }
    let lines = log.read();
    assert!(lines.len() == 1 && lines[0].contains("ERROR") && lines[0].contains(FIX), "{lines:?}");
    for fix in ["with axum 0.8, serve", "a Unix socket has no address", ".extension(SocketAddr)"] {
        assert!(lines[0].contains(fix), "{fix}: {lines:?}");
    }
    assert!(!lines[0].contains("another version of axum"), "{lines:?}");
}

/// Runs this test in a process of its own, and returns `true` there.
fn run_in_own_process(test: &str) -> bool {
    const OWN: &str = "TEST_IN_A_PROCESS_OF_ITS_OWN";
    if env::var_os(OWN).is_some() {
        return true;
    }
    let mut run = Command::new(env::current_exe().expect("this program"));
    let run = run.args(["--exact", test]).env(OWN, "1").output().expect("it starts");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && printed.contains("1 passed"), "{printed}");
    false
}

#[tokio::test]
async fn without_a_log_the_first_response_of_a_debug_build_has_the_fix() {
    if !run_in_own_process("peer::without_a_log_the_first_response_of_a_debug_build_has_the_fix") {
        return;
    }
    let layer = RateLimitLayer::per_ip(Quota::per_hour(1));
    let first = answer(&layer, get("/")).await;
    assert_eq!(first.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(first.body().contains(FIX), cfg!(debug_assertions), "{}", first.body());
    for _ in 0..2 {
        let later = answer(&layer, get("/")).await.into_body();
        assert_eq!(
            later,
            "The rate limiter found no peer address; the server log shows the fix.\n"
        );
    }
}

/// A type with the name of axum's body that is not the body of the axum that this crate knows.
mod axum_core {
    pub(super) mod body {
        #[derive(Default)]
        pub(in super::super) struct Body;
    }
}

#[tokio::test]
async fn the_body_of_another_axum_is_named_in_the_log() {
    if !run_in_own_process("peer::the_body_of_another_axum_is_named_in_the_log") {
        return;
    }
    let (log, _guard) = Log::start(tracing::Level::INFO);
    let handler = tower::service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(axum_core::body::Body))
    });
    let mut service = RateLimitLayer::per_ip(Quota::per_hour(1)).layer(handler);
    let response = ask(&mut service, get("/")).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let lines = log.read();
    assert!(lines[0].contains("another version of axum"), "{lines:?}");
    assert!(lines.len() == 2 && lines[1].contains("rejections are empty"), "{lines:?}");
    assert!(lines[0].contains("use axum 0.8, or insert the SocketAddr"), "{lines:?}");
}
