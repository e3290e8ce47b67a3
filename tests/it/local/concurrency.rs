//! Exact results with any number of threads.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use tower_sluice::{
    Decision, Key, LocalStore, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::FakeClock,
};

const THREADS: usize = 8;
/// Fewer iterations in unoptimised builds.
const LOAD: u32 = if cfg!(debug_assertions) { 4 } else { 20 };

/// Runs `work` on every thread, started at one moment.
fn together<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS);
    let begin = |thread| {
        start.wait();
        work(thread)
    };
    thread::scope(|scope| {
        let begin = &begin;
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || begin(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn name(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

fn charge<'a>(key: &'a Key, quota: &'a Quota) -> Charge<'a> {
    Charge::new(RuleName::default(), key, std::slice::from_ref(quota))
}

fn allows(store: &LocalStore, charge: Charge<'_>) -> bool {
    store.take(&[charge]).now().is_allowed()
}

/// Returns the units charged to the account.
fn charged(store: &LocalStore, charge: Charge<'_>) -> u128 {
    let decision = store.take(&[charge.with_cost(0)]).now();
    let interval = charge.quotas[0].interval().as_nanos();
    decision.outcomes()[0].reset_after().as_nanos() / interval
}

/// The store has sixteen entries for more keys, and time advances with every call: entries are claimed,
/// shared when the set is full, released, and claimed again by another key.
#[test]
fn no_window_allows_too_much_while_accounts_are_created_and_dropped() {
    const KEYS: usize = 24;
    let (interval, nanosecond) = (10, Duration::from_nanos(1));
    let quota = Quota::new(2, Duration::from_nanos(2 * interval)).expect("a quota");
    let clock = FakeClock::new();
    let store = clock.store(1);
    // bounds on the time that has passed
    let (past, ahead) = (AtomicU64::new(0), AtomicU64::new(0));
    let admitted = together(|thread| {
        let mut admitted = vec![Vec::new(); KEYS];
        let mut random = thread as u64 + 1;
        for _ in 0..20_000 * LOAD {
            ahead.fetch_add(1, SeqCst);
            clock.advance(nanosecond);
            let mut start = past.fetch_add(1, SeqCst) + 1;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (random >> 33) % KEYS as u64;
            while allows(&store, charge(&key.into(), &quota)) {
                admitted[key as usize].push((start, ahead.load(SeqCst)));
                start = past.load(SeqCst);
            }
        }
        admitted
    });
    assert!(store.stats().overflowed > 0, "too small for its keys");
    for key in 0..KEYS {
        let mut spans: Vec<_> = admitted.iter().flat_map(|thread| &thread[key]).collect();
        spans.sort_by_key(|(_, end)| *end);
        for (at, (from, _)) in spans.iter().enumerate() {
            let (mut units, limit) = (0, u64::from(quota.limit()));
            // checks of longer windows are expensive and add nothing
            for (start, end) in spans[at.saturating_sub(50)..].iter().take(100) {
                units += u64::from(start >= from);
                assert!(units <= limit + end.saturating_sub(*from) / interval);
            }
        }
    }
}

/// Two rules with three quotas are charged alike, named in either order.
#[test]
fn several_charges_are_all_or_nothing_between_threads() {
    const AMPLE: Quota = Quota::per_hour(3);
    const SCARCE: [Quota; 2] = [Quota::per_hour(2), Quota::per_day(2)];
    fn both<'a>(rules: [RuleName; 2], key: &'a Key) -> [Charge<'a>; 2] {
        [Charge::new(rules[0], key, &[AMPLE]), Charge::new(rules[1], key, &SCARCE)]
    }
    let (keys, rules) = (10_000 * LOAD, [name("first"), name("second")]);
    let store = FakeClock::new().store(12 * keys as usize);
    let admitted = together(|thread| {
        let takes = |key: u32| {
            let key = Key::from(key);
            let mut charges = both(rules, &key);
            charges.rotate_left(thread % 2);
            (0..3).filter(|_| store.take(&charges).now().is_allowed()).count()
        };
        (0..keys).map(takes).collect::<Vec<_>>()
    });
    for key in 0..keys {
        let units: usize = admitted.iter().map(|thread| thread[key as usize]).sum();
        assert!(units <= 2, "key {key}");
        let look = store.take(&both(rules, &key.into()).map(|charge| charge.with_cost(0))).now();
        for (outcome, quota) in look.outcomes().iter().zip([AMPLE, SCARCE[0], SCARCE[1]]) {
            assert_eq!(
                outcome.reset_after().as_nanos(),
                units as u128 * quota.interval().as_nanos()
            );
        }
    }
}

#[test]
fn undone_units_can_be_taken_again_exactly_once() {
    let (store, key) = (FakeClock::new().store(16), Key::from("hot"));
    let quota = Quota::per_hour(40);
    let one = charge(&key, &quota);
    let kept = together(|_| {
        let mut kept: Vec<Decision> = Vec::new();
        for step in 0..2_000 * LOAD {
            let taken = store.take(&[one]).now();
            if taken.is_allowed() {
                kept.push(taken);
            }
            if step % 3 > 0
                && let Some(taken) = kept.pop()
            {
                store.undo(&[one], &taken, None);
            }
        }
        kept.len() as u128
    });
    assert_eq!(charged(&store, one), kept.iter().sum::<u128>());
}

/// Refunds, late charges and resets run beside takes, while time advances and other keys come and
/// go.
#[test]
fn refunds_and_resets_allow_no_more_than_they_return() {
    let (clock, quota) = (FakeClock::new(), Quota::per_hour(20));
    let (store, key) = (clock.store(1), Key::from("hot"));
    let (one, limit) = (charge(&key, &quota), u64::from(quota.limit()));
    let steps = u64::from(400 * LOAD);
    let taken_and_given = together(|thread| {
        let (mut taken, mut given) = (0, 0);
        for step in 0..steps {
            match thread {
                0 if step % 16 == 0 => {
                    clock.advance(quota.interval());
                    given += 1;
                }
                1 if step % 64 == 0 => {
                    let _ = store.reset(&one).now();
                    given += limit;
                }
                2 => {
                    let _ = store.adjust(&one, -1).now();
                    given += 1;
                }
                3 if step % 16 == 0 => drop(store.adjust(&one, 1)),
                4 => drop(store.take(&[charge(&(step % 40).into(), &quota)])),
                _ => taken += u64::from(allows(&store, one)),
            }
        }
        (taken, given)
    });
    let (taken, given) = taken_and_given.iter().fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
    assert!(taken <= limit + given, "{taken} taken, {given} given");
    // after any number of refunds a full account stays at its limit
    clock.advance(2 * quota.period());
    assert_eq!((0..2 * limit).filter(|_| allows(&store, one)).count() as u64, limit);
}
