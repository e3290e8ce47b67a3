//! Slots that several processes share: `Quota::concurrent` on Redis and Valkey.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{future::join_all, poll};
use tokio::time::timeout;
use tower_sluice::{
    Key, LocalStore, Quota, RedisStore, Store, StoreExt,
    decision::Source,
    store::{Charge, RedisError, Timeout},
};

use crate::{
    accounts::{Account, DAY, Dice, address, connect, rule, slots_key},
    servers::{Flavour, Server, eventually},
};

/// Returns the slots of an account that all processes hold.
pub(crate) async fn held<S>(store: &S, account: &Account) -> u64
where
    S: Store<Error = RedisError>,
{
    let look = account.take(store, 0).await.unwrap_or_else(|error| panic!("{error}"));
    look.outcomes()[0].held().expect("a number of slots")
}

pub(crate) async fn until_held<S>(store: &S, account: &Account, slots: u64)
where
    S: Store<Error = RedisError>,
{
    let what = format!("{slots} are held");
    let look = async || account.take(store, 0).await.ok()?.outcomes()[0].held();
    eventually(&what, async || (look().await == Some(slots)).then_some(())).await;
}

/// Two processes on one server, and an account of `limit` slots, which no process loses during a test.
async fn two(server: &Server, limit: u32) -> (RedisStore, RedisStore, Account) {
    let account = Account::new("alice", Quota::concurrent(limit));
    let open = async || RedisStore::connect(server.url()).slot_ttl(DAY).await.expect("a store");
    (open().await, open().await, account)
}

#[tokio::test]
async fn processes_share_slots_and_a_freed_one_is_free_at_once() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let (one, two, account) = two(&server, 2).await;
        let first = account.take(&one, 1).await.expect("a decision");
        let second = account.take(&two, 1).await.expect("a decision");
        assert!(first.is_allowed() && second.is_allowed());
        for store in [&one, &two] {
            let denied = account.take(store, 1).await.expect("a decision");
            assert!(!denied.is_allowed() && denied.outcomes()[0].is_estimated());
            assert_eq!(denied.source(), Source::Redis);
        }
        drop(second);
        until_held(&one, &account, 1).await;
        drop(first);
        until_held(&two, &account, 0).await;
    }
}

#[tokio::test]
async fn slots_and_rates_are_taken_together_or_not_at_all() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (key, quotas) = (Key::from("a"), [Quota::concurrent(2), Quota::per_day(3)]);
    let other = connect(&server.url()).await;
    let charge = Charge::new(rule("exports"), &key, &quotas);
    let look = async || {
        let look = other.take(&[charge.with_cost(0)]).await.expect("a look");
        (look.outcomes()[0].held(), look.outcomes()[1].remaining())
    };
    // The server then knows the script.
    let another = Key::from("another");
    drop(other.take(&[Charge::new(rule("exports"), &another, &quotas)]).await.expect("a decision"));
    assert_eq!(look().await, (Some(0), 3));
    let calls = server.script_calls().await;
    let holds = [store.take(&[charge]).await, store.take(&[charge]).await];
    assert!(holds.iter().all(|it| it.as_ref().is_ok_and(|it| it.is_allowed())));
    assert_eq!(server.script_calls().await - calls, 2, "one call for each decision");
    assert!(!store.take(&[charge]).await.expect("a decision").is_allowed());
    assert_eq!(look().await, (Some(2), 1), "a denial by slots charges no rate");
    drop(holds);
    eventually("they are free", async || (look().await.0 == Some(0)).then_some(())).await;
    let last = store.take(&[charge]).await.expect("a decision");
    assert!(last.is_allowed());
    assert!(!store.take(&[charge]).await.expect("a decision").is_allowed());
    assert_eq!(look().await, (Some(1), 0), "a denial by a rate takes no slot");
}

/// The time to live is set for one of two clones of the settings, whose requests come at the same time.
#[tokio::test]
async fn stores_with_different_times_to_live_share_no_calls() {
    let server = Server::redis().await;
    let builder = RedisStore::connect(server.url()).readable_keys();
    let one = builder.clone().lazy().expect("a store");
    let two = builder.slot_ttl(DAY).lazy().expect("a store");
    let account = Account::new("a", Quota::concurrent(20));
    let stores = [&one, &two, &one, &two, &one, &two];
    let held = join_all(stores.map(|store| account.take(store, 1))).await;
    assert!(held.iter().all(|it| it.as_ref().is_ok_and(|it| it.is_allowed())));
    let mut members = redis::cmd("ZRANGE");
    members.arg(slots_key(&address("default", "a"))).arg(0).arg(-1);
    let members: Vec<Vec<u8>> = server.run(&members).await.expect("the slots");
    let of_first = members.iter().filter(|member| member[..8] == members[0][..8]);
    assert_eq!((of_first.count(), members.len()), (3, 6));
}

#[tokio::test]
async fn dropped_calls_hold_nothing() {
    let server = Server::redis().await;
    let (store, other, account) = two(&server, 10).await;
    let mut random = Dice(7);
    for _ in 0..500 {
        let mut call = Box::pin(account.take(&store, 1));
        for _ in 0..random.below(4) {
            if poll!(call.as_mut()).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    until_held(&other, &account, 0).await;
    let all = account.take(&other, 10).await.expect("a decision");
    assert!(all.is_allowed(), "{all:?}");
}

/// `scripts/release-check` acquires slots a million times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_acquisitions_never_exceed_the_limit_and_leave_nothing() {
    const LIMIT: u32 = 20;
    let all = std::env::var("SLUICE_SLOTS_ACQUISITIONS").ok();
    let all: u32 = all.map_or(32_000, |text| text.parse().expect("a number"));
    let server = Server::redis().await;
    let (one, two, account) = two(&server, LIMIT).await;
    let (running, peak, allowed) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks = (0..64_u64).map(|n| {
        let store = if n % 2 == 0 { one.clone() } else { two.clone() };
        let (account, mut random) = (account.clone(), Dice(n));
        let (running, peak, allowed) = (running.clone(), peak.clone(), allowed.clone());
        tokio::spawn(async move {
            for _ in 0..all / 64 {
                let cost = 1 + random.below(3);
                let decision = account.take(&store, cost).await.expect("a decision");
                if decision.is_allowed() {
                    allowed.fetch_add(1, SeqCst);
                    peak.fetch_max(
                        running.fetch_add(cost.into(), SeqCst) + u64::from(cost),
                        SeqCst,
                    );
                    tokio::task::yield_now().await;
                    running.fetch_sub(cost.into(), SeqCst);
                }
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    assert!(peak.load(SeqCst) <= LIMIT.into(), "{peak:?} ran at once");
    assert!(allowed.load(SeqCst) > 1_000, "{allowed:?} were allowed");
    until_held(&one, &account, 0).await;
}

#[tokio::test]
async fn held_slots_refill_no_rate_that_replaced_them() {
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).slot_ttl(Duration::from_secs(1));
    let store = store.await.expect("a store");
    let key = Key::from("a");
    let (slots, rate) = ([Quota::concurrent(2)], [Quota::per_day(2)]);
    let of = |quotas| Charge::new(rule("exports"), &key, quotas);
    let held = store.take(&[of(&slots)]).await.expect("a decision");
    assert!(held.is_allowed());
    for _ in 0..2 {
        assert!(store.take(&[of(&rate)]).await.expect("a decision").is_allowed());
    }
    // Three renewals or more.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!store.take(&[of(&rate)]).await.expect("a decision").is_allowed());
    }
}

#[tokio::test]
async fn a_burst_of_one_key_occupies_the_server_as_briefly_as_other_bursts() {
    let server = Server::redis().await;
    let (store, account) =
        (connect(&server.url()).await, Account::new("a", Quota::concurrent(1_000)));
    assert!(account.passes(&store).await);
    let () = server.command("CONFIG RESETSTAT").await;
    let taken = join_all((0..1_500).map(|_| account.take(&store, 1))).await;
    let allowed = taken.iter().filter(|it| it.as_ref().is_ok_and(|it| it.is_allowed())).count();
    let failed = taken.iter().filter(|it| it.is_err()).count();
    assert!(failed == 0 && (999..=1_000).contains(&allowed), "{allowed}, {failed} failed");
    let line = server.info("commandstats", "cmdstat_evalsha").await.expect("it was called");
    let micros = line.split(',').find_map(|it| it.strip_prefix("usec="));
    let micros: u64 = micros.and_then(|it| it.parse().ok()).expect("microseconds");
    // Each call would otherwise list up to 1 500 others: seconds.
    assert!(micros < 1_000_000, "{micros} us");
}

#[tokio::test]
async fn a_fallback_counts_what_runs() {
    let mut server = Server::redis().await;
    let ttl = Duration::from_secs(1);
    let shared = RedisStore::connect(server.url()).slot_ttl(ttl).await.expect("a store");
    let store = shared.clone().timeout(ttl * 10).fallback(LocalStore::with_capacity(64), 1);
    let account = Account::new("alice", Quota::concurrent(4));
    let take = async || store.take(&[account.charge(1)]).await.expect("infallible");
    let mut running = vec![take().await, take().await, take().await];
    let slot = running[0].take_slot().expect("a slot");
    server.kill();
    let fourth = take().await;
    assert!(fourth.is_allowed() && fourth.source() == Source::Fallback);
    assert!(!take().await.is_allowed(), "three run since before the outage");
    drop(running.pop());
    assert!(take().await.is_allowed(), "one ended in the outage");
    server.restart().await;
    timeout(ttl * 10, slot.lost()).await.expect("the server has lost its state");
    drop((running, slot));
    until_held(&shared, &account, 0).await;
}

#[tokio::test]
async fn a_deny_cache_repeats_a_denial_of_slots_until_one_is_freed() {
    let server = Server::redis().await;
    let (store, other, account) = two(&server, 1).await;
    let store = store.timeout(Timeout::DEFAULT).breaker().deny_cache().leases(20).fail_closed();
    let take = async || store.take(&[account.charge(1)]).await.expect("infallible");
    let first = take().await;
    assert!(first.is_allowed());
    let (before, start, mut cached) = (server.script_calls().await, Instant::now(), 0);
    for _ in 0..1_000 {
        let denied = take().await;
        assert!(!denied.is_allowed() && denied.outcomes()[0].is_estimated());
        cached += u64::from(denied.source() == Source::DenyCache);
    }
    let calls = u64::from(server.script_calls().await - before);
    assert_eq!(calls, 1_000 - cached, "one call for each other denial");
    let most = 1 + start.elapsed().as_millis() / 10;
    assert!(u128::from(calls) <= most, "{calls} calls for 1 000 denials, not {most}");
    drop(first);
    let again = take().await;
    assert!(again.is_allowed(), "an own free ends the denial at once");
    drop(again);
    until_held(&other, &account, 0).await;
}

#[tokio::test]
async fn a_reset_sets_the_count_of_all_processes_to_zero() {
    let server = Server::redis().await;
    let (one, two, account) = two(&server, 2).await;
    let one = one.reopen().slot_ttl(Duration::from_secs(1)).lazy().expect("a store");
    let two = two.reopen().slot_ttl(Duration::from_secs(1)).lazy().expect("a store");
    let before = [account.take(&one, 1).await, account.take(&two, 1).await];
    drop(two.reset(&account.charge(1)).await.expect("a reset"));
    assert_eq!(held(&one, &account).await, 0);
    let after = account.take(&one, 2).await.expect("a decision");
    assert!(after.is_allowed());
    // Renewals of the earlier slots, and their end, change nothing.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(held(&two, &account).await, 2);
    drop(before);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(held(&two, &account).await, 2);
    drop(after);
    until_held(&two, &account, 0).await;
}

#[tokio::test]
async fn a_blocked_key_keeps_the_slots_that_run() {
    let server = Server::redis().await;
    let (one, two, account) = two(&server, 2).await;
    let running = account.take(&one, 1).await.expect("a decision");
    drop(two.block(&account.charge(1), Duration::from_secs(60)).await.expect("a block"));
    assert!(account.take(&one, 1).await.expect("a decision").is_blocked());
    assert_eq!(held(&two, &account).await, 1);
    drop(two.unblock(&account.charge(1)).await.expect("no block"));
    assert!(account.take(&two, 1).await.expect("a decision").is_allowed());
    drop(running);
    until_held(&two, &account, 0).await;
}
