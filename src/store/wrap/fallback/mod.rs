//! Decides by a store in this process while the shared one fails.

mod journal;
mod mirror;
mod recovery;
mod share;

use std::{
    convert::Infallible,
    fmt,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use self::{journal::Journal, mirror::Stripes, share::shares};
use super::{
    health::Health,
    setting::{SettingError, literal},
};
use crate::{
    decision::{Decision, Source},
    store::{Answer, BoxFuture, Charge, Condition, Never, OwnedCharges, Store, Unsupported},
};

/// The future of a local store, which has none.
type AtOnce = Never<Result<Decision, Infallible>>;

/// Accounts in the journal unless set: 32 MB when it is full, 50 MB where all keys are long.
const ACCOUNTS: usize = 65_536;

/// A store that decides by a local one whatever the inner one could not: the limit stays, and an
/// outage of the store is none of the service.
///
/// Such a decision's [source](Decision::source) is [`Source::Fallback`].
///
/// - **A share.** This process is [`one_of`](Fallback::one_of) `n`, and admits its part of each
///   quota while it is on its own. Over an outage of `Δ`, under a quota of `B` at once and one more
///   each `T`, that is `B/n` at once and one each `n·T`; the `n` of them together admit at most
///   `B + Δ/T`, and `n` more where shares round up, since a share is at least one unit (under
///   algorithms that count by periods: `n` more in each). A single cost above the share passes where
///   the whole quota has that much, once the share's account is full: then each process may admit
///   that cost at once.
/// - **Warm.** Every decision of the inner store is mirrored: the local account never has more than
///   its share of what the shared one had left, so that an outage hands nobody a fresh quota. A
///   key that is refused because it is blocked is blocked here too.
/// - **Late.** What was admitted here meanwhile is charged to the inner store when it answers
///   again, as far as it is still owed here: what has flowed back since is not.
///
/// [`settle`](Store::settle) and [`undo`](Store::undo) go to the store that charged: units
/// admitted here that the inner store has not heard of are given back here. `reset`, `block` and
/// `unblock` are done to both.
///
/// What it does **not** do:
///
/// - A call that timed out may have been charged, and is charged again here; so is a late charge.
/// - What the inner store undoes stays mirrored here until it has flowed back: in the first moments
///   of an outage, keys whose requests were refunded have less left here than they had there.
/// - A `reset`, a `block` or an `unblock` made while the inner store fails holds in this process
///   only, and a refund then is lost to it; the source of their decision says so.
/// - A key that was refused here as blocked, and unblocked in another process, is still refused
///   here in an outage, until its block would have ended.
///
/// The local store needs room for the keys that are in debt at a time, as if it were the only one.
/// A clone is the same store. Late charges need a tokio runtime; they are made one after another in
/// a task of their own.
///
/// ```
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Store, store::Deadline};
///
/// let shared = LocalStore::new(); // in real life a remote one
/// let local = LocalStore::with_capacity(100_000);
/// let store = shared.deadline(Deadline::DEFAULT).breaker().fallback(local).one_of(4);
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(100), store);
/// ```
pub struct Fallback<S, L> {
    stores: Arc<Stores<S, L>>,
    processes: NonZeroU32,
    room: usize,
}

struct Stores<S, L> {
    inner: S,
    local: L,
    health: Health,
    journal: Journal,
    stripes: Stripes,
}

impl<S, L> Fallback<S, L> {
    pub(crate) fn new(inner: S, local: L) -> Self {
        let (health, journal) = (Health::default(), Journal::default());
        let stores = Stores { inner, local, health, journal, stripes: Stripes::default() };
        Self { stores: Arc::new(stores), processes: NonZeroU32::MIN, room: ACCOUNTS }
    }

    /// How many processes share the inner store: while it fails, each admits its part of every
    /// quota. 1 unless set.
    ///
    /// # Panics
    ///
    /// When `processes` is 0.
    #[track_caller]
    #[must_use]
    pub fn one_of(self, processes: u32) -> Self {
        literal(self.try_one_of(processes))
    }

    /// [`one_of`](Fallback::one_of) for a number from outside.
    ///
    /// # Errors
    ///
    /// When `processes` is 0; the error names the field, its value and the fix.
    pub fn try_one_of(self, processes: u32) -> Result<Self, SettingError> {
        const FIX: &str = "count this process too, so give at least 1";
        let processes = NonZeroU32::new(processes)
            .ok_or_else(|| SettingError::new("fallback: processes", processes, FIX))?;
        Ok(Self { processes, ..self })
    }

    /// Of how many accounts is remembered what they were admitted here and the inner store has not
    /// heard of, at about 500 bytes each and the length of a long key; 65 536 unless set. Further
    /// accounts, and those with keys of more than 256 bytes, are not charged late; their charges are
    /// [counted](Fallback::forgotten).
    #[must_use]
    pub fn journal(self, accounts: usize) -> Self {
        Self { room: accounts, ..self }
    }

    /// Charges so far that the inner store will not hear of, because the
    /// [journal](Fallback::journal) had no room. Above 0 it was too small for an outage.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.stores.journal.forgotten()
    }

    /// Whether the local store decides at the moment: for health checks.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.stores.health.is_failing()
    }
}

/// What a store is asked.
#[derive(Clone, Copy)]
enum Call {
    Take,
    Settle(i64),
    Reset,
    Block(Duration),
    Unblock,
}

impl<S, L> Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = AtOnce> + Send + Sync + 'static,
{
    fn ask(
        &self,
        call: Call,
        charges: &[Charge<'_>],
        ask: impl FnOnce(&S) -> Answer<S::Future>,
    ) -> Answer<FallbackFuture<S, L>> {
        let begun = self.stores.health.now();
        match ask(&self.stores.inner) {
            Answer::Now(answer) => Answer::Now(Ok(self.conclude(call, charges, begun, answer))),
            Answer::Later(inner) => {
                let asked = Asked { fallback: self.clone(), call, begun, charges: charges.into() };
                Answer::Later(FallbackFuture { inner, asked: Some(asked) })
            }
        }
    }

    /// Follows the inner store's answer to a call that began at `begun`, or decides without it.
    fn conclude(
        &self,
        call: Call,
        charges: &[Charge<'_>],
        begun: u64,
        answer: Result<Decision, S::Error>,
    ) -> Decision {
        match answer {
            // the inner store was not asked, so that it may fail as before
            Ok(decision) if decision.source() == Source::DenyCache => decision,
            Ok(decision) if decision.source() == Source::Leased => {
                self.follow(call, charges, &decision);
                decision
            }
            Ok(decision) => {
                self.answered(begun);
                self.follow(call, charges, &decision);
                decision
            }
            Err(error) => {
                self.failed(begun, error);
                let decision = self.decide(call, charges);
                // a block that found no room here either
                if decision.source() == Source::Overflow {
                    return decision;
                }
                decision.from_source(Source::Fallback)
            }
        }
    }

    /// Does to the local store what the inner one did.
    fn follow(&self, call: Call, charges: &[Charge<'_>], decision: &Decision) {
        match call {
            Call::Take => self.mirror(charges, decision, 0),
            Call::Settle(units) => self.mirror(charges, decision, units.max(0).unsigned_abs()),
            Call::Reset | Call::Block(_) | Call::Unblock => drop(self.decide(call, charges)),
        }
    }

    /// Decides in place of the inner store.
    fn decide(&self, call: Call, charges: &[Charge<'_>]) -> Decision {
        let Stores { local, journal, .. } = &*self.stores;
        let Some(charge) = charges.first() else { return Decision::allow() };
        match call {
            Call::Take => self.take_here(charges),
            // the inner store had charged it, and here that was a part of it
            Call::Settle(units) if units > 0 => {
                self.settle_here(charge, units / i64::from(self.processes.get()))
            }
            Call::Settle(units) => {
                journal.record(charge, units.unsigned_abs(), self.room);
                self.settle_here(charge, units)
            }
            Call::Reset => {
                shares(&[*charge], self.processes, |shares| local.reset(&shares[0]).now())
            }
            Call::Block(time) => local.block(charge, time).now(),
            Call::Unblock => local.unblock(charge).now(),
        }
    }

    fn take_here(&self, charges: &[Charge<'_>]) -> Decision {
        let Stores { local, journal, .. } = &*self.stores;
        let decision = shares(charges, self.processes, |shares| local.take(shares).now());
        if decision.is_allowed() {
            for charge in charges.iter().filter(|charge| decision.charged(charge.rule())) {
                journal.record(charge, charge.units().into(), self.room);
            }
        }
        decision
    }

    fn settle_here(&self, charge: &Charge<'_>, units: i64) -> Decision {
        let local = &self.stores.local;
        shares(&[*charge], self.processes, |shares| local.settle(&shares[0], units).now())
    }
}

impl<S, L> Store for Fallback<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = AtOnce> + Send + Sync + 'static,
{
    type Error = Infallible;
    type Future = FallbackFuture<S, L>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        self.ask(Call::Take, charges, |inner| inner.take(charges))
    }

    /// Units admitted here that the inner store has not heard of are not its to give back.
    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        let here = self.stores.journal.take_back(charge, units.max(0).unsigned_abs());
        let here = here.cast_signed();
        if here > 0 {
            let decision = self.settle_here(charge, here);
            if here == units {
                return Answer::Now(Ok(decision.from_source(Source::Fallback)));
            }
        }
        let rest = units - here;
        self.ask(Call::Settle(rest), &[*charge], |inner| inner.settle(charge, rest))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.ask(Call::Reset, &[*charge], |inner| inner.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.ask(Call::Block(time), &[*charge], |inner| inner.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.ask(Call::Unblock, &[*charge], |inner| inner.unblock(charge))
    }

    /// Undoes a charge where it was made. A charge that the inner store undoes stays mirrored here, and
    /// one that was charged late there stays charged, until it has flowed back.
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let Stores { inner, local, journal, .. } = &*self.stores;
        if taken.source() != Source::Fallback {
            inner.undo(charges, taken, units);
        } else if taken.is_allowed() {
            shares(charges, self.processes, |shares| local.undo(shares, taken, units));
            for charge in charges.iter().filter(|charge| taken.charged(charge.rule())) {
                let units = units.map_or(charge.units(), |units| units.min(charge.units()));
                journal.take_back(charge, units.into());
            }
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let Stores { inner, local, .. } = &*self.stores;
        inner.check(charges)?;
        shares(charges, self.processes, |shares| local.check(shares))
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let Stores { inner, local, .. } = &*self.stores;
        inner.announce(charges)?;
        shares(charges, self.processes, |shares| local.announce(shares))
    }

    fn health(&self) -> BoxFuture<Condition> {
        let Stores { inner, local, health, .. } = &*self.stores;
        let (local, forgotten) = (local.health(), self.forgotten());
        let meanwhile = match forgotten {
            0 => "decisions are made in this process".to_owned(),
            n => format!("decisions are made in this process; {n} charges will not be made good"),
        };
        let inner = health.condition("fallback", inner.health(), meanwhile);
        Box::pin(async move { inner.await.around(local.await) })
    }
}

impl<S, L> Clone for Fallback<S, L> {
    fn clone(&self) -> Self {
        Self { stores: self.stores.clone(), ..*self }
    }
}

impl<S: fmt::Debug, L: fmt::Debug> fmt::Debug for Fallback<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("inner", &self.stores.inner)
            .field("local", &self.stores.local)
            .field("processes", &self.processes)
            .field("failing", &self.is_failing())
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// The later answer of a [`Fallback`].
    pub struct FallbackFuture<S: Store, L> {
        #[pin]
        inner: S::Future,
        asked: Option<Asked<S, L>>,
    }
}

/// What was asked, to conclude with.
struct Asked<S, L> {
    fallback: Fallback<S, L>,
    call: Call,
    begun: u64,
    charges: OwnedCharges,
}

impl<S, L> Future for FallbackFuture<S, L>
where
    S: Store + Send + Sync + 'static,
    L: Store<Error = Infallible, Future = AtOnce> + Send + Sync + 'static,
{
    type Output = Result<Decision, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let Some(Asked { fallback, call, begun, charges }) = this.asked.take() else {
            panic!("an answer was polled after it had resolved");
        };
        Poll::Ready(Ok(charges.with(|charges| fallback.conclude(call, charges, begun, answer))))
    }
}

impl<S: Store, L> fmt::Debug for FallbackFuture<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackFuture").finish_non_exhaustive()
    }
}
