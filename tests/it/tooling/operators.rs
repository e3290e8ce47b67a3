//! Operations on one key: read, reset, block and unblock.
//!
//! A block ends at its time and leaves no debt.

use std::time::Duration;

use tower_sluice::{Limiter, Quota, StoreExt, store::BlockError, testing::FakeClock};

use crate::support::{Broken, driven::secs};

const FIVE: Quota = Quota::per_hour(5);
const NANOSECOND: Duration = Duration::from_nanos(1);

#[test]
fn a_short_block_of_one_key_does_not_end_a_long_block_of_another() {
    let clock = FakeClock::new();
    let limiter = Limiter::named("default", clock.store(64));
    drop(limiter.block("alice", secs(60)).now().expect("room"));
    drop(limiter.block("bob", secs(5)).now().expect("room"));
    clock.advance(secs(6));
    assert!(!limiter.take("alice", &FIVE, 1).now().is_allowed());
    assert!(limiter.take("bob", &FIVE, 1).now().is_allowed());
}

#[tokio::test]
async fn a_failing_store_reports_whether_the_block_holds() {
    for broken in [Broken::Now, Broken::Later] {
        assert!(Limiter::named("default", broken).try_block("alice", secs(1)).await.is_err());
        let open = Limiter::named("default", broken.fail_open()).block("alice", secs(1)).await;
        assert_eq!(open.map(drop), Err(BlockError::Unavailable));
        let closed = Limiter::named("default", broken.fail_closed()).block("alice", secs(1)).await;
        assert_eq!(closed.map(drop), Err(BlockError::Unavailable));
    }
}

#[test]
fn a_flood_of_blocks_is_bounded_and_reports_which_blocks_hold() {
    let clock = FakeClock::new();
    let store = clock.store(4_000);
    let limiter = Limiter::named("default", store.clone());
    let flood = |from: u64| {
        let block = |key: &u64| limiter.block(*key, secs(60)).now().is_ok();
        (from..from + 20_000).filter(block).collect::<Vec<_>>()
    };
    let held = flood(0);
    let entries = store.stats().entries;
    assert!((entries / 16..=entries).contains(&held.len()), "{} blocks", held.len());
    assert_eq!(flood(20_000).len(), 0, "there is no room left");
    assert_eq!(store.stats().active, 0, "a block takes no account's place");
    let blocked = |key: &u64| !limiter.take(*key, &FIVE, 1).now().is_allowed();
    assert!(held.iter().all(blocked));
    let others = (100_000..100_100).filter(|key| blocked(key)).count();
    assert_eq!(others, 0);
    clock.advance(secs(60));
    assert_eq!(held.iter().filter(|key| blocked(key)).count(), 0);
    clock.advance(NANOSECOND);
    assert_eq!(flood(200_000).len(), held.len(), "and all the room is there again");
}
