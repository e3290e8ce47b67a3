//! The connection that all decisions share.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::{executor::block_on, future::join_all};
use redis::Client;
use tokio::{runtime::Builder, task::yield_now, time::timeout};
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, Store, StoreExt,
    store::{Charge, RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, Dice, connect, lazy, raw, rule},
    servers::{Cluster, Flavour, Mode, Proxy, Sentinels, Server, eventually},
};

const SECOND: Duration = Duration::from_secs(1);
/// Ten times the limit of a call and of an attempt to connect.
const AMPLE: Duration = Duration::from_secs(10);

fn account() -> Account {
    Account::new("a", Quota::per_hour(1_000_000))
}

/// Returns the result of a take, unless it exceeds `time`.
async fn within(time: Duration, store: &RedisStore) -> Option<Result<Decision, RedisError>> {
    timeout(time, account().take(store, 1)).await.ok()
}

#[tokio::test]
async fn a_dead_port_is_an_error_within_a_second() {
    let mut server = Server::redis().await;
    server.kill();
    let connects = timeout(AMPLE, RedisStore::connect(server.url()).into_future()).await;
    let error = connects.expect("in time").expect_err("no server listens");
    assert_eq!(error.kind(), Kind::Disconnected, "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    let (_, address) =
        server.url().rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a url");
    let fix = format!("; is it at {address}? `.lazy()` starts without it");
    assert!(error.to_string().ends_with(&fix), "{error}");
}

#[tokio::test]
async fn a_silent_port_is_an_error_within_a_second() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    proxy.set(Mode::BlackHole).await;
    let connects = RedisStore::connect(server.url_at(proxy.addr())).into_future();
    let error = timeout(AMPLE, connects).await.expect("in time").expect_err("silence");
    assert!(matches!(error.kind(), Kind::Disconnected | Kind::Timeout), "{error}");
}

#[tokio::test]
async fn a_lazy_store_fails_fast_until_the_server_is_up() {
    let mut server = Server::redis().await;
    server.kill();
    let store = lazy(&server.url());
    let mut shortest = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        let error = account().take(&store, 1).await.expect_err("no server");
        assert_eq!(error.kind(), Kind::Disconnected, "{error}");
        shortest = shortest.min(start.elapsed());
    }
    assert!(shortest < SECOND / 2, "{shortest:?}");
    server.launch();
    server.ready().await.expect("it starts");
    let well = eventually("a decision", async || within(SECOND, &store).await?.ok());
    drop(timeout(AMPLE, well).await.expect("soon after the server"));
}

#[tokio::test]
async fn a_connector_is_called_on_the_first_request_after_a_failure_and_after_a_failover() {
    let server = Server::redis().await;
    let (opened, client) =
        (Arc::new(AtomicU32::new(0)), Client::open(server.url()).expect("a URL"));
    let counter = opened.clone();
    let store = RedisStore::from_connector(move || {
        let (attempt, client) = (counter.fetch_add(1, Relaxed), client.clone());
        async move {
            match attempt {
                1 => Err(io::Error::other("no credentials").into()),
                _ => client.get_multiplexed_async_connection().await,
            }
        }
    });
    let store = store.lazy().expect("a store");
    assert_eq!(opened.load(Relaxed), 0);
    for _ in 0..2 {
        assert!(account().take(&store, 1).await.expect("a decision").is_allowed());
    }
    assert_eq!(opened.load(Relaxed), 1);
    let _: u32 = server.command("CLIENT KILL TYPE normal").await;
    drop(eventually("a decision", async || within(SECOND, &store).await?.ok()).await);
    assert_eq!(opened.load(Relaxed), 3);
    // A failover demotes the server, which keeps its connections.
    let () = server.command("REPLICAOF 127.0.0.1 1").await;
    let error = account().take(&store, 1).await.expect_err("a replica");
    assert_eq!(error.kind(), Kind::Replica, "{error}");
    let () = server.command("REPLICAOF NO ONE").await;
    drop(eventually("a decision", async || within(SECOND, &store).await?.ok()).await);
    assert_eq!(opened.load(Relaxed), 4);
}

#[test]
fn every_call_without_a_runtime_is_an_error_and_not_a_panic() {
    let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Server::redis());
    let connected = runtime.block_on(connect(&server.url()));
    let sharded = RedisStore::sharded(runtime.block_on(raw(&server.url())));
    let sharded = sharded.lazy().expect("a store");
    let (key, quotas) = (Key::from("a"), [Quota::per_hour(5)]);
    let charges = ["one", "two"].map(|name| Charge::new(rule(name), &key, &quotas));
    let taken = runtime.block_on(connected.take(&charges).into_future()).expect("a decision");
    let lazy = lazy(&server.url());
    for store in [&connected, &lazy] {
        let error = block_on(store.take(&charges).into_future()).expect_err("no runtime");
        assert_eq!(error.kind(), Kind::Disconnected, "{error}");
        assert!(error.to_string().contains("tokio"), "{error}");
        assert!(block_on(store.adjust(&charges[0], 1).into_future()).is_err());
        assert!(block_on(store.probe()).is_err());
        store.undo(&charges, &taken, None);
    }
    let error = block_on(sharded.take(&charges).into_future()).expect_err("no runtime");
    assert!(error.to_string().contains("tokio"), "{error}");
    assert!(block_on(sharded.take(&charges[..1]).into_future()).is_err());
    sharded.undo(&charges, &taken, None);
    // Calls on a runtime succeed.
    assert!(runtime.block_on(lazy.take(&charges).into_future()).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_ends_while_connecting_leaves_the_store_usable() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = lazy(&server.url_at(proxy.addr()));
    for mode in [Mode::BlackHole, Mode::Pass] {
        proxy.set(mode).await;
        let other = store.clone();
        let on_another = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            let patience = if mode == Mode::Pass { AMPLE } else { Duration::from_millis(200) };
            runtime.block_on(within(patience, &other)).is_some()
        });
        assert_eq!(on_another.join().expect("no panic"), mode == Mode::Pass);
    }
    let well = async || within(SECOND, &store).await?.ok();
    drop(eventually("a decision on this runtime", well).await);
}

#[tokio::test]
async fn a_connection_that_is_silent_for_a_second_is_replaced() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    let start = Instant::now();
    assert!(within(AMPLE, &store).await.expect("in time").is_ok());
    proxy.set(Mode::BlackHole).await;
    let given_up = async || {
        let answer = within(Duration::from_millis(50), &store).await;
        assert!(answer.is_none_or(|answer| answer.is_err()));
        (proxy.accepted() > 1).then_some(())
    };
    eventually("another connection", given_up).await;
    let took = start.elapsed();
    println!("a silent connection is given up after {took:?}");
    assert!(took >= SECOND && took < AMPLE, "{took:?}");
    proxy.set(Mode::Pass).await;
    let well = async || within(SECOND, &store).await?.ok();
    drop(eventually("a decision", well).await);
}

#[tokio::test]
async fn a_connection_whose_last_caller_leaves_is_kept() {
    let server = Server::redis().await;
    let proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    let (beside, account) = (connect(&server.url()).await, Account::new("gone", Quota::per_day(9)));
    // The server then has the script.
    assert_eq!(account.passed(&store, 1).await, 1);
    for _ in 0..2 {
        // The request is sent and answered after its caller has left.
        let before = account.left(&beside).await;
        let mut take = Box::pin(account.take(&store, 1));
        assert!(futures::poll!(take.as_mut()).is_pending());
        let charged = async || (account.left(&beside).await < before).then_some(());
        eventually("the unit is charged", charged).await;
        drop(take);
        // The time that the connection may be silent while a caller waits.
        tokio::time::sleep(SECOND + SECOND / 4).await;
        assert!(within(AMPLE, &store).await.expect("in time").is_ok());
    }
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_match_their_requests_when_half_of_the_callers_leave() {
    const KEYS: u32 = 300;
    const APART: u32 = 1_000;
    const TASKS: u32 = 40;
    const CALLS: u32 = 500;
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let quota = Quota::new(1_000_000, Duration::from_secs(300_000_000)).expect("a quota");
    let quota = quota.with_algorithm(Algorithm::AnchoredWindow);
    let accounts: Vec<_> = (0..KEYS).map(|key| Account::new(key, quota)).collect();
    for (account, key) in accounts.iter().zip(0..) {
        let charged = account.take(&store, key * APART + 1).await.expect("a decision");
        assert!(charged.is_allowed());
    }
    let (answers, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let tasks = (0..TASKS).map(async |task| {
        let mut dice = Dice(task.into());
        for call in 0..CALLS {
            let key = dice.below(KEYS);
            let cost = dice.below(2);
            let take = accounts[key as usize].take(&store, cost);
            let decision = if dice.below(2) == 0 {
                let leaves = async {
                    for _ in 0..dice.below(12) {
                        yield_now().await;
                    }
                };
                tokio::select! { biased; () = leaves => None, taken = take => Some(taken) }
            } else {
                Some(take.await)
            };
            if let Some(decision) = decision {
                let left = decision.expect("a decision").remaining().expect("a quota");
                let gone = 1_000_000 - left;
                assert_eq!(gone / APART, key, "{left} left of key {key}, call {call}");
                answers.fetch_add(1, Relaxed);
            }
            if call % 100 == 0 {
                let clients = server.info("clients", "connected_clients").await;
                most.fetch_max(clients.expect("a field").parse().expect("a number"), Relaxed);
            }
        }
    });
    join_all(tasks).await;
    let answers = answers.into_inner();
    println!("{answers} answers to {} calls, none to another", TASKS * CALLS);
    assert!(answers > TASKS * CALLS / 2 && answers < TASKS * CALLS);
    // The connections of the store and of the requests for the number.
    assert!(most.into_inner() <= 1 + TASKS);
    let count = async || {
        let list: String = server.command("CLIENT LIST").await;
        (list.lines().count() == 2).then_some(())
    };
    eventually("one connection, and the one that asks", count).await;
}

/// Returns the time until TCP sends a probe, for each connection of this process to `port` that
/// sends probes while it is idle.
#[cfg(target_os = "linux")]
fn keepalive_timers(port: u16) -> Vec<Duration> {
    const ESTABLISHED: &str = "01";
    let connections = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let own = std::fs::read_dir("/proc/self/fd").expect("a folder");
    let own: Vec<_> = own.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).collect();
    let timer = |line: &str| {
        let mut fields = line.split_whitespace().skip(2);
        let (remote, state, timer) = (fields.next()?, fields.next()?, fields.nth(1)?);
        let socket = format!("socket:[{}]", fields.nth(3)?);
        // The kind of the timer, 2 for a probe, and the time left in hundredths of a second.
        let left = timer.strip_prefix("02:")?;
        let found = remote.ends_with(&format!(":{port:04X}")) && state == ESTABLISHED;
        let found = found && own.iter().any(|own| own.as_os_str() == socket.as_str());
        found.then(|| Duration::from_millis(10 * u64::from_str_radix(left, 16).expect("a number")))
    };
    connections.lines().filter_map(timer).collect()
}

/// A user-space proxy cannot drop a flow: the kernel below it answers the probes. So the test reads
/// the timers of the kernel.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connections_send_tcp_probes() {
    let sentinels = Sentinels::start(Flavour::Redis).await;
    let cluster = Cluster::start(Flavour::Redis).await;
    let (names, nodes) = (sentinels.urls(), cluster.urls());
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
    let master = &sentinels.servers()[sentinels.master().await];
    let probed = async |server: &Server| {
        let timers = async || Some(keepalive_timers(server.port())).filter(|all| !all.is_empty());
        let timers = eventually("a connection with a timer", timers).await;
        assert!(timers.iter().all(|left| *left <= 15 * SECOND), "{timers:?}");
    };
    assert!(keepalive_timers(master.port()).is_empty(), "the test's own connections have none");
    let single = connect(&master.url()).await;
    probed(master).await;
    drop(single);
    let gone = async || keepalive_timers(master.port()).is_empty().then_some(());
    eventually("the connection is closed", gone).await;
    let _sentinel = RedisStore::sentinel(&names, Sentinels::NAME).await.expect("a store");
    probed(master).await;
    let _cluster = RedisStore::cluster(&nodes).await.expect("a store");
    for server in &cluster.nodes()[..3] {
        probed(server).await;
    }
}
