//! How far a key got above its limit.

use std::time::Duration;

use tower_sluice::Quota;

/// The most units that were admitted above the limit in any window: above `B + Δ/T` in a window of
/// length `Δ`, where `B` is the burst and one more comes back each `T`.
///
/// Each admission is given as the time in which it was decided, since a client cannot know the
/// instant. A window counts those that lie wholly in it, so nothing is reported that some order of
/// events would explain.
pub(crate) fn overshoot(admitted: &[(Duration, Duration)], quota: &Quota) -> u64 {
    let mut by_end = admitted.to_vec();
    by_end.sort_by_key(|(_, end)| *end);
    let mut most = 0;
    for (start, _) in admitted {
        let mut count = 0;
        for (_, end) in by_end.iter().filter(|(begin, _)| begin >= start) {
            count += 1;
            let back = (*end - *start).as_nanos() / quota.interval().as_nanos();
            let limit = u128::from(quota.limit()) + back;
            most = most.max(u128::saturating_sub(count, limit));
        }
    }
    u64::try_from(most).expect("a count")
}

/// A judge that finds nothing would look like a store that does nothing wrong: whether it finds what
/// made-up logs have in them.
pub(crate) fn check_itself() {
    let quota = Quota::per_second(10).burst(10);
    let at = |millis: u64| (Duration::from_millis(millis), Duration::from_millis(millis));
    let steady = |from: u64, to: u64| (from..to).map(|n| at(n * 100));
    let found = |log: &[(Duration, Duration)]| overshoot(log, &quota);

    let burst: Vec<_> = (0..10).map(|_| at(0)).chain(steady(1, 50)).collect();
    assert_eq!(found(&burst), 0, "a burst, and then what comes back");
    assert_eq!(found(&[&burst[..], &[at(4_999)]].concat()), 1, "one too many");
    assert_eq!(found(&[&burst[..], &[at(5_000)]].concat()), 0, "and one that has come back");

    let lost: Vec<_> = burst.iter().copied().chain((0..10).map(|_| at(2_550))).collect();
    assert_eq!(found(&lost), 10, "a second burst");
    let twice: Vec<_> = burst.iter().chain(&burst).copied().collect();
    assert_eq!(found(&twice), 10 + 49, "two stores that do not know of each other");

    let vague: Vec<_> = (0..11).map(|_| (at(0).0, at(100).1)).collect();
    assert_eq!(found(&vague), 0, "the last may have been decided when one had come back");
    let vague: Vec<_> = (0..11).map(|_| (at(0).0, at(99).1)).collect();
    assert_eq!(found(&vague), 1, "and here it cannot have been");
    assert_eq!(found(&[]), 0);
}
