//! Floods of keys, each in its own process, so that none reuses the memory of another.

use std::{process::Command, time::Instant};

use axum::body::Body;
use axum_governor::extractor as theirs;
use http::{HeaderName, Request};
use tower_sluice::{LocalStore, PeerIp, RateLimitLayer, key::HeaderKey};

use crate::{
    apps::{self, App, Peer, Place, THREE},
    cell::Cell,
    requests::{ATTACKER, admitted, ask, from, ip, v4},
    resident::resident,
    table::Table,
};

static API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const KEYS: u32 = 1_000_000;
/// The bound of a bounded server; the flood has more keys.
const BOUND: usize = 10_000;
const BEYOND: u32 = 40_000;
const MIB: f64 = 1_048_576.0;

/// The state after a flood.
struct Flooded {
    /// Resident memory, in MiB.
    grown: f64,
    /// Microseconds per request in the last tenth of the flood.
    slow: f64,
    /// The number of allowed requests, of ten, of a key that was exhausted before.
    freed: usize,
}

pub fn fill(table: &mut Table) {
    let run = |flood| Peer::ALL.map(|peer| run(flood, peer));
    let cells = |floods: &[Option<Flooded>; 4], cell: fn(&Flooded) -> Cell| {
        floods.each_ref().map(|flooded| flooded.as_ref().map_or_else(Cell::none, cell))
    };
    // The default store has 4.6 MB, and new keys share at most 270 kB; the rest is other memory.
    let grown = |it: &Flooded| Cell::new(format!("{:.0} MiB", it.grown), it.grown < 8.0);
    let freed = |it: &Flooded| Cell::at_most(0, it.freed, 10);
    let bounded = |it: &Flooded| {
        let text = format!("{:.1} MiB, {:.0} µs a request", it.grown, it.slow);
        Cell::new(text, it.grown < 3.0)
    };
    let addresses = run("addresses");
    table.row(4, "1 000 000 addresses: memory grown by", cells(&addresses, grown));
    let bound = run("bound");
    table.row(4, "40 000 addresses where 10 000 are the bound", cells(&bound, bounded));
    table.row(10, "1 000 000 addresses to free an exhausted one", cells(&addresses, freed));
    let long = run("long");
    table.row(11, "1 000 keys of 100 KiB: memory grown by", cells(&long, grown));
}

fn run(flood: &str, peer: Peer) -> Option<Flooded> {
    app(flood, peer)?;
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new(itself).args([flood, peer.title()]).output().expect("it runs");
    let output = String::from_utf8(output.stdout).expect("text");
    let mut numbers = output.split_whitespace();
    let mut next = || numbers.next().unwrap_or_else(|| panic!("{flood} {peer:?}: {output:?}"));
    let (grown, slow) = (next().parse().expect("a number"), next().parse().expect("a number"));
    Some(Flooded { grown, slow, freed: next().parse().expect("a number") })
}

/// Runs the child process: floods and prints the result.
pub async fn flooded(flood: &str, title: &str) {
    let peer = Peer::ALL.into_iter().find(|peer| peer.title() == title).expect("a peer");
    let before = resident();
    let mut app = app(flood, peer).expect("it has such a key");
    let exhausted = || (0..10).map(|_| from(ip(ATTACKER), &[("x-api-key", "mine")]));
    admitted(&mut app, exhausted()).await;
    let keys = match flood {
        "addresses" => KEYS,
        "bound" => BEYOND,
        _ => 1_000,
    };
    let mut start = Instant::now();
    for n in 0..keys {
        if n == keys / 10 * 9 {
            start = Instant::now();
        }
        ask(&mut app, request(flood, n)).await;
    }
    let slow = start.elapsed().as_secs_f64() * 1e6 / f64::from(keys / 10);
    let grown = (resident() - before) / MIB;
    println!("{grown} {slow} {}", admitted(&mut app, exhausted()).await);
}

fn request(flood: &str, n: u32) -> Request<Body> {
    match flood {
        "long" => from(ip(ATTACKER), &[("x-api-key", &format!("{n:07}").repeat(100 * 1024 / 7))]),
        _ => from(v4(n), &[]),
    }
}

fn app(flood: &str, peer: Peer) -> Option<App> {
    match (flood, peer) {
        ("addresses", _) => peer.app(Place::Direct, THREE),
        ("bound", Peer::Ours) => {
            let store = LocalStore::with_capacity(BOUND);
            Some(apps::around(&RateLimitLayer::new(PeerIp::new(), apps::quota(THREE), store)))
        }
        ("bound", Peer::AxumGovernor) => {
            let config = axum_governor::GovernorConfigBuilder::default()
                .with_extractor(theirs::PeerIp::default())
                .expect_connect_info()
                .quota_default(apps::their_quota(THREE))
                .max_keys(BOUND)
                .finish();
            Some(apps::around(&axum_governor::GovernorLayer::new(config.expect("a configuration"))))
        }
        ("long", Peer::Ours) => Some(apps::ours(HeaderKey::from(API_KEY.clone()), THREE)),
        ("long", Peer::AxumGovernor) => Some(apps::axum_governor(theirs::Header(&API_KEY), THREE)),
        _ => None,
    }
}
