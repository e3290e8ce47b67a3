//! The content of rejections, and keys other than addresses.

use std::time::Duration;

use axum::{Router, body::Body, routing::get};
use axum_governor::extractor as theirs;
use governor::{clock::QuantaInstant, middleware::NoOpMiddleware};
use http::{HeaderName, Request, header::RETRY_AFTER};
use tower::ServiceExt;
use tower_governor::{
    GovernorError, GovernorLayer,
    governor::GovernorConfigBuilder,
    key_extractor::{KeyExtractor, PeerIpKeyExtractor},
};
use tower_sluice::{
    LocalStore, Missing, PeerIp, RateLimitLayer, Rule,
    key::{Extension, Header, Route},
};

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
    table.ours(15, "a user's name claimed without login; then the user", claimed().await);
    table.ours(18, "ten spellings of one path, limited by route", spelled().await);
    table.ours(12, "`{`, `}`, `*`, newline and NUL in Redis keys", held("redis_keys"));
    table.ours(21, "slow keys to open the breaker", held("attacks"));
    table.ours(22, "timing tells whether a key is limited", Cell::new("accepted", true));
}

fn held(test: &str) -> Cell {
    Cell::new(format!("`cargo test --all-features --test {test}`"), true)
}

async fn retry_after() -> Cells {
    let mut cells = Peer::ALL.map(|_| Cell::none());
    for (cell, peer) in cells.iter_mut().zip(Peer::ALL) {
        let mut told = Vec::new();
        for millis in [900, 1_900] {
            let limit = Limit { burst: 1, interval: Duration::from_millis(millis) };
            // A rejection does not depend on the place of the server.
            let app = peer.app(Place::Direct, limit);
            let mut app = app.or_else(|| peer.app(Place::ForwardedFor, limit)).expect("an app");
            ask(&mut app, from(ip(ATTACKER), &[])).await;
            let refused = ask(&mut app, from(ip(ATTACKER), &[])).await;
            told.push(refused.headers()[RETRY_AFTER].to_str().expect("text").to_owned());
        }
        *cell = Cell::new(told.join(", "), told == ["1", "2"]);
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
        Rule::new("account", Header::from(ACCOUNT.clone()), apps::quota(THREE)),
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

/// A header as a key, as in tower_governor's documentation.
#[derive(Clone, Debug)]
struct Account;

impl KeyExtractor for Account {
    type Key = String;

    fn name(&self) -> &'static str {
        "account"
    }

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let account = request.headers().get(&ACCOUNT).and_then(|value| value.to_str().ok());
        account.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

/// The logged-in user, as an outer layer identified it.
#[derive(Clone)]
struct User(&'static str);

async fn claimed() -> Cell {
    let rule = Rule::new("user", Extension::by(|user: &User| user.0), apps::quota(THREE));
    let rules = rule.missing(Missing::Skip);
    let mut app = apps::around(&RateLimitLayer::rules(rules, LocalStore::new()));
    admitted(&mut app, (0..10).map(|_| tried(ip(ATTACKER), "alice"))).await;
    let requests = (0..3).map(|_| {
        let mut request = tried(v4(1), "alice");
        request.extensions_mut().insert(User("alice"));
        request
    });
    Cell::all(admitted(&mut app, requests).await, 3)
}

async fn spelled() -> Cell {
    let paths = [
        "/users/1",
        "/users/2",
        "/users/%31",
        "/users/1?x",
        "/users/%2e",
        "/users/a%2fb",
        "//users/1",
        "/users/1/",
        "/USERS/1",
        "/./users/1",
    ];
    let app = Router::new().route("/users/{id}", get(async || "user")).layer(RateLimitLayer::new(
        Route,
        apps::quota(THREE),
        LocalStore::new(),
    ));
    let mut admitted = 0;
    for path in paths {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("an answer");
        admitted += usize::from(response.status().is_success());
    }
    Cell::at_most(3, admitted, paths.len())
}
