//! Attacks behind a trusted proxy at 10.0.0.1. The attacker is at 203.0.113.9, with 3 allowed
//! requests.

use crate::{
    apps::{
        self, App,
        Place::{self, Forwarded, ForwardedFor, RealIp},
    },
    cell::Cell,
    requests::{ATTACKER, MAPPED, PROXY, admitted, from, ip, proxied, v4},
    rows::each,
    table::Table,
};

const FOR: &str = "x-forwarded-for";
const REAL: &str = "x-real-ip";
const FORWARDED: &str = "forwarded";
const REQUESTS: u32 = 10_000;
const CLIENTS: u32 = 1_000;
const BURST: usize = 3;

/// Builds the header lines that reach the server, from a forged address.
type Lines = fn(String) -> Vec<(&'static str, String)>;

/// Builds the header line of an honest client's request.
type Line = fn(u32) -> String;

/// One request for each of ten thousand addresses.
const ATTACKS: [(u32, &str, Place, Lines); 10] = [
    (1, "10 000 left entries of `X-Forwarded-For`", ForwardedFor, |spoofed| {
        vec![(FOR, format!("{spoofed}, {ATTACKER}"))]
    }),
    (3, "10 000 first lines before the proxy's own line", ForwardedFor, |spoofed| {
        vec![(FOR, spoofed), (FOR, ATTACKER.into())]
    }),
    (7, "10 000 left entries, the proxy writes ports", ForwardedFor, |spoofed| {
        vec![(FOR, format!("{spoofed}, {ATTACKER}:4711"))]
    }),
    (8, "10 000 left elements of `Forwarded`", Forwarded, |spoofed| {
        vec![(FORWARDED, format!("for={spoofed}, for={ATTACKER}"))]
    }),
    (8, "10 000 left elements of `Forwarded` with an open quote", Forwarded, |spoofed| {
        vec![(FORWARDED, format!("for=\"{spoofed}, for={ATTACKER}"))]
    }),
    (9, "10 000 `X-Real-IP`, the proxy writes `X-Forwarded-For`", ForwardedFor, |spoofed| {
        vec![(REAL, spoofed), (FOR, ATTACKER.into())]
    }),
    (9, "10 000 `X-Forwarded-For`, the proxy writes `X-Real-IP`", RealIp, |spoofed| {
        vec![(FOR, spoofed), (REAL, ATTACKER.into())]
    }),
    (9, "10 000 `X-Forwarded-For`, the proxy writes `Forwarded`", Forwarded, |spoofed| {
        vec![(FOR, spoofed), (FORWARDED, format!("for={ATTACKER}"))]
    }),
    (31, "10 000 `Host`s that read like an element of `Forwarded`", Forwarded, |spoofed| {
        vec![(FORWARDED, format!("for={ATTACKER};host=\",for={spoofed};x=\""))]
    }),
    (31, "the same after a left element, with quotes in the `Host`", Forwarded, |spoofed| {
        let host = format!("\\\",for={spoofed};x=\\\"");
        vec![(FORWARDED, format!("for={spoofed}, for={ATTACKER};host=\"{host}\""))]
    }),
];

/// One request for each of a thousand clients, from this proxy with this line.
const HONEST: [(u32, &str, &str, Line); 4] = [
    (0, "no attack: 1 000 clients", PROXY, |n| v4(n).to_string()),
    (0, "no attack: 1 000 clients through two proxies", PROXY, |n| format!("{}, 10.0.0.2", v4(n))),
    (6, "no attack: 1 000 clients, the proxy seen as `::ffff:10.0.0.1`", MAPPED, |n| {
        v4(n).to_string()
    }),
    (7, "no attack: 1 000 clients, the proxy writes ports and brackets", PROXY, |n| match n % 2 {
        0 => format!("{}:4711", v4(n)),
        _ => format!("[2001:db8:{n:x}::1]"),
    }),
];

pub async fn fill(table: &mut Table) {
    for (number, title, proxy, line) in HONEST {
        let cells = each(ForwardedFor, async |mut app: App| {
            let requests = (0..CLIENTS).map(|n| from(ip(proxy), &[(FOR, &line(n))]));
            Cell::all(admitted(&mut app, requests).await, CLIENTS as usize)
        });
        table.row(number, title, cells.await);
    }
    for (number, title, place, lines) in ATTACKS {
        let cells = each(place, async |mut app: App| {
            let requests = (0..REQUESTS).map(|n| {
                let lines = lines(v4(n).to_string());
                proxied(&lines.iter().map(|(name, value)| (*name, &**value)).collect::<Vec<_>>())
            });
            Cell::at_most(BURST, admitted(&mut app, requests).await, REQUESTS as usize)
        });
        table.row(number, title, cells.await);
    }

    let cells = each(ForwardedFor, async |mut app: App| {
        let past = (0..REQUESTS).map(|n| from(ip(ATTACKER), &[(FOR, &v4(n).to_string())]));
        Cell::at_most(BURST, admitted(&mut app, past).await, REQUESTS as usize)
    });
    table.row(1, "10 000 `X-Forwarded-For`, sent past the proxy", cells.await);

    let cells = each(ForwardedFor, async |mut app: App| {
        let victim = "198.51.100.7";
        let both = format!("{victim}, {ATTACKER}");
        admitted(&mut app, (0..10).map(|_| proxied(&[(FOR, &both)]))).await;
        Cell::all(admitted(&mut app, (0..3).map(|_| proxied(&[(FOR, victim)]))).await, 3)
    });
    table.row(2, "a victim's address as left entry; then the victim", cells.await);

    let cells = each(ForwardedFor, async |mut app: App| {
        let garbage = (0..10).map(|n| proxied(&[(FOR, &format!("unknown-{n}"))]));
        admitted(&mut app, garbage).await;
        Cell::all(admitted(&mut app, (0..3).map(|_| proxied(&[]))).await, 3)
    });
    table.row(7, "entries that are no address; then the proxy's health checks", cells.await);

    let cells = each(ForwardedFor, async |mut app: App| dropped(&mut app, None).await);
    table.row(32, "1 000 requests whose header the proxy dropped", cells.await);
    let inner = async |mut app: App| dropped(&mut app, Some("10.0.0.2")).await;
    table.row(32, "the same at the inner one of two proxies", each(ForwardedFor, inner).await);
    let cells = [
        dropped(&mut apps::ours_allowing_proxies(), None).await,
        Cell::none(),
        Cell::none(),
        dropped(&mut apps::axum_governor_allowing_proxies(), None).await,
    ];
    table.row(32, "the same, the proxies' network on the allow list", cells);
}

/// Sends 1 000 requests, with only what the outer proxy wrote.
async fn dropped(app: &mut App, outer: Option<&str>) -> Cell {
    let lines: Vec<_> = outer.map(|outer| (FOR, outer)).into_iter().collect();
    let requests = (0..CLIENTS).map(|_| proxied(&lines));
    Cell::at_most(BURST, admitted(app, requests).await, CLIENTS as usize)
}
