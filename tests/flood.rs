//! Memory fixed at construction: what a flood of fresh keys finds, and whom it spares.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tower_sluice::{Charge, Decision, Key, LocalStore, Quota, RuleName, Store, testing::FakeClock};

/// Slots of one set: with a capacity of one key there is one set, and it is easily filled.
const WAYS: u32 = 16;
const NANOSECOND: Duration = Duration::from_nanos(1);
/// Held by tests with large stores: one of them looks at the memory of the whole process.
static LARGE: Mutex<()> = Mutex::new(());

fn take(store: &LocalStore, rule: &str, key: impl Into<Key>, quota: &Quota) -> Decision {
    let (rule, key) = (RuleName::new(rule).expect("a name"), key.into());
    store.take(&[Charge::new(rule, &key, quota.as_ref())]).now()
}

fn allows(store: &LocalStore, rule: &str, key: impl Into<Key>, quota: &Quota) -> bool {
    take(store, rule, key, quota).is_allowed()
}

/// A store of one set in which every slot is in debt, for `quota`'s interval.
fn full(clock: &FakeClock, quota: &Quota) -> LocalStore {
    let store = clock.store(1);
    assert!((0..WAYS).all(|key| allows(&store, "filler", key, quota)));
    assert_eq!((store.stats().in_debt, store.stats().overflowed), (16, 0));
    store
}

/// Bytes of this process in memory.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    4096 * pages.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).expect("a number")
}

/// Five million keys against a store for 131 072: nothing grows, nobody exhausted is freed, and
/// who comes new is decided, other rules' newcomers by what their own rule has.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_grows_nothing_and_frees_nobody() {
    const FLOOD: u64 = 5_000_000;
    let _large = LARGE.lock().unwrap_or_else(PoisonError::into_inner);
    let (clock, quota) = (FakeClock::new(), Quota::per_hour(1));
    let store = clock.store(131_072);
    let (slots, before) = (store.stats().slots, resident());
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
    // what newcomers share is bounded by the number of rules, far below the table's 35 bytes a key
    assert!(allocated.bytes_max < 4 * 131_072, "{allocated:?}");
    assert_eq!(stats.slots, slots);
    assert!(stats.in_debt > slots / 2 && stats.overflowed > 0, "{stats:?}");
    // one each for those with a slot, and for those who share
    assert!(
        (stats.in_debt..stats.in_debt + slots / 16).contains(&(admitted + 1_000)),
        "{admitted}"
    );

    assert!(!(0..1_000_u64).any(|key| allows(&store, "login", key, &quota)));
    let refused = take(&store, "flooded", FLOOD, &quota);
    assert_eq!(refused.retry_after(), Some(quota.period()));
    let generous = Quota::per_hour(1_000);
    assert!((0..900_u64).all(|key| allows(&store, "other", FLOOD + key, &generous)));

    clock.advance(quota.period() + NANOSECOND);
    assert!((0..1_000_u64).all(|key| allows(&store, "flooded", 2 * FLOOD + key, &quota)));
    assert_eq!(store.stats().in_debt, 1_000, "there is room again");
}

/// A table at its capacity is half empty, and yet some sets have no room: those cost few newcomers.
#[test]
fn a_store_at_its_capacity_admits_newcomers() {
    const KEYS: u32 = 131_072;
    let _large = LARGE.lock().unwrap_or_else(PoisonError::into_inner);
    let quota = Quota::per_minute(10);
    let store = FakeClock::new().store(KEYS as usize);
    assert!(store.stats().slots >= KEYS as usize);
    let rule = RuleName::default();
    let admits = |key: u32, cost| {
        let key = key.into();
        store.take(&[Charge::new(rule, &key, quota.as_ref()).cost(cost)]).now().is_allowed()
    };
    let loaded = (0..KEYS).filter(|key| admits(*key, 5)).count();
    assert!(loaded >= KEYS as usize / 1_000 * 995, "{loaded}");
    let newcomers = (KEYS..KEYS + 10_000).filter(|key| admits(*key, 1)).count();
    assert!(newcomers >= 9_700, "{newcomers}");
}

#[test]
fn who_shares_for_want_of_a_slot_is_told_the_exact_wait() {
    let (clock, hour) = (FakeClock::new(), Quota::per_hour(2));
    let store = full(&clock, &hour);
    let admitted = (0..9_u32).filter(|key| allows(&store, "late", 100 + key, &hour)).count();
    assert_eq!(admitted, 2, "newcomers are held to one quota together");
    let wait = take(&store, "late", "me", &hour).retry_after().expect("a wait");
    clock.advance(wait - NANOSECOND);
    assert_eq!(take(&store, "late", "me", &hour).retry_after(), Some(NANOSECOND));
    clock.advance(NANOSECOND);
    assert!(allows(&store, "late", "me", &hour));
    assert!(allows(&store, "other", "me", &hour), "other rules have their own");
}

#[test]
fn a_newcomer_takes_its_debt_along_into_a_slot() {
    let (clock, second, hour) = (FakeClock::new(), Quota::per_second(1), Quota::per_hour(2));
    let store = full(&clock, &second);
    assert!(allows(&store, "late", "me", &hour) && allows(&store, "late", "me", &hour));
    clock.advance(Duration::from_secs(2));
    assert!(!allows(&store, "late", "me", &hour), "a free slot is no fresh start");
    assert_eq!(store.stats().in_debt, 0, "who is refused opens nothing");
    clock.advance(hour.interval() - Duration::from_secs(2));
    let overflowed = store.stats().overflowed;
    assert!(allows(&store, "late", "me", &hour) && !allows(&store, "late", "me", &hour));
    assert_eq!(store.stats().in_debt, 1);
    assert_eq!(store.stats().overflowed, overflowed, "it has its own now");
}

/// Some sets are full and some are not: each is to remember its own newcomers.
#[test]
fn who_shared_takes_its_debt_along_whatever_its_set() {
    let (clock, second, hour) = (FakeClock::new(), Quota::per_second(1), Quota::per_hour(1));
    for _ in 0..10 {
        let store = clock.store(128);
        (0..250_u32).for_each(|key| _ = allows(&store, "filler", key, &second));
        let shares = |key: &u32| {
            let before = store.stats().overflowed;
            allows(&store, "late", *key, &hour) && store.stats().overflowed > before
        };
        let shared: Vec<u32> = (1_000..1_030).filter(shares).collect();
        clock.advance(Duration::from_secs(2));
        assert!(!shared.into_iter().any(|key| allows(&store, "late", key, &hour)));
    }
}

/// Each would fit alone. Looking again does not help, and must not go on for ever.
#[test]
fn newcomers_who_share_an_account_are_charged_together_or_not() {
    let (clock, one, two) = (FakeClock::new(), Quota::per_hour(1), Quota::per_hour(2));
    let (store, rule) = (full(&clock, &one), RuleName::default());
    let both = |quota: &Quota| {
        let (alice, bob) = (Key::from("alice"), Key::from("bob"));
        let charge = |key| Charge::new(rule, key, std::slice::from_ref(quota));
        store.take(&[charge(&alice), charge(&bob)]).now()
    };
    let refused = both(&one);
    assert!(!refused.is_allowed() && refused.retry_after() > Some(Duration::ZERO));
    assert_eq!(take(&store, "default", "carol", &two).remaining(), Some(1), "nothing was charged");
    assert!(!both(&two).is_allowed());
    clock.advance(two.interval());
    assert!(both(&two).is_allowed());
}

/// What one of them is given back would be everybody's.
#[test]
fn a_refund_to_one_who_shares_changes_nothing() {
    let (clock, hour) = (FakeClock::new(), Quota::per_hour(2));
    let store = full(&clock, &hour);
    assert!(allows(&store, "late", "me", &hour) && allows(&store, "late", "me", &hour));
    let (rule, me) = (RuleName::new("late").expect("a name"), Key::from("me"));
    store.settle(&Charge::new(rule, &me, hour.as_ref()), 2).now();
    assert!(!allows(&store, "late", "me", &hour) && !allows(&store, "late", "other", &hour));
}

/// A receipt outlives its account: the slot belongs to another, and nobody shares.
#[test]
fn giving_back_to_a_forgotten_account_changes_nothing() {
    let (clock, second, rule) = (FakeClock::new(), Quota::per_second(1), RuleName::default());
    let (store, me) = (clock.store(1), Key::from("me"));
    let charge = Charge::new(rule, &me, second.as_ref());
    let taken = store.take(&[charge]).now();
    clock.advance(second.period() + NANOSECOND);
    assert!((0..WAYS).all(|key| allows(&store, "filler", key, &second)));
    let before = store.stats();
    store.undo(&[charge], &taken, None);
    assert_eq!(store.stats(), before);
    assert!(!(0..WAYS).any(|key| allows(&store, "filler", key, &second)));
}

/// Which keys find no room depends on the store's own seed.
#[test]
fn no_two_stores_place_keys_alike() {
    let quota = Quota::per_hour(1);
    let refused = || {
        let store = FakeClock::new().store(256);
        (0..2_000_u32).filter(|key| !allows(&store, "r", *key, &quota)).collect::<Vec<_>>()
    };
    assert_ne!(refused(), refused());
}
