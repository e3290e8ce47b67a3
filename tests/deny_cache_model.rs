//! Random sequences of everything a store is asked, with the cache and without it: the same verdicts,
//! and no wait that is shorter than it is. Time stands still but where a sequence moves it.

mod support;

use std::{cell::Cell, time::Duration};

use proptest::{prelude::*, test_runner::TestRunner};
use support::{
    driven::{AtOnce, Counting, Time},
    random::rows,
    regressions::keeping,
};
use tokio::runtime::Builder;
use tower_sluice::{
    Algorithm, Charge, Decision, Key, LocalStore, Outcome, Quota, RuleName, Source, Store,
    store::DenyCache,
};

const KEYS: usize = 2;
const RULES: [&str; 2] = ["one", "two"];

/// What a rule may be given: quotas of every algorithm, whose waits are shorter and longer than the
/// life of what is known.
fn plans(units: u32) -> Vec<Vec<Quota>> {
    const PERIOD: Duration = Duration::from_millis(900);
    let base = Quota::new(units, PERIOD).expect("a quota");
    let slow = Quota::per_hour(units + 2);
    let by = |algorithm| vec![base.algorithm(algorithm)];
    vec![
        vec![base],
        vec![base.burst(3)],
        vec![slow],
        vec![base, slow],
        vec![slow.algorithm(Algorithm::SlidingLog), base],
        vec![base.soft(2)],
        vec![base.initial(1)],
        vec![slow.initial(2), base],
        by(Algorithm::TokenBucket),
        vec![base.algorithm(Algorithm::TokenBucket).initial(2)],
        by(Algorithm::fixed_window()),
        by(Algorithm::fixed_window().carry_over(4)),
        by(Algorithm::fixed_window().carry_over(4).paced()),
        by(Algorithm::fixed_window().paced()),
        by(Algorithm::AnchoredWindow),
        by(Algorithm::SlidingWindow { buckets: 3 }),
        by(Algorithm::SlidingLog),
        vec![Quota::blocked()],
    ]
}

/// A charge, its rule's quotas being the plan of that number.
#[derive(Clone, Copy, Debug)]
struct Asked {
    rule: usize,
    key: usize,
    plan: usize,
    cost: u32,
    headroom: u32,
    patience: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Whole,
    ReportOnly,
    Only,
}

#[derive(Clone, Debug)]
enum Step {
    Take(Vec<Asked>),
    /// What was last asked.
    Again,
    Settle(Asked, i64),
    Reset(Asked),
    Block(Asked, u64),
    Unblock(Asked),
    /// What was last allowed.
    Undo,
    Pass(u64),
}

fn asked() -> impl Strategy<Value = Asked> {
    let kind =
        prop_oneof![8 => Just(Kind::Whole), 1 => Just(Kind::ReportOnly), 1 => Just(Kind::Only)];
    let who = (0..RULES.len(), 0..KEYS, prop_oneof![9 => Just(0), 1 => 0..2_usize]);
    let cost = prop_oneof![1 => Just(0), 8 => 1..4_u32, 4 => 4..12_u32];
    let patience = prop_oneof![8 => Just(0), 1 => 0..2_000_000_000_u64];
    (who, cost, prop_oneof![6 => Just(0), 1 => 0..4_u32], patience, kind).prop_map(
        |((rule, key, plan), cost, headroom, patience, kind)| Asked {
            rule,
            key,
            plan,
            cost,
            headroom,
            patience,
            kind,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => asked().prop_map(|one| Step::Take(vec![one])),
        6 => prop::collection::vec(asked(), 2..4).prop_map(Step::Take),
        30 => Just(Step::Again),
        2 => (asked(), -12..12_i64).prop_map(|(one, units)| Step::Settle(one, units)),
        1 => asked().prop_map(Step::Reset),
        1 => (asked(), 0..1_500_000_000_u64).prop_map(|(one, time)| Step::Block(one, time)),
        1 => asked().prop_map(Step::Unblock),
        1 => Just(Step::Undo),
        8 => prop_oneof![
            Just(1),
            Just(150_000_000),
            0..400_000_000_u64,
            0..1_200_000_000_u64,
        ].prop_map(Step::Pass),
    ]
}

/// A store, the same behind a cache, and what was last allowed of both.
struct Pair<'a> {
    plans: [&'a [Vec<Quota>]; 2],
    plain: LocalStore,
    counted: Counting<LocalStore>,
    cached: DenyCache<Counting<LocalStore>>,
    taken: Option<(Vec<Asked>, Decision, Decision)>,
}

impl Pair<'_> {
    fn charges<T>(&self, asked: &[Asked], read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let keys: Vec<_> = asked.iter().map(|one| Key::from(one.key as u64)).collect();
        let charge = |(one, key)| {
            let Asked { rule, plan, cost, headroom, patience, kind, .. }: Asked = one;
            let quotas = &self.plans[rule][plan];
            let charge = Charge::new(RuleName::new(RULES[rule]).expect("a name"), key, quotas);
            let charge = charge.cost(cost).headroom(headroom);
            let charge = match kind {
                Kind::Whole => charge,
                Kind::ReportOnly => charge.report_only(),
                Kind::Only => charge.only(0),
            };
            let patient = charge.max_wait(Duration::from_nanos(patience));
            if self.plain.check(&[patient]).is_ok() { patient } else { charge }
        };
        read(&asked.iter().copied().zip(&keys).map(charge).collect::<Vec<_>>())
    }

    /// Asks both, and says whether the cache refused by itself.
    fn take(&mut self, asked: &[Asked]) -> Result<bool, TestCaseError> {
        let before = self.counted.takes();
        let (plain, told, gcra, places) = self.charges(asked, |charges| {
            let places = |charge: &Charge<'_>| charge.place().map_or(charge.quotas().len(), |_| 1);
            let places: usize = charges.iter().map(places).sum();
            let mut quotas = charges.iter().flat_map(Charge::quotas);
            let gcra = quotas.all(|quota| quota.counted_by() == Algorithm::Gcra);
            (self.plain.take(charges).now(), self.cached.take(charges).now(), gcra, places)
        });
        let known = told.source() == Source::DenyCache;
        prop_assert_eq!(self.counted.takes() - before, usize::from(!known));
        prop_assert_eq!(plain.is_allowed(), told.is_allowed(), "{:?}\n{:?}", plain, told);
        prop_assert_eq!(plain.wait(), told.wait());
        // of several charges one may be known to be blocked, while another is for longer
        if !known || asked.len() == 1 && gcra {
            prop_assert_eq!(rows(&plain), rows(&told));
        } else if asked.len() == 1 || [&plain, &told].map(|of| of.outcomes().len()) == [places; 2] {
            prop_assert_eq!(plain.outcomes().len(), told.outcomes().len());
            for (plain, told) in plain.outcomes().iter().zip(told.outcomes()) {
                prop_assert_eq!(place(plain), place(told));
                if is_told(told) {
                    let waits = (plain.retry_after(), told.retry_after());
                    prop_assert_eq!(waits.0, waits.1, "{:?}\n{:?}", plain, told);
                    prop_assert!(plain.remaining() >= told.remaining());
                }
            }
        }
        if told.is_allowed() {
            self.taken = Some((asked.to_vec(), plain, told));
        }
        Ok(known)
    }

    /// Does the same to both.
    fn change(&mut self, step: &Step) {
        match step {
            Step::Settle(one, units) => self.charges(&[*one], |charges| {
                self.plain.settle(&charges[0], *units).now();
                self.cached.settle(&charges[0], *units).now();
            }),
            Step::Reset(one) => self.charges(&[*one], |charges| {
                self.plain.reset(&charges[0]).now();
                self.cached.reset(&charges[0]).now();
            }),
            Step::Block(one, nanos) => self.charges(&[*one], |charges| {
                let time = Duration::from_nanos(*nanos);
                self.plain.block(&charges[0], time).now();
                self.cached.block(&charges[0], time).now();
            }),
            Step::Unblock(one) => self.charges(&[*one], |charges| {
                self.plain.unblock(&charges[0]).now();
                self.cached.unblock(&charges[0]).now();
            }),
            Step::Undo => {
                if let Some((asked, plain, told)) = self.taken.take() {
                    self.charges(&asked, |charges| {
                        self.plain.undo(charges, &plain, None);
                        self.cached.undo(charges, &told, None);
                    });
                }
            }
            Step::Take(_) | Step::Again | Step::Pass(_) => {}
        }
    }
}

fn place(outcome: &Outcome) -> (RuleName, usize, bool) {
    (outcome.rule(), outcome.place(), outcome.is_report_only())
}

/// Whether it says anything of its quota.
fn is_told(outcome: &Outcome) -> bool {
    outcome.limit() > 0 || outcome.is_denied()
}

/// Plays the sequence; how many takes there were, and how many of them the cache refused.
async fn play(plans: [&[Vec<Quota>]; 2], steps: &[Step]) -> Result<(u32, u32), TestCaseError> {
    let time = Time::default();
    let counted = Counting::new(time.store());
    let cached = counted.clone().deny_cache();
    let mut pair = Pair { plans, plain: time.store(), counted, cached, taken: None };
    let (mut takes, mut known, mut last) = (0, 0, [].as_slice());
    for step in steps {
        match step {
            Step::Take(_) | Step::Again => {
                if let Step::Take(asked) = step {
                    last = asked;
                }
                takes += 1;
                known += u32::from(pair.take(last)?);
            }
            Step::Pass(nanos) => time.pass(Duration::from_nanos(*nanos)).await,
            Step::Reset(_) => {
                pair.change(step);
                // each store may void receipts of other accounts, charged up to now
                pair.taken = None;
                time.pass(Duration::from_nanos(1)).await;
            }
            _ => pair.change(step),
        }
    }
    Ok((takes, known))
}

#[test]
fn the_same_verdicts_with_the_cache_and_without_it() {
    let (plans, others) = (plans(6), plans(9));
    let (takes, known) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: 1_000, ..keeping(file!()) };
    let sequences = (0..plans.len(), 0..plans.len(), prop::collection::vec(step(), 1..60));
    let result = TestRunner::new(config).run(&sequences, |(first, second, steps)| {
        // each rule has a plan of its own, and now and then one of more units
        let pair = |at: usize| [plans[at].clone(), others[at].clone()];
        let (first, second) = (pair(first), pair(second));
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        let played = runtime.expect("a runtime").block_on(play([&first, &second], &steps))?;
        takes.set(takes.get() + played.0);
        known.set(known.get() + played.1);
        Ok(())
    });
    result.unwrap_or_else(|wrong| panic!("{wrong}"));
    let (takes, known) = (takes.get(), known.get());
    assert!(known * 10 > takes, "only {known} of {takes} were refused without asking");
}
