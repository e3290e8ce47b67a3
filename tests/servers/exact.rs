//! Processes that share a limit, and together allow exactly its units.

use std::{io::stdin, time::Duration};

use futures::future::join_all;
use tokio::runtime::Builder;
use tower_sluice::{
    Key, Quota, RedisStore, Store, StoreExt,
    store::{Charge, RedisError},
};

use crate::{
    accounts::{on_cluster, rule},
    servers::{Cluster, Flavour, Server, eventually},
    worker::{self, Worker},
};

const PROCESSES: usize = 4;
const TASKS: u32 = 64;
const TAKES: u32 = 2;
const RUNS: u32 = 20;
/// A period in which no unit returns while a test runs.
const DAY: Duration = Duration::from_secs(86_400);
const LIMITS: [u32; 3] = [300, 200, 250];

/// Takes with the charges of `rules` rules for the key of this run.
async fn ask<S>(store: &S, rules: usize, run: u32, cost: u32) -> tower_sluice::Decision
where
    S: Store<Error = RedisError>,
{
    let key = Key::from(run);
    let quotas = LIMITS.map(|limit| [Quota::new(limit, DAY).expect("a quota")]);
    let names = ["one", "two", "three"].map(rule);
    let all: Vec<_> =
        names.iter().zip(&quotas).map(|(name, quota)| Charge::new(*name, &key, quota)).collect();
    let charges: Vec<_> = all[..rules].iter().map(|charge| charge.with_cost(cost)).collect();
    store.take(&charges).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the number of takes that pass in this process.
async fn passed<S>(store: &S, rules: usize, run: u32) -> u32
where
    S: Store<Error = RedisError>,
{
    let tasks = (0..TASKS).map(async |_| {
        let mut passed = 0;
        for _ in 0..TAKES {
            passed += u32::from(ask(store, rules, run, 1).await.is_allowed());
        }
        passed
    });
    join_all(tasks).await.into_iter().sum()
}

/// Runs the lines of its input, each with a number of rules and of a run.
async fn work<S>(store: &S)
where
    S: Store<Error = RedisError>,
{
    println!("\nready");
    // While the process waits for the next line, undos are sent.
    let next = || tokio::task::spawn_blocking(|| stdin().lines().next());
    while let Some(line) = next().await.expect("no panic") {
        let line = line.expect("a line");
        let (rules, run) = line.split_once(' ').expect("two numbers");
        let (rules, run) = (rules.parse().expect("rules"), run.parse().expect("a run"));
        let passed = passed(store, rules, run).await;
        println!("\npassed {passed}");
    }
}

/// A process of the tests below. Does nothing by itself.
#[test]
fn worker() {
    let Some(urls) = worker::urls() else { return };
    let urls: Vec<_> = urls.split(' ').collect();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match urls[..] {
            [url] => work(&RedisStore::connect(url).await.expect("a store")).await,
            _ => work(&RedisStore::cluster(&urls).await.expect("a store")).await,
        }
    });
}

/// Returns the number of requests that passed in each run, in all processes together. The processes
/// end when they are dropped.
fn runs(urls: &str, rules: usize) -> (Vec<u32>, Vec<Worker>) {
    let mut workers: Vec<_> =
        (0..PROCESSES).map(|_| Worker::start("exact::worker", urls)).collect();
    let mut together = |run| {
        workers.iter_mut().for_each(|worker| worker.send(&format!("{rules} {run}")));
        let said = workers.iter_mut().map(|worker| worker.hear("passed "));
        said.map(|line| line["passed ".len()..].parse::<u32>().expect("a number")).sum()
    };
    let passed = (0..RUNS).map(&mut together).collect();
    (passed, workers)
}

/// Returns the units left in each of three accounts of a run.
async fn left<S>(store: &S, run: u32) -> Vec<u32>
where
    S: Store<Error = RedisError>,
{
    ask(store, 3, run, 0).await.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

async fn one_server_is_exact(flavour: Flavour) {
    let server = Server::start(flavour, &[]).await;
    assert_eq!(runs(&server.url(), 1).0, [LIMITS[0]; RUNS as usize]);
    let () = server.command("FLUSHALL").await;
    assert_eq!(runs(&server.url(), 3).0, [LIMITS[1]; RUNS as usize]);
    let store = crate::accounts::connect(&server.url()).await;
    for run in 0..RUNS {
        assert_eq!(left(&store, run).await, [100, 0, 50], "each rule was charged equally often");
    }
}

#[tokio::test]
async fn processes_share_a_limit_exactly() {
    one_server_is_exact(Flavour::Redis).await;
}

#[tokio::test]
async fn processes_share_a_limit_exactly_on_valkey() {
    one_server_is_exact(Flavour::Valkey).await;
}

#[tokio::test]
async fn processes_share_a_limit_on_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let urls = cluster.urls().join(" ");
    assert_eq!(runs(&urls, 1).0, [LIMITS[0]; RUNS as usize]);
    for node in &cluster.nodes()[..3] {
        let () = node.command("FLUSHALL").await;
    }
    let (passed, _workers) = runs(&urls, 3);
    println!("of {} on three servers at once, {passed:?} passed", LIMITS[1]);
    let store = on_cluster(&cluster).await.expect("a store");
    for (run, passed) in (0..RUNS).zip(passed) {
        assert!(passed <= LIMITS[1], "{passed}");
        // The last undo may still be under way.
        let exact = async || {
            let left = left(&store, run).await;
            (left == LIMITS.map(|limit| limit - passed)).then_some(())
        };
        eventually("only allowed requests are charged", exact).await;
    }
}
