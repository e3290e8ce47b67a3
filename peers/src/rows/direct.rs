//! Clients that connect to the server directly.

use axum::body::{Body, to_bytes};
use http::{Method, Request};
use tower::{Service, ServiceExt};

use crate::{
    apps::{App, Place::Direct},
    cell::{Cell, grouped},
    log,
    requests::{ATTACKER, admitted, ask, from, ip, v4, v6},
    rows::each,
    table::Table,
};

const REQUESTS: u32 = 10_000;
const CLIENTS: u32 = 1_000;
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
        let refused = ask(&mut app, request).await;
        drop(guard);
        let status = refused.status();
        let body = to_bytes(refused.into_body(), 1_000).await.expect("a short body");
        let mut told = String::from_utf8_lossy(&body).into_owned();
        lines.all().iter().for_each(|line| told.push_str(&line.text));
        let told = [
            ("into_make_service_with_connect_info", "names the fix"),
            ("connect info", "names the cause"),
            ("", "names neither"),
        ]
        .iter()
        .find(|(words, _)| told.contains(words))
        .expect("the last one fits");
        Cell::new(format!("{}, {}", status.as_u16(), told.1), !told.0.is_empty())
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
    table.row(20, "1 000 refusals: log lines at info and above", cells.await);
}
