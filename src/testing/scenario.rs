//! Cases of a scenario table.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use tower::BoxError;

use super::{Subject, peek, take};
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
    quota::{Algorithm, Quota},
    rule::{Candidates, Choice, RuleName},
    store::{Charge, Store, StoreExt},
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
    quotas: Vec<QuotaRow>,
    #[serde(default)]
    plans: Vec<Vec<QuotaRow>>,
    #[serde(default)]
    groups: Vec<Vec<Vec<QuotaRow>>>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    wall_clock: bool,
    /// The time for which slots are held unless they are renewed. Such a case has several processes.
    lease: Option<u64>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct QuotaRow {
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
struct Step {
    at: u64,
    op: StepOp,
    /// The cost of a `take`, the refund of a `settle`, or the maximum that an `undo` returns.
    ///
    /// An `undo` without `units` returns all units of its step.
    units: Option<i64>,
    /// The index of the step to undo, from 0.
    step: Option<usize>,
    /// The name of the slots that a `take` holds or a `release` frees.
    hold: Option<String>,
    /// The index of the plan of the step.
    plan: Option<usize>,
    /// The new limit of the first quota.
    limit: Option<u32>,
    /// The new calendar period of the first quota.
    period: Option<String>,
    #[serde(default)]
    process: String,
    #[serde(default)]
    headroom: u32,
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
    fn add(rows: Rows, all: &mut Vec<Row>) {
        match rows {
            Rows::Row(row) => all.push(row),
            Rows::Several(rows) => rows.into_iter().for_each(|rows| add(rows, all)),
        }
    }
    let mut all = Vec::new();
    add(Rows::deserialize(value)?, &mut all);
    Ok(all)
}

/// The default of `allowed`, for operations that are never denied.
fn allowed() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum StepOp {
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
struct Row {
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

struct CaseRule {
    name: RuleName,
    /// The number of the group, or 0.
    group: u8,
    quotas: Vec<Quota>,
}

impl CaseRule {
    /// Creates the rule of a case without groups.
    fn new(rows: &[QuotaRow]) -> Result<Self, BoxError> {
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

    /// Opens the stores of all processes. Returns `false` if the subject has no store for another
    /// process.
    fn join_all<'a, S: Subject>(
        &'a self,
        subject: &mut S,
        processes: &mut BTreeMap<&'a str, S::Store>,
    ) -> bool {
        let Some(lease) = self.lease else { return true };
        for step in &self.steps {
            if !processes.contains_key(&*step.process) {
                let Some(store) = subject.join(Duration::from_nanos(lease)) else {
                    return false;
                };
                processes.insert(&step.process, store);
            }
        }
        true
    }

    /// Peeks, and then takes. Fails if the peek differs from the expected result.
    async fn take<S: Store>(
        &self,
        at: usize,
        step: &Step,
        store: &S,
        charges: &[Charge<'_>],
        rules: &[CaseRule],
    ) -> Result<Result<Decision, S::Error>, BoxError> {
        let choices = self.choices();
        let all = Candidates {
            charges,
            choices: &choices,
        };
        let mut peeked = peek(store, all).await.map_err(Into::into)?.decision;
        if peeked.source() != Source::Unsupported {
            look_at_others(store, charges, &mut peeked)
                .await
                .map_err(Into::into)?;
            self.check(at, step, &peeked, rules)?;
        }
        let mut taken = match take(store, all).await {
            Ok(taken) => taken.decision,
            Err(error) => return Ok(Err(error)),
        };
        look_at_others(store, charges, &mut taken)
            .await
            .map_err(Into::into)?;
        Ok(Ok(taken))
    }

    /// Returns a choice for each group of alternatives.
    fn choices(&self) -> Vec<Choice> {
        let mut start = 0;
        let mut choices = Vec::new();
        for alternatives in &self.groups {
            choices.push(Choice::new(start, alternatives.iter().map(|_| 1)));
            start += alternatives.len();
        }
        choices
    }

    /// Returns the quotas of each rule, with the number of its group.
    fn rules(&self) -> Result<Vec<CaseRule>, BoxError> {
        let first = self.plans.first().unwrap_or(&self.quotas);
        let mut rules = Vec::new();
        for (group, alternatives) in (1..).zip(&self.groups) {
            for (at, rows) in alternatives.iter().enumerate() {
                let name = RuleName::new(&format!("{group}.{at}"))?;
                rules.push(CaseRule {
                    name,
                    group,
                    quotas: quotas(rows)?,
                });
            }
        }
        if self.groups.is_empty() {
            rules.push(CaseRule::new(first)?);
        }
        Ok(rules)
    }

    /// Returns a charge of each rule.
    fn charges<'a>(
        &self,
        rules: &'a [CaseRule],
        key: &'a Key,
        headroom: u32,
        cost: u32,
    ) -> Vec<Charge<'a>> {
        let wait = Duration::from_nanos(self.max_wait);
        let mut charges = Vec::with_capacity(rules.len());
        for rule in rules {
            let charge = Charge::new(rule.name, key, &rule.quotas).with_cost(cost);
            charges.push(charge.with_headroom(headroom).with_max_wait(wait));
        }
        charges
    }

    /// Compares a decision with the expected result of a step.
    fn check(
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
    fn quota(&self) -> Result<Quota, BoxError> {
        let algorithm = match (self.algorithm.as_str(), self.aligned) {
            ("gcra", _) => Algorithm::Gcra,
            ("token_bucket", _) => Algorithm::TokenBucket,
            ("fixed_window", Some(false)) => Algorithm::AnchoredWindow,
            ("fixed_window", _) => Algorithm::FixedWindow {
                carry_over: self.carry_over,
                paced: self.paced,
            },
            ("sliding_window", _) => Algorithm::SlidingWindow {
                buckets: self.buckets,
            },
            ("sliding_log", _) => Algorithm::SlidingLog,
            ("concurrent", _) => {
                return Ok(Quota::try_concurrent(self.limit)?.try_with_soft(self.soft)?);
            }
            (other, _) => return Err(format!("unknown algorithm {other:?}").into()),
        };
        let quota = match &*self.period {
            "" => Quota::new(self.units, Duration::from_nanos(self.per))?,
            period => format!("{}/{period}", self.units).parse()?,
        };
        let quota = quota.try_with_burst(self.burst.unwrap_or(self.units))?;
        let quota = quota
            .try_with_algorithm(algorithm)?
            .try_with_soft(self.soft)?;
        let quota = self
            .max_debt
            .map_or(Ok(quota), |units| quota.try_with_max_debt(units))?;
        Ok(self
            .initial
            .map_or(Ok(quota), |units| quota.try_with_initial(units))?)
    }
}

/// Runs a case on a new store. Returns `false` if the subject cannot run the case.
///
/// Such a case has a quota that the store does not [support](Store::supports), an undo, several
/// processes, or a clock that steps back.
///
/// Each `take` is also [peeked at](StoreExt::peek), unless the store does not support it.
///
/// # Errors
///
/// Fails if the store fails, if the case is invalid, or with the first decision that differs from
/// the expected result. The text has the step and both results.
pub async fn play<S: Subject>(subject: &mut S, case: &Case) -> Result<bool, BoxError> {
    let mut rules = case.rules()?;
    let key = Key::from("somebody");
    let mut processes = BTreeMap::from([("", subject.open())]);
    let undoes = case.steps.iter().any(|step| step.op == StepOp::Undo);
    let charges = case.charges(&rules, &key, 0, 1);
    let choices = case.choices();
    let all = Candidates {
        charges: &charges,
        choices: &choices,
    };
    if case.wall_clock && !subject.steps_back()
        || undoes && !subject.undoes()
        || all
            .attempts()
            .any(|charges| processes[""].supports(&charges).is_err())
    {
        return Ok(false);
    }
    for rows in &case.plans {
        let plan = [CaseRule::new(rows)?];
        if processes[""]
            .supports(&case.charges(&plan, &key, 0, 1))
            .is_err()
        {
            return Ok(false);
        }
    }
    if !case.join_all(subject, &mut processes) {
        return Ok(false);
    }
    // A look of another process changes nothing.
    let observer = &processes[""];
    let mut taken: Vec<Option<Decision>> = Vec::new();
    for (at, step) in case.steps.iter().enumerate() {
        subject.set(Duration::from_nanos(step.at));
        if let (Some(limit), Some(first)) = (step.limit, rules[0].quotas.first_mut()) {
            *first = Quota::try_concurrent(limit)?.try_with_soft(first.soft())?;
        }
        if let (Some(period), Some(row)) = (&step.period, case.quotas.first()) {
            rules[0].quotas[0] = QuotaRow {
                period: period.clone(),
                ..row.clone()
            }
            .quota()?;
        }
        if let Some(plan) = step.plan {
            let plan = case
                .plans
                .get(plan)
                .ok_or_else(|| format!("step {at}: no plan {plan}"))?;
            rules[0].quotas = quotas(plan)?;
        }
        let read = case.charges(&rules, &key, step.headroom, 0);
        let store = processes.get(&*step.process).unwrap_or(observer);
        let answer = match step.op {
            StepOp::Take => {
                let charges = case.charges(&rules, &key, step.headroom, step.cost()?);
                case.take(at, step, store, &charges, &rules).await?
            }
            StepOp::Settle => {
                let units = step.units.unwrap_or(0).saturating_neg();
                store.adjust(&read[0].with_cost(1), units).await
            }
            StepOp::Reset => store.reset(&read[0]).await,
            StepOp::Undo => {
                let units = step.units.map(|_| step.cost()).transpose()?;
                let undone = step
                    .step
                    .and_then(|step| Some((step, taken.get_mut(step)?.take()?)));
                let (undone, receipt) =
                    undone.ok_or_else(|| format!("step {at} undoes no charge"))?;
                let undone = &case.steps[undone];
                let mut charges = case.charges(&rules, &key, undone.headroom, undone.cost()?);
                charges.retain(|charge| receipt.charged(charge.rule));
                store.undo(&charges, &receipt, units);
                subject.finish(store).await;
                store.take(&read).await
            }
            StepOp::Release => {
                let steps = case.steps.iter().zip(&mut taken);
                let mut held = steps.filter(|(earlier, _)| earlier.holds(step));
                drop(held.find_map(|(_, decision)| decision.take()));
                subject.finish(store).await;
                observer.take(&read).await
            }
            StepOp::Renew => {
                subject.renew(store).await;
                observer.take(&read).await
            }
            StepOp::Limit => observer.take(&read).await,
        };
        let decision = answer.map_err(Into::into)?;
        case.check(at, step, &decision, &rules)?;
        let charged = step.op == StepOp::Take && decision.is_allowed();
        taken.push(charged.then_some(decision));
    }
    Ok(true)
}

impl Step {
    /// Returns `true` if this step holds the slots that the step `other` frees.
    fn holds(&self, other: &Self) -> bool {
        self.hold.is_some() && self.hold == other.hold && self.process == other.process
    }

    fn cost(&self) -> Result<u32, BoxError> {
        let units = self.units.and_then(|units| u32::try_from(units).ok());
        units.ok_or_else(|| format!("invalid units: {:?}", self.units).into())
    }

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
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the field `retry` for a wait.
fn retry(wait: Option<Duration>, is_unknown: bool) -> Value {
    match wait {
        Some(wait) => nanos(wait).into(),
        None => if is_unknown { "unknown" } else { "never" }.into(),
    }
}

/// Replaces the outcomes of alternatives that were not asked by those of a look at them.
async fn look_at_others<S: Store>(
    store: &S,
    charges: &[Charge<'_>],
    decision: &mut Decision,
) -> Result<(), S::Error> {
    for charge in charges {
        if !decision
            .outcomes
            .iter()
            .any(|outcome| was_not_asked(outcome, charge))
        {
            continue;
        }
        let mut look = store.take(&[charge.with_cost(0)]).await?;
        if !decision.is_allowed() {
            let alone = store.peek(&[charge.with_max_wait(Duration::ZERO)]).await?;
            if !alone.is_allowed() && alone.source() != Source::Unsupported {
                look = alone;
            }
        }
        for outcome in &mut decision.outcomes {
            if !was_not_asked(outcome, charge) {
                continue;
            }
            let mut its = look.outcomes().iter();
            if let Some(seen) = its.find(|other| other.quota_index() == outcome.quota_index()) {
                *outcome = seen.with_passed_over(true);
            }
        }
    }
    Ok(())
}

/// Returns `true` for an outcome of an alternative that was not asked.
fn was_not_asked(outcome: &Outcome, charge: &Charge<'_>) -> bool {
    outcome.rule() == charge.rule && outcome.is_passed_over() && !outcome.is_known()
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
