//! Rules whose quotas change: each quota counts as if it were alone. Its model is an embedded store of
//! its own, which is asked about this quota at the same instants.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::print_stdout, reason = "a test that fails shows its steps")]

use std::time::Duration;

use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::Outcome,
    rule::RuleName,
    store::Charge,
    testing::{FakeClock, Subject},
};

use super::{dice::Dice, random::exact_wait};

const HOUR: Duration = Duration::from_secs(3_600);
/// The time of the first step.
const START: Duration = Duration::from_secs(1_700_000_000);
const STEPS: usize = 60;

/// A kind of quota, with two limits.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    limits: [Quota; 2],
}

/// Returns all kinds of quotas.
pub(crate) fn kinds() -> Vec<Kind> {
    let all = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 4 },
        Algorithm::SlidingLog,
        Algorithm::Concurrent,
    ];
    let mut kinds: Vec<_> = all.into_iter().map(kind).collect();
    let minute = [Quota::per_minute(4), Quota::per_minute(7).with_burst(3).with_initial(1)];
    kinds.push(Kind { name: "gcra, a shorter period", limits: minute });
    let tokens = [5, 8].map(|units| Quota::per_hour(units).with_unit("tokens"));
    kinds.push(Kind { name: "gcra, another unit", limits: tokens });
    #[cfg(feature = "calendar")]
    kinds.push(Kind { name: "calendar", limits: [Quota::per_month(6), Quota::per_month(4)] });
    kinds
}

fn kind(algorithm: Algorithm) -> Kind {
    if algorithm == Algorithm::Concurrent {
        return Kind { name: "slots", limits: [Quota::concurrent(2), Quota::concurrent(3)] };
    }
    let limits = [5, 8].map(|units| Quota::per_hour(units).with_algorithm(algorithm));
    match algorithm {
        Algorithm::Gcra => {
            let initial = Quota::per_hour(8).with_burst(6).with_initial(2);
            Kind { name: "gcra", limits: [limits[0], initial] }
        }
        Algorithm::TokenBucket => Kind { name: "token bucket", limits },
        Algorithm::FixedWindow { .. } => {
            let lending = Algorithm::FixedWindow { carry_over: 2, paced: false };
            Kind { name: "fixed window", limits: [limits[0], limits[1].with_algorithm(lending)] }
        }
        Algorithm::AnchoredWindow => Kind { name: "anchored window", limits },
        Algorithm::SlidingWindow { .. } => Kind { name: "sliding window", limits },
        Algorithm::SlidingLog => Kind { name: "sliding log", limits },
        _ => panic!("{algorithm}: add its limits"),
    }
}

/// One quota of a plan: its kind, by its index, and one of its limits.
#[derive(Clone, Copy, Debug)]
struct Part {
    kind: usize,
    quota: Quota,
}

/// A charge that can be undone: the plan, the cost, and the decisions of the store and the models.
struct Taken {
    plan: Vec<Part>,
    cost: u32,
    real: Decision,
    models: Vec<Decision>,
}

/// A rule with changing plans, and a model for each kind of its quotas.
struct Changing<S: Subject> {
    subject: S,
    /// The stores of two processes.
    stores: Vec<S::Store>,
    clock: FakeClock,
    models: Vec<LocalStore>,
    key: Key,
    blocked_until: Duration,
    taken: Vec<Taken>,
    /// `true` if a reset may void receipts of other accounts.
    voids_others: bool,
}

/// The numbers that must be equal. Waits for slots depend on how long they were held.
fn numbers(outcome: &Outcome) -> (u32, Duration, Duration, Option<u64>) {
    (outcome.remaining(), outcome.reset_after(), outcome.next_after(), outcome.held())
}

impl<S: Subject> Changing<S> {
    fn new(mut subject: S, voids_others: bool) -> Self {
        let first = subject.open();
        let second = subject.join(Duration::from_secs(1_000_000));
        let clock = FakeClock::new();
        clock.advance(START);
        subject.set(START);
        Self {
            subject,
            stores: [Some(first), second].into_iter().flatten().collect(),
            models: kinds().iter().map(|_| clock.store(64)).collect(),
            clock,
            key: Key::from("somebody"),
            blocked_until: Duration::ZERO,
            taken: Vec::new(),
            voids_others,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.clock.advance(time);
        self.subject.set(self.clock.now());
    }

    fn charge<'a>(&'a self, quotas: &'a [Quota], cost: u32) -> Charge<'a> {
        Charge::new(RuleName::default(), &self.key, quotas).with_cost(cost)
    }

    /// Returns the outcome of a quota alone, for a cost.
    fn alone(&self, part: Part, cost: u32) -> Outcome {
        let decision = self.models[part.kind].peek(&[self.charge(&[part.quota], cost)]).now();
        decision.outcomes()[0]
    }

    /// Opens an account that starts at `initial` units, as a denial does.
    fn open_alone(&self, part: Part) {
        let quotas = [part.quota];
        let whole = self.charge(&quotas, 1).with_headroom(part.quota.limit() - 1);
        let model = &self.models[part.kind];
        if part.quota.initial().is_some() && !model.peek(&[whole]).now().is_allowed() {
            let _ = model.take(&[whole]).now();
        }
    }

    /// Takes units under a plan, by one of the processes, and by each model alone.
    async fn take(&mut self, process: usize, plan: &[Part], cost: u32) {
        let quotas: Vec<_> = plan.iter().map(|part| part.quota).collect();
        let process = process % self.stores.len();
        println!("{:?} take {cost} of {plan:?}", self.clock.now() - START);
        let answer = self.stores[process].take(&[self.charge(&quotas, cost)]).await;
        let real = answer.map_err(Into::into).expect("a decision");
        println!("   {real:?}");
        let is_blocked = self.clock.now() < self.blocked_until;
        if is_blocked && cost > 0 {
            assert!(!real.is_allowed() && real.is_blocked(), "a block is of every plan: {real:?}");
            return;
        }
        let looks: Vec<_> = plan.iter().map(|part| self.alone(*part, cost)).collect();
        let fits = |look: &Outcome| !look.is_denied();
        assert_eq!(real.is_allowed(), looks.iter().all(fits), "{real:?}\nalone: {looks:?}");
        if real.is_allowed() {
            let charge = |part: &Part| {
                self.models[part.kind].take(&[self.charge(&[part.quota], cost)]).now()
            };
            let models: Vec<_> = plan.iter().map(charge).collect();
            self.compare(&real, plan);
            self.taken.push(Taken { plan: plan.to_vec(), cost, real, models });
            return;
        }
        let fits_never = |look: &Outcome| {
            look.is_denied() && look.retry_after().is_none() && !look.is_estimated()
        };
        let is_never = looks.iter().any(fits_never);
        if !is_never {
            plan.iter().for_each(|part| self.open_alone(*part));
        }
        self.compare(&real, plan);
        let full = real.outcomes().iter().map(Outcome::reset_after).max();
        assert!(exact_wait(&real) <= full, "no wait is longer than to refill: {real:?}");
        for (outcome, look) in
            real.outcomes().iter().zip(&looks).filter(|(_, look)| look.is_denied())
        {
            if look.held().is_none() && !is_never {
                assert_eq!(outcome.retry_after(), look.retry_after(), "{real:?}");
            }
        }
    }

    /// Compares the accounts that a decision reports with those of the models.
    fn compare(&self, real: &Decision, plan: &[Part]) {
        let alone: Vec<_> = plan.iter().map(|part| numbers(&self.alone(*part, 0))).collect();
        let all: Vec<_> = real.outcomes().iter().map(numbers).collect();
        assert_eq!(all, alone, "{real:?}");
    }

    async fn adjust(&mut self, process: usize, plan: &[Part], units: i64) {
        let quotas: Vec<_> = plan.iter().map(|part| part.quota).collect();
        let store = &self.stores[process % self.stores.len()];
        println!("{:?} adjust {units} of {plan:?}", self.clock.now() - START);
        let answer = store.adjust(&self.charge(&quotas, 1), units).await;
        let real = answer.map_err(Into::into).expect("an adjustment");
        for part in plan {
            let _ = self.models[part.kind].adjust(&self.charge(&[part.quota], 1), units).now();
        }
        self.compare(&real, plan);
    }

    async fn reset(&mut self, process: usize, plan: &[Part]) {
        let quotas: Vec<_> = plan.iter().map(|part| part.quota).collect();
        let store = &self.stores[process % self.stores.len()];
        let answer = store.reset(&self.charge(&quotas, 0)).await;
        let _ = answer.map_err(Into::into).expect("a reset");
        for part in plan {
            let _ = self.models[part.kind].reset(&self.charge(&[part.quota], 0)).now();
        }
        if self.voids_others {
            let is_reset = |part: &Part| plan.iter().any(|other| other.kind == part.kind);
            self.taken.retain(|taken| taken.plan.iter().all(is_reset));
        }
        self.pass(Duration::from_micros(1));
    }

    /// Undoes a charge under the plan of then, also if the plan has changed since.
    async fn undo(&mut self, at: usize) {
        if self.taken.is_empty() {
            return;
        }
        let taken = self.taken.remove(at % self.taken.len());
        println!("{:?} undo {} of {:?}", self.clock.now() - START, taken.cost, taken.plan);
        let quotas: Vec<_> = taken.plan.iter().map(|part| part.quota).collect();
        self.stores[0].undo(&[self.charge(&quotas, taken.cost)], &taken.real, None);
        for (part, model) in taken.plan.iter().zip(&taken.models) {
            let quotas = [part.quota];
            let charge = self.charge(&quotas, taken.cost);
            self.models[part.kind].undo(&[charge], model, None);
        }
        // Dropping the decisions frees their slots.
        drop(taken);
        for store in &self.stores {
            self.subject.finish(store).await;
        }
    }

    async fn block(&mut self, time: Duration) {
        let answer = self.stores[0].block(&self.charge(&[], 1), time).await;
        let _ = answer.map_err(Into::into).expect("a block");
        self.blocked_until = self.clock.now() + time;
    }
}

/// Plays a random sequence with the plans of two kinds: each alone, both in either order, and each
/// with the other limit.
pub(crate) async fn play<S: Subject>(subject: S, pair: [usize; 2], seed: u64, voids_others: bool) {
    let kinds = kinds();
    let part = |kind: usize, limit: usize| Part { kind, quota: kinds[kind].limits[limit] };
    let [one, two] = pair;
    println!("{}, {}, seed {seed}", kinds[one].name, kinds[two].name);
    let plans = [
        vec![part(one, 0)],
        vec![part(two, 0)],
        vec![part(one, 0), part(two, 0)],
        vec![part(two, 1), part(one, 0)],
        vec![part(one, 1)],
        vec![part(two, 1), part(one, 1)],
    ];
    let has_slots = pair.iter().any(|kind| kinds[*kind].limits[0].period().is_zero());
    let mut random = Dice(seed);
    let mut changing = Changing::new(subject, voids_others);
    for _ in 0..STEPS {
        let plan = &plans[random.index(6)];
        let process = random.index(2);
        match random.index(20) {
            0..=11 => changing.take(process, plan, [1, 1, 1, 2, 3, 0][random.index(6)]).await,
            12..=14 => {
                let parts = u32::try_from(random.index(60)).expect("few");
                changing.pass(HOUR * parts / 30);
            }
            15 | 16 => changing.undo(random.index(8)).await,
            17 if !has_slots => {
                changing.adjust(process, plan, [2, -1, -3, 9][random.index(4)]).await;
            }
            18 if !has_slots => changing.reset(process, plan).await,
            19 => changing.block(Duration::from_secs(random.index(300) as u64)).await,
            _ => {}
        }
    }
}

/// Takes one unit under each plan, and returns how many were allowed.
async fn allowed<S: Subject>(changing: &Changing<S>, key: &str, plans: &[&[Quota]]) -> usize {
    let (key, mut allowed) = (Key::from(key), 0);
    for (at, plan) in plans.iter().enumerate() {
        let store = &changing.stores[at % changing.stores.len()];
        let charge = Charge::new(RuleName::default(), &key, plan);
        let decision = store.take(&[charge]).await.map_err(Into::into).expect("a decision");
        allowed += usize::from(decision.is_allowed());
    }
    allowed
}

/// Changes of a rule with exact outcomes.
pub(crate) async fn known_changes<S: Subject>(subject: S) {
    let changing = Changing::new(subject, true);
    let look = async |key: &str, plan: &[Quota]| {
        let key = Key::from(key);
        let charge = Charge::new(RuleName::default(), &key, plan);
        changing.stores[0].peek(&[charge]).await.map_err(Into::into).expect("a decision")
    };
    let hourly = [Quota::per_hour(5)];
    let windows = [hourly[0].with_algorithm(Algorithm::fixed_window())];
    let both = [&hourly[..], &windows].repeat(300);
    let by_both = allowed(&changing, "two algorithms", &both).await;
    let alone = allowed(&changing, "one algorithm", &[&hourly[..]; 600]).await;
    println!("two algorithms: {by_both} of 600, one: {alone}");
    assert_eq!((by_both, alone), (10, 5));

    let (day, second) = (Quota::per_day(10), Quota::per_second(5));
    assert_eq!(allowed(&changing, "in front", &[&[day][..]; 11]).await, 10);
    let denied = look("in front", &[second, day]).await;
    println!("[10/day] used up, then [5/s, 10/day]: {:?}", denied.retry_after());
    assert_eq!(denied.binding().map(Outcome::quota_index), Some(1));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(8_640)));

    assert_eq!(allowed(&changing, "removed", &[&[second, day][..]; 5]).await, 5);
    let left = look("removed", &[day]).await.remaining();
    println!("[5/s, 10/day] with 5 used, then [10/day]: {left:?} left after one more");
    assert_eq!(left, Some(4));

    assert_eq!(allowed(&changing, "shorter", &[&[day][..]; 11]).await, 10);
    let minute = allowed(&changing, "shorter", &[&[Quota::per_minute(10)][..]; 11]).await;
    println!("10/day used up, then 10/min: {minute} of 11");
    assert_eq!(minute, 10);
    assert_eq!(allowed(&changing, "shorter", &[&[day]]).await, 0, "the day has not changed");
}

/// Every ordered pair of kinds.
pub(crate) fn pairs() -> Vec<[usize; 2]> {
    let count = kinds().len();
    let pair = |one| (0..count).filter(move |two| *two != one).map(move |two| [one, two]);
    (0..count).flat_map(pair).collect()
}
