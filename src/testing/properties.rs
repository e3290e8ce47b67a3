//! Checks of properties of a store that a table of expected results cannot express.
//!
//! Each check runs on a new store. An error contains the measured and the expected value.

use std::{
    fmt::{Debug, Display},
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

/// Opens a store at the Unix epoch.
fn open<S: Subject>(subject: &mut S) -> S::Store {
    let store = subject.open();
    subject.set(Duration::ZERO);
    store
}

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

/// Returns the units left under each quota.
fn left(decision: &Decision) -> Vec<u32> {
    decision.outcomes().iter().map(Outcome::remaining).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "the values of a check are temporary")]
fn expect<T: PartialEq + Debug>(what: impl Display, got: T, expected: T) -> Result<(), Broken> {
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?}, expected {expected:?}")) }
}

/// Checks that a charge is allowed after exactly `retry_after`, and denied one `tick` before.
///
/// # Errors
///
/// Fails if the wait is wrong.
pub async fn patience<S: Subject>(subject: &mut S, tick: Duration) -> Result<(), Broken> {
    for cost in 1..=QUOTA.burst() {
        let (store, key, quotas) = (open(subject), Key::from("patient"), [QUOTA]);
        let charge = Charge::new(RuleName::default(), &key, &quotas).with_cost(cost);
        while take(&store, &[charge]).await?.is_allowed() {}
        let wait = take(&store, &[charge]).await?.retry_after();
        let wait = wait.ok_or_else(|| format!("cost {cost} has no retry time under {QUOTA}"))?;
        for (now, allowed) in [(wait.saturating_sub(tick), false), (wait, true)] {
            subject.set(now);
            let got = take(&store, &[charge]).await?.is_allowed();
            let what = format_args!("cost {cost} is allowed at {now:?}, with a wait of {wait:?}");
            expect(what, got, allowed)?;
        }
    }
    Ok(())
}

/// Checks that a call charges all of its accounts and quotas, or none.
///
/// A cost of 0 must charge nothing. If a call names one account twice, the costs must be added.
///
/// # Errors
///
/// Fails if the wrong number of units is charged.
pub async fn all_or_nothing<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = open(subject);
    let (one, two) = (Key::from("one"), Key::from("two"));
    let (small, large) = ([QUOTA, Quota::per_hour(100)], [Quota::per_hour(100)]);
    let [first, second] = [(&one, &small[..]), (&two, &large[..])]
        .map(|(key, quotas)| Charge::new(RuleName::default(), key, quotas));
    for (charges, allowed, units) in [
        ([first.with_cost(5), second.with_cost(5)], true, &[0, 95, 95][..]),
        ([first, second], false, &[0, 95, 95]),
        ([first.with_cost(0), second.with_cost(0)], true, &[0, 95, 95]),
        ([second.with_cost(3), second.with_cost(4)], true, &[88, 88]),
    ] {
        let decision = take(&store, &charges).await?;
        let costs = charges.map(|charge| charge.cost());
        let what = format_args!("costs of {costs:?} are allowed, and leave");
        expect(what, (decision.is_allowed(), left(&decision)), (allowed, units.to_vec()))?;
    }
    let never = take(&store, &[second.with_cost(101)]).await?;
    expect("the wait of a cost above the limit", never.retry_after(), None)
}

/// Checks that a [report-only](Charge::with_report_only) charge never causes a denial.
///
/// A report-only charge must charge all of its quotas or none. In a denied decision, it must charge
/// nothing. A store without report-only charges must return an error from [`Store::supports`].
///
/// # Errors
///
/// Fails if a report-only charge causes a denial or charges a wrong number of units.
pub async fn report_only<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let store = open(subject);
    let names = ["one", "two", "three"];
    let (keys, rules) = (names.map(Key::from), names.map(|name| RuleName::new(name).ok()));
    let (trial, real) = ([Quota::per_hour(100), Quota::per_hour(2)], [Quota::per_hour(4)]);
    let charge = |at: usize, quotas| Charge::new(rules[at].unwrap_or_default(), &keys[at], quotas);
    let [one, two] = [0, 1].map(|at| charge(at, &trial[..]).with_report_only());
    let charges = [one, charge(2, &real), two.with_cost(2)];
    if store.supports(&charges).is_err() {
        return Ok(());
    }
    for (at, units) in
        [[99, 1, 3], [98, 0, 2], [98, 0, 1], [98, 0, 0], [98, 0, 0]].into_iter().enumerate()
    {
        let decision = take(&store, &charges).await?;
        subject.undone().await;
        let got = (decision.is_allowed(), decision.would_deny(), left(&decision));
        let units = [&units[..], &[98, 0]].concat();
        let what =
            format_args!("call {at} beside report-only charges is allowed, reported, leaves");
        expect(what, got, (at < 4, at > 0, units))?;
    }
    for charges in [&[one][..], &[one, two]] {
        let decision = take(&store, charges).await?;
        let got = (decision.is_allowed(), decision.would_deny());
        expect("report-only charges alone are allowed and reported", got, (true, true))?;
    }
    Ok(())
}

/// Checks that concurrent threads can take all units of a quota, and no more.
///
/// The clock does not advance during the check, and the calling thread is blocked.
///
/// # Errors
///
/// Fails if too many or too few calls are allowed.
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
        let store = open(subject);
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
        expect(format_args!("calls allowed by {quota}"), passed.into_inner(), quota.burst())?;
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
/// Fails if the store accepts such charges but does not queue them.
pub async fn queueing<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let (store, key, quotas) = (open(subject), Key::from("queued"), [QUOTA]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    // Enough for three units, whose times are rounded up.
    let longest = Duration::from_millis(1_100);
    let queueing = charge.with_max_wait(longest);
    if store.supports(&[queueing]).is_err() {
        return Ok(());
    }
    let mut last = Duration::ZERO;
    for at in 0..QUOTA.burst() + 3 {
        let decision = take(&store, &[queueing]).await?;
        let (allowed, wait) = (decision.is_allowed(), decision.wait());
        let in_order = if at < QUOTA.burst() { wait.is_zero() } else { wait > last };
        let what = format_args!("charge {at} is allowed in its turn, after {wait:?}");
        expect(what, (allowed, in_order && wait <= longest), (true, true))?;
        last = wait;
    }
    for charge in [queueing, charge] {
        let denied = take(&store, &[charge]).await?;
        let what = format_args!("a charge with a max_wait of {:?} is allowed", charge.max_wait());
        expect(what, denied.is_allowed(), false)?;
    }
    Ok(())
}

/// Checks that exactly the charges that use [soft](Quota::with_soft) units are marked as overage.
///
/// A store without soft quotas must return an error from [`Store::supports`].
///
/// # Errors
///
/// Fails if a mark is missing or wrong.
pub async fn overage<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    let (store, key) = (open(subject), Key::from("soft"));
    let quotas = [Quota::per_hour(2).with_soft(1)];
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    if store.supports(&[charge]).is_err() {
        return Ok(());
    }
    for expected in [(true, false), (true, false), (true, true), (false, false)] {
        let decision = take(&store, &[charge]).await?;
        let got = (decision.is_allowed(), decision.is_overage());
        expect("a charge of two units and a soft one is allowed, overage", got, expected)?;
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
/// Fails if a block has another effect.
pub async fn blocks<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    const MINUTE: Duration = Duration::from_secs(60);
    let store = open(subject);
    let (one, two) = (Key::from("one"), Key::from("two"));
    let quotas = [Quota::per_hour(100)];
    let [charge, other] = [&one, &two].map(|key| Charge::new(RuleName::default(), key, &quotas));
    if answer(store.block(&charge, MINUTE)).await?.source() == Source::Unsupported {
        return Ok(());
    }
    for (what, charge, blocked) in [
        ("a charge to a blocked key is allowed, blocked", charge, true),
        ("a cost of 0 of a blocked key is allowed, blocked", charge.with_cost(0), false),
        ("a charge to another key is allowed, blocked", other, false),
    ] {
        let decision = take(&store, &[charge]).await?;
        expect(what, (decision.is_allowed(), decision.is_blocked()), (!blocked, blocked))?;
        let wait = decision.retry_after();
        let fits = wait.is_some_and(|wait| wait <= MINUTE && wait.is_zero() != blocked);
        expect(format_args!("the wait of {wait:?} fits a block of {MINUTE:?}"), fits, true)?;
    }
    answer(store.unblock(&charge)).await?;
    let account = take(&store, &[charge.with_cost(0)]).await?;
    expect("a block of a full account leaves", left(&account), vec![100])?;
    let free = take(&store, &[charge]).await?.is_allowed();
    expect("an unblocked key is allowed", free, true)?;
    answer(store.block(&charge, MINUTE)).await?;
    subject.set(MINUTE);
    let free = take(&store, &[charge]).await?.is_allowed();
    expect("a key is allowed after its block", free, true)
}

/// Checks that [`Store::undo`] returns a charge or a part of it, and never more.
///
/// A subject that does not [undo](Subject::undoes) charges passes this check.
///
/// # Errors
///
/// Fails if an undo returns the wrong number of units.
pub async fn undo<S: Subject>(subject: &mut S) -> Result<(), Broken> {
    if !subject.undoes() {
        return Ok(());
    }
    let store = open(subject);
    let (key, quotas) = (Key::from("undone"), [Quota::per_hour(100)]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    for (cost, units, expected) in
        [(10, Some(3), 93), (10, Some(50), 93), (10, None, 93), (10, Some(0), 83), (84, None, 83)]
    {
        let charge = charge.with_cost(cost);
        let taken = take(&store, &[charge]).await?;
        store.undo(&[charge], &taken, units);
        subject.undone().await;
        let account = take(&store, &[charge.with_cost(0)]).await?;
        expect(
            format_args!("an undo of {units:?} of {cost} leaves"),
            left(&account),
            vec![expected],
        )?;
    }
    let charge = charge.with_cost(10);
    let taken = take(&store, &[charge]).await?;
    subject.set(Duration::from_secs(3_600));
    store.undo(&[charge], &taken, None);
    subject.undone().await;
    let most = take(&store, &[charge.with_cost(0)]).await?.remaining().is_some_and(|n| n <= 100);
    expect("a late undo leaves at most the limit", most, true)
}
