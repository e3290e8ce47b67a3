//! Clients that connect to the server directly.

use std::net::Ipv6Addr;

use axum::body::{Body, to_bytes};
use axum_governor::extractor as theirs;
use http::{Method, Request};
use tower::{Service, ServiceExt};
use tower_sluice::{LocalStore, PeerIp, RateLimitLayer, Rule};

use crate::{
    apps::{self, App, Place::Direct, THREE},
    cell::{Cell, grouped},
    log,
    requests::{ATTACKER, admitted, ask, from, ip, v4, v6},
    rows::each,
    table::Table,
};

const REQUESTS: u32 = 10_000;
const CLIENTS: u32 = 1_000;
const NETWORKS: u32 = 65_536;
const BURST: usize = 3;

pub async fn fill(table: &mut Table) {
    let cells = each(Direct, async |mut app: App| {
        let requests = (0..REQUESTS).map(|n| from(v6(n), &[]));
        Cell::at_most(BURST, admitted(&mut app, requests).await, REQUESTS as usize)
    });
    table.row(5, "10 000 addresses of one IPv6 /64", cells.await);

    let cells = each(Direct, async |mut app: App| {
        let both = [ATTACKER.to_owned(), format!("::ffff:{ATTACKER}")];
        let requests = (0..10).map(|n| from(ip(&both[n % 2]), &[]));
        Cell::at_most(BURST, admitted(&mut app, requests).await, 10)
    });
    table.row(6, "`a.b.c.d` and `::ffff:a.b.c.d` by turns", cells.await);

    let cells = each(Direct, async |mut app: App| {
        let requests = (0..CLIENTS).map(|n| from(v4(n).to_ipv6_mapped(), &[]));
        Cell::all(admitted(&mut app, requests).await, CLIENTS as usize)
    });
    table.row(6, "no attack: 1 000 IPv4 clients on a `[::]` socket", cells.await);

    let cells = each(Direct, async |app: App| networks(app).await).await;
    let [_, smart, plain, _] = cells;
    let cells = [networks(our_site()).await, smart, plain, networks(their_site()).await];
    table.row(33, "65 536 networks (/64) of one /48, limited by /48 too", cells);

    let cells = each(Direct, async |mut app: App| {
        let methods = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "X"];
        let requests = methods.map(|method| {
            let mut request = from(ip(ATTACKER), &[("x-http-method-override", "OPTIONS")]);
            *request.method_mut() = Method::from_bytes(method.as_bytes()).expect("a method");
            request
        });
        Cell::at_most(BURST, admitted(&mut app, requests).await, methods.len())
    });
    table.row(16, "nine methods by turns", cells.await);

    let cells = each(Direct, async |mut app: App| {
        for _ in 0..10 {
            drop(app.ready().await.expect("ready").call(from(ip(ATTACKER), &[])));
        }
        let requests = (0..10).map(|_| from(ip(ATTACKER), &[]));
        Cell::at_most(0, admitted(&mut app, requests).await, 10)
    });
    table.row(17, "ten requests cancelled at once; then ten more", cells.await);

    let cells = each(Direct, async |mut app: App| {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let (lines, guard) = log::lines();
        let denied = ask(&mut app, request).await;
        drop(guard);
        let status = denied.status();
        let body = to_bytes(denied.into_body(), 1_000).await.expect("a short body");
        let mut text = String::from_utf8_lossy(&body).into_owned();
        lines.all().iter().for_each(|line| text.push_str(&line.text));
        let (words, found) = [
            ("into_make_service_with_connect_info", "names the fix"),
            ("connect info", "names the cause"),
            ("", "names neither"),
        ]
        .iter()
        .find(|(words, _)| text.contains(words))
        .expect("the last one fits");
        Cell::new(format!("{}, {found}", status.as_u16()), !words.is_empty())
    });
    table.row(19, "no `ConnectInfo`: the first answer, with its log", cells.await);

    let cells = each(Direct, async |mut app: App| {
        admitted(&mut app, (0..3).map(|_| from(ip(ATTACKER), &[]))).await;
        let (lines, guard) = log::lines();
        admitted(&mut app, (0..CLIENTS).map(|_| from(ip(ATTACKER), &[]))).await;
        drop(guard);
        let lines = lines.all();
        let keys = lines.iter().filter(|line| line.text.contains(ATTACKER)).count();
        let loud = lines.iter().filter(|line| line.level <= tracing::Level::INFO).count();
        let text = format!("{}, {} with the address", grouped(loud), grouped(keys));
        Cell::new(text, loud == 0 && keys == 0)
    });
    table.row(20, "1 000 rejections: log lines at info and above", cells.await);
}

/// Sends a request from each /64 of one /48.
async fn networks(mut app: App) -> Cell {
    let site = 0x2001_0db8_0001_u128 << 80;
    let address = |n: u32| Ipv6Addr::from_bits(site + (u128::from(n) << 64));
    let requests = (0..NETWORKS).map(|n| from(address(n), &[]));
    Cell::at_most(BURST, admitted(&mut app, requests).await, NETWORKS as usize)
}

/// Limits by /64 and by /48.
fn our_site() -> App {
    let client = Rule::new("client", PeerIp::new(), apps::quota(THREE));
    let site = Rule::new("site", PeerIp::new().ipv6_prefix(48), apps::quota(THREE));
    apps::around(&RateLimitLayer::rules((client, site), LocalStore::new()))
}

/// Limits by axum-governor's /56 and by /48.
fn their_site() -> App {
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(theirs::PeerIp::default())
        .expect_connect_info()
        .quota_default(apps::their_quota(THREE))
        .stack("site", theirs::PeerIp::ipv6_prefix(48), apps::their_quota(THREE))
        .finish();
    apps::around(&axum_governor::GovernorLayer::new(config.expect("a configuration")))
}
