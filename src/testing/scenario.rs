//! Cases of a scenario table.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use super::Subject;
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
    quota::{Algorithm, Quota, QuotaError},
    rule::RuleName,
    store::{BoxError, Charge, Store, StoreExt},
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
/// A `take` holds the slots of concurrent quotas under the name `hold`, and a `release` frees them. A
/// `limit` step changes the limit of the first quota. A case with a `lease` has several processes: it
/// is for stores that several processes share. Each hold counts for that time after its `take` or the
/// last `renew` of its process.
///
/// ```
/// use tower_sluice::testing::{Case, Local, TABLES, play};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// for (file, text) in TABLES {
///     for case in Case::read(text)? {
///         play(&mut Local::default(), &case).await?; // the embedded store; yours is a `Subject`
///     }
/// }
/// # Ok::<(), tower_sluice::testing::CaseError>(())
/// # }).unwrap();
/// ```
pub const TABLES: &[(&str, &str)] = &[
    ("gcra.json", include_str!("../../tests/scenarios/gcra.json")),
    ("token_bucket.json", include_str!("../../tests/scenarios/token_bucket.json")),
    ("fixed_window.json", include_str!("../../tests/scenarios/fixed_window.json")),
    ("sliding_window.json", include_str!("../../tests/scenarios/sliding_window.json")),
    ("sliding_log.json", include_str!("../../tests/scenarios/sliding_log.json")),
    ("max_debt.json", include_str!("../../tests/scenarios/max_debt.json")),
    ("refunds.json", include_str!("../../tests/scenarios/refunds.json")),
    ("slots.json", include_str!("../../tests/scenarios/slots.json")),
    ("combined.json", include_str!("../../tests/scenarios/combined.json")),
];

/// Case of a scenario table: quotas, and steps with their expected results.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    name: String,
    #[serde(default)]
    why: String,
    quotas: Vec<QuotaRow>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    wall_clock: bool,
    /// The time for which slots are held unless they are renewed. Such a case has several processes.
    lease: Option<u64>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaRow {
    algorithm: String,
    #[serde(default)]
    units: u32,
    #[serde(default)]
    per: u64,
    /// The number of slots of a concurrent quota.
    #[serde(default)]
    limit: u32,
    burst: Option<u32>,
    initial: Option<u32>,
    #[serde(default)]
    soft: u32,
    max_debt: Option<u32>,
    aligned: Option<bool>,
    #[serde(default)]
    carry_over: u32,
    #[serde(default)]
    paced: bool,
    #[serde(default)]
    buckets: u32,
}

#[derive(Clone, Debug, Deserialize)]
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
    /// The new limit of the first quota.
    limit: Option<u32>,
    process: Option<String>,
    #[serde(default)]
    headroom: u32,
    allowed: Option<bool>,
    #[serde(default)]
    wait: u64,
    #[serde(default)]
    overage: bool,
    outcomes: Vec<Row>,
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
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
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

/// The part of a decision that a scenario table describes.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    allowed: bool,
    wait: u64,
    overage: bool,
    outcomes: Vec<Row>,
}

/// Result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played {
    /// All decisions equal the expected results.
    Passed,
    /// The subject lacks a feature of the case: an [algorithm](Subject::supports),
    /// [`undo`](Subject::undoes), several processes that [share](Subject::join) accounts, or a clock
    /// that can [step back](Subject::steps_back).
    Skipped,
}

/// Reason why a case failed or could not run.
///
/// See [troubleshooting](crate::guide::troubleshooting#errors).
#[derive(Debug)]
#[non_exhaustive]
pub enum CaseError {
    /// The text is not a list of cases.
    Format(serde_json::Error),
    /// A case has an invalid quota.
    Quota(QuotaError),
    /// A case has an unknown algorithm or an invalid step.
    Unknown(String),
    /// The store failed.
    Store(BoxError),
    /// A decision of the store differs from the expected result. The text has the case, the step and
    /// both results.
    Mismatch(String),
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "not a list of cases: {error}"),
            Self::Quota(error) => error.fmt(f),
            Self::Unknown(what) | Self::Mismatch(what) => f.write_str(what),
            Self::Store(error) => write!(f, "the store failed: {error}"),
        }
    }
}

impl std::error::Error for CaseError {}

impl From<QuotaError> for CaseError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

impl Case {
    /// Reads the cases of a table.
    ///
    /// # Errors
    ///
    /// Returns [`CaseError::Format`] if `text` is not a JSON list of cases.
    pub fn read(text: &str) -> Result<Vec<Self>, CaseError> {
        serde_json::from_str(text).map_err(CaseError::Format)
    }

    /// Returns the name of the case.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compares a decision with the expected result of a step.
    fn check(&self, at: usize, step: &Step, decision: &Decision) -> Result<(), CaseError> {
        let (expected, got) = (step.shown(), Shown::of(decision, step.op == StepOp::Take));
        if expected == got {
            return Ok(());
        }
        let Self { name, why, .. } = self;
        let Step { op, units, at: now, headroom, .. } = step;
        let (units, now) = (units.unwrap_or(0), Duration::from_nanos(*now));
        Err(CaseError::Mismatch(format!(
            "{name} ({why})\n  step {at}: {op:?} {units} at {now:?} with a headroom of {headroom}\n  \
             expected {expected:?}\n  got      {got:?}"
        )))
    }
}

impl QuotaRow {
    fn quota(&self) -> Result<Quota, CaseError> {
        let algorithm = match (self.algorithm.as_str(), self.aligned.unwrap_or(true)) {
            ("gcra", _) => Algorithm::Gcra,
            ("token_bucket", _) => Algorithm::TokenBucket,
            ("fixed_window", true) => {
                Algorithm::FixedWindow { carry_over: self.carry_over, paced: self.paced }
            }
            ("fixed_window", false) => Algorithm::AnchoredWindow,
            ("sliding_window", _) => Algorithm::SlidingWindow { buckets: self.buckets },
            ("sliding_log", _) => Algorithm::SlidingLog,
            ("concurrent", _) => {
                return Ok(Quota::try_concurrent(self.limit)?.try_with_soft(self.soft)?);
            }
            (other, _) => return Err(CaseError::Unknown(format!("algorithm {other:?}"))),
        };
        let mut quota = Quota::new(self.units, Duration::from_nanos(self.per))?;
        if let Some(burst) = self.burst {
            quota = quota.try_with_burst(burst)?;
        }
        quota = quota.try_with_algorithm(algorithm)?.try_with_soft(self.soft)?;
        if let Some(units) = self.max_debt {
            quota = quota.try_with_max_debt(units)?;
        }
        Ok(match self.initial {
            Some(units) => quota.try_with_initial(units)?,
            None => quota,
        })
    }
}

/// Runs a case on a new store.
///
/// Each `take` is also [peeked at](StoreExt::peek), unless the store does not support it.
///
/// # Errors
///
/// Returns the first mismatch, or the reason why the case cannot run.
pub async fn play<S: Subject>(subject: &mut S, case: &Case) -> Result<Played, CaseError> {
    let mut quotas = case.quotas.iter().map(QuotaRow::quota).collect::<Result<Vec<_>, _>>()?;
    let undoes = case.steps.iter().any(|step| step.op == StepOp::Undo);
    if case.wall_clock && !subject.steps_back()
        || undoes && !subject.undoes()
        || !quotas.iter().all(|quota| subject.supports(quota.algorithm()))
    {
        return Ok(Played::Skipped);
    }
    let opened = subject.open();
    let mut processes = BTreeMap::new();
    if let Some(lease) = case.lease {
        // The one without a name only looks.
        let names = case.steps.iter().filter_map(|step| step.process.as_deref());
        for name in names.chain([""]) {
            if !processes.contains_key(name) {
                let joined = subject.join(Duration::from_nanos(lease));
                let Some(store) = joined else { return Ok(Played::Skipped) };
                processes.insert(name, store);
            }
        }
    }
    // A look of another process changes nothing.
    let observer = processes.get("").unwrap_or(&opened);
    let (rule, key) = (RuleName::default(), Key::from("somebody"));
    let wait = Duration::from_nanos(case.max_wait);
    let failed = |error: <S::Store as Store>::Error| CaseError::Store(error.into());
    let mut taken: Vec<Option<Decision>> = Vec::new();
    for (at, step) in case.steps.iter().enumerate() {
        subject.set(Duration::from_nanos(step.at));
        if let (StepOp::Limit, Some(limit), Some(first)) = (step.op, step.limit, quotas.first_mut())
        {
            *first = Quota::try_concurrent(limit)?.try_with_soft(first.soft())?;
        }
        let of = |step: &Step| {
            Charge::new(rule, &key, &quotas).with_headroom(step.headroom).with_max_wait(wait)
        };
        let charge = of(step);
        let process = step.process.as_deref().and_then(|name| processes.get(name));
        let store = process.unwrap_or(&opened);
        let answer = match step.op {
            StepOp::Take => {
                let charge = [charge.with_cost(step.cost()?)];
                let peeked = store.peek(&charge).await.map_err(failed)?;
                if peeked.source() != Source::Unsupported {
                    case.check(at, step, &peeked)?;
                }
                store.take(&charge).await
            }
            StepOp::Release => {
                let holds = |(held, it): (&Step, &mut Option<Decision>)| {
                    held.holds_for(step) && it.take().is_some()
                };
                let _ = case.steps.iter().zip(&mut taken).any(holds);
                subject.freed(store).await;
                observer.take(&[charge.with_cost(0)]).await
            }
            StepOp::Renew => {
                subject.renew(store).await;
                observer.take(&[charge.with_cost(0)]).await
            }
            StepOp::Limit => observer.take(&[charge.with_cost(0)]).await,
            StepOp::Settle => store.adjust(&charge, step.units.unwrap_or(0).saturating_neg()).await,
            StepOp::Reset => store.reset(&charge).await,
            StepOp::Undo => {
                let units = step.units.map(|_| step.cost()).transpose()?;
                let undone = step.step.and_then(|it| Some((it, taken.get_mut(it)?.take()?)));
                let (undone, receipt) = undone
                    .ok_or_else(|| CaseError::Unknown(format!("step {at} undoes no charge")))?;
                let undone = &case.steps[undone];
                let charge = of(undone).with_cost(undone.cost()?);
                store.undo(&[charge], &receipt, units);
                subject.undone().await;
                store.take(&[charge.with_cost(0)]).await
            }
        };
        let decision = answer.map_err(failed)?;
        case.check(at, step, &decision)?;
        let charged = step.op == StepOp::Take && decision.is_allowed();
        taken.push(charged.then_some(decision));
    }
    Ok(Played::Passed)
}

impl Step {
    /// Returns `true` if this step holds the slots that the step `other` frees.
    fn holds_for(&self, other: &Self) -> bool {
        self.hold.is_some() && self.hold == other.hold && self.process == other.process
    }

    fn cost(&self) -> Result<u32, CaseError> {
        let units = self.units.and_then(|units| u32::try_from(units).ok());
        units.ok_or_else(|| CaseError::Unknown(format!("units of {:?}", self.units)))
    }

    fn shown(&self) -> Shown {
        let allowed = self.allowed.unwrap_or(true);
        let (wait, overage, outcomes) = (self.wait, self.overage, self.outcomes.clone());
        Shown { allowed, wait, overage, outcomes }
    }
}

impl Shown {
    /// Returns the values of `decision`. If `retry` is `true`, each row has its `retry_after`.
    fn of(decision: &Decision, retry: bool) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let row = |outcome: &Outcome| Row {
            held: outcome.held(),
            remaining: outcome.remaining(),
            full: nanos(outcome.reset_after()),
            next: nanos(outcome.next_after()),
            retry: retry.then(|| match outcome.retry_after() {
                Some(wait) => nanos(wait).into(),
                None if outcome.is_wait_unknown() => "unknown".into(),
                None => "never".into(),
            }),
        };
        Self {
            allowed: decision.is_allowed(),
            wait: nanos(decision.wait()),
            overage: decision.is_overage(),
            outcomes: decision.outcomes().iter().map(row).collect(),
        }
    }
}
