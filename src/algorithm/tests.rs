//! Tests against the published scenario tables, to the nanosecond.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use super::*;
use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
};

/// An account of any algorithm.
#[derive(Clone, Debug)]
pub(super) struct Account(pub(super) Option<AccountState>);

impl Account {
    pub(super) fn new() -> Self {
        Self(None)
    }

    pub(super) fn look(&self, quota: &Quota, now: u64, demand: Demand) -> Evaluation {
        look(self.0.as_ref(), quota, now, demand)
    }

    /// Takes units. Returns the evaluation and the receipt of the charge.
    pub(super) fn take(
        &mut self,
        quota: &Quota,
        now: u64,
        demand: Demand,
    ) -> (Evaluation, Receipt) {
        let evaluation = take(&mut self.0, quota, now, demand);
        let mut decision = Decision::new(evaluation.allowed, now);
        (decision.overage, decision.wait) = (evaluation.overage, evaluation.wait);
        let outcome = Outcome::with(RuleName::default(), 0, evaluation.snapshot);
        (
            evaluation,
            Receipt::new(&decision, &outcome, demand, None).expect("a snapshot"),
        )
    }

    pub(super) fn open(&mut self, quota: &Quota, now: u64, demand: Demand) {
        open(&mut self.0, quota, now, demand);
    }

    pub(super) fn adjust(&mut self, quota: &Quota, now: u64, units: i64) -> Snapshot {
        adjust(&mut self.0, quota, now, units).snapshot
    }

    pub(super) fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt) {
        if let Some(state) = &mut self.0 {
            undo(state, quota, now, receipt);
        }
    }

    /// Returns the instant at which the account expires, or 0 without an account.
    pub(super) fn expires_at(&self, quota: &Quota) -> u64 {
        self.0.as_ref().map_or(0, |state| state.expires_at(quota))
    }
}

/// One outcome, with times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) remaining: u32,
    pub(super) full: u64,
    pub(super) next: u64,
    pub(super) retry: u64,
}

impl From<Snapshot> for Row {
    fn from(snapshot: Snapshot) -> Self {
        let outcome = Outcome::with(RuleName::default(), 0, snapshot);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("fits");
        Self {
            remaining: outcome.remaining(),
            full: nanos(outcome.reset_after()),
            next: nanos(outcome.next_after()),
            retry: outcome.exact_retry_after().map_or(NEVER, nanos),
        }
    }
}

pub(super) fn remaining(account: &Account, quota: &Quota, now: u64) -> u32 {
    Row::from(account.look(quota, now, Demand::units(0)).snapshot).remaining
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
    /// A time in nanoseconds, or "never".
    retry: Option<serde_json::Value>,
}

impl QuotaRow {
    fn quota(&self) -> Quota {
        let algorithm = match self.algorithm.as_str() {
            "gcra" => Algorithm::Gcra,
            "token_bucket" => Algorithm::TokenBucket,
            "fixed_window" if self.aligned == Some(false) => Algorithm::AnchoredWindow,
            "fixed_window" => Algorithm::FixedWindow {
                carry_over: self.carry_over,
                paced: self.paced,
            },
            "sliding_window" => Algorithm::SlidingWindow {
                buckets: self.buckets.expect("buckets"),
            },
            "sliding_log" => Algorithm::SlidingLog,
            other => panic!("no such algorithm: {other}"),
        };
        let mut quota = Quota::new(self.units, Duration::from_nanos(self.per)).expect("a quota");
        if let Some(burst) = self.burst {
            quota = quota.try_with_burst(burst).expect("a burst");
        }
        quota = quota.try_with_algorithm(algorithm).expect("an algorithm");
        if let Some(initial) = self.initial {
            quota = quota.try_with_initial(initial).expect("an initial level");
        }
        self.soft.map_or(quota, |soft| {
            quota.try_with_soft(soft).expect("a soft limit")
        })
    }
}

impl OutcomeRow {
    fn row(&self) -> Row {
        let retry = match &self.retry {
            None => 0,
            Some(never) if never == "never" => NEVER,
            Some(nanos) => nanos.as_u64().expect("nanoseconds or never"),
        };
        Row {
            remaining: self.remaining,
            full: self.full,
            next: self.next,
            retry,
        }
    }
}

/// Reads the cases of a published scenario table.
fn cases(file: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/scenarios")
        .join(file);
    let text = std::fs::read_to_string(&path).expect("a table");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs the cases of `file` whose clock never goes back, and returns their number.
fn play(file: &str) -> usize {
    let cases = cases(file);
    let played = cases.iter().filter(|case| !case.wall_clock);
    played.map(play_case).count()
}

/// Charges all accounts, or none if one denies.
fn take_all(
    accounts: &mut [Account],
    quotas: &[Quota],
    now: u64,
    demand: Demand,
) -> Vec<Evaluation> {
    let charge = |(account, quota): (&mut Account, _)| account.take(quota, now, demand).0;
    if accounts.len() > 1 {
        let looks = accounts
            .iter()
            .zip(quotas)
            .map(|(account, quota)| account.look(quota, now, demand));
        let evaluations: Vec<Evaluation> = looks.collect();
        if !evaluations.iter().all(|it| it.allowed) {
            accounts
                .iter_mut()
                .zip(quotas)
                .for_each(|(account, quota)| account.open(quota, now, demand));
            return evaluations;
        }
    }
    accounts.iter_mut().zip(quotas).map(charge).collect()
}

fn play_case(case: &Case) {
    let quotas: Vec<Quota> = case.quotas.iter().map(QuotaRow::quota).collect();
    let mut accounts: Vec<Account> = quotas.iter().map(|_| Account::new()).collect();
    for (index, step) in case.steps.iter().enumerate() {
        let step_name = format!("{} step {index}", case.name);
        let snapshots: Vec<Snapshot> = if step.op == "settle" {
            let all = accounts.iter_mut().zip(&quotas);
            all.map(|(account, quota)| account.adjust(quota, step.at, -step.units))
                .collect()
        } else {
            let cost = u32::try_from(step.units).expect("a cost");
            let demand = Demand {
                cost,
                headroom: step.headroom,
                max_wait: case.max_wait,
            };
            let evaluations = take_all(&mut accounts, &quotas, step.at, demand);
            let allowed = evaluations.iter().all(|it| it.allowed);
            assert_eq!(Some(allowed), step.allowed, "{step_name}: allowed");
            let wait = evaluations.iter().map(|it| it.wait).max();
            assert_eq!(wait, Some(step.wait), "{step_name}: wait");
            let overage = evaluations.iter().any(|it| it.overage);
            assert_eq!(overage, step.overage, "{step_name}: overage");
            evaluations.iter().map(|it| it.snapshot).collect()
        };
        let rows: Vec<Row> = snapshots.into_iter().map(Row::from).collect();
        let expected: Vec<Row> = step.outcomes.iter().map(OutcomeRow::row).collect();
        assert_eq!(rows, expected, "{step_name}");
    }
}

#[test]
fn gcra_matches_its_table() {
    assert_eq!(play("gcra.json"), 18);
}

#[test]
fn token_bucket_matches_its_table() {
    assert_eq!(play("token_bucket.json"), 17);
}

#[test]
fn fixed_window_matches_its_table() {
    assert_eq!(play("fixed_window.json"), 23);
}

#[test]
fn sliding_window_matches_its_table() {
    assert_eq!(play("sliding_window.json"), 11);
}

#[test]
fn sliding_log_matches_its_table() {
    assert_eq!(play("sliding_log.json"), 12);
}

#[test]
fn combinations_match_their_table() {
    assert_eq!(play("combined.json"), 6);
}

/// Units beyond `max_debt` are not charged.
#[test]
fn a_late_charge_is_cut_from_the_first_unit_beyond_the_debt() {
    let algorithms = [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 4 },
        Algorithm::SlidingLog,
    ];
    for algorithm in algorithms {
        let quota = Quota::per_minute(5)
            .with_max_debt(2)
            .with_algorithm(algorithm);
        let now = 60_000_000_000;
        let mut account = Account::new();
        let is_cut =
            |account: &Account, units| adjust(&mut account.0.clone(), &quota, now, units).is_cut;
        assert_eq!(
            [7, 8].map(|units| is_cut(&account, units)),
            [false, true],
            "{algorithm:?}"
        );
        account.adjust(&quota, now, 4);
        assert_eq!(
            [3, 4].map(|units| is_cut(&account, units)),
            [false, true],
            "{algorithm:?}"
        );
    }
}

/// A receipt uses the clock of the Redis node that stores the account.
#[cfg(feature = "redis")]
#[test]
fn a_receipt_is_by_the_clock_of_its_account() {
    let numbers = Snapshot::Known {
        remaining: 1,
        limit: 5,
        reset_ns: 9,
        next_ns: 9,
        retry_ns: 0,
    };
    for (ahead, by_own_clock) in [
        (2_000_000, 12_000_000),
        (-3_000_000, 7_000_000),
        (0, 10_000_000),
    ] {
        let decision = Decision {
            charged_at: 9_000_000,
            ..Decision::new(true, 10_000_000)
        };
        let outcome = Outcome::with(RuleName::default(), 0, numbers).by_clock(ahead);
        let receipt = Receipt::new(&decision, &outcome, Demand::units(1), None).expect("numbers");
        let charged = by_own_clock - 1_000_000;
        assert_eq!(
            (receipt.at, receipt.charged),
            (by_own_clock, charged),
            "{ahead}"
        );
    }
}
