//! Random sequences of calls, with and without the deny cache.
//!
//! Both give the same decisions, and no wait is too short. Time advances only by the tests.

use std::{cell::Cell, time::Duration};

use proptest::{prelude::*, test_runner::TestRunner};
use tokio::runtime::Builder;
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::{Outcome, Source},
    rule::RuleName,
    store::{Charge, DenyCache},
};

use crate::support::{
    driven::{AtOnce, Counting, Time},
    random::rows,
    regressions::keeping,
};

const KEYS: usize = 2;
const RULES: [&str; 2] = ["one", "two"];

/// Plans for a rule: quotas of every algorithm, with waits shorter and longer than the lifetime of
/// a cached denial.
fn plans(units: u32) -> Vec<Vec<Quota>> {
    const PERIOD: Duration = Duration::from_millis(900);
    let base = Quota::new(units, PERIOD).expect("a quota");
    let slow = Quota::per_hour(units + 2);
    let by = |algorithm| vec![base.with_algorithm(algorithm)];
    vec![
        vec![base],
        vec![base.with_burst(3)],
        vec![slow],
        vec![base, slow],
        vec![slow.with_algorithm(Algorithm::SlidingLog), base],
        vec![base.with_soft(2)],
        vec![base.with_initial(1)],
        vec![slow.with_initial(2), base],
        by(Algorithm::TokenBucket),
        vec![base.with_algorithm(Algorithm::TokenBucket).with_initial(2)],
        by(Algorithm::fixed_window()),
        by(Algorithm::FixedWindow { carry_over: 4, paced: false }),
        by(Algorithm::FixedWindow { carry_over: 4, paced: true }),
        by(Algorithm::FixedWindow { carry_over: 0, paced: true }),
        by(Algorithm::AnchoredWindow),
        by(Algorithm::SlidingWindow { buckets: 3 }),
        by(Algorithm::SlidingLog),
        vec![Quota::blocked()],
        #[cfg(feature = "calendar")]
        vec![Quota::per_month(units)],
    ]
}

/// A charge. Its quotas are the plan with this number.
#[derive(Clone, Copy, Debug)]
struct ChargeSpec {
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
    Take(Vec<ChargeSpec>),
    /// Repeats the last call.
    Again,
    Adjustment(ChargeSpec, i64),
    Reset(ChargeSpec),
    Block(ChargeSpec, u64),
    Unblock(ChargeSpec),
    /// Undoes the last allowed call.
    Undo,
    Pass(u64),
}

fn asked() -> impl Strategy<Value = ChargeSpec> {
    let kind =
        prop_oneof![8 => Just(Kind::Whole), 1 => Just(Kind::ReportOnly), 1 => Just(Kind::Only)];
    let who = (0..RULES.len(), 0..KEYS, prop_oneof![9 => Just(0), 1 => 0..2_usize]);
    let cost = prop_oneof![1 => Just(0), 8 => 1..4_u32, 4 => 4..12_u32];
    let patience = prop_oneof![8 => Just(0), 1 => 0..2_000_000_000_u64];
    (who, cost, prop_oneof![6 => Just(0), 1 => 0..4_u32], patience, kind).prop_map(
        |((rule, key, plan), cost, headroom, patience, kind)| ChargeSpec {
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
        2 => (asked(), -12..12_i64).prop_map(|(one, units)| Step::Adjustment(one, units)),
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

/// A plain store, a store behind a cache, and the last allowed call of both.
struct Pair<'a> {
    plans: [&'a [Vec<Quota>]; 2],
    plain: LocalStore,
    counted: Counting<LocalStore>,
    cached: DenyCache<Counting<LocalStore>>,
    taken: Option<(Vec<ChargeSpec>, Decision, Decision)>,
}

impl Pair<'_> {
    fn charges<T>(&self, asked: &[ChargeSpec], read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let keys: Vec<_> = asked.iter().map(|one| Key::from(one.key as u64)).collect();
        let charge = |(one, key)| {
            let ChargeSpec { rule, plan, cost, headroom, patience, kind, .. }: ChargeSpec = one;
            let quotas = &self.plans[rule][plan];
            let charge = Charge::new(RuleName::new(RULES[rule]).expect("a name"), key, quotas);
            let charge = charge.with_cost(cost).with_headroom(headroom);
            let charge = match kind {
                Kind::Whole => charge,
                Kind::ReportOnly => charge.with_report_only(true),
                Kind::Only => charge.with_quota_index(0),
            };
            let patient = charge.with_max_wait(Duration::from_nanos(patience));
            if self.plain.supports(&[patient]).is_ok() { patient } else { charge }
        };
        read(&asked.iter().copied().zip(&keys).map(charge).collect::<Vec<_>>())
    }

    /// Calls both stores and returns `true` if the cache denied without a call.
    fn take(&mut self, asked: &[ChargeSpec]) -> Result<bool, TestCaseError> {
        let before = self.counted.takes();
        let (plain, reported, gcra, places) = self.charges(asked, |charges| {
            let places = charges.iter().map(|it| it.charged_quotas().count()).sum::<usize>();
            let mut quotas = charges.iter().flat_map(|charge| charge.quotas);
            let gcra = quotas.all(|quota| quota.algorithm() == Algorithm::Gcra);
            (self.plain.take(charges).now(), self.cached.take(charges).now(), gcra, places)
        });
        let known = reported.source() == Source::DenyCache;
        prop_assert_eq!(self.counted.takes() - before, usize::from(!known));
        prop_assert_eq!(plain.is_allowed(), reported.is_allowed(), "{:?}\n{:?}", plain, reported);
        prop_assert_eq!(plain.wait(), reported.wait());
        // one of several charges may be known to be blocked, while another is blocked for longer
        if !known || asked.len() == 1 && gcra {
            prop_assert_eq!(rows(&plain), rows(&reported));
        } else if asked.len() == 1
            || [&plain, &reported].map(|of| of.outcomes().len()) == [places; 2]
        {
            prop_assert_eq!(plain.outcomes().len(), reported.outcomes().len());
            for (plain, reported) in plain.outcomes().iter().zip(reported.outcomes()) {
                prop_assert_eq!(place(plain), place(reported));
                if is_reported(reported) {
                    let waits = (plain.retry_after(), reported.retry_after());
                    prop_assert_eq!(waits.0, waits.1, "{:?}\n{:?}", plain, reported);
                    prop_assert!(plain.remaining() >= reported.remaining());
                }
            }
        }
        if reported.is_allowed() {
            self.taken = Some((asked.to_vec(), plain, reported));
        }
        Ok(known)
    }

    /// Applies the same operation to both.
    fn change(&mut self, step: &Step) {
        match step {
            Step::Adjustment(one, units) => self.charges(&[*one], |charges| {
                drop(self.plain.adjust(&charges[0], -*units).now());
                drop(self.cached.adjust(&charges[0], -*units).now());
            }),
            Step::Reset(one) => self.charges(&[*one], |charges| {
                drop(self.plain.reset(&charges[0]).now());
                drop(self.cached.reset(&charges[0]).now());
            }),
            Step::Block(one, nanos) => self.charges(&[*one], |charges| {
                let time = Duration::from_nanos(*nanos);
                drop(self.plain.block(&charges[0], time).now());
                drop(self.cached.block(&charges[0], time).now());
            }),
            Step::Unblock(one) => self.charges(&[*one], |charges| {
                drop(self.plain.unblock(&charges[0]).now());
                drop(self.cached.unblock(&charges[0]).now());
            }),
            Step::Undo => {
                if let Some((asked, plain, reported)) = self.taken.take() {
                    self.charges(&asked, |charges| {
                        self.plain.undo(charges, &plain, None);
                        self.cached.undo(charges, &reported, None);
                    });
                }
            }
            Step::Take(_) | Step::Again | Step::Pass(_) => {}
        }
    }
}

fn place(outcome: &Outcome) -> (RuleName, usize, bool) {
    (outcome.rule(), outcome.quota_index(), outcome.is_report_only())
}

/// Returns `true` if the outcome has values for its quota.
fn is_reported(outcome: &Outcome) -> bool {
    outcome.limit() > 0 || outcome.is_denied()
}

/// Plays the sequence. Returns the number of takes and how many of them the cache denied.
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
                // each store may void receipts of other accounts that were charged before
                pair.taken = None;
                time.pass(Duration::from_nanos(1)).await;
            }
            _ => pair.change(step),
        }
    }
    Ok((takes, known))
}

#[test]
fn the_cache_does_not_change_verdicts() {
    let (plans, others) = (plans(6), plans(9));
    let (takes, known) = (Cell::new(0), Cell::new(0));
    let config = ProptestConfig { cases: 1_000, ..keeping(file!()) };
    let sequences = (0..plans.len(), 0..plans.len(), prop::collection::vec(step(), 1..60));
    let result = TestRunner::new(config).run(&sequences, |(first, second, steps)| {
        // each rule has its own plan, and sometimes one with more units
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
    assert!(known * 10 > takes, "only {known} of {takes} were denied without a call");
}
