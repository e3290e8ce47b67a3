//! Cases of a scenario table.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tower::BoxError;

use crate::{
    decision::{Decision, Outcome},
    key::Key,
    quota::{Algorithm, Quota},
    rule::{Choice, RuleName},
    store::{Charge, nanos},
};

/// Published tables: file names and JSON text for [`Case::read`](super::Case::read).
///
/// The files are in `tests/scenarios` of the package. Times are in nanoseconds. In a `settle` step,
/// a positive number of `units` is a refund.
///
/// An `undo` step reverses the charge of the earlier step `step`, or at most `units` units of that
/// charge. The outcomes of `undo`, `settle` and `reset` show the accounts directly after the
/// operation.
///
/// A quota with a `period` counts in calendar periods, and a step with a `period` changes that of
/// the first quota before the step.
///
/// A `take` holds the slots of concurrent quotas under the name `hold`, and a `release` frees them. A
/// `limit` step changes the limit of the first quota. A case with a `lease` has several processes: it
/// is for stores that several processes share. Each hold counts for that time after its `take` or the
/// last `renew` of its process.
///
/// A case with `plans` instead of `quotas` has a rule whose quotas change. Each step names the `plan`
/// under which it is decided, by its index.
///
/// A case with `groups` instead of `quotas` has groups of alternatives, each with quotas. `paid` has
/// the index of the charged alternative of each group, and `retry` the wait of the decision.
///
/// ```
/// use tower_sluice::testing::{Case, FakeClock, TABLES, play};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// for (file, text) in TABLES {
///     for case in Case::read(text)? {
///         play(&mut FakeClock::new(), &case).await?; // the embedded store; yours is a `Subject`
///     }
/// }
/// # Ok::<(), tower::BoxError>(())
/// # }).unwrap();
/// ```
pub const TABLES: &[(&str, &str)] = &[
    ("gcra.json", include_str!("../../tests/scenarios/gcra.json")),
    (
        "token_bucket.json",
        include_str!("../../tests/scenarios/token_bucket.json"),
    ),
    (
        "fixed_window.json",
        include_str!("../../tests/scenarios/fixed_window.json"),
    ),
    (
        "sliding_window.json",
        include_str!("../../tests/scenarios/sliding_window.json"),
    ),
    (
        "sliding_log.json",
        include_str!("../../tests/scenarios/sliding_log.json"),
    ),
    (
        "max_debt.json",
        include_str!("../../tests/scenarios/max_debt.json"),
    ),
    (
        "refunds.json",
        include_str!("../../tests/scenarios/refunds.json"),
    ),
    (
        "slots.json",
        include_str!("../../tests/scenarios/slots.json"),
    ),
    (
        "alternatives.json",
        include_str!("../../tests/scenarios/alternatives.json"),
    ),
    (
        "plans.json",
        include_str!("../../tests/scenarios/plans.json"),
    ),
    #[cfg(feature = "calendar")]
    (
        "periods.json",
        include_str!("../../tests/scenarios/periods.json"),
    ),
    (
        "combined.json",
        include_str!("../../tests/scenarios/combined.json"),
    ),
];

/// Case of a scenario table: quotas, and steps with their expected results.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Case {
    /// The name of the case.
    pub name: String,
    #[serde(default)]
    why: String,
    #[serde(default)]
    pub(super) quotas: Vec<QuotaRow>,
    #[serde(default)]
    pub(super) plans: Vec<Vec<QuotaRow>>,
    #[serde(default)]
    groups: Vec<Vec<Vec<QuotaRow>>>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    pub(super) wall_clock: bool,
    /// The time for which slots are held unless they are renewed. Such a case has several processes.
    pub(super) lease: Option<u64>,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct QuotaRow {
    algorithm: String,
    units: u32,
    per: u64,
    /// A calendar period in the text form, as `month from 2024-01-31[UTC]`.
    period: String,
    /// The number of slots of a concurrent quota.
    limit: u32,
    burst: Option<u32>,
    initial: Option<u32>,
    soft: u32,
    max_debt: Option<u32>,
    aligned: Option<bool>,
    carry_over: u32,
    paced: bool,
    buckets: u32,
}

/// An operation, and the decision that answers it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) at: u64,
    pub(super) op: StepOp,
    /// The cost of a `take`, the refund of a `settle`, or the maximum that an `undo` returns.
    ///
    /// An `undo` without `units` returns all units of its step.
    pub(super) units: Option<i64>,
    /// The index of the step to undo, from 0.
    pub(super) step: Option<usize>,
    /// The name of the slots that a `take` holds or a `release` frees.
    hold: Option<String>,
    /// The index of the plan of the step.
    pub(super) plan: Option<usize>,
    /// The new limit of the first quota.
    pub(super) limit: Option<u32>,
    /// The new calendar period of the first quota.
    pub(super) period: Option<String>,
    #[serde(default)]
    pub(super) process: String,
    #[serde(default)]
    pub(super) headroom: u32,
    #[serde(default = "allowed")]
    allowed: bool,
    #[serde(default)]
    wait: u64,
    #[serde(default)]
    overage: bool,
    #[serde(deserialize_with = "flat")]
    outcomes: Vec<Row>,
    paid: Option<Vec<usize>>,
    /// The wait of the decision.
    retry: Option<Value>,
}

/// Reads a list of rows, or a list for each quota of each alternative of each group.
fn flat<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Row>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Rows {
        Row(Row),
        Several(Vec<Rows>),
    }
    fn flat(rows: Rows) -> Vec<Row> {
        match rows {
            Rows::Row(row) => vec![row],
            Rows::Several(rows) => rows.into_iter().flat_map(flat).collect(),
        }
    }
    Rows::deserialize(value).map(flat)
}

/// The default of `allowed`, for operations that are never denied.
fn allowed() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum StepOp {
    Take,
    Settle,
    Undo,
    Reset,
    Release,
    Limit,
    Renew,
}

/// The expected outcome of a quota. Times are in nanoseconds.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    /// The slots that all requests hold. `None` for a rate.
    held: Option<u64>,
    remaining: u32,
    #[serde(default)]
    full: u64,
    #[serde(default)]
    next: u64,
    /// The expected wait, for `take` only.
    retry: Option<Value>,
}

pub(super) struct CaseRule {
    name: RuleName,
    /// The number of the group, or 0.
    group: u8,
    pub(super) quotas: Vec<Quota>,
}

impl CaseRule {
    /// Creates the rule of a case without groups.
    pub(super) fn new(rows: &[QuotaRow]) -> Result<Self, BoxError> {
        Ok(Self {
            name: RuleName::default(),
            group: 0,
            quotas: quotas(rows)?,
        })
    }
}

impl Case {
    /// Reads the cases of a table.
    ///
    /// # Errors
    ///
    /// Fails if `text` is not a JSON list of cases.
    pub fn read(text: &str) -> Result<Vec<Self>, BoxError> {
        serde_json::from_str(text).map_err(|error| format!("not a list of cases: {error}").into())
    }

    /// Returns a choice for each group of alternatives.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let mut start = 0;
        let mut choices = Vec::new();
        for alternatives in &self.groups {
            choices.push(Choice::new(start, alternatives.iter().map(|_| 1)));
            start += alternatives.len();
        }
        choices
    }

    /// Returns the quotas of each rule, with the number of its group.
    pub(super) fn rules(&self) -> Result<Vec<CaseRule>, BoxError> {
        if self.groups.is_empty() {
            let first = self.plans.first().unwrap_or(&self.quotas);
            return Ok(vec![CaseRule::new(first)?]);
        }
        let mut rules = Vec::new();
        for (group, alternatives) in (1..).zip(&self.groups) {
            for (at, rows) in alternatives.iter().enumerate() {
                let name = RuleName::new(&format!("{group}.{at}"))?;
                let quotas = quotas(rows)?;
                rules.push(CaseRule {
                    name,
                    group,
                    quotas,
                });
            }
        }
        Ok(rules)
    }

    /// Returns a charge of each rule.
    pub(super) fn charges<'a>(
        &self,
        rules: &'a [CaseRule],
        key: &'a Key,
        headroom: u32,
        cost: u32,
    ) -> Vec<Charge<'a>> {
        let wait = Duration::from_nanos(self.max_wait);
        let mut charges = Vec::new();
        for rule in rules {
            let charge = Charge::new(rule.name, key, &rule.quotas).with_cost(cost);
            charges.push(charge.with_headroom(headroom).with_max_wait(wait));
        }
        charges
    }

    /// Compares a decision with the expected result of a step.
    pub(super) fn check(
        &self,
        at: usize,
        step: &Step,
        decision: &Decision,
        rules: &[CaseRule],
    ) -> Result<(), BoxError> {
        let got = step.with(decision, rules);
        if *step == got {
            return Ok(());
        }
        let why = &self.why;
        Err(format!("step {at} ({why})\n  expected {step:?}\n  got      {got:?}").into())
    }
}

/// Returns the quotas of a rule.
fn quotas(rows: &[QuotaRow]) -> Result<Vec<Quota>, BoxError> {
    rows.iter().map(QuotaRow::quota).collect()
}

impl QuotaRow {
    pub(super) fn with_period(&self, period: &str) -> Self {
        Self {
            period: period.to_owned(),
            ..self.clone()
        }
    }

    pub(super) fn quota(&self) -> Result<Quota, BoxError> {
        if self.algorithm == "concurrent" {
            return Ok(Quota::try_concurrent(self.limit)?.try_with_soft(self.soft)?);
        }
        let quota = match &*self.period {
            "" => Quota::new(self.units, Duration::from_nanos(self.per))?,
            period => format!("{}/{period}", self.units).parse()?,
        };
        let mut quota = quota
            .try_with_burst(self.burst.unwrap_or(self.units))?
            .try_with_algorithm(self.algorithm()?)?
            .try_with_soft(self.soft)?;
        if let Some(units) = self.max_debt {
            quota = quota.try_with_max_debt(units)?;
        }
        if let Some(units) = self.initial {
            quota = quota.try_with_initial(units)?;
        }
        Ok(quota)
    }

    fn algorithm(&self) -> Result<Algorithm, BoxError> {
        Ok(match self.algorithm.as_str() {
            "gcra" => Algorithm::Gcra,
            "token_bucket" => Algorithm::TokenBucket,
            "fixed_window" if self.aligned == Some(false) => Algorithm::AnchoredWindow,
            "fixed_window" => Algorithm::FixedWindow {
                carry_over: self.carry_over,
                paced: self.paced,
            },
            "sliding_window" => Algorithm::SlidingWindow {
                buckets: self.buckets,
            },
            "sliding_log" => Algorithm::SlidingLog,
            other => return Err(format!("unknown algorithm {other:?}").into()),
        })
    }
}

impl Step {
    /// Returns the step with `decision` as its result, under these rules.
    fn with(&self, decision: &Decision, rules: &[CaseRule]) -> Self {
        let waits = decision.outcomes().iter().any(Outcome::is_estimated);
        Self {
            allowed: decision.is_allowed(),
            wait: nanos(decision.wait()),
            overage: decision.is_overage(),
            paid: self.paid.as_ref().map(|_| paid(decision, rules)),
            retry: self
                .retry
                .as_ref()
                .map(|_| retry(decision.exact_retry_after(), waits)),
            outcomes: decision
                .outcomes()
                .iter()
                .map(|outcome| self.row(outcome))
                .collect(),
            ..self.clone()
        }
    }

    fn row(&self, outcome: &Outcome) -> Row {
        let is_take = self.op == StepOp::Take;
        let wait = outcome.exact_retry_after();
        Row {
            held: outcome.held(),
            remaining: outcome.remaining(),
            full: nanos(outcome.reset_after()),
            next: nanos(outcome.next_after()),
            retry: is_take.then(|| retry(wait, outcome.is_estimated())),
        }
    }

    /// Returns `true` if this step holds the slots that the step `other` frees.
    pub(super) fn holds(&self, other: &Self) -> bool {
        self.hold.is_some() && self.hold == other.hold && self.process == other.process
    }

    pub(super) fn cost(&self) -> Result<u32, BoxError> {
        let units = self.units.and_then(|units| u32::try_from(units).ok());
        units.ok_or_else(|| format!("invalid units: {:?}", self.units).into())
    }
}

/// Returns the index of the alternative of each group that a decision charged.
fn paid(decision: &Decision, rules: &[CaseRule]) -> Vec<usize> {
    let outcomes = decision.outcomes().iter();
    let mut paid = Vec::new();
    for group in 1..=rules.last().map_or(0, |rule| rule.group) {
        let mut own = rules.iter().filter(|rule| rule.group == group);
        paid.extend(own.position(|rule| {
            !outcomes
                .clone()
                .any(|other| other.rule() == rule.name && other.is_passed_over())
        }));
    }
    paid
}

/// Returns the field `retry` for a wait.
fn retry(wait: Option<Duration>, is_unknown: bool) -> Value {
    match wait {
        Some(wait) => nanos(wait).into(),
        None => if is_unknown { "unknown" } else { "never" }.into(),
    }
}
