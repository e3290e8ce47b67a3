//! Processes that are counted while they run (`live_instances`).

use std::{
    io::{Write, stdout},
    time::Duration,
};

use tokio::{runtime::Builder, time::sleep};
use tower_sluice::{Limiter, LocalStore, Quota, StoreExt};

use crate::{
    accounts::{connect, raw},
    servers::{Flavour, Server, eventually},
    worker::{self, Worker},
};

/// The limits that the processes share. The last one is below the number of processes.
const LIMITS: [u32; 3] = [100, 31, 7];
const PAUSE: Duration = Duration::from_millis(50);
const BUDGET: Duration = Duration::from_millis(250);

fn say(line: &str) {
    let _ = writeln!(stdout(), "\n{line}");
}

/// Reports when the number of processes changes. In each outage, takes units of each limit until the
/// first denial. Does nothing by itself.
#[test]
fn sharer() {
    let Some(url) = worker::urls() else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let redis = connect(&url).await;
        let instances = redis.live_instances(1);
        let local = LocalStore::with_capacity(1_000);
        let store = redis.timeout(BUDGET).breaker().fallback(local, instances.clone());
        let (limiter, probe) = (Limiter::named("default", store.clone()), Quota::per_second(1_000));
        let (mut count, mut was_failing) = (0, false);
        say("ready");
        loop {
            if count != instances.count() {
                count = instances.count();
                say(&format!("count {count}"));
            }
            let _ = limiter.take("probe", &probe, 1).await;
            if store.is_failing() && !was_failing {
                let mut took = String::new();
                for limit in LIMITS {
                    // All processes take units of one key.
                    let (key, quota) = (format!("{limit} {count}"), Quota::per_day(limit));
                    let mut units = 0;
                    loop {
                        let decision = limiter.take(key.clone(), &quota, 1).await;
                        if !decision.is_allowed() {
                            assert!(decision.retry_after().is_some(), "a denial that ends");
                            break;
                        }
                        units += 1;
                    }
                    took += &format!(" {units}");
                }
                say(&format!("took{took}"));
            }
            was_failing = store.is_failing();
            sleep(PAUSE).await;
        }
    });
}

/// Stops the server until each process has taken its part of each limit.
async fn shared(server: &Server, workers: &mut [Worker]) {
    let count = format!("count {}", workers.len());
    for worker in &mut *workers {
        worker.hear(&count);
    }
    // All processes know their rank among these.
    sleep(Duration::from_secs(4)).await;
    server.stop();
    let mut all = [0; 3];
    for worker in &mut *workers {
        let took = worker.hear("took");
        let parts = took.split_whitespace().skip(1).map(|part| part.parse::<u32>().expect("units"));
        all.iter_mut().zip(parts).for_each(|(all, part)| *all += part);
    }
    server.cont();
    assert_eq!(all, LIMITS, "{} processes", workers.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_three_nine_and_two_processes_are_the_limit() {
    let server = Server::redis().await;
    let start = || Worker::start("instances::sharer", &server.url());
    let mut workers: Vec<_> = (0..3).map(|_| start()).collect();
    shared(&server, &mut workers).await;
    workers.extend((0..6).map(|_| start()));
    shared(&server, &mut workers).await;
    workers.truncate(2);
    shared(&server, &mut workers).await;
}

#[tokio::test]
async fn processes_are_counted_on_valkey_and_after_a_loss_of_data() {
    let server = Server::start(Flavour::Valkey, &[]).await;
    let stores = [connect(&server.url()).await, connect(&server.url()).await];
    let counted = stores.each_ref().map(|store| store.live_instances(1));
    for instances in &counted {
        eventually("both", async || (instances.count() == 2).then_some(())).await;
    }
    let mut connection = raw(&server.url()).await;
    let (): () = redis::cmd("FLUSHALL").query_async(&mut connection).await.expect("flushed");
    for _ in 0..70 {
        assert!(counted.iter().all(|it| it.count() == 2));
        sleep(PAUSE * 2).await;
    }
    let keys: Vec<String> =
        redis::cmd("KEYS").arg("*instances").query_async(&mut connection).await.expect("keys");
    assert_eq!(keys.len(), 1, "they registered again");
}
