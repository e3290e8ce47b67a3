//! Threads on a shared store that fails and recovers between any two calls.
//!
//! In the end, the store has charged every allowed unit exactly once. Its clock stands still.

use std::time::Duration;

use tokio::time::sleep;
use tower_sluice::{Quota, decision::Source};

use crate::support::{driven::Time, process::Process, shaky::Mood};

const AMPLE: Quota = Quota::per_day(1_000_000);
const TASKS: u64 = 8;
const CALLS: u64 = if cfg!(debug_assertions) { 2_000 } else { 20_000 };

fn owed(process: &Process, key: &str) -> u64 {
    u64::from(AMPLE.limit() - process.shared_left(key, AMPLE)[0])
}

/// The moods in turn. The store is healthy half of the time.
fn mood(at: u64) -> Mood {
    [Mood::Well, Mood::Failing, Mood::Well, Mood::FailingSoon]
        [usize::try_from(at % 4).expect("few")]
}

/// Calls `process` from several tasks while its store changes its mood. Returns the allowed units
/// and how many of them the fallback allowed.
async fn admitted(process: &Process, key: &'static str) -> (u64, u64) {
    let ask = |task: u64| {
        let process = process.clone();
        tokio::spawn(async move {
            let (mut units, mut here) = (0, 0);
            for at in 0..CALLS {
                if at % 7 == task {
                    process.shared.is(mood(at / 7 + task));
                }
                let cost = 1 + at % 3;
                let taken = process.take(key, AMPLE, u32::try_from(cost).expect("few")).await;
                assert!(taken.is_allowed(), "there is plenty");
                units += cost;
                here += if taken.source() == Source::Fallback { cost } else { 0 };
            }
            (units, here)
        })
    };
    let mut sum = (0, 0);
    for task in (0..TASKS).map(ask).collect::<Vec<_>>() {
        let (units, here) = task.await.expect("no panic");
        sum = (sum.0 + units, sum.1 + here);
    }
    sum
}

/// Makes the store healthy and waits until it has all late charges; `false` if that takes more than
/// ten seconds.
async fn has_all_late_charges(process: &Process, key: &str, units: u64) -> bool {
    process.shared.is(Mood::Well);
    for _ in 0..1_000 {
        process.take("somebody else", AMPLE, 0).await;
        if owed(process, key) >= units {
            return true;
        }
        sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn units_allowed_by_the_fallback_are_charged_to_the_store_once() {
    let process = Process::one_of(1, &Time::default());
    let (units, here) = admitted(&process, "alice").await;
    assert!(here > 0 && here < units, "{here} of {units}");
    assert!(
        has_all_late_charges(&process, "alice", units).await,
        "{} of {units}",
        owed(&process, "alice")
    );
    for _ in 0..3 {
        process.shared.is(Mood::Failing);
        process.take("alice", AMPLE, 0).await;
        assert!(has_all_late_charges(&process, "alice", units).await);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((owed(&process, "alice"), process.store.dropped_charges()), (units, 0));
}

/// Two processes and several keys, so that the tasks of two journals meet in one store.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn journals_of_two_processes_are_charged_concurrently() {
    let time = Time::default();
    let first = Process::one_of(2, &time);
    let second = Process::beside(&first.shared, 2, &time);
    let ((one, here), (two, there)) =
        tokio::join!(admitted(&first, "alice"), admitted(&second, "alice"));
    assert!(here > 0 && there > 0);
    assert!(has_all_late_charges(&first, "alice", one).await);
    assert!(
        has_all_late_charges(&second, "alice", one + two).await,
        "{} of {}",
        owed(&first, "alice"),
        one + two
    );
    sleep(Duration::from_millis(20)).await;
    assert_eq!(owed(&first, "alice"), one + two);
}
