//! The ends of held slots on Redis: short freezes, outages, lost answers, steps of the clock and
//! invalid values, and what renewals cost.

use std::{
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all, poll, stream};
use tokio::time::{sleep, timeout};
use tower_sluice::{Decision, Quota, RedisStore, testing::Subject};

use crate::{
    accounts::{Account, DAY, address, connect, raw, slots_key},
    fated::{Fate, Fated},
    servers::{Flavour, Server},
    slots::{held, until_held},
};

const TTL: Duration = Duration::from_secs(1);
const TEN: Duration = Duration::from_secs(10);

async fn take(store: &RedisStore, account: &Account) -> bool {
    account.take(store, 1).await.is_ok_and(|it| it.is_allowed())
}

/// Takes a slot of each of many accounts.
async fn take_each(store: &RedisStore, accounts: u32) -> Vec<Decision> {
    let accounts: Vec<_> =
        (0..accounts).map(|n| Account::new(format!("k{n}"), Quota::concurrent(1))).collect();
    let taken = stream::iter(&accounts).map(|account| account.take(store, 1));
    taken.buffered(100).map(|it| it.expect("a decision")).collect().await
}

#[tokio::test]
async fn a_take_without_an_answer_counts_when_an_unused_account_ends() {
    let server = Server::redis().await;
    let mut subject = connect(&server.url()).await;
    let store = subject.open().reopen().slot_ttl(TTL).lazy().expect("a store");
    let quotas = Arc::new([Quota::concurrent(1), Quota::per_day(1_000)]);
    let account = Account { quotas, ..Account::new("a", Quota::concurrent(1)) };
    subject.set(TEN);
    assert!(take(&store, &account).await);
    assert_eq!(held(&store, &account).await, 0);
    subject.set(TEN + TTL * 9 / 10);
    let mut first = Box::pin(account.take(&store, 1));
    assert!(poll!(first.as_mut()).is_pending(), "it is sent");
    subject.set(TEN + TTL * 11 / 10);
    let second = account.take(&store, 1).await.expect("a decision");
    let first = first.await.expect("a decision");
    assert!(first.is_allowed() && !second.is_allowed(), "two requests run under one slot");
}

/// One request takes slots, or several share a call, alone or beside a rate.
#[tokio::test]
async fn a_take_whose_answer_is_read_after_the_time_to_live_begins_lost() {
    let rates = [Quota::concurrent(9), Quota::per_day(1_000)];
    let server = Server::redis().await;
    let mut subject = connect(&server.url()).await;
    for (what, quotas, callers) in [
        ("alone", &rates[..1], 1),
        ("beside a rate", &rates[..], 1),
        ("several alone", &rates[..1], 4),
        ("several beside a rate", &rates[..], 4),
    ] {
        for (late, is_lost) in [(TTL - Duration::from_nanos(1), false), (TTL, true)] {
            let store = subject.open().reopen().slot_ttl(TTL).lazy().expect("a store");
            let account = Account { quotas: quotas.into(), ..Account::new(what, rates[0]) };
            subject.set(TEN);
            assert_eq!(held(&store, &account).await, 0, "the connection is open");
            server.stop();
            let mut takes = Box::pin(join_all((0..callers).map(|_| account.take(&store, 1))));
            for _ in 0..100 {
                // The task of a batch sends the calls of all but the first.
                assert!(poll!(takes.as_mut()).is_pending(), "{what}");
                tokio::task::yield_now().await;
            }
            subject.set(TEN + late);
            server.cont();
            for taken in takes.await {
                let mut taken = taken.expect("a decision");
                assert!(taken.is_allowed(), "{what}");
                let slot = taken.take_slot().expect("a slot");
                assert_eq!(poll!(Box::pin(slot.lost())).is_ready(), is_lost, "{what}, {late:?}");
            }
            subject.finish(&store).await;
            subject.set(TEN);
            assert_eq!(held(&subject, &account).await, 0, "{what}: nothing is left behind");
        }
    }
}

/// The slots would count for a day.
#[tokio::test]
async fn a_batch_without_an_answer_frees_the_slots_of_all_its_callers() {
    let rates = [Quota::concurrent(9), Quota::per_day(1_000)];
    let server = Server::redis().await;
    // Equal times to live: a shorter one would cut the ends of the slots.
    let other = RedisStore::connect(server.url()).slot_ttl(DAY).await.expect("a store");
    let (inner, is_deaf) = (raw(&server.url()).await, Arc::new(AtomicBool::new(false)));
    let loses = is_deaf.clone();
    let deaf = Fated::new(inner, move |_| match loses.load(SeqCst) {
        true => Fate::LosesReply,
        false => Fate::Works,
    });
    let store = RedisStore::with_connection(deaf).slot_ttl(DAY);
    let store = store.lazy().expect("a store");
    for (what, quotas) in [("alone", &rates[..1]), ("beside a rate", &rates[..])] {
        let account = Account { quotas: quotas.into(), ..Account::new(what, rates[0]) };
        // The scripts are loaded.
        drop(join_all((0..4).map(|_| account.take(&store, 2))).await);
        until_held(&other, &account, 0).await;
        let before = server.script_calls().await;
        is_deaf.store(true, SeqCst);
        let taken = join_all((0..4).map(|_| account.take(&store, 2))).await;
        assert!(taken.iter().all(Result::is_err), "{what}");
        let calls = server.script_calls().await - before;
        assert!(calls < 4, "{what}: {calls} calls, so some requests shared one");
        is_deaf.store(false, SeqCst);
        until_held(&other, &account, 0).await;
    }
}

#[tokio::test]
async fn a_freeze_of_less_than_two_thirds_of_the_time_to_live_loses_nothing() {
    let server = Server::redis().await;
    let ttl = Duration::from_secs(6);
    let store = RedisStore::connect(server.url()).slot_ttl(ttl).await.expect("a store");
    let mut taken = take_each(&store, 3_000).await;
    let slots: Vec<_> = taken.iter_mut().filter_map(Decision::take_slot).collect();
    assert_eq!(slots.len(), 3_000);
    for _ in 0..2 {
        sleep(ttl * 5 / 12).await;
        server.stop();
        sleep(ttl / 2 - Duration::from_millis(100)).await;
        server.cont();
        sleep(ttl / 3).await;
    }
    let lost = stream::iter(&slots).then(async |slot| poll!(Box::pin(slot.lost())).is_ready());
    assert_eq!(lost.filter(|lost| ready(*lost)).count().await, 0, "of 3 000");
}

#[tokio::test]
async fn a_call_without_an_answer_holds_its_slot_until_the_next_call() {
    let server = Server::redis().await;
    let open = async || RedisStore::connect(server.url()).slot_ttl(DAY).await.expect("a store");
    let (store, other) = (open().await, open().await);
    let account = Account::new("a", Quota::concurrent(5));
    server.stop();
    let cut = timeout(Duration::from_millis(50), account.take(&store, 2)).await;
    assert!(cut.is_err());
    server.cont();
    until_held(&other, &account, 0).await;
}

#[tokio::test]
async fn renewals_are_spread_over_a_third_of_the_time_to_live() {
    let server = Server::redis().await;
    let ttl = Duration::from_secs(6);
    let store = RedisStore::connect(server.url()).slot_ttl(ttl).await.expect("a store");
    let taken = take_each(&store, 5_000).await;
    assert!(taken.iter().all(Decision::is_allowed));
    let thirds = |time: Duration| time.as_secs_f64() / (ttl / 3).as_secs_f64();
    // Two thirds later, every slot has been renewed.
    sleep(ttl * 2 / 3).await;
    let (first, start) = (server.script_calls().await, Instant::now());
    let (mut before, mut last) = (first, start);
    for _ in 0..20 {
        sleep(ttl / 60).await;
        let (calls, now) = (server.script_calls().await, Instant::now());
        let most = 5.0 + 40.0 * thirds(now - last);
        assert!(f64::from(calls - before) <= most, "{} calls, not {most}", calls - before);
        (before, last) = (calls, now);
    }
    let all = before - first;
    // One more third, whose slots were late.
    let most = 24.0 * (1.0 + thirds(start.elapsed()));
    assert!(
        all >= 18 && f64::from(all) <= most,
        "{all} calls for 5 000 slots in a third, not {most}"
    );
}

/// Returns the memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    text.split(' ').nth(1).and_then(|it| it.parse::<usize>().ok()).expect("pages") * 4_096
}

#[tokio::test]
async fn keys_that_fail_are_forgotten_while_the_server_is_down() {
    let store = RedisStore::with_connection(Fated::down(Duration::ZERO))
        .slot_ttl(TTL)
        .lazy()
        .expect("a store");
    let mut before = 0;
    for round in 0..5_u32 {
        for n in 0..30_000_u32 {
            let account = Account::new((round * 30_000 + n).to_string(), Quota::concurrent(1));
            assert!(account.take(&store, 1).await.is_err());
            if n % 256 == 0 {
                tokio::task::yield_now().await;
            }
        }
        sleep(TTL * 2).await;
        before = if round == 0 { resident() } else { before };
    }
    let more = resident().saturating_sub(before) >> 20;
    assert!(more < 15, "{more} MiB more after 120 000 further keys");
}

#[tokio::test]
async fn a_server_without_memory_keeps_the_slots_that_are_held() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let store = RedisStore::connect(server.url()).slot_ttl(TTL).await.expect("a store");
        let account = Account::new("a", Quota::concurrent(5));
        let running = account.take(&store, 2).await.expect("a decision");
        let () = server.command("CONFIG SET maxmemory 1").await;
        sleep(TTL * 2).await;
        assert_eq!(held(&store, &account).await, 2);
        assert!(account.take(&store, 1).await.is_err());
        drop(running);
        until_held(&store, &account, 0).await;
    }
}

#[tokio::test]
async fn a_step_of_the_clock_keeps_a_slot_for_at_most_one_time_to_live() {
    let server = Server::redis().await;
    let mut subject = connect(&server.url()).await;
    let store = subject.open().reopen().slot_ttl(TEN).lazy().expect("a store");
    let seconds = Duration::from_secs;
    subject.set(seconds(1_000));
    let account = Account::new("a", Quota::concurrent(5));
    let mut running = account.take(&store, 2).await.expect("a decision");
    let slot = running.take_slot().expect("two slots");
    for (now, counted) in [(1_009, 2), (500, 2), (509, 2), (510, 0)] {
        subject.set(seconds(now));
        assert_eq!(held(&store, &account).await, counted, "at {now} s");
    }
    subject.renew(&store).await;
    assert!(poll!(Box::pin(slot.lost())).is_ready());
    assert_eq!(held(&store, &account).await, 0, "what has ended is not renewed");
    let all = account.take(&store, 5).await.expect("a decision");
    drop(slot);
    assert_eq!(held(&store, &account).await, 5);
    subject.set(seconds(600));
    assert_eq!(held(&store, &account).await, 0, "a step forward ends them");
    drop(all);
}

#[tokio::test]
async fn a_request_that_lost_one_slot_loses_all() {
    let server = Server::redis().await;
    let mut subject = connect(&server.url()).await;
    let store = subject
        .open()
        .reopen()
        .prefix("sluice")
        .readable_keys()
        .slot_ttl(TEN)
        .lazy()
        .expect("a store");
    subject.set(TEN);
    let account = Account::new("a", Quota::concurrent(5));
    let mut running = account.take(&store, 3).await.expect("a decision");
    let other = account.take(&store, 1).await.expect("a decision");
    let slot = running.take_slot().expect("three slots");
    let removed: u32 = server
        .command(&format!("ZREMRANGEBYRANK {} 1 1", slots_key(&address("default", "a"))))
        .await;
    assert_eq!(removed, 1);
    subject.renew(&store).await;
    let left = held(&store, &account).await;
    match poll!(Box::pin(slot.lost())).is_ready() {
        true => assert_eq!(left, 1, "the other request keeps its slot"),
        false => assert_eq!(left, 3, "the other request lost its slot"),
    }
    drop((slot, other));
}

#[tokio::test]
async fn a_foreign_value_in_place_of_the_slots_is_replaced() {
    let server = Server::redis().await;
    let store =
        RedisStore::connect(server.url()).readable_keys().slot_ttl(TTL).await.expect("a store");
    let account = Account::new("a", Quota::concurrent(2));
    let () = server.command(&format!("SET {} foreign", slots_key(&address("default", "a")))).await;
    let running = account.take(&store, 2).await.expect("a decision");
    assert!(running.is_allowed() && store.healed() == 1);
    assert!(!account.passes(&store).await);
    let () = server.command(&format!("SET {} foreign", slots_key(&address("default", "a")))).await;
    sleep(TTL).await;
    assert!(take(&store, &account).await, "the renewal has failed, and ended nothing else");
}

#[tokio::test]
async fn a_request_for_more_slots_than_a_call_takes_never_passes() {
    let server = Server::redis().await;
    let (store, account) =
        (connect(&server.url()).await, Account::new("a", Quota::concurrent(1_000)));
    let most = account.take(&store, 256).await.expect("a decision");
    assert!(most.is_allowed());
    let denied = account.take(&store, 257).await.expect("a decision");
    assert!(!denied.is_allowed() && denied.outcomes()[0].retry_after().is_none(), "{denied:?}");
    assert!(!denied.outcomes()[0].is_estimated(), "never");
    assert_eq!(held(&store, &account).await, 256);
    drop(most);
    until_held(&store, &account, 0).await;
    // The limit has room for any request.
    let vast = Account::new("b", Quota::concurrent(u32::MAX).with_soft(1_000));
    assert!(!vast.take(&store, 300).await.expect("a decision").is_allowed());
}
