//! Fixed memory under a flood of new keys.

use std::{env, process::Command, time::Duration};

use tower_sluice::{
    Algorithm, Decision, Key, Limiter, LocalStore, Quota, Store, StoreExt, decision::Outcome,
    rule::RuleName, store::Charge, testing::FakeClock,
};

use crate::support::{all_algorithms, dice::Dice};

/// Entries of one set. A store with a capacity of one key has one set, which is easily filled.
const WAYS: u32 = 16;
const NANOSECOND: Duration = Duration::from_nanos(1);

fn take(store: &LocalStore, rule: &str, key: impl Into<Key>, quota: &Quota) -> Decision {
    let (rule, key) = (RuleName::new(rule).expect("a name"), key.into());
    store.take(&[Charge::new(rule, &key, quota.as_ref())]).now()
}

fn allows(store: &LocalStore, rule: &str, key: impl Into<Key>, quota: &Quota) -> bool {
    take(store, rule, key, quota).is_allowed()
}

/// Returns a store of one set in which every entry is in debt, for the interval of `quota`.
fn full(clock: &FakeClock, quota: &Quota) -> LocalStore {
    let store = clock.store(1);
    assert!((0..WAYS).all(|key| allows(&store, "filler", key, quota)));
    assert_eq!((store.stats().active, store.stats().overflowed), (16, 0));
    store
}

/// Returns the resident bytes of this process, without file pages such as the program itself.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux reports it");
    let pages: Vec<u64> = text.split(' ').map_while(|number| number.parse().ok()).collect();
    let [_, resident, of_files, ..] = pages[..] else { panic!("{text}") };
    4096 * (resident - of_files)
}

/// Several times as many keys as a store has entries. Memory does not grow, no exhausted key is freed,
/// and new keys are decided; new keys of other rules get the units of their own rule.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_does_not_grow_memory_or_free_exhausted_keys() {
    const FLOOD: u64 = if cfg!(debug_assertions) { 600_000 } else { 5_000_000 };
    const ALONE: &str = "TOWER_SLUICE_TEST_ALONE";
    if env::var_os(ALONE).is_none() {
        // runs alone, since other tests of this process also allocate
        let mut child = Command::new(env::current_exe().expect("this test"));
        child
            .args(["--exact", "local::flood::a_flood_does_not_grow_memory_or_free_exhausted_keys"]);
        let output = child.env(ALONE, "1").output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let (clock, quota) = (FakeClock::new(), Quota::per_hour(1));
    let store = clock.store(131_072);
    let (entries, before) = (store.stats().entries, resident());
    assert!((0..1_000_u64).all(|key| allows(&store, "login", key, &quota)));

    let (rule, mut admitted) = (RuleName::new("flooded").expect("a name"), 0_usize);
    let allocated = allocation_counter::measure(|| {
        for key in 0..FLOOD {
            let key = key.into();
            let charge = Charge::new(rule, &key, quota.as_ref());
            admitted += usize::from(store.take(&[charge]).now().is_allowed());
        }
    });
    let stats = store.stats();
    assert!(resident() < before + before / 10, "{before} bytes before, {} after", resident());
    // the accounts shared by new keys are bounded by the number of rules, far below the table's 35
    // bytes per key
    assert!(allocated.bytes_max < 4 * 131_072, "{allocated:?}");
    assert_eq!(stats.entries, entries);
    assert!(stats.active > entries / 2 && stats.overflowed > 0, "{stats:?}");
    // one per key with an entry, and one per key that shares
    assert!(
        (stats.active..stats.active + entries / 16).contains(&(admitted + 1_000)),
        "{admitted}"
    );

    assert!(!(0..1_000_u64).any(|key| allows(&store, "login", key, &quota)));
    let denied = take(&store, "flooded", FLOOD, &quota);
    assert_eq!(denied.retry_after(), Some(quota.period()));
    let generous = Quota::per_hour(1_000);
    assert!((0..900_u64).all(|key| allows(&store, "other", FLOOD + key, &generous)));

    clock.advance(quota.period() + NANOSECOND);
    assert!((0..1_000_u64).all(|key| allows(&store, "flooded", 2 * FLOOD + key, &quota)));
    assert_eq!(store.stats().active, 1_000, "there is room again");
}

#[test]
fn a_key_takes_at_most_36_bytes_at_any_capacity() {
    let quota = Quota::per_hour(1);
    for keys in [1_u32, 1_000, 10_000, 131_072, 1_000_000] {
        // The measurement includes opening the accounts.
        let allocated = allocation_counter::measure(|| {
            let store = LocalStore::with_capacity(keys as usize);
            (0..keys).for_each(|key| _ = allows(&store, "filler", key, &quota));
        });
        let most = 36 * u64::from(keys) + 3_072;
        assert!(allocated.bytes_max <= most, "{keys} keys: {allocated:?}, {most} are promised");
    }
    let bytes = allocation_counter::measure(|| drop(LocalStore::new())).bytes_max;
    assert!(bytes <= 36 * 131_072, "by default: {bytes} bytes");
}

#[test]
fn a_key_without_an_entry_gets_the_exact_wait() {
    let (clock, hour) = (FakeClock::new(), Quota::per_hour(2));
    let store = full(&clock, &hour);
    let admitted = (0..9_u32).filter(|key| allows(&store, "late", 100 + key, &hour)).count();
    assert_eq!(admitted, 2, "new keys share one quota");
    let wait = take(&store, "late", "me", &hour).retry_after().expect("a wait");
    clock.advance(wait - NANOSECOND);
    assert_eq!(take(&store, "late", "me", &hour).retry_after(), Some(NANOSECOND));
    clock.advance(NANOSECOND);
    assert!(allows(&store, "late", "me", &hour));
    assert!(allows(&store, "other", "me", &hour), "other rules have their own");
}

/// Each key alone would fit. A retry does not help, and the loop must end.
#[test]
fn new_keys_that_share_an_account_are_charged_together_or_not_at_all() {
    let (clock, one, two) = (FakeClock::new(), Quota::per_hour(1), Quota::per_hour(2));
    let (store, rule) = (full(&clock, &one), RuleName::default());
    let both = |quota: &Quota| {
        let (alice, bob) = (Key::from("alice"), Key::from("bob"));
        let charge = |key| Charge::new(rule, key, std::slice::from_ref(quota));
        store.take(&[charge(&alice), charge(&bob)]).now()
    };
    let denied = both(&one);
    assert!(!denied.is_allowed() && denied.retry_after() > Some(Duration::ZERO));
    assert_eq!(take(&store, "default", "carol", &two).remaining(), Some(1), "nothing was charged");
    assert!(!both(&two).is_allowed());
    clock.advance(two.interval());
    assert!(both(&two).is_allowed());
}

/// Quotas of every algorithm whose accounts hold less than a queue, or their soft units, allow.
fn quotas_with_little_debt() -> Vec<Quota> {
    let units = [1, 3].into_iter().flat_map(|units| {
        all_algorithms().map(move |algorithm| Quota::per_second(units).with_algorithm(algorithm))
    });
    let raised = |quota: Quota| {
        let soft = quota.try_with_soft(2).unwrap_or(quota);
        [quota, soft, quota.with_max_debt(0), soft.with_max_debt(0)]
    };
    units.flat_map(raised).collect()
}

/// Makes charges in turn, each to the account of one key. Returns the longest time in the queue, or `None`
/// if one of them is denied: then all are undone.
fn longest_wait_in_turn(store: &LocalStore, charges: &[Charge<'_>]) -> Option<Duration> {
    let (one, mut taken, mut longest) = (Key::from("one"), Vec::new(), Duration::ZERO);
    for charge in charges {
        let mut of_one = *charge;
        of_one.key = &one;
        let decision = store.take(&[of_one]).now();
        if !decision.is_allowed() {
            for (charge, decision) in taken.iter().rev() {
                store.undo(&[*charge], decision, None);
            }
            return None;
        }
        longest = longest.max(decision.wait());
        taken.push((of_one, decision));
    }
    Some(longest)
}

fn state(outcome: &Outcome) -> [Duration; 3] {
    let left = Duration::from_nanos(outcome.remaining().into());
    [left, outcome.reset_after(), outcome.next_after()]
}

/// A denied decision charges none of them, and a peek tells what a charge would.
#[test]
fn a_decision_on_new_keys_that_share_an_account_is_that_of_its_charges_in_turn() {
    let mut dice = Dice(7);
    for quota in quotas_with_little_debt() {
        let (clock, rule) = (FakeClock::new(), RuleName::default());
        let (store, other) = (full(&clock, &Quota::per_day(1)), clock.store(8));
        let mut decided = [0, 0];
        for step in 0..200 {
            clock.advance(Duration::from_millis(dice.below(1_500).into()));
            let keys: Vec<_> = (0..=dice.below(3)).map(|at| Key::from(1_000 + at)).collect();
            let mut charge = |key| {
                Charge::new(rule, key, quota.as_ref())
                    .with_cost(dice.below(3))
                    .with_headroom(dice.below(8) / 7)
                    .with_max_wait(Duration::from_millis((dice.below(4) * 1_250).into()))
            };
            let charges: Vec<_> = keys.iter().map(&mut charge).collect();
            let peeked = store.peek(&charges).now();
            let taken = store.take(&charges).now();
            let expected = longest_wait_in_turn(&other, &charges);
            let what = format!("{quota:?}, step {step}: {charges:?}");
            let wait = taken.is_allowed().then_some(taken.wait());
            assert_eq!(wait, expected, "{what}");
            assert_eq!(peeked.is_allowed().then_some(peeked.wait()), wait, "{what}");
            let outcomes = |decision: &Decision| -> Vec<_> {
                decision.outcomes().iter().map(|it| (state(it), it.retry_after())).collect()
            };
            assert_eq!(outcomes(&peeked), outcomes(&taken), "{what}");
            let [shared, own] = [&store, &other].map(|store| {
                let key = Key::from("one");
                let look = Charge::new(rule, &key, quota.as_ref()).with_cost(0);
                state(&store.take(&[look]).now().outcomes()[0])
            });
            assert_eq!(shared, own, "{what}");
            decided[usize::from(taken.is_allowed())] += 1;
        }
        assert!(decided[0] > 5 && decided[1] > 5, "{quota:?}: {decided:?}");
    }
}

/// A quota of each algorithm that keeps more than one instant.
fn quotas(units: u32) -> Vec<Quota> {
    let counted = [
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 6 },
        Algorithm::SlidingLog,
    ];
    counted.map(|algorithm| Quota::per_hour(units).with_algorithm(algorithm)).into()
}

#[test]
fn a_flood_of_new_keys_does_not_free_an_exhausted_key_or_grow_the_store() {
    for quota in quotas(2) {
        let clock = FakeClock::new();
        let store: LocalStore = clock.store(64);
        let limiter = Limiter::named("default", store.clone());
        let take = |key: Key| limiter.take(key, &quota, 1).now().is_allowed();
        assert!(take("victim".into()) && take("victim".into()) && !take("victim".into()));

        let admitted = (0..20_000_u32).filter(|key| take(Key::from(*key))).count();
        let stats = store.stats();
        assert!(stats.active <= 128, "{quota:?}: {stats:?}");
        assert!(stats.overflowed > 0, "{quota:?}: {stats:?}");
        assert!(admitted < 400, "{quota:?}: new keys share one account, {admitted} passed");
        assert!(!take("victim".into()), "{quota:?}: the flood freed an exhausted key");

        clock.advance(Duration::from_secs(7_200));
        assert_eq!(store.stats().active, 0, "{quota:?}");
        assert!(take("victim".into()), "{quota:?}: a full account equals no account");
    }
}

#[test]
fn a_window_that_ends_now_is_no_account() {
    let (clock, nanosecond) = (FakeClock::new(), Duration::from_nanos(1));
    let store: LocalStore = clock.store(64);
    let quota = Quota::per_hour(2).with_algorithm(Algorithm::AnchoredWindow);
    drop(Limiter::named("default", store.clone()).take("key", &quota, 1).now());
    clock.advance(Duration::from_secs(3_600) - nanosecond);
    assert_eq!(store.stats().active, 1);
    clock.advance(nanosecond);
    assert_eq!(store.stats().active, 0);
}

/// The store's own seed determines which keys find no entry.
#[test]
fn two_stores_place_keys_differently() {
    let quota = Quota::per_hour(1);
    let denied = || {
        let store = FakeClock::new().store(256);
        (0..2_000_u32).filter(|key| !allows(&store, "r", *key, &quota)).collect::<Vec<_>>()
    };
    assert_ne!(denied(), denied());
}
