//! A store without room for new keys logs one line and counts them in its statistics.

use std::time::Duration;

use tower_sluice::{Algorithm, Decision, Limiter, LocalStore, Quota, Store, testing::FakeClock};

use crate::{alone, log::Log};

const HOURLY: Quota = Quota::per_hour(1);

fn flood(store: &LocalStore, quota: Quota, keys: std::ops::Range<u32>) {
    let limiter = Limiter::named("default", store.clone());
    for key in keys {
        drop(limiter.take(key, &quota, 1).now());
    }
}

#[test]
fn an_overflow_is_logged_once_until_it_ends() {
    let _turn = alone();
    let (log, _guard) = Log::start(tracing::Level::INFO);
    almost_full(&log);
    gcra_accounts(&log);
    accounts_with_a_state(&log);
    charges_after_the_fact(&log);
    slots(&log);
    blocks(&log);
}

/// Returns the lines, except for those of an almost full store.
fn read(log: &Log) -> Vec<String> {
    log.read().into_iter().filter(|line| !line.contains("almost full")).collect()
}

fn almost_full(log: &Log) {
    let store = FakeClock::new().store(4_096);
    let lines = |keys| {
        flood(&store, HOURLY, keys);
        // The first call logs. The second must not log again.
        let _ = store.stats();
        let _ = store.stats();
        let lines = log.read().into_iter().filter(|line| line.contains("almost full"));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(lines(0..3_200), [""; 0], "78 %");
    let lines = lines(3_200..3_500);
    assert!(lines.len() == 1 && lines[0].contains("its capacity is 4096;"), "{lines:?}");
}

fn gcra_accounts(log: &Log) {
    let clock = FakeClock::new();
    let store = clock.store(1_024);
    flood(&store, HOURLY, 0..256);
    assert_eq!((read(log), store.stats().overflowed), (vec![], 0), "there are free places");
    let mut keys = 256..100_000;
    let first = keys.find(|key| {
        flood(&store, HOURLY, *key..key + 1);
        store.stats().overflowed == 1
    });
    let lines = read(log);
    assert_eq!(lines.len(), 1, "{lines:?}");
    flood(&store, HOURLY, first.expect("a key without a place") + 1..100_000);
    assert_eq!(read(log), [""; 0], "only the first is logged");
    let said = lines[0].split_once("WARN").expect("a warning").1;
    let text = "tower_sluice::store::local::warnings: the local store has no room for a new key: new \
                keys share accounts, and may be denied early; raise LocalStore::with_capacity(1024) \
                to the new keys per second, times the seconds until a key's quota is full again, \
                times the quotas of a rule";
    assert_eq!(said.trim(), text);
    assert!(store.stats().overflowed > 90_000, "every new key is counted");

    for _ in 0..5 {
        clock.advance(Duration::from_secs(60));
        flood(&store, HOURLY, 100_000..100_100);
    }
    assert_eq!(read(log), [""; 0], "the overflow continues");
    clock.advance(Duration::from_secs(61));
    flood(&store, HOURLY, 0..256);
    assert_eq!(read(log), [""; 0], "no new key came");
    flood(&store, HOURLY, 200_000..200_100);
    assert_eq!(read(log).len(), 1, "a new overflow after a quiet minute");
}

fn accounts_with_a_state(log: &Log) {
    let (store, quota) = (FakeClock::new().store(64), HOURLY.with_algorithm(Algorithm::SlidingLog));
    flood(&store, quota, 0..16);
    assert_eq!((log.read(), store.stats().overflowed), (vec![], 0), "there are free places");
    flood(&store, quota, 16..10_000);
    let lines = log.read();
    assert!(lines.len() == 1 && lines[0].contains("with_capacity(64) to"), "{lines:?}");
}

fn charges_after_the_fact(log: &Log) {
    let limiter = Limiter::named("default", FakeClock::new().store(64));
    for key in 0..10_000_u32 {
        drop(limiter.charge(key, &HOURLY.with_max_debt(20_000), 1).now());
    }
    assert_eq!(log.read().len(), 1);
}

fn slots(log: &Log) {
    let store = FakeClock::new().store(8);
    let limiter = Limiter::named("default", store.clone());
    let take = |key: u32| limiter.take(key, &Quota::concurrent(1), 1).now();
    let held: Vec<_> = (0..8).map(take).collect();
    assert!(held.iter().all(Decision::is_allowed) && log.read().is_empty());
    assert!(!take(8).is_allowed() && !take(9).is_allowed());
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let text = "tower_sluice::store::local::warnings: the local store has no room for the slots of another \
                key: requests of further keys are denied; raise LocalStore::with_capacity(8) above the \
                keys whose requests run at once";
    assert_eq!(lines[0].split_once("WARN").expect("a warning").1.trim(), text);
    assert_eq!(store.stats().overflowed, 2);
    let health = tokio_test::block_on(store.health()).detail;
    assert!(health.contains("2 decisions on keys without room"), "{health}");
}

fn blocks(log: &Log) {
    let limiter = Limiter::named("default", FakeClock::new().store(64));
    for key in 0..10_000_u32 {
        drop(limiter.block(key, Duration::from_secs(60)).now());
    }
    let lines = log.read();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let text = "tower_sluice::store::local::warnings: the local store has no room for another block (16 \
                entries): the key is not blocked; unblock other keys, or raise \
                LocalStore::with_capacity";
    assert_eq!(lines[0].split_once("WARN").expect("a warning").1.trim(), text);
}
