//! Cases of a scenario table.

use std::{collections::BTreeSet, fmt, time::Duration};

use serde::{Deserialize, Deserializer};

use super::{
    Subject,
    mismatch::{Mismatch, Row, Shown},
    subject::processes,
};
use crate::{
    decision::{Decision, Source},
    key::Key,
    quota::{Algorithm, Quota, QuotaError},
    rule::RuleName,
    store::{BoxError, Charge, Store, StoreExt},
};

/// Case of a scenario table: quotas, and steps with their expected results.
#[derive(Clone, Debug, Deserialize)]
pub struct Case {
    name: String,
    #[serde(default)]
    why: String,
    #[serde(default, deserialize_with = "names")]
    algorithm: Vec<String>,
    quotas: Vec<QuotaRow>,
    #[serde(default)]
    max_wait: u64,
    #[serde(default)]
    wall_clock: bool,
    /// The time for which slots are held unless they are renewed. Such a case has several processes.
    lease: Option<u64>,
    steps: Vec<Step>,
}

/// Reads one name or a list of names.
fn names<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Names::deserialize(value)? {
        Names::One(name) => vec![name],
        Names::Several(names) => names,
    })
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
    /// A case has an unknown algorithm, an invalid step, or other algorithms than its quotas.
    Unknown(String),
    /// The store failed.
    Store(BoxError),
    /// A decision of the store differs from the expected result.
    Mismatch(Mismatch),
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(error) => write!(f, "not a list of cases: {error}"),
            Self::Quota(error) => error.fmt(f),
            Self::Unknown(what) => f.write_str(what),
            Self::Store(error) => write!(f, "the store failed: {error}"),
            Self::Mismatch(mismatch) => mismatch.fmt(f),
        }
    }
}

impl std::error::Error for CaseError {}

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

    /// Returns the algorithms of the case, by their names in configuration files.
    ///
    /// The list is empty if the table does not name the algorithms.
    #[must_use]
    pub fn algorithms(&self) -> &[String] {
        &self.algorithm
    }

    /// Returns the quotas of the case.
    ///
    /// # Errors
    ///
    /// Fails if a quota is invalid, or if the case names other algorithms than its quotas.
    fn quotas(&self) -> Result<Vec<Quota>, CaseError> {
        let quotas = self.quotas.iter().map(QuotaRow::quota).collect::<Result<Vec<_>, _>>()?;
        let named: BTreeSet<_> = self.algorithms().iter().map(String::as_str).collect();
        let used: BTreeSet<_> = self.quotas.iter().map(QuotaRow::algorithm).collect();
        if !named.is_empty() && named != used {
            return Err(CaseError::Unknown(format!(
                "algorithm is {named:?}, the quotas count by {used:?}; name each algorithm of the \
                 quotas"
            )));
        }
        Ok(quotas)
    }
}

impl QuotaRow {
    /// Returns the name of the algorithm, as in configuration files.
    fn algorithm(&self) -> &str {
        match (self.algorithm.as_str(), self.aligned) {
            ("fixed_window", Some(false)) => "anchored_window",
            (name, _) => name,
        }
    }

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
                let slots = || Quota::try_concurrent(self.limit)?.try_with_soft(self.soft);
                return slots().map_err(CaseError::Quota);
            }
            (other, _) => return Err(CaseError::Unknown(format!("algorithm {other:?}"))),
        };
        let build = || {
            let mut quota = Quota::new(self.units, Duration::from_nanos(self.per))?;
            if let Some(burst) = self.burst {
                quota = quota.try_with_burst(burst)?;
            }
            quota = quota.try_with_algorithm(algorithm)?.try_with_soft(self.soft)?;
            if let Some(units) = self.max_debt {
                quota = quota.try_with_max_debt(units)?;
            }
            self.initial.map_or(Ok(quota), |units| quota.try_with_initial(units))
        };
        build().map_err(CaseError::Quota)
    }
}

/// Runs a case on a new store.
///
/// Each `take` is also [peeked at](StoreExt::peek), unless the store does not support it.
///
/// # Errors
///
/// Returns the first [`Mismatch`], or the reason why the case cannot run.
pub async fn play<S: Subject>(subject: &mut S, case: &Case) -> Result<Played, CaseError> {
    if case.wall_clock && !subject.steps_back() {
        return Ok(Played::Skipped);
    }
    let mut quotas = case.quotas()?;
    let undoes = case.steps.iter().any(|step| step.op == StepOp::Undo);
    if !quotas.iter().all(|quota| subject.supports(quota.algorithm()))
        || undoes && !subject.undoes()
    {
        return Ok(Played::Skipped);
    }
    let opened = subject.open();
    let names = case.steps.iter().filter_map(|step| step.process.as_deref());
    let Some(processes) = processes(subject, case.lease, names) else {
        return Ok(Played::Skipped);
    };
    // A look of another process changes nothing.
    let observer = processes.get("").unwrap_or(&opened);
    let (rule, key) = (RuleName::default(), Key::from("somebody"));
    let wait = Duration::from_nanos(case.max_wait);
    let mut taken: Vec<Option<Decision>> = Vec::new();
    for (at, step) in case.steps.iter().enumerate() {
        subject.set(Duration::from_nanos(step.at));
        if let (StepOp::Limit, Some(limit), Some(first)) = (step.op, step.limit, quotas.first_mut())
        {
            let changed =
                Quota::try_concurrent(limit).and_then(|it| it.try_with_soft(first.soft()));
            *first = changed.map_err(CaseError::Quota)?;
        }
        let of = |step: &Step| {
            Charge::new(rule, &key, &quotas).with_headroom(step.headroom).with_max_wait(wait)
        };
        let charge = of(step);
        let process = step.process.as_deref().and_then(|name| processes.get(name));
        let store = process.unwrap_or(&opened);
        let differs = |expected: &Shown, got: &Shown| Mismatch {
            case: case.name.clone(),
            why: case.why.clone(),
            step: format!("step {at}: {step}"),
            expected: expected.to_string(),
            got: got.to_string(),
        };
        if step.op == StepOp::Take {
            let peeked = store.peek(&[charge.with_cost(step.cost()?)]).await;
            let peeked = peeked.map_err(|error| CaseError::Store(error.into()))?;
            let (expected, got) = (step.shown(), Shown::of(&peeked, true));
            if peeked.source() != Source::Unsupported && expected != got {
                return Err(CaseError::Mismatch(differs(&expected, &got)));
            }
        }
        let answer = match step.op {
            StepOp::Take => store.take(&[charge.with_cost(step.cost()?)]).await,
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
        let decision = answer.map_err(|error| CaseError::Store(error.into()))?;
        let (expected, got) = (step.shown(), Shown::of(&decision, step.op == StepOp::Take));
        let charged = step.op == StepOp::Take && decision.is_allowed();
        taken.push(charged.then_some(decision));
        if expected != got {
            return Err(CaseError::Mismatch(differs(&expected, &got)));
        }
    }
    Ok(Played::Passed)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, op, units, step, hold, limit, headroom, .. } = self;
        let op = match op {
            StepOp::Take => "take",
            StepOp::Settle => "settle",
            StepOp::Undo => "undo",
            StepOp::Reset => "reset",
            StepOp::Release => "release",
            StepOp::Limit => "limit",
            StepOp::Renew => "renew",
        };
        f.write_str(op)?;
        units.iter().try_for_each(|units| write!(f, " {units}"))?;
        step.iter().try_for_each(|step| write!(f, " of step {step}"))?;
        hold.iter().try_for_each(|hold| write!(f, " of hold {hold}"))?;
        limit.iter().try_for_each(|limit| write!(f, " {limit}"))?;
        write!(f, " at {:?}", Duration::from_nanos(*at))?;
        if *headroom > 0 {
            write!(f, " with a headroom of {headroom}")?;
        }
        Ok(())
    }
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
