//! Slots of the local store: random sequences against the exact model, and threads.

use std::{
    collections::HashMap,
    sync::{
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tower_sluice::{
    Algorithm, Decision, Key, Limiter, LocalStore, Quota, Store, StoreExt,
    decision::{Outcome, Source},
    rule::RuleName,
    store::Charge,
    testing::FakeClock,
};

use crate::support::{dice::Dice, regressions};

/// A quota of slots.
#[derive(Clone, Copy, Debug)]
struct Slots {
    limit: u64,
    soft: u64,
}

/// The reason why a quota does not allow a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denied {
    UnknownWait,
    Never,
}

/// The exact model of a key: the slots of each step that holds some. Written from the specification
/// alone.
#[derive(Clone, Debug, Default)]
struct Model(HashMap<usize, u64>);

impl Model {
    fn held(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the result of a demand on each quota.
    fn look(&self, quotas: &[Slots], units: u64, headroom: u64) -> Vec<Option<Denied>> {
        let need = if units == 0 { 0 } else { units + headroom };
        let result = |quota: &Slots| {
            let raised = quota.limit + quota.soft;
            match self.held() + need {
                _ if need > raised => Some(Denied::Never),
                after if need > 0 && after > raised => Some(Denied::UnknownWait),
                _ => None,
            }
        };
        quotas.iter().map(result).collect()
    }

    /// Returns `true` if an allowed demand uses soft slots of a quota.
    fn is_overage(&self, quotas: &[Slots], units: u64, headroom: u64) -> bool {
        units > 0 && quotas.iter().any(|quota| self.held() + units + headroom > quota.limit)
    }
}

/// A step of a sequence, about one of two keys.
#[derive(Clone, Debug)]
enum Step {
    Take {
        key: usize,
        units: u32,
        headroom: u32,
    },
    /// Frees the slots of an earlier step.
    Release(usize),
    Limit(u32),
    Reset {
        key: usize,
    },
    Adjust {
        key: usize,
        units: i64,
    },
    /// Undoes the charge of an earlier step, which changes no slots.
    Undo(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..2_usize;
    prop_oneof![
        6 => (key.clone(), 0..4_u32, 0..2_u32)
            .prop_map(|(key, units, headroom)| Step::Take { key, units, headroom }),
        4 => (0..40_usize).prop_map(Step::Release),
        1 => (1..6_u32).prop_map(Step::Limit),
        1 => key.clone().prop_map(|key| Step::Reset { key }),
        1 => (key, -3..4_i64).prop_map(|(key, units)| Step::Adjust { key, units }),
        1 => (0..40_usize).prop_map(Step::Undo),
    ]
}

fn charge<'a>(key: &'a Key, quotas: &'a [Quota]) -> Charge<'a> {
    Charge::new(RuleName::default(), key, quotas)
}

fn result(outcome: &Outcome) -> Option<Denied> {
    match outcome.is_denied() {
        false => None,
        true if outcome.is_estimated() => Some(Denied::UnknownWait),
        true => Some(Denied::Never),
    }
}

/// Checks the slots of the first outcomes, one for each quota of slots.
fn assert_held(decision: &Decision, quotas: &[Slots], held: u64) {
    for (outcome, quota) in decision.outcomes().iter().zip(quotas) {
        assert_eq!(outcome.held(), Some(held));
        assert_eq!(u64::from(outcome.remaining()), quota.limit.saturating_sub(held));
    }
}

/// Plays the steps on a store with one or two quotas of slots and a rate.
fn play(steps: &[Step], limits: &[(u32, u32)], rate: Option<u32>) {
    let clock = FakeClock::new();
    let (store, keys) = (clock.store(64), [Key::from("alice"), Key::from("bob")]);
    let slots = |(limit, soft): &(u32, u32)| Quota::concurrent(*limit).with_soft(*soft);
    let mut quotas: Vec<_> = limits.iter().map(slots).collect();
    quotas.extend(rate.map(Quota::per_hour));
    let mut models = [Model::default(), Model::default()];
    let mut taken: HashMap<usize, (usize, u32, Decision)> = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        let of = |quota: &Quota| Slots { limit: quota.limit().into(), soft: quota.soft().into() };
        let all: Vec<_> =
            quotas.iter().filter(|it| it.algorithm() == Algorithm::Concurrent).map(of).collect();
        let key = match *step {
            Step::Take { key, units, headroom } => {
                let charge = charge(&keys[key], &quotas).with_cost(units).with_headroom(headroom);
                let decision = store.take(&[charge]).now();
                let (units, headroom) = (u64::from(units), u64::from(headroom));
                let expected = models[key].look(&all, units, headroom);
                let outcomes = &decision.outcomes()[..all.len()];
                assert_eq!(outcomes.iter().map(result).collect::<Vec<_>>(), expected);
                let rates = &decision.outcomes()[all.len()..];
                let allowed =
                    expected.iter().all(Option::is_none) && !rates.iter().any(Outcome::is_denied);
                assert_eq!(decision.is_allowed(), allowed);
                let overage = allowed && models[key].is_overage(&all, units, headroom);
                assert_eq!(decision.is_overage(), overage);
                if allowed {
                    models[key].0.insert(at, units);
                }
                assert_held(&decision, &all, models[key].held());
                let cost = u32::try_from(units).expect("a cost");
                taken.extend(allowed.then_some((at, (key, cost, decision))));
                key
            }
            Step::Release(earlier) => match taken.remove(&earlier) {
                Some((key, ..)) => {
                    models[key].0.remove(&earlier);
                    key
                }
                None => continue,
            },
            Step::Limit(limit) => {
                quotas[0] = Quota::concurrent(limit).with_soft(quotas[0].soft());
                continue;
            }
            Step::Reset { key } => {
                let decision = store.reset(&charge(&keys[key], &quotas)).now();
                assert_held(&decision, &all, 0);
                models[key] = Model::default();
                key
            }
            Step::Adjust { key, units } => {
                let decision = store.adjust(&charge(&keys[key], &quotas), units).now();
                assert_held(&decision, &all, models[key].held());
                key
            }
            Step::Undo(earlier) => match taken.get(&earlier) {
                Some((key, cost, decision)) => {
                    let charge = charge(&keys[*key], &quotas).with_cost(*cost);
                    store.undo(&[charge], decision, None);
                    *key
                }
                None => continue,
            },
        };
        let look = store.take(&[charge(&keys[key], &quotas).with_cost(0)]).now();
        assert!(look.is_allowed());
        assert_held(&look, &all, models[key].held());
    }
    drop(taken);
    assert_eq!((store.stats().holding, store.stats().held), (0, 0), "everything is free");
}

proptest! {
    #![proptest_config(regressions::keeping(file!()))]

    #[test]
    fn the_local_store_equals_the_model(
        steps in prop::collection::vec(step(), 1..40),
        limits in prop::collection::vec((1..6_u32, 0..3_u32), 1..3),
        rate in prop::option::of(1..12_u32),
    ) {
        play(&steps, &limits, rate);
    }
}

#[test]
fn a_full_table_of_slots_denies_new_keys_and_runs_nothing_uncounted() {
    let (limiter, two) =
        (Limiter::named("default", LocalStore::with_capacity(8)), Quota::concurrent(2));
    let all: Vec<_> = (0..8_u64).map(|key| limiter.take(key, &two, 1).now()).collect();
    assert!(all.iter().all(Decision::is_allowed));
    for quotas in [&[two][..], &[two, Quota::per_hour(100)]] {
        let denied = limiter.take(8_u64, quotas, 1).now();
        assert!(!denied.is_allowed());
        assert_eq!(denied.source(), Source::Overflow);
        assert!(denied.outcomes()[0].held() == Some(0) && denied.outcomes()[0].is_estimated());
        assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    }
    assert!(limiter.peek(8_u64, &two).now().is_allowed());
    let second = limiter.take(0_u64, &two, 1).now();
    assert!(second.is_allowed(), "a key with an entry has room");
    drop(all);
    assert!(limiter.take(8_u64, &two, 1).now().is_allowed());
}

#[test]
fn the_estimated_wait_is_measured_between_freed_slots() {
    let clock = FakeClock::new();
    let (limiter, two) = (Limiter::named("default", clock.store(64)), Quota::concurrent(2));
    let mut running: Vec<_> = (0..2).map(|_| limiter.take("alice", &two, 1).now()).collect();
    let wait = || limiter.take("alice", &two, 1).now().retry_after();
    assert_eq!(wait(), Some(Duration::from_secs(1)), "at least a second");
    for _ in 0..10 {
        clock.advance(Duration::from_secs(30));
        drop(running.remove(0));
        running.push(limiter.take("alice", &two, 1).now());
    }
    // Each request holds its slot for 60 s, and two run at a time.
    assert_eq!(wait(), Some(Duration::from_secs(30)));
    let rate = [two, Quota::per_hour(1)];
    let first = limiter.take("bob", &rate, 1).now();
    let both = limiter.take("bob", &rate, 1).now();
    assert_eq!(both.retry_after(), Some(Duration::from_secs(3_600)), "the rate denies");
    let mixed = [Quota::concurrent(1), Quota::per_hour(1)];
    let second = limiter.take("carol", &mixed, 1).now();
    let both = limiter.take("carol", &mixed, 1).now();
    assert!(both.outcomes()[0].is_estimated() && !both.outcomes()[1].is_estimated());
    assert_eq!(both.retry_after(), Some(Duration::from_secs(3_600)), "the longer of both");
    drop((first, second));
}

#[test]
fn a_million_acquisitions_leave_every_count_at_zero() {
    const THREADS: u64 = 4;
    const LIMIT: u32 = 3;
    let (store, running) = (LocalStore::new(), [const { AtomicU64::new(0) }; 4]);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (limiter, running) = (Limiter::named("default", store.clone()), &running);
            scope.spawn(move || {
                let (mut random, mut held) = (Dice(seed), Vec::new());
                for _ in 0..250_000 {
                    let key = random.index(4);
                    let quotas = [Quota::concurrent(LIMIT), Quota::per_second(1_000_000_000)];
                    let quotas = &quotas[..1 + random.index(2)];
                    let cost = 1 + u32::try_from(random.index(2)).expect("small");
                    let decision = limiter.take(key as u64, quotas, cost).now();
                    if decision.is_allowed() {
                        let now = running[key].fetch_add(cost.into(), SeqCst) + u64::from(cost);
                        assert!(now <= LIMIT.into(), "{now} slots held");
                        held.push((key, cost, decision));
                    }
                    if held.len() > random.index(4) {
                        let (key, cost, decision) = held.swap_remove(random.index(held.len()));
                        running[key].fetch_sub(cost.into(), SeqCst);
                        drop(decision);
                    }
                }
                for (key, cost, decision) in held {
                    running[key].fetch_sub(cost.into(), SeqCst);
                    drop(decision);
                }
            });
        }
    });
    assert_eq!((store.stats().holding, store.stats().held), (0, 0));
}

#[tokio::test]
async fn a_fallback_mirrors_no_denial_that_waits_for_a_slot() {
    let store = LocalStore::new().fallback(LocalStore::new(), 1);
    let (key, quotas) = (Key::from("alice"), [Quota::concurrent(1)]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    let first = store.take(&[charge]).await.expect("infallible");
    let waits = store.take(&[charge.with_max_wait(Duration::from_secs(1))]).await;
    assert!(first.is_allowed() && !waits.expect("infallible").is_allowed());
    drop(first);
    assert!(store.take(&[charge]).await.expect("infallible").is_allowed());
}

/// New keys of a full store share an account, which all operations must lock in the same order.
#[test]
fn late_charges_and_decisions_of_new_keys_do_not_wait_for_each_other() {
    let (store, done) = (LocalStore::with_capacity(16), mpsc::channel());
    let quotas = [Quota::per_hour(1), Quota::concurrent(2)];
    for n in 0..1_000_u64 {
        drop(store.take(&[charge(&Key::from(n), &quotas)]));
    }
    for thread in 0..4_u64 {
        let (store, done) = (store.clone(), done.0.clone());
        thread::spawn(move || {
            for n in 0..50_000_u64 {
                let key = Key::from(10_000 + (n + thread) % 64);
                let charge = charge(&key, &quotas);
                match thread % 2 {
                    0 => drop(store.adjust(&charge, 1)),
                    _ => drop(store.take(&[charge])),
                }
            }
            done.send(()).expect("the test waits");
        });
    }
    for _ in 0..4 {
        done.1.recv_timeout(Duration::from_secs(60)).expect("no thread hangs");
    }
}

#[tokio::test]
async fn wrappers_pass_slots_on() {
    let local = LocalStore::new();
    let store = local.clone().timeout(Duration::from_secs(1)).breaker().deny_cache().leases(5);
    let limiter =
        Limiter::named("default", store.fail_closed().fallback(LocalStore::new(), 1).boxed());
    let quotas = [Quota::concurrent(1), Quota::per_hour(1_000)];
    for _ in 0..50 {
        let first = limiter.take("alice", &quotas, 1).await;
        assert_eq!((first.is_allowed(), local.stats().held), (true, 1));
        for sources in [&[Source::Local][..], &[Source::Local, Source::DenyCache]] {
            let denied = limiter.take("alice", &quotas, 1).await;
            assert!(!denied.is_allowed() && sources.contains(&denied.source()), "{denied:?}");
        }
        drop(first);
    }
    assert_eq!(local.stats().held, 0);
}
