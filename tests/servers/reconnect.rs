//! Reconnection after a crash of the server.
//!
//! It is soon, with one attempt at a time.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::{
    runtime::Handle,
    time::{sleep, timeout},
};
use tower_sluice::{Quota, RedisStore, store::RedisErrorKind as Kind};

use crate::{
    accounts::{Account, connect, lazy},
    servers::{Mode, Proxy, Server, eventually},
};

const SECOND: Duration = Duration::from_secs(1);
/// Ten times the longest pause between two attempts.
const AMPLE: Duration = Duration::from_secs(10);
const CALLERS: u32 = 64;

fn account() -> Account {
    Account::new("a", Quota::per_hour(1_000_000))
}

/// Sends requests from many callers until `work` is done. Returns its result and the number of
/// errors.
async fn under_load<T>(store: &RedisStore, work: impl Future<Output = T>) -> (T, u32) {
    let (done, errors) = (AtomicBool::new(false), AtomicU32::new(0));
    let callers = (0..CALLERS).map(async |_| {
        while !done.load(Relaxed) {
            if !matches!(timeout(SECOND, account().take(store, 1)).await, Ok(Ok(_))) {
                errors.fetch_add(1, Relaxed);
            }
            sleep(Duration::from_millis(2)).await;
        }
    });
    let work = async {
        let result = work.await;
        done.store(true, Relaxed);
        result
    };
    let (result, _) = tokio::join!(work, join_all(callers));
    (result, errors.into_inner())
}

#[tokio::test]
async fn after_a_crash_a_store_reconnects_within_a_second_of_the_server() {
    let mut server = Server::redis().await;
    let store = connect(&server.url()).await;
    for down in [0, 300, 2_500] {
        let ((), errors) = under_load(&store, async {
            server.kill();
            sleep(Duration::from_millis(down)).await;
            let error = account().take(&store, 1).await.expect_err("no server");
            assert_eq!(error.kind(), Kind::Disconnected, "{error}");
            server.restart().await;
            let well = eventually("a decision", async || account().take(&store, 1).await.ok());
            drop(timeout(AMPLE, well).await.expect("soon after the server"));
        })
        .await;
        assert!(errors > 0);
        let after = account().take(&store, 0).await.expect("a decision");
        assert!(after.remaining() > Some(990_000), "the server lost its accounts");
    }
    let clients: String = server.command("CLIENT LIST").await;
    assert_eq!(clients.lines().count(), 2, "{clients}");
}

/// Waits for connection attempts. Returns their number, and the most in that time if there is one per
/// period `every`.
async fn attempts(proxy: &Proxy, count: usize, every: Duration) -> (usize, usize) {
    let (start, before) = (Instant::now(), proxy.accepted());
    let more = async || (proxy.accepted() >= before + count).then_some(());
    eventually("connection attempts", more).await;
    let most = start.elapsed().as_millis() / every.as_millis();
    (proxy.accepted() - before, usize::try_from(most).expect("few"))
}

#[tokio::test]
async fn any_number_of_callers_share_one_connection_attempt() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    // Each attempt hangs for a second until it times out.
    let ((hung, most), _) = under_load(&store, async {
        proxy.set(Mode::Drop).await;
        let lost = async || account().take(&store, 1).await.is_err().then_some(());
        eventually("the connection is lost", lost).await;
        proxy.set(Mode::BlackHole).await;
        // After an attempt that was dropped, a connection reads the first line of the server.
        sleep(SECOND / 2).await;
        attempts(&proxy, 3, SECOND).await
    })
    .await;
    assert!(hung <= most + 2, "{hung} attempts, not {most}");

    // Each attempt fails immediately.
    let ((failed, most), errors) = under_load(&store, async {
        proxy.set(Mode::Drop).await;
        attempts(&proxy, 25, SECOND / 10).await
    })
    .await;
    println!("{failed} attempts, not {most}, while {CALLERS} callers had {errors} errors");
    // With callers waiting all the time, a pause is a tenth of a second, or less by chance: the first
    // ones, and then one in ten.
    assert!(failed <= most + 12, "{failed} attempts, not {most}");
    proxy.set(Mode::Pass).await;
    let well = async || account().take(&store, 1).await.ok();
    drop(eventually("a decision", well).await);
}

#[tokio::test]
async fn a_dropped_store_stops_connecting() {
    let server = Server::redis().await;
    let cases = [(Mode::Refuse, false), (Mode::BlackHole, true), (Mode::Drop, true)];
    let gone = cases.into_iter().map(async |(mode, connected)| {
        let mut proxy = Proxy::start(server.address()).await;
        let url = server.url_at(proxy.addr());
        let store = if connected { connect(&url).await } else { lazy(&url) };
        proxy.set(mode).await;
        for _ in 0..30 {
            let answer = timeout(Duration::from_millis(50), account().take(&store, 1)).await;
            assert!(answer.is_err() || answer.is_ok_and(|answer| answer.is_err()), "{mode:?}");
        }
        drop(store);
        // A call that several callers share ends within a second, and so does an attempt under way.
        eventually(&format!("{mode:?}: no more attempts"), async || {
            let attempts = proxy.accepted();
            sleep(2 * SECOND).await;
            (proxy.accepted() == attempts).then_some(())
        })
        .await;
    });
    join_all(gone).await;
    let none = async || (Handle::current().metrics().num_alive_tasks() == 0).then_some(());
    eventually("no task is left", none).await;
}
