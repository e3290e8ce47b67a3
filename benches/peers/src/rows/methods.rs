//! Rows about methods. Each layer is around a handler that answers every method, as axum's `any`
//! and the routes of tonic do.

use axum::{
    Router,
    body::Body,
    routing::{any, get},
};
use axum_governor::extractor as theirs;
use http::{Method, Request};
use tower::util::BoxCloneSyncService;
use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};
use tower_sluice::{LocalStore, PeerIp, RateLimitLayer, by_route, key};

use crate::{
    apps::{self, App, Limit, Place::Direct, THREE},
    cell::Cell,
    requests::{ATTACKER, admitted, from, ip},
    rows::each,
    table::{Cells, Table},
};

const REQUESTS: u32 = 1_000;
const BURST: usize = 3;
const PREFLIGHT: [(&str, &str); 2] =
    [("origin", "https://a.example"), ("access-control-request-method", "POST")];

/// The limit of all other requests.
const MANY: Limit = Limit { burst: 1_000, interval: THREE.interval };

pub async fn fill(table: &mut Table) {
    let title = "`HEAD` and `GET` by turns, 3 `GET` allowed";
    let cells = by_method(&["HEAD", "GET"], &Method::GET, "/report").await;
    table.row(16, title, cells);
    let title = "five methods by turns to a gRPC path, 3 `POST` allowed";
    let methods = ["GET", "HEAD", "PUT", "PURGE", "POST"];
    let cells = by_method(&methods, &Method::POST, "/shop.Cart/Buy").await;
    table.row(16, title, cells);

    let cells = each(Direct, async |mut app: App| {
        let requests = (0..REQUESTS).map(|_| requested("OPTIONS", "/", &PREFLIGHT));
        Cell::at_most(BURST, admitted(&mut app, requests).await, REQUESTS as usize)
    });
    table.row(25, "1 000 claimed preflights", cells.await);
    let cells = exempt_preflights().await;
    table.row(25, "1 000 claimed preflights with a body, preflights exempt", cells);

    let mut cells = each(Direct, async |app: App| made_up(app).await).await;
    cells[0] = made_up(apps::ours((key::MethodKey, PeerIp::new()), THREE)).await;
    table.row(28, "1 000 made-up methods", cells);
}

fn requested(method: &str, path: &str, lines: &[(&str, &str)]) -> Request<Body> {
    let mut request = from(ip(ATTACKER), lines);
    *request.method_mut() = Method::from_bytes(method.as_bytes()).expect("a method");
    *request.uri_mut() = path.parse().expect("a path");
    request
}

/// Sends 100 requests with these methods in turn. Each crate limits one method of the path to 3
/// requests, by its own means, and all others to 1 000.
async fn by_method(methods: &[&str], limited: &Method, path: &'static str) -> Cells {
    let run = async |mut app: App| {
        let methods = methods.iter().cycle().take(100);
        let requests = methods.map(|method| requested(method, path, &[]));
        Cell::at_most(BURST, admitted(&mut app, requests).await, 100)
    };
    let rules = by_route([(limited.clone(), path, apps::quota(THREE))], apps::quota(MANY));
    // The rule for a `GET` finds `HEAD` through the template that axum matched.
    let route = if limited == Method::GET { get(async || ()) } else { any(async || ()) };
    let ours =
        Router::new().route(path, route).layer(RateLimitLayer::rules(rules, LocalStore::new()));
    let mut builder = GovernorConfigBuilder::default();
    builder.period(THREE.interval).burst_size(THREE.burst).methods(vec![limited.clone()]);
    let tower_governor = GovernorLayer::new(builder.finish().expect("a configuration"));
    let axum_governor = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(theirs::PeerIp::default())
        .expect_connect_info()
        .quota_default(apps::their_quota(MANY))
        .quota_for(limited.clone(), apps::their_quota(THREE))
        .finish();
    let axum_governor = axum_governor::GovernorLayer::new(axum_governor.expect("a configuration"));
    [
        run(BoxCloneSyncService::new(ours)).await,
        Cell::none(),
        run(apps::around(&tower_governor)).await,
        run(apps::around(&axum_governor)).await,
    ]
}

/// Exempts preflights from each limit, by its own means: the peers can exempt `OPTIONS`.
async fn exempt_preflights() -> Cells {
    let run = async |mut app: App| {
        let body = [PREFLIGHT[0], PREFLIGHT[1], ("content-length", "8")];
        let requests = (0..REQUESTS).map(|_| {
            let request = requested("OPTIONS", "/pay", &body);
            request.map(|_| Body::from("amount=1"))
        });
        Cell::at_most(BURST, admitted(&mut app, requests).await, REQUESTS as usize)
    };
    let ours = RateLimitLayer::new(PeerIp::new(), apps::quota(THREE), LocalStore::new());
    let others = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    let others = others.map(|method| method.parse().expect("a method"));
    let mut builder = GovernorConfigBuilder::default();
    builder.period(THREE.interval).burst_size(THREE.burst).methods(others.into());
    let tower_governor = GovernorLayer::new(builder.finish().expect("a configuration"));
    let axum_governor = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(theirs::PeerIp::default())
        .expect_connect_info()
        .quota_default(apps::their_quota(THREE))
        .whitelist_methods([Method::OPTIONS])
        .finish();
    let axum_governor = axum_governor::GovernorLayer::new(axum_governor.expect("a configuration"));
    [
        run(apps::around(&ours.exempt_preflights())).await,
        Cell::none(),
        run(apps::around(&tower_governor)).await,
        run(apps::around(&axum_governor)).await,
    ]
}

async fn made_up(mut app: App) -> Cell {
    let requests = (0..REQUESTS).map(|n| requested(&format!("M{n}"), "/", &[]));
    Cell::at_most(BURST, admitted(&mut app, requests).await, REQUESTS as usize)
}
