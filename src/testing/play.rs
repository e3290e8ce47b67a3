//! Runs of the cases of a scenario table.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use tower::BoxError;

use super::{
    Subject, peek,
    scenario::{Case, CaseRule, QuotaRow, Row, Step, StepOp},
    take,
};
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
    quota::Quota,
    rule::Candidates,
    store::{Charge, Store, StoreExt},
};

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
    let mut processes = BTreeMap::from([("", subject.open())]);
    let mut run = Run {
        case,
        rules: case.rules()?,
        key: Key::from("somebody"),
        taken: Vec::new(),
    };
    if !run.is_supported(subject, &processes[""])? || !case.join_all(subject, &mut processes) {
        return Ok(false);
    }
    // A look of another process changes nothing.
    let observer = &processes[""];
    for (at, step) in case.steps.iter().enumerate() {
        subject.set(Duration::from_nanos(step.at));
        run.change_quotas(at, step)?;
        let own = processes.get(&*step.process).unwrap_or(observer);
        let decision = run
            .make(at, step, subject, Stores { own, observer })
            .await?;
        case.check(at, step, &decision, &run.rules)?;
        let charged = step.op == StepOp::Take && decision.is_allowed();
        run.taken.push(charged.then_some(decision));
    }
    Ok(true)
}

/// A case that is run.
struct Run<'a> {
    case: &'a Case,
    rules: Vec<CaseRule>,
    key: Key,
    /// For each earlier step, the charge that it made and that was not undone or freed since.
    taken: Vec<Option<Decision>>,
}

/// The stores that a step uses.
struct Stores<'a, S> {
    /// The store of the process of the step.
    own: &'a S,
    /// The store of the first process.
    observer: &'a S,
}

impl Run<'_> {
    /// Returns `false` if the subject cannot run the case.
    fn is_supported<S: Subject>(&self, subject: &S, store: &S::Store) -> Result<bool, BoxError> {
        let case = self.case;
        let undoes = case.steps.iter().any(|step| step.op == StepOp::Undo);
        if case.wall_clock && !subject.steps_back() || undoes && !subject.undoes() {
            return Ok(false);
        }
        let all = Candidates {
            charges: &case.charges(&self.rules, &self.key, 0, 1),
            choices: &case.choices(),
        };
        let mut attempts = all.attempts();
        if attempts.any(|charges| store.supports(&charges).is_err()) {
            return Ok(false);
        }
        for rows in &case.plans {
            let plan = [CaseRule::new(rows)?];
            let charges = case.charges(&plan, &self.key, 0, 1);
            if store.supports(&charges).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Changes the quotas before a step.
    fn change_quotas(&mut self, at: usize, step: &Step) -> Result<(), BoxError> {
        let quotas = &mut self.rules[0].quotas;
        if let (Some(limit), Some(first)) = (step.limit, quotas.first_mut()) {
            *first = Quota::try_concurrent(limit)?.try_with_soft(first.soft())?;
        }
        if let (Some(period), Some(row)) = (&step.period, self.case.quotas.first()) {
            let row = QuotaRow {
                period: period.clone(),
                ..row.clone()
            };
            quotas[0] = row.quota()?;
        }
        if let Some(plan) = step.plan {
            let plan = self.case.plans.get(plan);
            let plan = plan.ok_or_else(|| format!("step {at}: its plan is missing"))?;
            *quotas = super::scenario::quotas(plan)?;
        }
        Ok(())
    }

    /// Makes a step. Returns the decision that shows its result.
    async fn make<S: Subject>(
        &mut self,
        at: usize,
        step: &Step,
        subject: &mut S,
        stores: Stores<'_, S::Store>,
    ) -> Result<Decision, BoxError> {
        let store = stores.own;
        match step.op {
            StepOp::Take => return self.take(at, step, store).await,
            StepOp::Undo => self.undo(at, step, store)?,
            StepOp::Release => {
                let steps = self.case.steps.iter().zip(&mut self.taken);
                let mut held = steps.filter(|(earlier, _)| earlier.holds(step));
                drop(held.find_map(|(_, decision)| decision.take()));
            }
            StepOp::Settle | StepOp::Reset | StepOp::Renew | StepOp::Limit => {}
        }
        let read = self.charges(step.headroom, 0);
        let answer = match step.op {
            StepOp::Settle => {
                let units = step.units.unwrap_or(0).saturating_neg();
                store.adjust(&read[0].with_cost(1), units).await
            }
            StepOp::Reset => store.reset(&read[0]).await,
            StepOp::Undo => {
                subject.finish(store).await;
                store.take(&read).await
            }
            StepOp::Release => {
                subject.finish(store).await;
                stores.observer.take(&read).await
            }
            StepOp::Renew => {
                subject.renew(store).await;
                stores.observer.take(&read).await
            }
            StepOp::Take | StepOp::Limit => stores.observer.take(&read).await,
        };
        answer.map_err(Into::into)
    }

    /// Undoes the charge of an earlier step.
    fn undo<S: Store>(&mut self, at: usize, step: &Step, store: &S) -> Result<(), BoxError> {
        let units = step.units.map(|_| step.cost()).transpose()?;
        let index = step.step.filter(|index| *index < at);
        let receipt = index.and_then(|index| self.taken[index].take());
        let (Some(index), Some(receipt)) = (index, receipt) else {
            return Err(format!("step {at} undoes no charge").into());
        };
        let undone = &self.case.steps[index];
        let mut charges = self.charges(undone.headroom, undone.cost()?);
        charges.retain(|charge| receipt.charged(charge.rule));
        store.undo(&charges, &receipt, units);
        Ok(())
    }

    /// Returns a charge of each rule.
    fn charges(&self, headroom: u32, cost: u32) -> Vec<Charge<'_>> {
        self.case.charges(&self.rules, &self.key, headroom, cost)
    }

    /// Peeks, and then takes. Fails if the peek differs from the expected result.
    async fn take<S: Store>(
        &self,
        at: usize,
        step: &Step,
        store: &S,
    ) -> Result<Decision, BoxError> {
        let charges = self.charges(step.headroom, step.cost()?);
        let choices = self.case.choices();
        let all = Candidates {
            charges: &charges,
            choices: &choices,
        };
        let mut peeked = peek(store, all).await.map_err(Into::into)?.decision;
        if peeked.source() != Source::Unsupported {
            look_at_others(store, &charges, &mut peeked)
                .await
                .map_err(Into::into)?;
            self.case.check(at, step, &peeked, &self.rules)?;
        }
        let mut taken = take(store, all).await.map_err(Into::into)?.decision;
        look_at_others(store, &charges, &mut taken)
            .await
            .map_err(Into::into)?;
        Ok(taken)
    }
}

impl Case {
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
        let mut outcomes = decision.outcomes.iter();
        if !outcomes.any(|outcome| was_not_asked(outcome, charge)) {
            continue;
        }
        let look = look_at(store, charge, decision.is_allowed()).await?;
        for outcome in &mut decision.outcomes {
            let mut its = look.outcomes().iter();
            let seen = its.find(|other| other.quota_index() == outcome.quota_index());
            if let Some(seen) = seen.filter(|_| was_not_asked(outcome, charge)) {
                *outcome = seen.with_passed_over(true);
            }
        }
    }
    Ok(())
}

/// Looks at an alternative: at its denial if it has one, and the other alternatives are denied.
async fn look_at<S: Store>(
    store: &S,
    charge: &Charge<'_>,
    others_allow: bool,
) -> Result<Decision, S::Error> {
    let look = store.take(&[charge.with_cost(0)]).await?;
    if others_allow {
        return Ok(look);
    }
    let alone = store.peek(&[charge.with_max_wait(Duration::ZERO)]).await?;
    let is_denied = !alone.is_allowed() && alone.source() != Source::Unsupported;
    Ok(if is_denied { alone } else { look })
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
