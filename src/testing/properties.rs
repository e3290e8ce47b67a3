//! Checks of properties of a store that a table of expected results cannot express.
//!
//! Each check runs on a new store. An error contains the measured and the expected value.

use std::{
    future::poll_fn,
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::timeout;
use tower::BoxError;

use super::Subject;
use crate::{
    decision::{Decision, Outcome, Source},
    key::Key,
    quota::Quota,
    rule::RuleName,
    store::{Answer, Charge, Context, Op, Store, StoreExt, Waiter},
};

const QUOTA: Quota = Quota::per_second(3).with_burst(5);
const HUNDRED: [Quota; 1] = [Quota::per_hour(100)];

/// Opens a store at the Unix epoch.
fn open<S: Subject>(subject: &mut S) -> S::Store {
    let store = subject.open();
    subject.set(Duration::ZERO);
    store
}

fn charge<'a>(key: &'a Key, quotas: &'a [Quota]) -> Charge<'a> {
    Charge::new(RuleName::default(), key, quotas)
}

/// Returns the decision as text: the result, and the units left under each quota.
fn text(decision: &Decision) -> String {
    let mut text = if decision.is_allowed() {
        "allowed, ".to_owned()
    } else {
        "denied, ".to_owned()
    };
    for (is, word) in [
        (decision.is_blocked(), "blocked, "),
        (decision.is_overage(), "overage, "),
        (decision.would_deny(), "reported, "),
        (!decision.wait().is_zero(), "queued, "),
    ] {
        text += if is { word } else { "" };
    }
    let left: Vec<_> = decision.outcomes().iter().map(Outcome::remaining).collect();
    text + &format!("left {left:?}")
}

/// Charges, and checks that the text of the decision starts with `expected`.
async fn take<S: Store>(
    store: &S,
    charges: &[Charge<'_>],
    expected: &str,
) -> Result<Decision, String> {
    let decision = answer(store.take(charges).await)?;
    let got = text(&decision);
    if got.starts_with(expected) {
        return Ok(decision);
    }
    let costs: Vec<_> = charges.iter().map(|charge| charge.cost).collect();
    Err(format!("costs of {costs:?} are {got}, expected {expected}"))
}

/// Charges as [`take`] does, where only the text of the decision matters.
async fn check<S: Store>(store: &S, charges: &[Charge<'_>], expected: &str) -> Result<(), String> {
    take(store, charges, expected).await.map(drop)
}

fn answer<E: Into<BoxError>>(answer: Result<Decision, E>) -> Result<Decision, String> {
    answer.map_err(|error| format!("the store failed: {}", error.into()))
}

/// Checks that a charge is allowed after exactly `retry_after`, and denied one `tick` before.
///
/// # Errors
///
/// Fails if the wait is wrong.
pub async fn patience<S: Subject>(subject: &mut S, tick: Duration) -> Result<(), String> {
    for cost in 1..=QUOTA.limit() {
        let store = open(subject);
        let key = Key::from("patient");
        let charges = [charge(&key, &[QUOTA]).with_cost(cost)];
        for _ in 0..QUOTA.limit() / cost {
            check(&store, &charges, "").await?;
        }
        let wait = take(&store, &charges, "denied").await?.retry_after();
        let wait = wait.ok_or_else(|| format!("cost {cost} has no retry time under {QUOTA}"))?;
        for (now, expected) in [(wait.saturating_sub(tick), "denied"), (wait, "allowed")] {
            subject.set(now);
            check(&store, &charges, expected)
                .await
                .map_err(|error| format!("at {now:?}, with a wait of {wait:?}, {error}"))?;
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
pub async fn all_or_nothing<S: Subject>(subject: &mut S) -> Result<(), String> {
    let store = open(subject);
    let one = Key::from("one");
    let two = Key::from("two");
    let small = [QUOTA, HUNDRED[0]];
    let first = charge(&one, &small);
    let second = charge(&two, &HUNDRED);
    for (charges, expected) in [
        (
            [first.with_cost(5), second.with_cost(5)],
            "allowed, left [0, 95, 95]",
        ),
        ([first, second], "denied, left [0, 95, 95]"),
        (
            [first.with_cost(0), second.with_cost(0)],
            "allowed, left [0, 95, 95]",
        ),
        (
            [second.with_cost(3), second.with_cost(4)],
            "allowed, left [88, 88]",
        ),
    ] {
        check(&store, &charges, expected).await?;
    }
    let never = take(&store, &[second.with_cost(101)], "denied")
        .await?
        .retry_after();
    never.map_or(Ok(()), |wait| {
        Err(format!("a cost above the limit has a wait of {wait:?}"))
    })
}

/// Checks that a [report-only](Charge::with_report_only) charge never causes a denial.
///
/// A report-only charge must charge all of its quotas or none. In a denied decision, it must charge
/// nothing. A store without report-only charges must return an error from [`Store::supports`].
///
/// # Errors
///
/// Fails if a report-only charge causes a denial or charges a wrong number of units.
pub async fn report_only<S: Subject>(subject: &mut S) -> Result<(), String> {
    let store = open(subject);
    let key = Key::from("reported");
    let trial = [HUNDRED[0], Quota::per_hour(2)];
    let real = [Quota::per_hour(4)];
    let rules = ["one", "two", "three"].map(|name| RuleName::new(name).unwrap_or_default());
    let one = Charge::new(rules[0], &key, &trial).with_report_only(true);
    let two = Charge::new(rules[1], &key, &trial)
        .with_report_only(true)
        .with_cost(2);
    let charges = [one, Charge::new(rules[2], &key, &real), two];
    if store.supports(&charges).is_err() {
        return Ok(());
    }
    for expected in [
        "allowed, left [99, 1, 3, 98, 0]",
        "allowed, reported, left [98, 0, 2, 98, 0]",
        "allowed, reported, left [98, 0, 1, 98, 0]",
        "allowed, reported, left [98, 0, 0, 98, 0]",
        "denied, reported, left [98, 0, 0, 98, 0]",
    ] {
        check(&store, &charges, expected).await?;
        subject.finish(&store).await;
    }
    check(&store, &[one], "allowed, reported, left [98, 0]").await?;
    let both = [one, two];
    check(&store, &both, "allowed, reported, left [98, 0, 98, 0]").await
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
    + Sync,
) -> Result<(), String>
where
    S: Subject<Store: Sync>,
{
    for round in 0..20_u32 {
        let store = open(subject);
        let allowed = allowed_in_threads(&Key::from(round), |charge| {
            match store.take(&[charge]) {
                Answer::Now(decision) => decision,
                Answer::Later(future) => block_on(future),
            }
            .is_ok_and(|decision| decision.is_allowed())
        });
        if allowed != FIVE_HUNDRED.limit() {
            return Err(format!(
                "{allowed} calls are allowed, expected {}",
                FIVE_HUNDRED.limit()
            ));
        }
    }
    Ok(())
}

const FIVE_HUNDRED: Quota = Quota::per_day(500);

/// Charges a key 1,600 times in several threads. Returns the number of allowed charges.
fn allowed_in_threads(key: &Key, take: impl Fn(Charge<'_>) -> bool + Sync) -> u32 {
    const THREADS: usize = 8;
    const TAKES: u32 = 200;
    let allowed = AtomicU32::new(0);
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..TAKES {
                    let is_allowed = take(charge(key, &[FIVE_HUNDRED]));
                    allowed.fetch_add(is_allowed.into(), Relaxed);
                }
            });
        }
    });
    allowed.into_inner()
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
pub async fn queueing<S: Subject>(subject: &mut S) -> Result<(), String> {
    let store = open(subject);
    let key = Key::from("queued");
    // Enough for three units, whose times are rounded up.
    let longest = Duration::from_millis(1_100);
    let plain = charge(&key, &[QUOTA]);
    let queueing = plain.with_max_wait(longest);
    if store.supports(&[queueing]).is_err() {
        return Ok(());
    }
    for left in (0..QUOTA.limit()).rev() {
        check(&store, &[queueing], &format!("allowed, left [{left}]")).await?;
    }
    let mut last = Duration::ZERO;
    for _ in 0..3 {
        let wait = take(&store, &[queueing], "allowed, queued").await?.wait();
        if wait <= last || wait > longest {
            return Err(format!("a charge waits {wait:?} after one of {last:?}"));
        }
        last = wait;
    }
    check(&store, &[queueing], "denied").await?;
    check(&store, &[plain], "denied").await
}

/// Checks that exactly the charges that use [soft](Quota::with_soft) units are marked as overage.
///
/// A store without soft quotas must return an error from [`Store::supports`].
///
/// # Errors
///
/// Fails if a mark is missing or wrong.
pub async fn overage<S: Subject>(subject: &mut S) -> Result<(), String> {
    let store = open(subject);
    let key = Key::from("soft");
    let quotas = [Quota::per_hour(2).with_soft(1)];
    let charges = [charge(&key, &quotas)];
    if store.supports(&charges).is_err() {
        return Ok(());
    }
    for expected in [
        "allowed, left",
        "allowed, left",
        "allowed, overage",
        "denied, left",
    ] {
        check(&store, &charges, expected).await?;
    }
    Ok(())
}

/// Checks that a blocked key is denied until the block ends.
///
/// The denial must be [blocked](Decision::is_blocked) and contain the remaining time. A charge of
/// cost 0 must be allowed, and a charge without quotas denied. The block must end on time or by
/// [`StoreExt::unblock`], and must charge no units. A store without blocks must answer with the source
/// [`Source::Unsupported`].
///
/// # Errors
///
/// Fails if a block has another effect.
pub async fn blocks<S: Subject>(subject: &mut S) -> Result<(), String> {
    const MINUTE: Duration = Duration::from_secs(60);
    let store = open(subject);
    let one = Key::from("one");
    let two = Key::from("two");
    let one = charge(&one, &HUNDRED);
    let two = charge(&two, &HUNDRED);
    if answer(store.block(&one, MINUTE).await)?.source() == Source::Unsupported {
        return Ok(());
    }
    let wait = take(&store, &[one], "denied, blocked").await?.retry_after();
    if wait.is_none_or(|wait| wait.is_zero() || wait > MINUTE) {
        return Err(format!(
            "a key that is blocked for {MINUTE:?} has a wait of {wait:?}"
        ));
    }
    check(&store, &[one.with_cost(0)], "allowed").await?;
    let unlimited = Charge::new(one.rule, one.key, &[]);
    check(&store, &[unlimited], "denied, blocked").await?;
    check(&store, &[unlimited.with_cost(0)], "allowed").await?;
    check(&store, &[two], "allowed").await?;
    drop(answer(store.unblock(&one).await)?);
    check(&store, &[one], "allowed, left [99]").await?;
    drop(answer(store.block(&one, MINUTE).await)?);
    subject.set(MINUTE);
    check(&store, &[one], "allowed").await
}

/// Checks that [`Store::undo`] returns a charge or a part of it, and never more.
///
/// A subject that does not [undo](Subject::undoes) charges passes this check.
///
/// # Errors
///
/// Fails if an undo returns the wrong number of units.
pub async fn undo<S: Subject>(subject: &mut S) -> Result<(), String> {
    if !subject.undoes() {
        return Ok(());
    }
    let store = open(subject);
    let key = Key::from("undone");
    let charge = charge(&key, &HUNDRED);
    for (cost, units, left) in [
        (10, Some(3), 93),
        (10, Some(50), 93),
        (10, None, 93),
        (10, Some(0), 83),
        (84, None, 83),
    ] {
        let charges = [charge.with_cost(cost)];
        let taken = take(&store, &charges, "").await?;
        store.undo(&charges, &taken, units);
        subject.finish(&store).await;
        let expected = format!("allowed, left [{left}]");
        check(&store, &[charge.with_cost(0)], &expected)
            .await
            .map_err(|error| format!("after an undo of {units:?} of {cost}, {error}"))?;
    }
    undo_refilled(subject, &store, charge).await
}

/// Checks that an undo does not return units that were refilled.
async fn undo_refilled<S: Subject>(
    subject: &mut S,
    store: &S::Store,
    charge: Charge<'_>,
) -> Result<(), String> {
    let charges = [charge.with_cost(10)];
    let taken = take(store, &charges, "allowed").await?;
    subject.set(Duration::from_secs(3_600));
    store.undo(&charges, &taken, None);
    subject.finish(store).await;
    let look = take(store, &[charge.with_cost(0)], "allowed").await?;
    // Units beyond the limit are not reported as left.
    let left = look.remaining().unwrap_or(0);
    check(store, &[charge.with_cost(left)], "allowed, left [0]").await?;
    check(store, &[charge], "denied").await
}

/// The time in which a store calls a request, if that takes a server.
const WOKEN_WITHIN: Duration = Duration::from_secs(10);

/// Charges as [`take`] does, for a request that may wait.
async fn take_or_wait<S: Store>(
    store: &S,
    charge: Charge<'_>,
    waiter: &Waiter,
    expected: &str,
) -> Result<Decision, String> {
    let charges = [charge];
    let context = Context::default().with_waiter(waiter);
    let decision = answer(store.call(Op::Take(&charges), &context).await)?;
    if decision.is_allowed() == (expected == "allowed") {
        return Ok(decision);
    }
    Err(format!(
        "a request that may wait is {}, expected {expected}",
        text(&decision)
    ))
}

/// Waits until the store has woken the request.
async fn woken(waiter: &Waiter, who: &str) -> Result<(), String> {
    let wake = poll_fn(|cx| waiter.poll_woken(cx));
    let woken = timeout(WOKEN_WITHIN, wake).await;
    woken.map_err(|_| format!("{who} was not woken within {WOKEN_WITHIN:?}"))
}

/// Checks that requests which wait for a slot are woken: the first when the slot is free, and the next
/// if the first goes away.
///
/// A store without slots must return an error from [`Store::supports`], and passes this check. It needs a
/// tokio runtime with a timer.
///
/// # Errors
///
/// Fails if a request is not woken within ten seconds, or is denied after its wake.
pub async fn waiting<S: Subject>(subject: &mut S) -> Result<(), String> {
    let store = open(subject);
    let key = Key::from("waiting");
    let slots = [Quota::concurrent(1)];
    let charge = charge(&key, &slots).with_max_wait(Duration::from_secs(60));
    if store.supports(&[charge]).is_err() {
        return Ok(());
    }
    let first = Waiter::new();
    let second = Waiter::new();
    let held = take(&store, &[charge], "allowed").await?;
    for waiter in [&first, &second] {
        drop(take_or_wait(&store, charge, waiter, "denied").await?);
    }
    drop(held);
    subject.finish(&store).await;
    woken(&first, "the first request").await?;
    // It leaves without asking again.
    drop(first);
    subject.finish(&store).await;
    woken(&second, "the request behind one that left").await?;
    drop(take_or_wait(&store, charge, &second, "allowed").await?);
    Ok(())
}
