//! Dry runs of a decision.
//!
//! A store charges nothing if it denies a call. For a dry run, each charge therefore gets an
//! additional quota that always denies. The outcomes of the other quotas show the real decision.
//!
//! Report-only charges are sent in a separate call. Their additional quotas would otherwise hide
//! the outcomes of other rules.

use smallvec::SmallVec;

use crate::{
    decision::{Decision, Outcome, Source},
    quota::{Algorithm, Quota},
    store::{Charge, OwnedCharges, Store, StoreExt, Unsupported},
};

/// The maximum number of quotas per rule in a dry run.
const MOST: usize = 254;

/// Returns the decision that [`StoreExt::take`] would make.
pub(super) async fn look<S: Store>(
    store: &S,
    charges: &OwnedCharges,
) -> Result<Decision, S::Error> {
    let denied = ask(store, charges, false).await?;
    let decides = !matches!(denied.source(), Source::FailedOpen | Source::FailedClosed);
    if !decides || denied.is_blocked() {
        return Ok(denied);
    }
    // Otherwise a report-only rule's blocked quota would hide the outcomes of other rules.
    let reports = charges.with(|charges| charges.iter().any(Charge::is_report_only));
    let shadow = if reports { Some(ask(store, charges, true).await?) } else { None };
    Ok(charges.with(|charges| decision(charges, &denied, shadow.as_ref())))
}

/// Checks that the store supports a dry run of these charges.
pub(crate) fn check<S: Store>(store: &S, charges: &OwnedCharges) -> Result<(), Unsupported> {
    refusing(charges, false, |charges| store.supports(charges))?;
    refusing(charges, true, |charges| store.supports(charges))
}

/// Calls the store with either the report-only charges or all other charges, and charges nothing.
async fn ask<S: Store>(
    store: &S,
    charges: &OwnedCharges,
    report_only: bool,
) -> Result<Decision, S::Error> {
    refusing(charges, report_only, |charges| store.take(charges)).await
}

/// Calls `read` with either the report-only charges or all other charges.
///
/// Each of them has an additional quota that always denies.
fn refusing<T>(
    charges: &OwnedCharges,
    report_only: bool,
    read: impl FnOnce(&[Charge<'_>]) -> T,
) -> T {
    charges.with(|charges| {
        let of_them = |charge: &&Charge<'_>| charge.is_report_only() == report_only;
        let asked: Vec<_> = charges.iter().filter(of_them).collect();
        let blocked: Vec<_> = asked.iter().map(|charge| with_blocked(charge)).collect();
        let mut denied = SmallVec::<[Charge<'_>; 4]>::new();
        for (charge, quotas) in asked.iter().zip(&blocked) {
            let never = Charge::new(charge.rule(), charge.key(), quotas)
                .with_cost(charge.cost())
                .with_headroom(charge.headroom());
            match charge.quota_index() {
                None => denied.push(never),
                Some(place) => denied.extend([
                    never.with_quota_index(place),
                    never.with_quota_index(quotas.len() - 1),
                ]),
            }
        }
        read(&denied)
    })
}

fn with_blocked(charge: &Charge<'_>) -> SmallVec<[Quota; 4]> {
    let quotas = charge.quotas().iter().take(MOST).copied();
    quotas.chain([Quota::blocked()]).collect()
}

/// Creates the decision from the outcomes of the dry run.
fn decision(charges: &[Charge<'_>], denied: &Decision, shadow: Option<&Decision>) -> Decision {
    let (mut overage, mut wait, mut allowed) = (false, 0, true);
    let mut outcomes = SmallVec::<[Outcome; 4]>::new();
    for charge in charges {
        let told = if charge.is_report_only() { shadow } else { Some(denied) };
        for (place, quota) in charge.charged_quotas().take(MOST) {
            let of_it = |it: &&Outcome| it.rule() == charge.rule() && it.quota_index() == place;
            let Some(outcome) = told.and_then(|told| told.outcomes().iter().find(of_it)) else {
                continue;
            };
            let outcome = outcome.with_report_only(charge.is_report_only());
            if !charge.is_report_only() {
                let queues = place_in(quota, &outcome, charge);
                allowed &= !outcome.is_denied() || queues.is_some();
                wait = wait.max(queues.unwrap_or(0));
                overage |=
                    !outcome.is_denied() && charge.demand().need() > outcome.remaining().into();
            }
            outcomes.push(outcome);
        }
    }
    let mut decision = Decision::new(allowed, denied.instant()).with_source(denied.source());
    if allowed {
        decision.set_allowed(overage, wait);
    }
    for mut outcome in outcomes {
        if allowed && !outcome.is_report_only() {
            outcome.set_retry_ns(0);
        }
        decision.push(outcome);
    }
    decision
}

/// Returns the time in the queue, or `None` if the charge cannot queue.
fn place_in(quota: &Quota, outcome: &Outcome, charge: &Charge<'_>) -> Option<u64> {
    let wait = outcome.retry_after().filter(|wait| *wait <= charge.max_wait())?;
    let ends = outcome.reset_after();
    let queues = match quota.algorithm() {
        Algorithm::Gcra => true,
        Algorithm::FixedWindow { paced: true, .. } => ends.is_zero() || wait < ends,
        _ => false,
    };
    let wait = u64::try_from(wait.as_nanos()).ok()?;
    (queues && wait > 0 && quota.soft() == 0).then_some(wait)
}
