//! The units that processes with local fallbacks allow together, for every kind of failure.
//!
//! They are at most the quota, plus rounding. Time advances only by the tests.

use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Breaker, Charge, Fallback, LocalShare, Timeout},
};

use crate::support::{
    all_algorithms,
    driven::{Time, millis, secs},
    process::{Process, decided},
    shaky::{Mood, Shaky},
};

/// Units of one key that all processes allowed and did not undo.
#[derive(Default)]
struct Admitted(i64);

impl Admitted {
    fn add(&mut self, decision: &Decision, units: u32) {
        self.0 += if decision.is_allowed() { i64::from(units) } else { 0 };
    }

    fn at_most(&self, most: u128) -> bool {
        self.0 <= i64::try_from(most).expect("few")
    }
}

/// The most that one store allows in this time: `more` at once, and the refilled units, rounded up
/// together each time.
fn bound(quota: Quota, time: Duration, more: u32) -> u128 {
    let (limit, units) = (u128::from(quota.limit() + more), u128::from(quota.units() + more));
    let (time, period) = (time.as_nanos(), quota.period().as_nanos());
    match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket => {
            limit + time * u128::from(quota.units()) / period
        }
        _ => (time / period + 1) * units,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

/// The process that calls and the milliseconds before the call.
fn requests() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let later = prop_oneof![4 => Just(0), 2 => 0..300_u64, 1 => 0..20_000_u64];
    prop::collection::vec((0..6_usize, later), 0..400)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let gcra = (1..40_u32, 1..40_u32).prop_map(|(n, burst)| Quota::per_second(n).with_burst(burst));
    let bucket = gcra.clone().prop_map(|quota| quota.with_algorithm(Algorithm::TokenBucket));
    let window =
        (1..40_u32).prop_map(|n| Quota::per_second(n).with_algorithm(Algorithm::fixed_window()));
    prop_oneof![2 => gcra, 1 => bucket, 1 => window]
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn processes_with_local_fallbacks_together_allow_the_quota_plus_rounding(
        n in 1..=6_u32,
        quota in quotas(),
        used in 0..40_u32,
        requests in requests(),
    ) {
        runtime().block_on(async {
            let time = Time::default();
            let first = Process::one_of(n, &time);
            let mut processes = vec![first.clone()];
            processes.extend((1..n).map(|_| Process::beside(&first.shared, n, &time)));
            let before = first.take("alice", quota, used.min(quota.limit())).await;
            prop_assert!(before.is_allowed());
            for process in &processes {
                drop(process.take("alice", quota, 0).await);
            }
            first.shared.is(Mood::Failing);
            // the units that the warm key had before the outage are part of its quota
            let (mut alice, mut bob) =
                (Admitted(used.min(quota.limit()).into()), Admitted::default());
            for (who, later) in requests {
                time.pass(millis(later)).await;
                let process = &processes[who % processes.len()];
                alice.add(&process.take("alice", quota, 1).await, 1);
                bob.add(&process.take("bob", quota, 1).await, 1);
                let most = bound(quota, time.0.now(), n);
                prop_assert!(alice.at_most(most), "warm: {} of {most}, {quota:?}", alice.0);
                prop_assert!(bob.at_most(most), "fresh: {} of {most}, {quota:?}", bob.0);
            }
            Ok(())
        })?;
    }
}

/// A greedy client sends costs in turns, at several rates. In each of ten periods, the processes
/// together allow at most the quota of that period.
#[tokio::test(start_paused = true)]
async fn a_share_does_not_depend_on_the_cost_of_a_call() {
    const PERIODS: u32 = 10;
    let rates = [secs(10), millis(3_333), secs(1), millis(100)];
    for algorithm in all_algorithms() {
        for n in 2..=6_u32 {
            let quota = Quota::new(20, secs(10)).expect("valid").with_algorithm(algorithm);
            for costs in [&[1][..], &[10, 1], &[1, 10], &[10, 7, 1, 3], &[20, 1, 3, 1]] {
                for later in rates {
                    let time = Time::default();
                    let process = Process::one_of(n, &time);
                    process.shared.is(Mood::Failing);
                    let (mut admitted, mut costs) = (0, costs.iter().cycle());
                    while time.0.now() < PERIODS * secs(10) {
                        let cost = *costs.next().expect("a cycle");
                        let taken = process.take("alice", quota, cost).await;
                        admitted += if taken.is_allowed() { cost } else { 0 };
                        time.pass(later).await;
                    }
                    // The burst and what refills, or a share for each period.
                    let most = 20 * (PERIODS + 1) / n;
                    assert!(
                        admitted <= most,
                        "{algorithm:?}, {n}, {later:?}: {admitted} of {most}"
                    );
                }
            }
        }
    }
}

/// Random numbers with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn place(&mut self, of: usize) -> usize {
        usize::try_from(self.below(of as u64)).expect("fits")
    }
}

/// Three processes whose store fails in every way at any time.
struct World {
    time: Time,
    shared: Shaky,
    stores: [Fallback<Breaker<Timeout<Shaky>>, LocalShare<LocalStore>>; 3],
    random: Random,
    admitted: [Admitted; 4],
    /// Charges that can still be undone: the process, the key and the decision.
    held: Vec<(usize, usize, u32, Decision)>,
    fallbacks: u32,
}

impl World {
    const QUOTAS: [Quota; 2] = [Quota::per_second(20).with_burst(60), Quota::per_day(1_000_000)];

    fn new(seed: u64) -> Self {
        let time = Time::default();
        let shared = Shaky::new(time.0.store(1_024));
        let stores = [(); 3].map(|()| {
            let guarded = shared.clone().timeout(millis(50)).breaker();
            guarded.fallback(time.0.store(1_024), 3)
        });
        let (admitted, held) = (Default::default(), Vec::new());
        Self { time, shared, stores, random: Random(seed), admitted, held, fallbacks: 0 }
    }

    async fn change(&mut self) {
        let late = millis(self.random.below(80));
        let moods = [
            Mood::Well,
            Mood::Well,
            Mood::Failing,
            Mood::Late(late),
            Mood::FailingLate(late),
            Mood::Hanging,
        ];
        if self.random.below(40) == 0 {
            self.shared.is(moods[self.random.place(moods.len())]);
        }
        if self.random.below(10) == 0 {
            self.time.pass(millis(self.random.below(60))).await;
        }
    }

    async fn ask(&mut self) {
        let (who, name, cost) = (self.random.place(3), self.random.place(4), self.random.place(3));
        let (cost, key) = (u32::try_from(cost).expect("few") + 1, Key::from(name as u64));
        let charge = Charge::new(RuleName::default(), &key, &Self::QUOTAS).with_cost(cost);
        let store = &self.stores[who];
        match self.random.below(20) {
            0 => drop(decided(store.take(&[charge.with_cost(0)])).await),
            1 => drop(store.take(&[charge.with_cost(0)])),
            2 => drop(decided(store.adjust(&charge, 1)).await),
            3 if self.random.below(50) == 0 => drop(decided(store.block(&charge, secs(1))).await),
            4 => drop(decided(store.unblock(&charge)).await),
            5 if !self.held.is_empty() => self.undo().await,
            _ => {
                let decision = decided(store.take(&[charge])).await;
                self.admitted[name].add(&decision, cost);
                self.fallbacks += u32::from(decision.source() == Source::Fallback);
                if decision.is_allowed() {
                    self.held.truncate(64);
                    self.held.push((who, name, cost, decision));
                }
            }
        }
    }

    /// Undoes or refunds a charge that was allowed some time ago.
    async fn undo(&mut self) {
        let at = self.random.place(self.held.len());
        let (who, name, cost, decision) = self.held.swap_remove(at);
        let key = Key::from(name as u64);
        let charge = Charge::new(RuleName::default(), &key, &Self::QUOTAS).with_cost(cost);
        self.admitted[name].0 -= i64::from(cost);
        match self.random.below(2) {
            0 => self.stores[who].undo(&[charge], &decision, None),
            _ => drop(decided(self.stores[who].adjust(&charge, -i64::from(cost))).await),
        }
    }
}

/// Every call returns a decision: `decided` would panic otherwise.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_random_calls_all_get_a_decision_and_stay_within_the_quota() {
    let mut world = World::new(0x9e37_79b9_7f4a_7c15);
    for step in 0..100_000 {
        world.change().await;
        world.ask().await;
        let [quota, _] = World::QUOTAS;
        for admitted in &world.admitted {
            // The store and the shares of the processes allow the quota each. A call that timed out
            // is charged and undone in different stores.
            let most = 2 * bound(quota, world.time.0.now(), quota.limit() + 3);
            assert!(admitted.at_most(most), "step {step}: {} of {most}", admitted.0);
        }
    }
    assert!((20_000..80_000).contains(&world.fallbacks), "{}", world.fallbacks);
    assert!(world.admitted.iter().all(|admitted| admitted.0 > 1_000), "too few for a result");
}

/// Real threads, on a store that fails and recovers between any two calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_allow_no_more_than_both_stores_together() {
    let (time, quota) = (Time::default(), Quota::per_day(500));
    let process = Process::one_of(1, &time);
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let process = process.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for at in 0..2_000 {
                    if at % 7 == task {
                        let failing = (at / 7) % 2 == 0;
                        process.shared.is(if failing { Mood::Failing } else { Mood::Well });
                    }
                    let decision = process.take("alice", quota, 1).await;
                    admitted += u32::from(decision.is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("no panic");
    }
    assert!((500..=1_000).contains(&admitted), "{admitted}");
}
