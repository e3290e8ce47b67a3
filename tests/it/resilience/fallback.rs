//! Limits that each process keeps while the shared store fails.
//!
//! Time advances only by the tests.

use std::{sync::Barrier, thread};

use tokio_test::{assert_pending, assert_ready_ok, task};
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, StoreExt, decision::Source,
    key::Everyone, rule::RuleName, store::Charge,
};

use crate::support::{
    always::Always,
    driven::{AtOnce, Time, secs},
    process::{HOURLY, Process, decided},
    shaky::{Mood, Shaky},
};

#[tokio::test(start_paused = true)]
async fn a_quota_smaller_than_the_number_of_processes_gives_a_new_key_one_unit_in_each() {
    let process = Process::one_of(10, &Time::default());
    let five = Quota::per_hour(5);
    drop(process.take("new", five, 0).await);
    drop(process.take("known", five, 1).await);
    process.shared.set_mood(Mood::Failing);
    assert_eq!(process.admits("new", five, 99).await, 1);
    let denied = process.take("known", five, 1).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(secs(7_200))));
}

#[test]
fn threads_that_mirror_one_account_do_not_charge_it_twice() {
    const THREADS: usize = 4;
    let process = Process::one_of(1, &Time::default());
    let start = Barrier::new(THREADS);
    for round in 0..1_000_u32 {
        let (key, quotas) = (Key::from(round % 8), [HOURLY]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        drop(process.shared.store.take(&[charge.with_cost(60)]).now());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    drop(process.store.take(&[charge.with_cost(0)]));
                });
            }
        });
        assert_eq!(process.local.take(&[charge.with_cost(0)]).now().remaining(), Some(40));
        drop(process.shared.store.reset(&charge).now());
        drop(process.local.reset(&charge).now());
    }
}

#[tokio::test(start_paused = true)]
async fn blocked_keys_stay_blocked_in_an_outage() {
    let time = Time::default();
    let here = Process::one_of(2, &time);
    let there = Process::beside(&here.shared, 2, &time);
    for key in ["mallory", "freed"] {
        drop(there.limiter().block(key, secs(60)).await.expect("room"));
    }
    time.pass(secs(10)).await;
    let denied = here.take("mallory", HOURLY, 1).await;
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(secs(50))));
    assert!(here.take("alice", HOURLY, 1).await.is_allowed());
    drop(there.limiter().unblock("freed").await);
    here.shared.set_mood(Mood::Failing);
    for process in [&here, &there] {
        let denied = process.take("mallory", HOURLY, 1).await;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(secs(50))));
        assert!(process.take("freed", HOURLY, 1).await.is_allowed());
        assert!(process.take("alice", HOURLY, 1).await.is_allowed());
    }
    time.pass(secs(50)).await;
    for process in [&here, &there] {
        let admitted = process.admits("mallory", HOURLY, 99).await;
        assert_eq!(admitted, 50, "a block is no debt");
    }
    drop(here.limiter().block("alice", secs(60)).await.expect("room"));
    assert!(!here.take("alice", HOURLY, 1).await.is_allowed(), "a new block applies too");
    drop(here.limiter().unblock("alice").await);
    assert!(here.take("alice", HOURLY, 1).await.is_allowed());
}

/// The caller is told that the key is not blocked.
#[tokio::test]
async fn a_block_for_which_the_shared_store_has_no_room_is_not_mirrored() {
    let local = LocalStore::with_capacity(100_000);
    let here = Limiter::named("default", local.clone());
    let shared = LocalStore::with_capacity(64).fallback(local, 1);
    let shared = Limiter::named("default", shared);
    let mut refused = 0;
    for key in 0..1_000_u32 {
        let is_blocked = shared.block(key, secs(60)).await.is_ok();
        assert_eq!(here.take(key, &HOURLY, 1).now().is_blocked(), is_blocked, "{key}");
        refused += u32::from(!is_blocked);
    }
    assert!(refused > 900, "{refused}");
}

#[tokio::test]
async fn a_reset_that_the_shared_store_does_not_support_is_not_mirrored() {
    let local = LocalStore::new();
    let here = Limiter::named("default", local.clone());
    let unsupported = Always(|| Decision::deny().with_source(Source::Unsupported));
    let both = Limiter::named("default", unsupported.fallback(local, 1));
    let one = Quota::per_hour(1);
    assert!(here.take("alice", &one, 1).now().is_allowed());
    assert!(!both.reset("alice", &one).await.is_allowed());
    assert!(!here.take("alice", &one, 1).now().is_allowed());
}

/// No store is called for such a request.
#[tokio::test]
async fn a_request_without_quotas_ends_no_outage() {
    let shared = Shaky::new(LocalStore::with_capacity(64));
    let store = shared.clone().fail_open();
    let key = Key::from("alice");
    let take = |quotas: &[Quota]| {
        store.take(&[Charge::new(RuleName::default(), &key, quotas)]).now().source()
    };
    shared.set_mood(Mood::Failing);
    assert_eq!(take(&[HOURLY]), Source::FailedOpen);
    shared.set_mood(Mood::Well);
    assert_eq!(take(&[]), Source::Local);
    assert!(store.is_failing());
    assert_eq!(take(&[HOURLY]), Source::Local);
    assert!(!store.is_failing());
}

/// A denial by a block names the rule, but not the key.
#[tokio::test(start_paused = true)]
async fn a_block_of_one_key_is_not_mirrored_to_another_key_of_its_rule() {
    let [mallory, alice] = ["mallory", "alice"].map(Key::from);
    let quotas = [HOURLY];
    let [mallory, alice] =
        [&mallory, &alice].map(|it| Charge::new(RuleName::default(), it, &quotas));
    for (beside, is_mirrored) in
        [(alice, false), (alice.with_cost(0), true), (alice.with_report_only(true), true)]
    {
        let process = Process::one_of(1, &Time::default());
        drop(process.shared.store.block(&mallory, secs(60)).now());
        assert!(decided(process.store.take(&[beside, mallory])).await.is_blocked());
        process.shared.set_mood(Mood::Failing);
        assert!(decided(process.store.take(&[alice])).await.is_allowed(), "{beside:?}");
        let denied = !decided(process.store.take(&[mallory])).await.is_allowed();
        assert_eq!(denied, is_mirrored, "{beside:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slots_are_mirrored_despite_a_queue_a_block_and_a_full_store() {
    let one = Quota::concurrent(1);
    let time = Time::default();
    let process = Process::one_of(1, &time);
    let limiter = process.limiter();
    let first = process.take("alice", one, 1).await;
    process.shared.set_mood(Mood::Failing);
    let wait = || task::spawn(limiter.until_ready("alice", &one, 1));
    let mut waits = [wait(), wait()];
    waits.iter_mut().for_each(|it| assert_pending!(it.poll()));
    process.shared.set_mood(Mood::Well);
    drop(first);
    assert!(waits[0].is_woken());
    let second = assert_ready_ok!(waits[0].poll());
    assert_eq!((second.source(), process.local.stats().held), (Source::Local, 1));
    process.shared.set_mood(Mood::Failing);
    assert!(!process.take("alice", one, 1).await.is_allowed(), "the second still runs");
    drop((second, waits));
    assert!(process.take("alice", one, 1).await.is_allowed());

    process.shared.set_mood(Mood::Well);
    let there = Process::beside(&process.shared, 1, &time);
    drop(process.limiter().block("mallory", secs(60)).await.expect("room"));
    drop(there.limiter().unblock("mallory").await);
    let freed = process.take("mallory", [HOURLY, one], 1).await;
    assert_eq!((freed.is_allowed(), process.local.stats().held), (true, 1));
    drop(freed);

    let local = LocalStore::with_capacity(8);
    let limiter = Limiter::named("default", process.shared.clone().fallback(local.clone(), 1));
    let mut running = Vec::new();
    for key in 0..9_u32 {
        running.push(limiter.take(key, &one, 1).await);
    }
    assert_eq!(local.stats().held, 9);
    process.shared.set_mood(Mood::Failing);
    assert!(!limiter.take(8_u32, &one, 1).await.is_allowed());
    drop(running);
    assert_eq!((local.stats().held, local.stats().holding), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn layers_with_one_rule_are_built_while_the_number_of_processes_changes() {
    let process = Process::one_of(1, &Time::default());
    let rule = |quota| Rule::new("a", Everyone, quota);
    for instances in [1, 4] {
        let store = process.shared.clone().fallback(process.local.clone(), instances);
        assert!(RateLimitLayer::try_rules(rule(HOURLY), store.clone()).is_ok(), "{instances}");
        assert!(RateLimitLayer::try_rules(rule(Quota::per_hour(9)), store).is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_in_an_outage_is_as_whole_as_its_charge() {
    let process = Process::one_of(4, &Time::default());
    process.shared.set_mood(Mood::Failing);
    for units in [8, 1] {
        assert!(process.take("alice", HOURLY, units).await.is_allowed());
        let refunded = process.adjust("alice", HOURLY, -i64::from(units)).await;
        assert_eq!(refunded.remaining(), Some(25));
    }
}
