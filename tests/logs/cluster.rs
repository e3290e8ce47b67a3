//! Log lines about a cluster.

use std::{sync::mpsc, thread, time::Duration};

use tokio::runtime::Builder;
use tower_sluice::{Limiter, Quota, RedisStore, StoreExt, store::Timeout};
use tracing_subscriber::util::SubscriberInitExt;

use crate::{alone, log::Log};

const HOURLY: Quota = Quota::per_hour(100);

/// The writer of this log limits its lines by the store that they are about. The store must therefore hold no
/// lock while it logs, or the writer waits for itself.
#[test]
fn a_log_may_use_the_cluster_whose_outage_it_writes() {
    const SLOTS: &str = "no server of the cluster reports its hash slots";
    let _turn = alone();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        let cluster = RedisStore::cluster(&["redis://127.0.0.1:1"]).lazy().expect("a store");
        let limiter =
            Limiter::named("default", cluster.timeout(Timeout::DEFAULT).breaker().fail_open());
        let log = Log::default();
        let limiter_of_log = limiter.clone();
        let written = log.clone();
        let writer = move || {
            // Calls the store at once, although nobody waits for the answer.
            drop(limiter_of_log.take("log", &HOURLY, 1));
            written.clone()
        };
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        let _guard = lines.set_default();
        runtime.block_on(async {
            while !log.read().iter().any(|line| line.contains(SLOTS)) {
                drop(limiter.take("alice", &HOURLY, 1).await);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        done.send(()).expect("the test waits");
    });
    ended.recv_timeout(Duration::from_secs(20)).expect("the log does not wait for itself");
}
