//! Limits after a failure of the shared store, and undos and refunds across it.
//!
//! Time advances only by the tests.

use tower_sluice::{Key, Store, StoreExt, decision::Source, rule::RuleName, store::Charge};

use crate::support::{
    ALGORITHMS,
    driven::Time,
    process::{HOURLY, Process, decided, left},
    shaky::Mood,
};

/// A key may use what it used in the outage once more: its share in each of four processes.
#[tokio::test(start_paused = true)]
async fn an_outage_is_worth_one_more_quota_under_each_algorithm() {
    for algorithm in ALGORITHMS {
        let (time, quota) = (Time::default(), HOURLY.with_algorithm(algorithm));
        let first = Process::one_of(4, &time);
        let mut all = vec![first.clone()];
        all.extend((1..4).map(|_| Process::beside(&first.shared, 4, &time)));
        let mut used = Vec::new();
        // Three outages in a row add no more than one.
        for mood in [Mood::Failing, Mood::Well, Mood::Failing, Mood::Well, Mood::Failing] {
            first.shared.set_mood(mood);
            let mut admitted = 0;
            for process in &all {
                admitted += process.admits("alice", quota, 200).await;
            }
            used.push(admitted);
        }
        assert_eq!(used, [100, 100, 0, 0, 0], "{algorithm:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_undo_goes_to_the_store_that_charged() {
    let process = Process::one_of(2, &Time::default());
    let (key, quotas) = (Key::from("alice"), [HOURLY]);
    let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(6);
    let there = decided(process.store.take(&[charge])).await;
    process.shared.set_mood(Mood::Failing);
    let here = decided(process.store.take(&[charge])).await;
    let more = decided(process.store.take(&[charge])).await;
    assert_eq!(left(&more), [35]);

    let denied = decided(process.store.take(&[charge.with_cost(50)])).await;
    process.store.undo(&[charge.with_cost(50)], &denied, None);
    process.store.undo(&[charge], &here, None);
    assert_eq!(process.shared.given_back(), 0);
    assert_eq!(left(&process.take("alice", HOURLY, 0).await), [41]);
    process.shared.set_mood(Mood::Well);
    process.store.undo(&[charge], &there, None);
    assert_eq!(process.shared.given_back(), 1);
    assert_eq!(process.shared_left("alice", HOURLY), [100]);
    process.recover().await;
    assert_eq!(process.shared_left("alice", HOURLY), [100], "the outage is not charged");
}

/// The shared store never had the charge, so the refund is worth the units a second time.
#[tokio::test(start_paused = true)]
async fn a_refund_after_an_outage_goes_to_the_shared_store() {
    let process = Process::one_of(2, &Time::default());
    drop(process.take("alice", HOURLY, 20).await);
    process.shared.set_mood(Mood::Failing);
    drop(process.take("alice", HOURLY, 10).await);
    process.shared.set_mood(Mood::Well);
    let there = process.adjust("alice", HOURLY, -10).await;
    assert_eq!((there.source(), left(&there)), (Source::Local, vec![90]));
    // 20 of its 50, less its half of the refund: in units of the whole quota, twice that.
    assert_eq!(process.local_owes("alice", HOURLY), 30);
}
