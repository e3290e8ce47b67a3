//! Processes that lease from one store, compared with an exact account.
//!
//! They allow nothing that this account would deny. Time advances only by the tests.

use std::{cell::Cell, time::Duration};

use proptest::{prelude::*, test_runner::TestRunner};
use tokio::runtime::{Builder, Runtime};
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Charge, Leased},
};

use crate::support::{
    driven::{AtOnce, Counting, Time},
    regressions::keeping,
};

const HOLDERS: usize = 4;
/// All leases together hold less than a quarter.
const PERCENT: u32 = 6;

type Holder = Leased<Counting<LocalStore>>;

/// Quotas that refill quickly and slowly.
fn plans() -> Vec<Vec<Quota>> {
    let per = |units, millis| Quota::new(units, Duration::from_millis(millis)).expect("a quota");
    let by = |algorithm| vec![per(100, 300).with_algorithm(algorithm)];
    vec![
        vec![per(100, 100)],
        vec![per(1_000, 100).with_burst(100)],
        vec![per(400, 4_000)],
        vec![per(1_000, 1_000).with_burst(60)],
        vec![per(50, 60_000)],
        vec![per(200, 400), per(300, 60_000)],
        vec![
            per(100, 3_600_000),
            per(64, 50).with_burst(80),
            per(500, 700).with_algorithm(Algorithm::fixed_window()),
        ],
        by(Algorithm::fixed_window()),
        by(Algorithm::AnchoredWindow),
        #[cfg(feature = "calendar")]
        vec![Quota::per_month(100)],
    ]
}

#[derive(Clone, Debug)]
enum Step {
    /// A process calls this number of times, for this cost, on the account or on both.
    Ask {
        holder: usize,
        times: u32,
        cost: u32,
        both: bool,
    },
    /// A process without leases.
    Plain {
        times: u32,
    },
    /// Undoes the last allowed call.
    Undo,
    /// A process ends and returns its leases; another one replaces it.
    Restart(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let times = prop_oneof![4 => 1..6_u32, 1 => 6..60_u32];
    let cost = prop_oneof![6 => Just(1_u32), 1 => 1..4_u32];
    let pass = prop_oneof![
        6 => 0..3_000_000_u64,
        3 => 0..1_000_000_u64,
        3 => 0..40_000_000_u64,
        1 => 0..400_000_000_u64,
        1 => 0..2_000_000_000_u64,
    ];
    let ask = (0..HOLDERS, times.clone(), cost, prop::bool::weighted(0.2));
    prop_oneof![
        20 => ask.prop_map(|(holder, times, cost, both)| Step::Ask { holder, times, cost, both }),
        1 => prop_oneof![times, 60..400_u32].prop_map(|times| Step::Plain { times }),
        1 => Just(Step::Undo),
        2 => (0..HOLDERS).prop_map(Step::Restart),
        12 => pass.prop_map(Step::Pass),
    ]
}

/// The processes, their shared store, and the exact account.
struct World<'a> {
    quotas: &'a [Quota],
    time: Time,
    shared: Counting<LocalStore>,
    exact: LocalStore,
    holders: Vec<Holder>,
    /// The last allowed call and its process.
    last: Option<(usize, u32, Decision)>,
    /// Units undone, possibly in a window that has ended.
    returned: u32,
}

impl<'a> World<'a> {
    fn new(quotas: &'a [Quota]) -> Self {
        let time = Time::default();
        let shared = Counting::new(time.store());
        let holders = (0..HOLDERS).map(|_| shared.clone().leases(PERCENT)).collect();
        Self { quotas, exact: time.store(), time, shared, holders, last: None, returned: 0 }
    }

    fn charges<T>(&self, cost: u32, both: bool, read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let (one, two) =
            (RuleName::new("one").expect("a name"), RuleName::new("two").expect("two"));
        let (hot, other) = (Key::from("hot"), Key::from("other"));
        let first = Charge::new(one, &hot, self.quotas).with_cost(cost);
        let second = Charge::new(two, &other, self.quotas).with_cost(1);
        if both { read(&[first, second]) } else { read(&[first]) }
    }

    /// Returns the units left of the hot key's quotas.
    fn left(&self, store: &LocalStore) -> Vec<u32> {
        let look = self.charges(0, false, |charges| store.take(charges).now());
        look.outcomes().iter().map(tower_sluice::decision::Outcome::remaining).collect()
    }

    fn ask(&mut self, holder: usize, cost: u32, both: bool) -> Result<bool, TestCaseError> {
        let before = self.shared.takes();
        let decision = self.charges(cost, both, |charges| self.holders[holder].take(charges).now());
        let asked = self.shared.takes() - before;
        prop_assert_eq!(asked == 0, decision.source() == Source::Leased);
        prop_assert!(asked <= 3, "{} trips for one call", asked);
        if decision.is_allowed() {
            let exact = self.charges(cost, both, |charges| self.exact.take(charges).now());
            prop_assert!(exact.is_allowed(), "beyond the limit: {:?}\n{:?}", decision, exact);
            // leased units are reported as of the time of the borrow call
            let numbers = decision.outcomes().iter().zip(exact.outcomes());
            for (reported, exact) in numbers.filter(|_| asked > 0) {
                prop_assert!(
                    reported.remaining() <= exact.remaining(),
                    "{:?}\n{:?}",
                    reported,
                    exact
                );
            }
            self.last = Some((holder, cost, decision)).filter(|_| !both);
        }
        Ok(asked == 0)
    }

    fn step(&mut self, step: &Step) -> Result<(u32, u32), TestCaseError> {
        let (mut asks, mut here) = (0, 0);
        match *step {
            Step::Ask { holder, times, cost, both } => {
                for _ in 0..times {
                    asks += 1;
                    here += u32::from(self.ask(holder, cost, both)?);
                }
            }
            Step::Plain { times } => {
                for _ in 0..times {
                    let plain = self.charges(1, false, |it| self.shared.store().take(it).now());
                    if plain.is_allowed() {
                        let exact = self.charges(1, false, |it| self.exact.take(it).now());
                        prop_assert!(exact.is_allowed(), "{:?}\n{:?}", plain, exact);
                    }
                }
            }
            Step::Undo => {
                if let Some((holder, cost, decision)) = self.last.take()
                    && decision.source() == Source::Leased
                {
                    self.charges(cost, false, |it| self.holders[holder].undo(it, &decision, None));
                    drop(self.charges(cost, false, |it| {
                        self.exact.adjust(&it[0], -i64::from(cost)).now()
                    }));
                    self.returned += cost;
                }
            }
            Step::Restart(holder) => {
                self.holders[holder] = self.shared.clone().leases(PERCENT);
                self.last = None;
            }
            Step::Pass(_) => {}
        }
        Ok((asks, here))
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

/// Advances time in short steps, so that unused units are noticed.
async fn pass(time: &Time, nanos: u64) {
    let (mut left, step) = (nanos, 50_000_000);
    while left > 0 {
        time.pass(Duration::from_nanos(left.min(step))).await;
        tokio::task::yield_now().await;
        left -= left.min(step);
    }
}

async fn play(quotas: &[Quota], steps: &[Step]) -> Result<(u32, u32), TestCaseError> {
    let mut world = World::new(quotas);
    let (mut asks, mut here) = (0, 0);
    for step in steps {
        if let Step::Pass(nanos) = step {
            pass(&world.time, *nanos).await;
        }
        let (asked, known) = world.step(step)?;
        (asks, here) = (asks + asked, here + known);
        let (shared, exact) = (world.left(world.shared.store()), world.left(&world.exact));
        let held = shared.iter().zip(&exact).zip(quotas);
        for ((shared, exact), quota) in held {
            prop_assert!(shared <= exact, "{} left of {}", shared, exact);
            // a quota that refills quickly is charged for longer than the lease is held
            let slow = quota.interval() > Duration::from_secs(1);
            let share = quota.limit() * PERCENT / 100 * u32::try_from(HOLDERS).expect("few");
            let share = share + world.returned;
            prop_assert!(!slow || exact - shared <= share, "{} of {}", exact - shared, quota);
        }
    }
    world.holders.clear();
    // no lease is left, and no unit is lost except those that refilled in the meantime
    let (shared, exact) = (world.left(world.shared.store()), world.left(&world.exact));
    for ((shared, exact), quota) in shared.iter().zip(&exact).zip(quotas) {
        prop_assert!(shared <= exact, "{} left of {} after all", shared, exact);
        let slow = quota.interval() > Duration::from_secs(1);
        prop_assert!(!slow || world.returned > 0 || shared == exact, "{} of {}", shared, exact);
    }
    Ok((asks, here))
}

#[test]
fn leases_allow_nothing_that_one_exact_account_denies() {
    let plans = plans();
    let (asks, here) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: 800, ..keeping(file!()) };
    let traces = (0..plans.len(), prop::collection::vec(step(), 1..80));
    let result = TestRunner::new(config).run(&traces, |(plan, steps)| {
        let played = runtime().block_on(play(&plans[plan], &steps))?;
        asks.set(asks.get() + played.0);
        here.set(here.get() + played.1);
        Ok(())
    });
    result.unwrap_or_else(|wrong| panic!("{wrong}"));
    let (asks, here) = (asks.get(), here.get());
    assert!(here * 5 > asks, "only {here} of {asks} were decided without asking");
}
