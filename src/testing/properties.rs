//! Checks of properties of a store that a table of expected results cannot express.
//!
//! Each check runs on a new store.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use super::Subject;
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
    quota::Quota,
    rule::RuleName,
    store::{Answer, BoxError, Charge, Store, StoreExt},
};

/// Description of a property that a store lacks.
pub type Broken = String;

const QUOTA: Quota = Quota::per_second(3).with_burst(5);

async fn take<S: Store>(store: &S, charges: &[Charge<'_>]) -> Result<Decision, Broken> {
    answer(store.take(charges)).await
}

async fn answer<F, E>(answer: Answer<F>) -> Result<Decision, Broken>
where
    F: Future<Output = Result<Decision, E>>,
    E: Into<BoxError>,
{
    answer.await.map_err(|error| format!("the store failed: {}", error.into()))
}

fn holds(what: bool, broken: impl FnOnce() -> Broken) -> Result<(), Broken> {
    if what { Ok(()) } else { Err(broken()) }
}

/// Checks that a charge is allowed after exactly `retry_after`, and denied one `tick` before.
///
/// # Errors
///
/// Fails if the wait is wrong. The error contains the wait.
pub async fn patience<S: Subject>(subject: &mut S, tick: Duration) -> Result<(), Broken> {
    for cost in 1..=QUOTA.burst() {
        let store = subject.open();
        subject.set(Duration::ZERO);
        let key = Key::from("patient");
        let quotas = [QUOTA];
        let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(cost);
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

/// Checks that a call charges all of its accounts and quotas, or none.
///
/// A cost of 0 must charge nothing. If a call names one account twice, the costs must be added.
///
/// # Errors
///
/// Fails if the wrong number of units is charged. The error contains the number.
pub async fn all_or_nothing<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = subject.open();
    subject.set(Duration::ZERO);
    let (one, two) = (Key::from("one"), Key::from("two"));
    let (small, large) = ([QUOTA, Quota::per_hour(100)], [Quota::per_hour(100)]);
    let first = Charge::new(RuleName::default(), &one, &small);
    let second = Charge::new(RuleName::default(), &two, &large);

    let left = |decision: &Decision| -> Vec<u32> {
        decision.outcomes().iter().map(Outcome::remaining).collect()
    };
    let both = take(&store, &[first.with_cost(5), second.with_cost(5)]).await?;
    holds(left(&both) == [0, 95, 95], || format!("5 of each left {:?}", left(&both)))?;
    let denied = take(&store, &[first, second]).await?;
    holds(!denied.is_allowed(), || "an exhausted quota allowed a charge".into())?;
    let looked = take(&store, &[first.with_cost(0), second.with_cost(0)]).await?;
    holds(looked.is_allowed(), || "a cost of 0 was denied".into())?;
    holds(left(&looked) == [0, 95, 95], || format!("a denial left {:?}", left(&looked)))?;
    let twice = take(&store, &[second.with_cost(3), second.with_cost(4)]).await?;
    holds(left(&twice) == [88, 88], || format!("3 and 4 of one account left {:?}", left(&twice)))?;
    let never = take(&store, &[second.with_cost(101)]).await?;
    let help = never.retry_after();
    holds(help.is_none(), || format!("a cost above the limit is to retry after {help:?}"))
}

/// Checks that a [report-only](Charge::with_report_only) charge never causes a denial.
///
/// A report-only charge must charge all of its quotas or none. In a denied decision, it must charge
/// nothing. A store without report-only charges must return an error from [`Store::supports`].
///
/// # Errors
///
/// Fails if a report-only charge causes a denial or charges a wrong number of units. The error
/// describes the failed call.
pub async fn report_only<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = subject.open();
    subject.set(Duration::ZERO);
    let names = ["one", "two", "three"];
    let (keys, rules) = (names.map(Key::from), names.map(|name| RuleName::new(name).ok()));
    let (trial, real) = ([Quota::per_hour(100), Quota::per_hour(2)], [Quota::per_hour(4)]);
    let charge = |at: usize, quotas| Charge::new(rules[at].unwrap_or_default(), &keys[at], quotas);
    let [one, two] = [0, 1].map(|at| charge(at, &trial[..]).with_report_only());
    let charges = [one, charge(2, &real), two.with_cost(2)];
    if store.supports(&charges).is_err() {
        return Ok(());
    }
    for (at, left) in [
        [99, 1, 3, 98, 0],
        [98, 0, 2, 98, 0],
        [98, 0, 1, 98, 0],
        [98, 0, 0, 98, 0],
        [98, 0, 0, 98, 0],
    ]
    .into_iter()
    .enumerate()
    {
        let decision = take(&store, &charges).await?;
        subject.undone().await;
        let (allowed, would_deny) = (decision.is_allowed(), decision.would_deny());
        holds(allowed == (at < 4), || {
            let result = if allowed { "allowed" } else { "denied" };
            format!("call {at} beside report-only charges: {result}")
        })?;
        holds(would_deny == (at > 0), || format!("would_deny of call {at} is {would_deny}"))?;
        let found: Vec<_> = decision.outcomes().iter().map(Outcome::remaining).collect();
        holds(found == left, || format!("call {at} left {found:?}, expected {left:?}"))?;
    }
    for charges in [&[one][..], &[one, two]] {
        let decision = take(&store, charges).await?;
        let (allowed, would_deny) = (decision.is_allowed(), decision.would_deny());
        holds(allowed && would_deny, || format!("{} report-only charges deny", charges.len()))?;
    }
    Ok(())
}

/// Checks that concurrent threads can take all units of a quota, and no more.
///
/// The clock does not advance during the check, and the calling thread is blocked.
///
/// # Errors
///
/// Fails if too many or too few calls are allowed. The error contains the number of allowed calls.
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
                    Answer::Now(decision) => decision,
                    Answer::Later(future) => block_on(future),
                };
                let allowed = decision.is_ok_and(|decision| decision.is_allowed());
                passed.fetch_add(allowed.into(), Relaxed);
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
        let passed = passed.into_inner();
        holds(passed == quota.burst(), || {
            format!("{passed} calls were allowed by a quota of {quota}")
        })?;
    }
    Ok(())
}

/// Checks that charges with a [`max_wait`](Charge::with_max_wait) queue when the quota is
/// exhausted.
///
/// Each queued charge must wait longer than the previous charge. A charge whose wait is above
/// `max_wait` must be denied. A store that cannot queue must return an error from
/// [`Store::supports`].
///
/// # Errors
///
/// Fails if the store accepts such charges but does not queue them. The error contains the wait.
pub async fn queueing<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = subject.open();
    subject.set(Duration::ZERO);
    let (key, quotas) = (Key::from("queued"), [QUOTA]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    // Enough for three units, whose times are rounded up.
    let longest = Duration::from_millis(1_100);
    let queueing = charge.with_max_wait(longest);
    if store.supports(&[queueing]).is_err() {
        return Ok(());
    }
    let mut last = Duration::ZERO;
    for _ in 0..QUOTA.burst() {
        let first = take(&store, &[queueing]).await?;
        holds(first.is_allowed() && first.wait().is_zero(), || {
            format!("a charge that fits waits {:?}", first.wait())
        })?;
    }
    for _ in 0..3 {
        let queued = take(&store, &[queueing]).await?;
        holds(queued.is_allowed(), || "a charge within its max_wait was denied".into())?;
        let wait = queued.wait();
        holds(wait > last && wait <= longest, || {
            format!("a charge queues for {wait:?} after one for {last:?}, of {longest:?}")
        })?;
        last = wait;
    }
    let denied = take(&store, &[queueing]).await?;
    holds(!denied.is_allowed(), || format!("a charge queues for {:?}", denied.wait()))?;
    let hasty = take(&store, &[charge]).await?;
    holds(!hasty.is_allowed(), || "a charge without a max_wait passed the queue".into())
}

/// Checks that exactly the charges that use [soft](Quota::with_soft) units are marked as overage.
///
/// A store without soft quotas must return an error from [`Store::supports`].
///
/// # Errors
///
/// Fails if a mark is missing or wrong.
pub async fn overage<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = subject.open();
    subject.set(Duration::ZERO);
    let (key, quotas) = (Key::from("soft"), [Quota::per_hour(2).with_soft(1)]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    if store.supports(&[charge]).is_err() {
        return Ok(());
    }
    for expected in [(true, false), (true, false), (true, true), (false, false)] {
        let decision = take(&store, &[charge]).await?;
        let (allowed, overage) = (decision.is_allowed(), decision.is_overage());
        holds((allowed, overage) == expected, || {
            format!("allowed {allowed} and overage {overage}, expected {expected:?}, of 2 and 1")
        })?;
    }
    Ok(())
}

/// Checks that a blocked key is denied until the block ends.
///
/// The denial must be [blocked](Decision::is_blocked) and contain the remaining time. A charge of
/// cost 0 must be allowed. The block must end on time or by [`StoreExt::unblock`], and must charge
/// no units. A store without blocks must answer [`Decision::unsupported`].
///
/// # Errors
///
/// Fails if a block has another effect. The error describes the effect.
pub async fn blocks<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    const MINUTE: Duration = Duration::from_secs(60);
    let store = subject.open();
    subject.set(Duration::ZERO);
    let (one, two) = (Key::from("one"), Key::from("two"));
    let quotas = [Quota::per_hour(100)];
    let [charge, other] = [&one, &two].map(|key| Charge::new(RuleName::default(), key, &quotas));

    let blocked = answer(store.block(&charge, MINUTE)).await?;
    if blocked.source() == Source::Unsupported {
        return Ok(());
    }
    let denied = take(&store, &[charge]).await?;
    holds(!denied.is_allowed(), || "a blocked key was allowed".into())?;
    holds(denied.is_blocked(), || "the denial of a blocked key is not blocked".into())?;
    let wait = denied.retry_after();
    holds(wait.is_some_and(|wait| !wait.is_zero() && wait <= MINUTE), || {
        format!("a key that is blocked for {MINUTE:?} is to retry after {wait:?}")
    })?;
    let looked = take(&store, &[charge.with_cost(0)]).await?;
    holds(looked.is_allowed(), || "a cost of 0 of a blocked key was denied".into())?;
    let free = take(&store, &[other]).await?;
    holds(free.is_allowed() && !free.is_blocked(), || "a block denies another key".into())?;

    answer(store.unblock(&charge)).await?;
    let left = take(&store, &[charge.with_cost(0)]).await?.remaining();
    holds(left == Some(100), || format!("a block of a full account left {left:?}"))?;
    let free = take(&store, &[charge]).await?;
    holds(free.is_allowed(), || "an unblocked key was denied".into())?;

    answer(store.block(&charge, MINUTE)).await?;
    subject.set(MINUTE);
    let free = take(&store, &[charge]).await?;
    holds(free.is_allowed(), || format!("a key was denied after its block of {MINUTE:?}"))
}

/// Checks that [`Store::undo`] returns a charge or a part of it, and never more.
///
/// A subject that does not [undo](Subject::undoes) charges passes this check.
///
/// # Errors
///
/// Fails if an undo returns the wrong number of units. The error contains the units left.
pub async fn undo<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    if !subject.undoes() {
        return Ok(());
    }
    let store = subject.open();
    subject.set(Duration::ZERO);
    let (key, quotas) = (Key::from("undone"), [Quota::per_hour(100)]);
    let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(10);
    for (units, expected) in [(Some(3), 93), (Some(50), 93), (None, 93), (Some(0), 83)] {
        let taken = take(&store, &[charge]).await?;
        store.undo(&[charge], &taken, units);
        subject.undone().await;
        let left = take(&store, &[charge.with_cost(0)]).await?.remaining();
        holds(left == Some(expected), || {
            format!("an undo of {units:?} of 10 left {left:?}, expected {expected}")
        })?;
    }
    let denied = take(&store, &[charge.with_cost(84)]).await?;
    store.undo(&[charge], &denied, None);
    subject.undone().await;
    let left = take(&store, &[charge.with_cost(0)]).await?.remaining();
    holds(left == Some(83), || format!("an undo of a denial left {left:?}, expected 83"))?;

    let taken = take(&store, &[charge]).await?;
    subject.set(Duration::from_secs(3_600));
    store.undo(&[charge], &taken, None);
    subject.undone().await;
    let left = take(&store, &[charge.with_cost(0)]).await?.remaining();
    holds(left.is_some_and(|left| left <= 100), || format!("a late undo left {left:?} of 100"))
}
