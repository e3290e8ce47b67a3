//! The content of rejections, and keys other than addresses.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum_governor::extractor as theirs;
use governor::{clock::QuantaInstant, middleware::NoOpMiddleware};
use http::{HeaderName, Method, Request, Version, header::RETRY_AFTER};
use tower_governor::{
    GovernorError, GovernorLayer,
    governor::GovernorConfigBuilder,
    key_extractor::{KeyExtractor, PeerIpKeyExtractor},
};
use tower_sluice::{LocalStore, PeerIp, RateLimitLayer, Rule, key::HeaderKey};

use crate::{
    apps::{self, App, Limit, Peer, Place, THREE},
    cell::Cell,
    requests::{ATTACKER, admitted, ask, from, ip, v4},
    table::{Cells, Table},
};

static ACCOUNT: HeaderName = HeaderName::from_static("x-account");
const TRIES: u32 = 1_000;

pub async fn fill(table: &mut Table) {
    table.row(13, "`Retry-After` with 0.9 s and with 1.9 s to wait", retry_after().await);
    let one_address = |n: u32| tried(ip(ATTACKER), &n.to_string());
    let cells = guessed(one_address).await;
    table.row(14, "1 000 accounts tried from one address", cells);
    let one_account = |n: u32| tried(v4(n), "alice");
    let cells = guessed(one_account).await;
    table.row(14, "one account tried from 1 000 addresses", cells);
    table.row(26, "a claimed gRPC content type: status of two rejections", claimed_grpc().await);
    table.row(27, "a rejection with and without an `Accept` of 400 KiB", long_accept().await);
    table.row(30, "50 spellings of one header, with white space around", spaces().await);
}

async fn retry_after() -> Cells {
    let mut cells = Peer::ALL.map(|_| Cell::none());
    for (cell, peer) in cells.iter_mut().zip(Peer::ALL) {
        let mut values = Vec::new();
        for millis in [900, 1_900] {
            let limit = Limit { burst: 1, interval: Duration::from_millis(millis) };
            // A rejection does not depend on the place of the server.
            let app = peer.app(Place::Direct, limit);
            let mut app = app.or_else(|| peer.app(Place::ForwardedFor, limit)).expect("an app");
            ask(&mut app, from(ip(ATTACKER), &[])).await;
            let denied = ask(&mut app, from(ip(ATTACKER), &[])).await;
            values.push(denied.headers()[RETRY_AFTER].to_str().expect("text").to_owned());
        }
        *cell = Cell::new(values.join(", "), values == ["1", "2"]);
    }
    cells
}

fn tried(peer: impl Into<std::net::IpAddr>, account: &str) -> Request<Body> {
    from(peer, &[(ACCOUNT.as_str(), account)])
}

/// Tests three allowed guesses per address and per account.
async fn guessed(request: impl Fn(u32) -> Request<Body>) -> Cells {
    let theirs = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(theirs::PeerIp::default())
        .expect_connect_info()
        .quota_default(apps::their_quota(THREE))
        .stack("account", theirs::Header(&ACCOUNT), apps::their_quota(THREE))
        .finish();
    let theirs = axum_governor::GovernorLayer::new(theirs.expect("a configuration"));
    let rules = (
        Rule::new("ip", PeerIp::new(), apps::quota(THREE)),
        Rule::new("account", HeaderKey::from(ACCOUNT.clone()), apps::quota(THREE)),
    );
    let by_account = three().key_extractor(Account).finish().expect("a configuration");
    let by_peer = three().finish().expect("a configuration");
    let (by_account, by_peer) = (GovernorLayer::new(by_account), GovernorLayer::new(by_peer));
    let both = tower::layer::util::Stack::new(by_account, by_peer);
    [
        guesses(apps::around(&RateLimitLayer::rules(rules, LocalStore::new())), &request).await,
        Cell::none(),
        guesses(apps::around(&both), &request).await,
        guesses(apps::around(&theirs), &request).await,
    ]
}

async fn guesses(mut app: App, request: impl Fn(u32) -> Request<Body>) -> Cell {
    let tries = (0..TRIES).map(request);
    Cell::at_most(3, admitted(&mut app, tries).await, TRIES as usize)
}

fn three() -> GovernorConfigBuilder<PeerIpKeyExtractor, NoOpMiddleware<QuantaInstant>> {
    let mut builder = GovernorConfigBuilder::default();
    builder.period(THREE.interval).burst_size(THREE.burst);
    builder
}

/// A header as a key, as in tower_governor's example `custom_key_bearer`.
#[derive(Clone, Debug)]
struct Account;

impl KeyExtractor for Account {
    type Key = String;

    fn name(&self) -> &'static str {
        "account"
    }

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let account = request.headers().get(&ACCOUNT).and_then(|value| value.to_str().ok());
        account.map(|account| account.trim().to_owned()).ok_or(GovernorError::UnableToExtractKey)
    }
}

/// Claims gRPC in a `GET` over HTTP/2 and in a `POST` over HTTP/1.1, which cannot be gRPC.
async fn claimed_grpc() -> Cells {
    each_anywhere(async |mut app: App| {
        admitted(&mut app, (0..3).map(|_| from(ip(ATTACKER), &[]))).await;
        let mut statuses = Vec::new();
        for (method, version) in [(Method::GET, Version::HTTP_2), (Method::POST, Version::HTTP_11)]
        {
            let mut request = from(ip(ATTACKER), &[("content-type", "application/grpc")]);
            (*request.method_mut(), *request.version_mut()) = (method, version);
            statuses.push(ask(&mut app, request).await.status().as_u16().to_string());
        }
        Cell::new(statuses.join(", "), statuses == ["429", "429"])
    })
    .await
}

/// Measures rejections in microseconds: the fastest of ten batches.
async fn long_accept() -> Cells {
    let accept = "text/plain;q=0.5, ".repeat(400 * 1024 / 18);
    each_anywhere(async |mut app: App| {
        admitted(&mut app, (0..3).map(|_| from(ip(ATTACKER), &[]))).await;
        let [mut with, mut without] = [f64::INFINITY; 2];
        for _ in 0..10 {
            let long = from(ip(ATTACKER), &[("accept", &accept)]);
            with = with.min(microseconds(&mut app, &long).await);
            without = without.min(microseconds(&mut app, &from(ip(ATTACKER), &[])).await);
        }
        Cell::new(format!("{with:.0} µs, {without:.0} µs"), with < without + 50.0)
    })
    .await
}

/// Returns the time of a rejection of this request, from a batch of a hundred.
async fn microseconds(app: &mut App, request: &Request<Body>) -> f64 {
    let batch: Vec<_> = (0..100)
        .map(|_| {
            let mut copy = Request::new(Body::empty());
            copy.headers_mut().clone_from(request.headers());
            copy.extensions_mut().clone_from(request.extensions());
            copy
        })
        .collect();
    let start = Instant::now();
    assert_eq!(admitted(app, batch).await, 0, "all are rejected");
    start.elapsed().as_secs_f64() * 1e6 / 100.0
}

/// Runs the attack on each peer, in any place, because a rejection does not depend on it.
async fn each_anywhere(attack: impl AsyncFn(App) -> Cell) -> Cells {
    let mut cells = Peer::ALL.map(|_| Cell::none());
    for (cell, peer) in cells.iter_mut().zip(Peer::ALL) {
        let app = peer.app(Place::Direct, THREE);
        *cell = attack(app.or_else(|| peer.app(Place::ForwardedFor, THREE)).expect("an app")).await;
    }
    cells
}

/// An HTTP/2 server leaves white space around a value in place.
async fn spaces() -> Cells {
    let by_account = three().key_extractor(Account).finish().expect("a configuration");
    let run = async |mut app: App| {
        let spelled = |n: usize| format!("{}alice{}", " ".repeat(n % 5), "\t".repeat(n / 5));
        let requests = (0..50).map(|n| tried(ip(ATTACKER), &spelled(n)));
        Cell::at_most(3, admitted(&mut app, requests).await, 50)
    };
    [
        run(apps::ours(HeaderKey::from(ACCOUNT.clone()), THREE)).await,
        Cell::none(),
        run(apps::around(&GovernorLayer::new(by_account))).await,
        run(apps::axum_governor(theirs::Header(&ACCOUNT), THREE)).await,
    ]
}
