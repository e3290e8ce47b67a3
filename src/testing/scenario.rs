//! Scenario files, and playing them on a store.

use std::{fmt, time::Duration};

use serde::Deserialize;

use super::Subject;
use crate::{
    decision::{Decision, Outcome},
    key::Key,
    name::RuleName,
    quota::{Algorithm, Quota, QuotaError},
    store::{BoxError, Charge, Store},
};

/// One case of a scenario file: quotas, and steps with the numbers they must give.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    name: String,
    quotas: Vec<QuotaRow>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    wall_clock: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaRow {
    algorithm: String,
    units: u32,
    per: u64,
    burst: Option<u32>,
    initial: Option<u32>,
    #[serde(default)]
    soft: u32,
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
    op: Op,
    units: i64,
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
enum Op {
    Take,
    Settle,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Row {
    remaining: u32,
    full: u64,
    next: u64,
    /// Absent on `settle`.
    retry: Option<Retry>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged)]
enum Retry {
    In(u64),
    Never(Never),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
enum Never {
    #[serde(rename = "never")]
    Never,
}

/// How a case went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played {
    /// Every number was as the table says.
    Passed,
    /// The case is for a clock that steps back, which the store's does not.
    Skipped,
}

/// Where a store and a table differ.
#[derive(Clone, Debug)]
pub struct Mismatch {
    case: String,
    step: usize,
    expected: String,
    got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, step, expected, got } = self;
        write!(f, "{case}, step {step}\n  expected {expected}\n  got      {got}")
    }
}

/// Why a scenario file could not be played.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaseError {
    /// It is no list of cases.
    Format(serde_json::Error),
    /// A case has a quota that cannot be.
    Quota(QuotaError),
    /// A case has a word or a number that is not known.
    Unknown(String),
    /// The store could not decide.
    Store(BoxError),
    /// The store's numbers are not those of the table.
    Mismatch(Mismatch),
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "no list of cases: {error}"),
            Self::Quota(error) => error.fmt(f),
            Self::Unknown(what) => f.write_str(what),
            Self::Store(error) => write!(f, "the store failed: {error}"),
            Self::Mismatch(mismatch) => mismatch.fmt(f),
        }
    }
}

impl std::error::Error for CaseError {}

impl Case {
    /// The cases of a scenario file.
    ///
    /// # Errors
    ///
    /// When `text` is no JSON list of cases.
    pub fn read(text: &str) -> Result<Vec<Self>, CaseError> {
        serde_json::from_str(text).map_err(CaseError::Format)
    }

    /// What the case is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
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
            (other, _) => return Err(CaseError::Unknown(format!("algorithm {other:?}"))),
        };
        let build = || {
            let mut quota = Quota::new(self.units, Duration::from_nanos(self.per))?;
            if let Some(burst) = self.burst {
                quota = quota.try_burst(burst)?;
            }
            quota = quota.try_algorithm(algorithm)?.try_soft(self.soft)?;
            self.initial.map_or(Ok(quota), |units| quota.try_initial(units))
        };
        build().map_err(CaseError::Quota)
    }
}

/// Plays a case from the start on a fresh store.
///
/// # Errors
///
/// With the first [`Mismatch`], or why the case cannot be played.
pub async fn play<S: Subject>(subject: &mut S, case: &Case) -> Result<Played, CaseError> {
    if case.wall_clock && !subject.steps_back() {
        return Ok(Played::Skipped);
    }
    let store = subject.open();
    let quotas = case.quotas.iter().map(QuotaRow::quota).collect::<Result<Vec<_>, _>>()?;
    let (rule, key) = (RuleName::default(), Key::from("somebody"));
    for (at, step) in case.steps.iter().enumerate() {
        subject.set(Duration::from_nanos(step.at));
        let charge = Charge::new(rule, &key, &quotas).headroom(step.headroom);
        let answer = if step.op == Op::Settle {
            store.settle(&charge, step.units).await
        } else {
            let cost = u32::try_from(step.units)
                .map_err(|_| CaseError::Unknown(format!("a cost of {}", step.units)))?;
            let wait = Duration::from_nanos(case.max_wait);
            store.take(&[charge.cost(cost).max_wait(wait)]).await
        };
        let decision = answer.map_err(|error| CaseError::Store(error.into()))?;
        let (expected, got) = (step.shown(), Shown::of(&decision, step.op));
        if expected != got {
            let (case, step) = (case.name.clone(), at);
            let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
            return Err(CaseError::Mismatch(Mismatch { case, step, expected, got }));
        }
    }
    Ok(Played::Passed)
}

/// What is compared.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    allowed: bool,
    wait: u64,
    overage: bool,
    outcomes: Vec<Row>,
}

impl Step {
    fn shown(&self) -> Shown {
        let allowed = self.allowed.unwrap_or(true);
        let (wait, overage, outcomes) = (self.wait, self.overage, self.outcomes.clone());
        Shown { allowed, wait, overage, outcomes }
    }
}

impl Shown {
    fn of(decision: &Decision, op: Op) -> Self {
        let row = |outcome: &Outcome| Row {
            remaining: outcome.remaining(),
            full: nanos(outcome.reset_after()),
            next: nanos(outcome.next_after()),
            retry: (op == Op::Take).then(|| match outcome.retry_after() {
                Some(wait) => Retry::In(nanos(wait)),
                None => Retry::Never(Never::Never),
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
