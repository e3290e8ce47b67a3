//! Real servers on the loopback interface, and what can go wrong between them and a client.
//!
//! A test file that needs them says `#[path = "support/servers/mod.rs"] mod servers;`, so that the
//! other tests do not compile them. Everything waits by looking again, for at most [`PATIENCE`], and
//! then panics; a server that does not start shows its log. None of it works while tokio's clock is
//! paused, since the servers' clocks are not.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

mod cluster;
mod fake;
mod flavour;
mod home;
mod link;
mod migration;
mod port;
mod proxy;
mod sentinel;
mod server;
mod talk;
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
pub(crate) use proxy::{Mode, Proxy};
pub(crate) use sentinel::Sentinels;
pub(crate) use server::Server;
pub(crate) use words::{Words, name};

/// How long anything may take on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What `look` finds, once it finds something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `start` has started. Another program may take a port in the moment before a server does:
/// hence a second and a third try.
async fn insist<T>(start: impl AsyncFn() -> Result<T, String>) -> T {
    let mut said = String::new();
    for _ in 0..3 {
        match start().await {
            Ok(started) => return started,
            Err(why) => said = why,
        }
    }
    panic!("three tries failed: {said}");
}

/// A number that is another one in every test and every process.
fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// The name of a node in a cluster, or of a sentinel: 40 hexadecimal digits.
fn identity() -> String {
    format!("{:016x}{:016x}{:08x}", random(), random(), random() & 0xffff_ffff)
}
