//! Processes that hold slots, and are killed or paused.

use std::{
    collections::BTreeMap,
    env,
    io::{Write, stdout},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};
use tower_sluice::{Limiter, Quota, RedisStore};

use crate::{
    accounts::{Account, Dice},
    servers::{Flavour, Server, eventually},
    slots::{held, until_held},
    worker::{self, Worker},
};

const TTL: Duration = Duration::from_secs(1);
const LIMIT: u32 = 4;
/// The seconds of the random faults.
const SECONDS: &str = "SLUICE_SLOTS_SECONDS";
/// The time in which a process that wakes up on a busy machine notices that its slots are lost.
const GRACE: u128 = 2_000_000_000;

fn account() -> Account {
    Account::new("hot", Quota::concurrent(LIMIT))
}

/// Returns the nanoseconds by the clock that all processes of the machine share.
fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}

fn say(line: &str) {
    let _ = writeln!(stdout(), "\n{line}");
}

/// A process that holds two slots. Does nothing by itself.
#[test]
fn holder() {
    let Some(url) = worker::urls() else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = RedisStore::connect(&url).slot_ttl(TTL).await.expect("a store");
        let slot = account().take(&store, 2).await.expect("a decision").take_slot();
        say("ready");
        slot.expect("two slots").lost().await;
        say("lost");
        sleep(Duration::from_secs(60)).await;
    });
}

#[tokio::test]
async fn a_killed_process_frees_its_slots_and_no_others() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let store = RedisStore::connect(server.url()).slot_ttl(TTL).await.expect("a store");
        let account = account();
        let mine = account.take(&store, 1).await.expect("a decision");
        // A busy machine prolongs some of them.
        eventually("its slots end after the time to live", async || {
            let worker = Worker::start("slots_faults::holder", &server.url());
            assert_eq!(held(&store, &account).await, 3);
            drop(worker);
            let start = Instant::now();
            assert!(!account.take(&store, 2).await.expect("a decision").is_allowed());
            until_held(&store, &account, 1).await;
            (start.elapsed() < TTL + TTL / 2).then_some(())
        })
        .await;
        drop(mine);
        until_held(&store, &account, 0).await;
    }
}

#[tokio::test]
async fn a_paused_process_learns_that_others_took_its_slots() {
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).slot_ttl(TTL).await.expect("a store");
    let account = account();
    let mut worker = Worker::start("slots_faults::holder", &server.url());
    worker.signal("STOP");
    until_held(&store, &account, 0).await;
    let all = account.take(&store, LIMIT).await.expect("a decision");
    assert!(all.is_allowed());
    worker.signal("CONT");
    worker.hear("lost");
    sleep(TTL / 2).await;
    assert_eq!(held(&store, &account).await, 4, "nothing that has ended revives");
    drop((worker, all));
    until_held(&store, &account, 0).await;
}

/// A process of the test below. Does nothing by itself.
#[test]
fn contender() {
    let Some(url) = worker::urls() else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = RedisStore::connect(&url).slot_ttl(TTL).await.expect("a store");
        say("ready");
        let tasks = (0..8_u64).map(|task| {
            let store = store.clone();
            async move {
                let (account, mut random) = (account(), Dice(task + u64::from(std::process::id())));
                let limiter = Limiter::named("default", store.clone());
                for turn in 0.. {
                    let pause = Duration::from_millis((5 + random.below(40)).into());
                    let decision = if task % 2 == 0 {
                        account.take(&store, 1).await.ok()
                    } else {
                        // It may leave while it waits, or while its call is in flight.
                        let waits =
                            limiter.try_until_ready(account.key.clone(), &account.quotas, 1);
                        timeout(pause * 2, waits).await.ok().and_then(Result::ok)
                    };
                    let Some(mut decision) = decision else {
                        sleep(pause).await;
                        continue;
                    };
                    let Some(slot) = decision.take_slot() else {
                        sleep(pause).await;
                        continue;
                    };
                    say(&format!("hold {task}-{turn} {}", now()));
                    let _ = timeout(pause, slot.lost()).await;
                    say(&format!("free {task}-{turn} {}", now()));
                    drop(slot);
                }
            }
        });
        futures::future::join_all(tasks).await;
    });
}

/// The holds of one process, and its pauses.
#[derive(Default)]
struct Holds {
    holds: BTreeMap<String, (u128, u128)>,
    pauses: Vec<(u128, u128)>,
}

impl Holds {
    fn read(lines: &[String], killed: u128, pauses: Vec<(u128, u128)>) -> Self {
        let mut all = Self { pauses, ..Self::default() };
        for line in lines {
            let words: Vec<_> = line.split(' ').collect();
            let [kind, name, at] = words[..] else { continue };
            let Ok(at) = at.parse::<u128>() else { continue };
            let hold = all.holds.entry(name.to_owned()).or_insert((at, killed));
            if kind == "free" {
                hold.1 = at;
            }
        }
        all
    }

    /// Returns the intervals in which the process ran and held a slot.
    fn intervals(&self) -> Vec<(u128, u128)> {
        let mut found = Vec::new();
        for &(mut from, until) in self.holds.values() {
            for &(stopped, woke) in &self.pauses {
                if from < until.min(stopped) {
                    found.push((from, until.min(stopped)));
                }
                from = from.max(until.min(woke + GRACE));
            }
            if from < until {
                found.push((from, until));
            }
        }
        found
    }
}

/// Returns the largest number of intervals at one instant.
fn most(intervals: &[(u128, u128)]) -> usize {
    let mut edges: Vec<_> =
        intervals.iter().flat_map(|(from, until)| [(*from, 1_i32), (*until, -1)]).collect();
    // At one instant, an interval ends before another begins.
    edges.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in edges {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).expect("not negative")
}

/// Kills and pauses three processes at random. A run of a minute is part of `scripts/release-check`.
#[tokio::test]
async fn random_kills_and_pauses_never_exceed_the_limit() {
    let seconds = env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let store = RedisStore::connect(server.url()).slot_ttl(TTL).await.expect("a store");
        let account = account();
        let start = || (Worker::start("slots_faults::contender", &server.url()), Vec::new());
        let mut workers = [start(), start(), start()];
        let (mut random, mut all, mut faults) = (Dice(1), Vec::new(), [0, 0]);
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            sleep(Duration::from_millis((200 + random.below(400)).into())).await;
            let (worker, pauses) = &mut workers[random.below(3) as usize];
            let fault = usize::from(random.below(2) == 0);
            faults[fault] += 1;
            if fault == 0 {
                let killed = now();
                all.push(Holds::read(&worker.kill(), killed, std::mem::take(pauses)));
                *worker = Worker::start("slots_faults::contender", &server.url());
            } else {
                let stopped = now();
                worker.signal("STOP");
                sleep(Duration::from_millis((100 + random.below(2_000)).into())).await;
                pauses.push((stopped, now()));
                worker.signal("CONT");
            }
        }
        for (worker, pauses) in &mut workers {
            let killed = now();
            all.push(Holds::read(&worker.kill(), killed, std::mem::take(pauses)));
        }
        until_held(&store, &account, 0).await;
        let holds: usize = all.iter().map(|process| process.holds.len()).sum();
        let intervals: Vec<_> = all.iter().flat_map(Holds::intervals).collect();
        let most = most(&intervals);
        println!("{flavour:?}: {holds} holds, at most {most} at once, {faults:?} kills and pauses");
        assert!(most <= 4, "{most} slots of {LIMIT} were held at once");
        assert!(most >= 3 && holds > 100, "{holds} holds, at most {most}");
    }
}
