//! Processes that lease units from a server.
//!
//! Together they never exceed the limit, and use nearly all of it. A killed process loses its
//! units.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::{runtime::Builder, time::interval};
use tower_sluice::{Quota, RedisStore, StoreExt, decision::Source};

use crate::{
    accounts::{Account, connect},
    servers::{PATIENCE, Server, eventually},
    worker::{self, Worker},
};

const MINUTELY: Quota = Quota::per_minute(60_000);

/// Sends load for `time` through the stores of four processes, each with its own connection and its
/// part of the load. Returns the number of requests and of allowed ones.
async fn uneven(url: &str, quota: Quota, percent: u32, load: u32, time: Duration) -> (u32, u32) {
    let account = Arc::new(Account::new("hot", quota));
    let part = async |part: u32| {
        let store = connect(url).await.timeout(PATIENCE).breaker().deny_cache();
        let (store, account) = (store.leases(percent), account.clone());
        let task = async move {
            let (start, mut tick) = (Instant::now(), interval(Duration::from_millis(1)));
            let (mut asked, mut passed) = (0, 0);
            while start.elapsed() < time {
                tick.tick().await;
                let due = start.elapsed().as_secs_f64() * f64::from(load * part) / 100.0;
                let asks = (0..).take_while(|n| f64::from(asked + n) < due).count();
                let answers = (0..asks).map(|_| store.take(&[account.charge(1)]).into_future());
                for answer in join_all(answers).await {
                    asked += 1;
                    passed += u32::from(answer.expect("a decision").is_allowed());
                }
            }
            (asked, passed)
        };
        tokio::spawn(task).await.expect("no panic")
    };
    let all = join_all([70, 20, 8, 2].map(part)).await;
    all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test]
async fn uneven_load_uses_the_limit_and_never_more() {
    let server = Server::redis().await;
    // Load below the limit, ten times the limit at once, and load equal to the rate.
    for (name, quota, percent, load, millis) in [
        ("below", MINUTELY, 5, 2_000, 3_000),
        ("ten times", Quota::per_hour(2_000), 5, 8_000, 2_500),
        ("at it", Quota::per_second(1_000), 10, 5_000, 4_000),
    ] {
        let _: String = server.command("FLUSHALL").await;
        let (before, start) = (server.script_calls().await, Instant::now());
        let time = Duration::from_millis(millis);
        let (asked, passed) = uneven(&server.url(), quota, percent, load, time).await;
        let most = f64::from(quota.limit())
            + (start.elapsed().as_secs_f64() / quota.interval().as_secs_f64()).floor();
        let least = f64::from(quota.limit()) + time.as_secs_f64() / quota.interval().as_secs_f64();
        let wanted = least.min(f64::from(asked));
        let trips = server.script_calls().await - before;
        println!("{name}: {passed} of {wanted:.0} passed, {asked} asked, {trips} trips");
        assert!(f64::from(passed) <= most, "{name}: {passed} of {most}");
        assert!(f64::from(passed) >= wanted * 0.95, "{name}: {passed} of {wanted}");
        assert!(trips * 20 <= asked, "{name}: {trips} trips for {asked}");
    }
}

#[tokio::test]
async fn unused_leases_return_to_the_server() {
    let server = Server::redis().await;
    let (plain, store) = (connect(&server.url()).await, connect(&server.url()).await.leases(5));
    let account = Account::new("idle", Quota::per_day(1_000));
    let mut last = Source::Redis;
    for _ in 0..20 {
        last = account.take(&store, 1).await.expect("a decision").source();
    }
    assert_eq!(last, Source::Leased);
    let left = account.left(&plain).await;
    assert!(left < 980, "{left} are left");
    eventually("the units are back", async || (account.left(&plain).await == 980).then_some(()))
        .await;
    for _ in 0..20 {
        drop(account.take(&store, 1).await.expect("a decision"));
    }
    drop(store);
    eventually("the units are back", async || (account.left(&plain).await == 960).then_some(()))
        .await;
}

/// A process of the test below. Does nothing by itself.
#[test]
fn worker() {
    let Some(url) = worker::urls() else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = RedisStore::connect(&url).await.expect("a store").leases(5);
        let account = Account::new("killed", Quota::per_day(1_000));
        println!("\nready");
        let mut passed = 0;
        loop {
            let decision = account.take(&store, 1).await.expect("a decision");
            passed += u32::from(decision.is_allowed());
            if passed >= 300 {
                println!("\npassed {passed}");
                // Runs until it is killed, or returns its leases.
                std::thread::sleep(Duration::from_secs(60));
            }
        }
    });
}

#[tokio::test]
async fn a_killed_process_loses_at_most_its_share() {
    let server = Server::redis().await;
    let plain = connect(&server.url()).await;
    let account = Account::new("killed", Quota::per_day(1_000));
    let mut workers = [(); 2].map(|()| Worker::start("leased::worker", &server.url()));
    for worker in &mut workers {
        worker.hear("passed 300");
    }
    workers.iter_mut().for_each(|worker| drop(worker.kill()));
    let left = account.left(&plain).await;
    assert!(left <= 400, "{left} are left of 1000, and 600 passed");
    assert!(left >= 300, "{left} are left: each lost more than fifty");
    assert_eq!(account.passed(&plain, 500).await, left);
}
