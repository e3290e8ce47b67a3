//! Servers and links that fail under load, and the policy that decides meanwhile.
//!
//! Two processes send requests for keys that are always at their limits. In any time, a key gets at most its
//! limit, and what the row allows beyond it. All waits are for a number of decisions, not for a time.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::aio::ConnectionLike;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tower_sluice::{
    Limiter, LocalStore, Quota, RedisStore, StoreExt,
    decision::Source,
    store::{Answer, DynStore},
};

use crate::{
    accounts::{connect, on_cluster, on_sentinels},
    servers::{Cluster, Flavour, Mode, Proxy, Sentinels, Server, eventually},
};

/// The limit of every key. The load is several times higher.
const QUOTA: Quota = Quota::per_second(10).with_burst(10);
/// The most that a loss of state or a fallback adds.
const BURST: usize = 10;
/// The timeout of a decision.
const TIMEOUT: Duration = Duration::from_millis(100);
const KEYS: usize = 12;
const PROCESSES: u32 = 2;
/// The requests of a process at the same time.
const TASKS: usize = 8;
/// The decisions of each process for which a row waits.
const MANY: usize = 200;

/// A fault of the only server, or of the path to it, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
    /// Each command takes half a second.
    Sleeps,
    /// Commands that may write wait, and run after the fault.
    WritesPaused,
    PasswordWanted,
    Link(Mode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Fallback,
    FailOpen,
    FailClosed,
}

impl Policy {
    fn source(self) -> Source {
        match self {
            Self::Fallback => Source::Fallback,
            Self::FailOpen => Source::FailedOpen,
            Self::FailClosed => Source::FailedClosed,
        }
    }

    fn guard<C>(self, store: RedisStore<C>) -> Limiter<Arc<DynStore<Infallible>>>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let guarded = store.timeout(TIMEOUT).breaker();
        let store = match self {
            Self::Fallback => guarded.fallback(LocalStore::new(), PROCESSES).boxed(),
            Self::FailOpen => guarded.fail_open().boxed(),
            Self::FailClosed => guarded.fail_closed().boxed(),
        };
        Limiter::named("default", store)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: usize,
    asked: Instant,
    answered: Instant,
    is_allowed: bool,
    source: Source,
    /// Nothing was sent.
    at_once: bool,
}

/// The decisions of one process, in their order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Entry>>>);

impl Log {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Two processes under load.
struct Load {
    logs: Vec<Log>,
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(limiters: Vec<Limiter<Arc<DynStore<Infallible>>>>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut load = Self { logs: Vec::new(), is_over, tasks: Vec::new() };
        for limiter in limiters {
            let log = Log::default();
            for task in 0..TASKS {
                let sends = send(limiter.clone(), task, log.clone(), load.is_over.clone());
                load.tasks.push(tokio::spawn(sends));
            }
            load.logs.push(log);
        }
        load
    }

    /// Waits until each process has `MANY` more decisions of this kind.
    async fn wait_for(&self, what: &str, is_wanted: impl Fn(&Entry) -> bool) {
        let from: Vec<_> = self.logs.iter().map(|log| log.entries().len()).collect();
        let have = async || {
            for (log, from) in self.logs.iter().zip(&from) {
                let entries = log.entries();
                if entries[*from..].iter().filter(|entry| is_wanted(entry)).count() < MANY {
                    return None;
                }
            }
            Some(())
        };
        eventually(what, have).await;
    }

    /// Waits until the last `MANY` decisions of each process are by Redis.
    async fn until_back(&self) {
        let is_back = |log: &Log| {
            let entries = log.entries();
            entries.iter().rev().take(MANY).all(|entry| entry.source == Source::Redis)
        };
        let all = async || self.logs.iter().all(is_back).then_some(());
        eventually("Redis decides again", all).await;
    }

    async fn end(self) -> Vec<Entry> {
        self.is_over.store(true, Relaxed);
        for task in self.tasks {
            task.await.expect("no panic");
        }
        self.logs.iter().flat_map(|log| log.entries().clone()).collect()
    }
}

async fn send(
    limiter: Limiter<Arc<DynStore<Infallible>>>,
    task: usize,
    log: Log,
    is_over: Arc<AtomicBool>,
) {
    let mut key = task;
    while !is_over.load(Relaxed) {
        key = (key + 5) % KEYS;
        let asked = Instant::now();
        let (decision, at_once) = match limiter.take(format!("k{key}"), &QUOTA, 1) {
            Answer::Now(decision) => (decision, true),
            Answer::Later(later) => (later.await, false),
        };
        let answered = Instant::now();
        let (is_allowed, source) = (decision.is_allowed(), decision.source());
        log.entries().push(Entry { key, asked, answered, is_allowed, source, at_once });
        sleep(Duration::from_millis(8)).await;
    }
}

/// Returns the most units above the limit that a key got in any time.
///
/// A client knows only the interval of a decision, so the intervals count that lie wholly in the time.
fn overshoot(entries: &[Entry]) -> usize {
    let mut most = 0;
    for key in 0..KEYS {
        let of_key = entries.iter().filter(|entry| entry.key == key && entry.is_allowed);
        let mut admitted: Vec<_> = of_key
            .map(|entry| {
                let by_server = entry.source == Source::Redis;
                (if by_server { entry.asked } else { entry.answered }, entry.answered)
            })
            .collect();
        admitted.sort_by_key(|(_, end)| *end);
        for (start, _) in &admitted {
            let inside = admitted.iter().filter(|(from, _)| from >= start);
            for (count, (_, end)) in inside.enumerate() {
                let returned = (*end - *start).as_nanos() / QUOTA.interval().as_nanos();
                let returned = usize::try_from(returned).expect("few");
                most = most.max((count + 1).saturating_sub(BURST + returned));
            }
        }
    }
    most
}

/// Runs a fault between two times without one. Returns all decisions.
async fn play(
    limiters: Vec<Limiter<Arc<DynStore<Infallible>>>>,
    strike: impl AsyncFnOnce(&Load),
) -> Vec<Entry> {
    let load = Load::start(limiters);
    load.wait_for("Redis decides", |entry| entry.source == Source::Redis).await;
    strike(&load).await;
    load.until_back().await;
    // What the fault has left above the limit would be used now.
    load.wait_for("more decisions", |_| true).await;
    load.end().await
}

/// Plays a fault of the only server. While it lasts, the policy decides without a call.
async fn fails(flavour: Flavour, fault: Fault, policy: Policy, most: Option<usize>) {
    let mut server = Server::start(flavour, &[]).await;
    let mut proxy = Proxy::start(server.address()).await;
    let url = server.url_at(proxy.addr());
    let limiters = vec![policy.guard(connect(&url).await), policy.guard(connect(&url).await)];
    let mut admin = server.connection().await.expect("connects");
    let entries = play(limiters, async |load| {
        match fault {
            Fault::Kill => server.kill(),
            Fault::Freeze => server.stop(),
            Fault::Link(mode) => proxy.set(mode).await,
            Fault::WritesPaused => server.command("CLIENT PAUSE 60000 WRITE").await,
            Fault::PasswordWanted => {
                let mut lock = redis::pipe();
                lock.cmd("CONFIG").arg("SET").arg("requirepass").arg("secret").ignore();
                // Open connections are authenticated already.
                let kill = lock.cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").arg("SKIPME");
                kill.arg("yes").ignore();
                let () = lock.query_async(&mut admin).await.expect("locked");
            }
            Fault::Sleeps => {}
        }
        let by_policy = load.wait_for("the policy decides without a call", |entry| {
            entry.at_once && entry.source == policy.source()
        });
        if fault == Fault::Sleeps {
            let mut by_policy = std::pin::pin!(by_policy);
            while futures::poll!(&mut by_policy).is_pending() {
                let () = server.command("DEBUG SLEEP 0.5").await;
                sleep(Duration::from_millis(20)).await;
            }
        } else {
            by_policy.await;
        }
        match fault {
            Fault::Kill => server.restart().await,
            Fault::Freeze => server.cont(),
            Fault::Link(_) => proxy.set(Mode::Pass).await,
            Fault::WritesPaused => server.command("CLIENT UNPAUSE").await,
            Fault::PasswordWanted => {
                let mut unlock = redis::cmd("CONFIG");
                let unlock = unlock.arg("SET").arg("requirepass").arg("");
                let () = unlock.query_async(&mut admin).await.expect("unlocked");
            }
            Fault::Sleeps => {}
        }
    })
    .await;
    let what = format!("{flavour:?}, {fault:?}, {policy:?}");
    let by_policy = |entry: &&Entry| entry.source == policy.source();
    let others = |entry: &&Entry| entry.source != Source::Redis && !by_policy(entry);
    assert_eq!(entries.iter().filter(others).count(), 0, "{what}");
    let meanwhile = entries.iter().filter(by_policy);
    match policy {
        Policy::FailOpen => assert!(meanwhile.into_iter().all(|it| it.is_allowed), "{what}"),
        Policy::FailClosed => assert!(!meanwhile.into_iter().any(|it| it.is_allowed), "{what}"),
        Policy::Fallback => assert!(meanwhile.into_iter().any(|it| it.is_allowed), "{what}"),
    }
    if let Some(most) = most {
        let over = overshoot(&entries);
        assert!(over <= most, "{what}: {over} units above the limit");
    }
}

/// The state of the server is lost, and the fallback gives its share once more.
#[tokio::test]
async fn a_killed_server() {
    for flavour in Flavour::ALL {
        fails(flavour, Fault::Kill, Policy::Fallback, Some(2 * BURST)).await;
        fails(flavour, Fault::Kill, Policy::FailClosed, Some(BURST)).await;
    }
    fails(Flavour::Redis, Fault::Kill, Policy::FailOpen, None).await;
}

#[tokio::test]
async fn a_frozen_server() {
    for flavour in Flavour::ALL {
        fails(flavour, Fault::Freeze, Policy::Fallback, Some(2 * BURST)).await;
        fails(flavour, Fault::Freeze, Policy::FailClosed, Some(0)).await;
    }
    fails(Flavour::Redis, Fault::Freeze, Policy::FailOpen, None).await;
}

#[tokio::test]
async fn a_server_that_is_late_or_locked() {
    for fault in [Fault::Sleeps, Fault::WritesPaused, Fault::PasswordWanted] {
        fails(Flavour::Redis, fault, Policy::Fallback, Some(2 * BURST)).await;
    }
}

#[tokio::test]
async fn an_unplugged_link() {
    let late = Mode::Delay(3 * TIMEOUT);
    for mode in [Mode::BlackHole, Mode::Drop, Mode::Refuse, late] {
        fails(Flavour::Redis, Fault::Link(mode), Policy::Fallback, Some(2 * BURST)).await;
    }
    fails(Flavour::Valkey, Fault::Link(Mode::BlackHole), Policy::FailClosed, Some(0)).await;
}

/// The fallback decides until the replica is promoted, which has all but the last charges.
fn check_failover(entries: &[Entry]) {
    assert!(entries.iter().any(|entry| entry.source == Source::Fallback));
    let over = overshoot(entries);
    assert!(over <= 2 * BURST, "{over} units above the limit");
}

#[tokio::test]
async fn a_killed_master_of_sentinels() {
    let mut sentinels = Sentinels::start(Flavour::Redis).await;
    let mut limiters = Vec::new();
    for _ in 0..PROCESSES {
        let store = on_sentinels(&sentinels).await;
        limiters.push(Policy::Fallback.guard(store.expect("a store")));
    }
    let entries = play(limiters, async |_| {
        sentinels.kill_master().await;
        sentinels.master().await;
    })
    .await;
    check_failover(&entries);
}

#[tokio::test]
async fn a_killed_master_of_a_cluster() {
    let mut cluster = Cluster::start(Flavour::Valkey).await;
    let mut limiters = Vec::new();
    for _ in 0..PROCESSES {
        let store = on_cluster(&cluster).readable_keys().await;
        limiters.push(Policy::Fallback.guard(store.expect("a store")));
    }
    let place = crate::accounts::address("default", "k0");
    let entries = play(limiters, async |_| {
        cluster.kill_master_of(&place).await;
        cluster.master_of(&place).await;
    })
    .await;
    check_failover(&entries);
}
