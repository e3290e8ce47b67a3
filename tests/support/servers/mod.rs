//! Real servers on the loopback interface, and faults between them and a client.
//!
//! A program that needs them declares `#[path = "../support/servers/mod.rs"] mod servers;`, so that
//! other programs do not compile them.
//!
//! At most [`MOST`] tests have servers at the same time. Every wait polls for at most [`PATIENCE`],
//! and then panics. A server that does not start shows its log. The helpers do not work while
//! tokio's clock is paused.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

mod cluster;
mod fake;
mod flavour;
mod home;
mod link;
mod migration;
mod port;
#[cfg(unix)]
mod postgres;
mod proxy;
mod sentinel;
mod server;
mod talk;
mod turn;
mod view;
mod words;

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

pub(crate) use cluster::Cluster;
pub(crate) use fake::{FakeServer, Reply, handshake};
pub(crate) use flavour::Flavour;
pub(crate) use migration::Migration;
#[cfg(unix)]
pub(crate) use postgres::Postgres;
pub(crate) use proxy::{Mode, Proxy};
pub(crate) use sentinel::Sentinels;
pub(crate) use server::Server;
pub(crate) use turn::{MOST, Turn};
pub(crate) use words::{Words, name};

/// The longest wait, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Polls `look` until it returns a value.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns the result of `start`. Makes up to three attempts, because another program may take a
/// port just before a server does.
async fn insist<T>(start: impl AsyncFn() -> Result<T, String>) -> T {
    let mut said = String::new();
    for _ in 0..3 {
        match start().await {
            Ok(started) => return started,
            Err(why) => said = why,
        }
    }
    panic!("three attempts failed: {said}");
}

/// Returns a number that differs in every test and every process.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// Returns the name of a node in a cluster, or of a sentinel: 40 hexadecimal digits.
fn identity() -> String {
    format!("{:016x}{:016x}{:08x}", random(), random(), random() & 0xffff_ffff)
}
