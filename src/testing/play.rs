//! Runs of the cases of a scenario table.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use tower::BoxError;

use super::{
    Subject, peek,
    scenario::{Case, CaseRule, QuotaRow, Row, Step, StepOp, quotas},
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
