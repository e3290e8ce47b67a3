//! The published scenario tables, to the nanosecond.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use super::{gcra::Gcra, *};
use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
};

/// An account of any algorithm, as a store would hold it.
#[derive(Clone, Debug)]
pub(super) enum Account {
    Word(u64),
    State(Option<State>),
}

impl Account {
    pub(super) fn cold(quota: &Quota) -> Self {
        match quota.counted_by() {
            Algorithm::Gcra => Self::Word(0),
            _ => Self::State(None),
        }
    }

    pub(super) fn look(&self, quota: &Quota, now: u64, ask: Ask) -> Step {
        match self {
            Self::Word(stored) => Gcra::new(quota).look(*stored, now, ask),
            Self::State(state) => look(state.as_ref(), quota, now, ask),
        }
    }

    /// The step, and its receipt.
    pub(super) fn take(&mut self, quota: &Quota, now: u64, ask: Ask) -> (Step, Receipt) {
        let step = match self {
            Self::Word(stored) => {
                let (after, step) = Gcra::new(quota).take(*stored, now, ask);
                *stored = after.unwrap_or(*stored);
                step
            }
            Self::State(state) => take(state, quota, now, ask),
        };
        let mut decision = Decision::new(step.allowed, now);
        decision.passes(step.overage, step.wait);
        let outcome = Outcome::with(RuleName::default(), 0, step.numbers);
        (step, Receipt::new(&decision, &outcome, ask, None).expect("numbers"))
    }

    pub(super) fn open(&mut self, quota: &Quota, now: u64, ask: Ask) {
        match self {
            Self::Word(stored) => {
                *stored = Gcra::new(quota).open(*stored, now, ask).unwrap_or(*stored);
            }
            Self::State(state) => open(state, quota, now, ask),
        }
    }

    pub(super) fn settle(&mut self, quota: &Quota, now: u64, units: i64) -> Numbers {
        match self {
            Self::Word(stored) => {
                let (after, numbers) = Gcra::new(quota).settle(*stored, now, units);
                *stored = after.unwrap_or(*stored);
                numbers
            }
            Self::State(state) => settle(state, quota, now, units),
        }
    }

    pub(super) fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt) {
        match self {
            Self::Word(stored) => {
                *stored = Gcra::new(quota).undo(*stored, now, receipt).unwrap_or(*stored);
            }
            Self::State(state) => undo(state, quota, now, receipt),
        }
    }

    /// 0 where there is none.
    pub(super) fn forget_at(&self, quota: &Quota) -> u64 {
        match self {
            Self::Word(stored) => *stored,
            Self::State(state) => state.as_ref().map_or(0, |state| state.forget_at(quota)),
        }
    }
}

/// What a store's caller reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) remaining: u32,
    pub(super) full: u64,
    pub(super) next: u64,
    pub(super) retry: u64,
}

impl From<Numbers> for Row {
    fn from(numbers: Numbers) -> Self {
        let outcome = Outcome::with(RuleName::default(), 0, numbers);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("fits");
        Self {
            remaining: outcome.remaining(),
            full: nanos(outcome.reset_after()),
            next: nanos(outcome.next_after()),
            retry: outcome.retry_after().map_or(NEVER, nanos),
        }
    }
}

pub(super) fn remaining(account: &Account, quota: &Quota, now: u64) -> u32 {
    Row::from(account.look(quota, now, Ask::units(0)).numbers).remaining
}

#[derive(Deserialize)]
struct Case {
    name: String,
    quotas: Vec<QuotaRow>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    wall_clock: bool,
    steps: Vec<StepRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaRow {
    algorithm: String,
    units: u32,
    per: u64,
    burst: Option<u32>,
    initial: Option<u32>,
    soft: Option<u32>,
    aligned: Option<bool>,
    #[serde(default)]
    carry_over: u32,
    #[serde(default)]
    paced: bool,
    buckets: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepRow {
    at: u64,
    op: String,
    units: i64,
    #[serde(default)]
    headroom: u32,
    allowed: Option<bool>,
    #[serde(default)]
    wait: u64,
    #[serde(default)]
    overage: bool,
    outcomes: Vec<OutcomeRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutcomeRow {
    remaining: u32,
    full: u64,
    next: u64,
    /// Nanoseconds or "never"; absent on `settle`.
    retry: Option<serde_json::Value>,
}

impl QuotaRow {
    fn quota(&self) -> Quota {
        let algorithm = match self.algorithm.as_str() {
            "gcra" => Algorithm::Gcra,
            "token_bucket" => Algorithm::TokenBucket,
            "fixed_window" if self.aligned == Some(false) => Algorithm::AnchoredWindow,
            "fixed_window" => {
                Algorithm::FixedWindow { carry_over: self.carry_over, paced: self.paced }
            }
            "sliding_window" => {
                Algorithm::SlidingWindow { buckets: self.buckets.expect("buckets") }
            }
            "sliding_log" => Algorithm::SlidingLog,
            other => panic!("no such algorithm: {other}"),
        };
        let mut quota = Quota::new(self.units, Duration::from_nanos(self.per)).expect("a quota");
        if let Some(burst) = self.burst {
            quota = quota.try_burst(burst).expect("a burst");
        }
        quota = quota.try_algorithm(algorithm).expect("an algorithm");
        if let Some(initial) = self.initial {
            quota = quota.try_initial(initial).expect("an initial level");
        }
        self.soft.map_or(quota, |soft| quota.try_soft(soft).expect("a soft limit"))
    }
}

impl OutcomeRow {
    fn row(&self) -> Row {
        let retry = match &self.retry {
            None => 0,
            Some(never) if never == "never" => NEVER,
            Some(nanos) => nanos.as_u64().expect("nanoseconds or never"),
        };
        Row { remaining: self.remaining, full: self.full, next: self.next, retry }
    }
}

/// The cases of a published table.
fn cases(file: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(file);
    let text = std::fs::read_to_string(&path).expect("a table");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Plays every case of `file` but those of a clock that steps back, and says how many.
fn play(file: &str) -> usize {
    let cases = cases(file);
    let played = cases.iter().filter(|case| !case.wall_clock);
    played.map(play_case).count()
}

/// All or nothing, as a store does it: looks at all, then charges all.
fn take_all(accounts: &mut [Account], quotas: &[Quota], now: u64, ask: Ask) -> Vec<Step> {
    let charge = |(account, quota): (&mut Account, _)| account.take(quota, now, ask).0;
    if accounts.len() > 1 {
        let looks =
            accounts.iter().zip(quotas).map(|(account, quota)| account.look(quota, now, ask));
        let steps: Vec<Step> = looks.collect();
        if !steps.iter().all(|step| step.allowed) {
            accounts
                .iter_mut()
                .zip(quotas)
                .for_each(|(account, quota)| account.open(quota, now, ask));
            return steps;
        }
    }
    accounts.iter_mut().zip(quotas).map(charge).collect()
}

fn play_case(case: &Case) {
    let quotas: Vec<Quota> = case.quotas.iter().map(QuotaRow::quota).collect();
    let mut accounts: Vec<Account> = quotas.iter().map(Account::cold).collect();
    for (place, step) in case.steps.iter().enumerate() {
        let place = format!("{} step {place}", case.name);
        let numbers: Vec<Numbers> = if step.op == "settle" {
            let all = accounts.iter_mut().zip(&quotas);
            all.map(|(account, quota)| account.settle(quota, step.at, step.units)).collect()
        } else {
            let cost = u32::try_from(step.units).expect("a cost");
            let ask = Ask { cost, headroom: step.headroom, max_wait: case.max_wait };
            let steps = take_all(&mut accounts, &quotas, step.at, ask);
            let allowed = steps.iter().all(|step| step.allowed);
            assert_eq!(Some(allowed), step.allowed, "{place}: allowed");
            let wait = steps.iter().map(|step| step.wait).max();
            assert_eq!(wait, Some(step.wait), "{place}: wait");
            let overage = steps.iter().any(|step| step.overage);
            assert_eq!(overage, step.overage, "{place}: overage");
            steps.iter().map(|step| step.numbers).collect()
        };
        let rows: Vec<Row> = numbers.into_iter().map(Row::from).collect();
        let expected: Vec<Row> = step.outcomes.iter().map(OutcomeRow::row).collect();
        assert_eq!(rows, expected, "{place}");
    }
}

#[test]
fn gcra_equals_its_table() {
    assert_eq!(play("gcra.json"), 18);
}

#[test]
fn token_bucket_equals_its_table() {
    assert_eq!(play("token_bucket.json"), 16);
}

#[test]
fn fixed_window_equals_its_table() {
    assert_eq!(play("fixed_window.json"), 23);
}

#[test]
fn sliding_window_equals_its_table() {
    assert_eq!(play("sliding_window.json"), 10);
}

#[test]
fn sliding_log_equals_its_table() {
    assert_eq!(play("sliding_log.json"), 12);
}

#[test]
fn combinations_equal_their_table() {
    assert_eq!(play("combined.json"), 6);
}
