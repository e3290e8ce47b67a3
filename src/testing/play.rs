//! Runs of the cases of a scenario table.

use std::{collections::BTreeMap, time::Duration};

use tower::BoxError;

use super::{
    Subject, peek,
    scenario::{Case, CaseRule, Step, StepOp},
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
    let mut run = Run {
        case,
        rules: case.rules()?,
        key: Key::from("somebody"),
        processes: BTreeMap::from([("", subject.open())]),
        subject,
        taken: Vec::new(),
    };
    if !run.is_supported()? || !run.join_all() {
        return Ok(false);
    }
    for (at, step) in case.steps.iter().enumerate() {
        run.subject.set(Duration::from_nanos(step.at));
        run.change_quotas(at, step)?;
        let decision = run.make(at, step).await?;
        case.check(at, step, &decision, &run.rules)?;
        let charged = step.op == StepOp::Take && decision.is_allowed();
        run.taken.push(charged.then_some(decision));
    }
    Ok(true)
}

/// A case that is run.
struct Run<'a, S: Subject> {
    case: &'a Case,
    subject: &'a mut S,
    rules: Vec<CaseRule>,
    key: Key,
    /// The store of each process. The first process has no name.
    processes: BTreeMap<&'a str, S::Store>,
    /// For each earlier step, the charge that it made and that was not undone or freed since.
    taken: Vec<Option<Decision>>,
}

impl<S: Subject> Run<'_, S> {
    /// Returns `false` if the subject cannot run the case.
    fn is_supported(&self) -> Result<bool, BoxError> {
        let case = self.case;
        let store = &self.processes[""];
        let undoes = case.steps.iter().any(|step| step.op == StepOp::Undo);
        if case.wall_clock && !self.subject.steps_back() || undoes && !self.subject.undoes() {
            return Ok(false);
        }
        let all = Candidates {
            charges: &self.charges(0, 1),
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

    /// Opens the stores of all processes. Returns `false` if the subject has no store for another
    /// process.
    fn join_all(&mut self) -> bool {
        let Some(lease) = self.case.lease else {
            return true;
        };
        for step in &self.case.steps {
            if !self.processes.contains_key(&*step.process) {
                let Some(store) = self.subject.join(Duration::from_nanos(lease)) else {
                    return false;
                };
                self.processes.insert(&step.process, store);
            }
        }
        true
    }

    /// Returns a charge of each rule.
    fn charges(&self, headroom: u32, cost: u32) -> Vec<Charge<'_>> {
        self.case.charges(&self.rules, &self.key, headroom, cost)
    }

    /// Changes the quotas before a step.
    fn change_quotas(&mut self, at: usize, step: &Step) -> Result<(), BoxError> {
        let quotas = &mut self.rules[0].quotas;
        if let (Some(limit), Some(first)) = (step.limit, quotas.first_mut()) {
            *first = Quota::try_concurrent(limit)?.try_with_soft(first.soft())?;
        }
        if let (Some(period), Some(row)) = (&step.period, self.case.quotas.first()) {
            quotas[0] = row.with_period(period).quota()?;
        }
        if let Some(plan) = step.plan {
            let rows = self.case.plans.get(plan);
            let rows = rows.ok_or_else(|| format!("step {at}: no plan {plan}"))?;
            *quotas = CaseRule::new(rows)?.quotas;
        }
        Ok(())
    }

    /// Makes a step. Returns the decision that shows its result.
    async fn make(&mut self, at: usize, step: &Step) -> Result<Decision, BoxError> {
        match step.op {
            StepOp::Take => return self.take(at, step).await,
            StepOp::Undo => self.undo(at, step)?,
            StepOp::Release => self.release(step),
            StepOp::Settle | StepOp::Reset | StepOp::Limit | StepOp::Renew => {}
        }
        let own = store_of(step, &self.processes);
        match step.op {
            StepOp::Undo | StepOp::Release => self.subject.finish(own).await,
            StepOp::Renew => self.subject.renew(own).await,
            _ => {}
        }
        let read = self.charges(step.headroom, 0);
        let answer = match step.op {
            StepOp::Settle => {
                let units = step.units.unwrap_or(0).saturating_neg();
                own.adjust(&read[0].with_cost(1), units).await
            }
            StepOp::Reset => own.reset(&read[0]).await,
            StepOp::Undo => own.take(&read).await,
            // The first process looks, which changes nothing.
            _ => self.processes[""].take(&read).await,
        };
        answer.map_err(Into::into)
    }

    /// Peeks, and then takes. Fails if the peek differs from the expected result.
    async fn take(&self, at: usize, step: &Step) -> Result<Decision, BoxError> {
        let store = store_of(step, &self.processes);
        let charges = self.charges(step.headroom, step.cost()?);
        let choices = self.case.choices();
        let all = Candidates {
            charges: &charges,
            choices: &choices,
        };
        let mut peeked = peek(store, all).await.map_err(Into::into)?.decision;
        if peeked.source() != Source::Unsupported {
            look_at_others(store, &charges, &mut peeked).await?;
            self.case.check(at, step, &peeked, &self.rules)?;
        }
        let mut taken = take(store, all).await.map_err(Into::into)?.decision;
        look_at_others(store, &charges, &mut taken).await?;
        Ok(taken)
    }

    /// Undoes the charge of an earlier step.
    fn undo(&mut self, at: usize, step: &Step) -> Result<(), BoxError> {
        let units = step.units.map(|_| step.cost()).transpose()?;
        let undone = step
            .step
            .and_then(|step| Some((step, self.taken.get_mut(step)?.take()?)));
        let (undone, receipt) = undone.ok_or_else(|| format!("step {at} undoes no charge"))?;
        let undone = &self.case.steps[undone];
        let mut charges = self.charges(undone.headroom, undone.cost()?);
        charges.retain(|charge| receipt.charged(charge.rule));
        store_of(step, &self.processes).undo(&charges, &receipt, units);
        Ok(())
    }

    /// Frees the slots of an earlier step.
    fn release(&mut self, step: &Step) {
        let steps = self.case.steps.iter().zip(&mut self.taken);
        let mut held = steps.filter(|(earlier, _)| earlier.holds(step));
        drop(held.find_map(|(_, decision)| decision.take()));
    }
}

/// Returns the store of the process of a step.
fn store_of<'p, T>(step: &Step, processes: &'p BTreeMap<&str, T>) -> &'p T {
    let own = processes.get(&*step.process);
    own.unwrap_or(&processes[""])
}

/// Replaces the outcomes of alternatives that were not asked by those of a look at them.
async fn look_at_others<S: Store>(
    store: &S,
    charges: &[Charge<'_>],
    decision: &mut Decision,
) -> Result<(), BoxError> {
    for charge in charges {
        let mut outcomes = decision.outcomes.iter();
        if !outcomes.any(|outcome| was_not_asked(outcome, charge)) {
            continue;
        }
        let looked = look_at(store, charge, decision.is_allowed()).await;
        let look = looked.map_err(Into::into)?;
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
