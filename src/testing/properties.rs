//! Promises of a store that no table can show. Each runs on a fresh store and reports a violation.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use super::Subject;
use crate::{
    decision::Decision,
    key::Key,
    name::RuleName,
    quota::Quota,
    store::{Charge, Store},
};

/// A description of the violated promise.
pub type Broken = String;

const QUOTA: Quota = Quota::per_second(3).burst(5);

async fn take<S: Store>(store: &S, charges: &[Charge<'_>]) -> Result<Decision, Broken> {
    store.take(charges).await.map_err(|error| format!("the store failed: {}", error.into()))
}

fn holds(what: bool, broken: impl FnOnce() -> Broken) -> Result<(), Broken> {
    if what { Ok(()) } else { Err(broken()) }
}

/// Checks that a charge is allowed after exactly `retry_after`, and denied one `tick` before.
///
/// # Errors
///
/// Fails if a wait is too long or too short; the error names it.
pub async fn patience<S: Subject>(subject: &mut S, tick: Duration) -> Result<(), Broken> {
    for cost in 1..=QUOTA.limit() {
        let store = subject.open();
        subject.set(Duration::ZERO);
        let key = Key::from("patient");
        let quotas = [QUOTA];
        let charge = Charge::new(RuleName::default(), &key, &quotas).cost(cost);
        while take(&store, &[charge]).await?.is_allowed() {}
        let Some(wait) = take(&store, &[charge]).await?.retry_after() else {
            return Err(format!("cost {cost} has no retry time under a quota of {QUOTA}"));
        };
        subject.set(wait.saturating_sub(tick));
        let early = take(&store, &[charge]).await?;
        holds(!early.is_allowed(), || format!("cost {cost} was allowed before {wait:?}"))?;
        subject.set(wait);
        let late = take(&store, &[charge]).await?;
        holds(late.is_allowed(), || format!("cost {cost} was denied after {wait:?}"))?;
    }
    Ok(())
}

/// Checks that a call over several accounts and quotas charges all or none, that a cost of 0
/// charges nothing, and that the costs of one account named twice add up.
///
/// # Errors
///
/// Fails if the wrong units were charged; the error names them.
pub async fn all_or_nothing<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = subject.open();
    subject.set(Duration::ZERO);
    let (one, two) = (Key::from("one"), Key::from("two"));
    let (small, large) = ([QUOTA, Quota::per_hour(100)], [Quota::per_hour(100)]);
    let first = Charge::new(RuleName::default(), &one, &small);
    let second = Charge::new(RuleName::default(), &two, &large);

    let left = |decision: &Decision| -> Vec<u32> {
        decision.outcomes().iter().map(crate::Outcome::remaining).collect()
    };
    let both = take(&store, &[first.cost(5), second.cost(5)]).await?;
    holds(left(&both) == [0, 95, 95], || format!("5 of each left {:?}", left(&both)))?;
    let refused = take(&store, &[first, second]).await?;
    holds(!refused.is_allowed(), || "an exhausted quota allowed a charge".into())?;
    let looked = take(&store, &[first.cost(0), second.cost(0)]).await?;
    holds(looked.is_allowed(), || "a cost of 0 was denied".into())?;
    holds(left(&looked) == [0, 95, 95], || format!("a denial left {:?}", left(&looked)))?;
    let twice = take(&store, &[second.cost(3), second.cost(4)]).await?;
    holds(left(&twice) == [88, 88], || format!("3 and 4 of one account left {:?}", left(&twice)))?;
    let never = take(&store, &[second.cost(101)]).await?;
    let help = never.retry_after();
    holds(help.is_none(), || format!("a cost above the limit is to retry after {help:?}"))
}

/// Checks that concurrent threads take exactly the units that are left.
///
/// Runs on a stopped clock, and blocks the calling thread.
///
/// # Errors
///
/// Fails if too many or too few calls are allowed; the error names their number.
pub fn no_over_admission<S>(
    subject: &mut S,
    block_on: impl Fn(<S::Store as Store>::Future) -> Result<Decision, <S::Store as Store>::Error>
    + Send
    + Sync,
) -> Result<(), Broken>
where
    S: Subject<Store: Send + Sync>,
{
    const THREADS: usize = 8;
    const TAKES: u32 = 200;
    let quota = Quota::per_day(500);
    for round in 0..20_u32 {
        let store = subject.open();
        subject.set(Duration::ZERO);
        let (passed, start) = (AtomicU32::new(0), Arc::new(Barrier::new(THREADS)));
        let work = || {
            let (key, quotas) = (Key::from(round), [quota]);
            start.wait();
            for _ in 0..TAKES {
                let charge = Charge::new(RuleName::default(), &key, &quotas);
                let decision = match store.take(&[charge]) {
                    crate::Answer::Now(decision) => decision,
                    crate::Answer::Later(future) => block_on(future),
                };
                let allowed = decision.is_ok_and(|decision| decision.is_allowed());
                passed.fetch_add(allowed.into(), Relaxed);
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
        let passed = passed.into_inner();
        holds(passed == quota.limit(), || {
            format!("{passed} calls were allowed by a quota of {quota}")
        })?;
    }
    Ok(())
}
