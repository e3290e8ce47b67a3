//! The units of a key above its limit.

use std::time::Duration;

use tower_sluice::Quota;

/// Returns the most units above the limit that were admitted in any window.
///
/// In a window of length `Δ`, the limit is `B + Δ/T` for a burst `B` and one unit per `T`.
///
/// A client knows only the interval of a decision. A window counts the intervals that lie wholly in
/// it, so that nothing is reported that some order of events would explain.
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

/// Checks that known excesses in made-up logs are found.
pub(crate) fn check_itself() {
    let quota = Quota::per_second(10).with_burst(10);
    let at = |millis: u64| (Duration::from_millis(millis), Duration::from_millis(millis));
    let steady = |from: u64, to: u64| (from..to).map(|n| at(n * 100));
    let found = |log: &[(Duration, Duration)]| overshoot(log, &quota);

    let burst: Vec<_> = (0..10).map(|_| at(0)).chain(steady(1, 50)).collect();
    assert_eq!(found(&burst), 0, "a burst, and then returning units");
    assert_eq!(found(&[&burst[..], &[at(4_999)]].concat()), 1, "one unit too many");
    assert_eq!(found(&[&burst[..], &[at(5_000)]].concat()), 0, "a unit that has returned");

    let lost: Vec<_> = burst.iter().copied().chain((0..10).map(|_| at(2_550))).collect();
    assert_eq!(found(&lost), 10, "a second burst");
    let twice: Vec<_> = burst.iter().chain(&burst).copied().collect();
    assert_eq!(found(&twice), 10 + 49, "two stores that share nothing");

    let vague: Vec<_> = (0..11).map(|_| (at(0).0, at(100).1)).collect();
    assert_eq!(found(&vague), 0, "the last may follow the return of a unit");
    let vague: Vec<_> = (0..11).map(|_| (at(0).0, at(99).1)).collect();
    assert_eq!(found(&vague), 1, "the last precedes the return of a unit");
    assert_eq!(found(&[]), 0);
}
