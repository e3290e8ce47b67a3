//! Where accounts live and are decided.
//!
//! A [`Store`] is asked once per request, for all its charges at once, and answers with a
//! [`Decision`]: everything was charged, or nothing was. Quotas are an argument of
//! [`take`](Store::take), so a store holds accounts and nothing else: one store serves many rules
//! and plans, and a quota may change while it runs.
//!
//! An answer is either there at once or comes later ([`Answer`]), so that a local decision costs
//! no future, and a remote one is a future the layer can name.
//!
//! ```
//! use tower_sluice::{Charge, Key, LocalStore, Quota, RuleName, Store};
//!
//! let store = LocalStore::with_capacity(10_000);
//! let (second, day) = (Quota::per_second(5), Quota::per_day(10_000));
//! let (alice, quotas) = (Key::from("alice"), [second, day]);
//!
//! let charge = Charge::new(RuleName::default(), &alice, &quotas).cost(2);
//! let decision = store.take(&[charge]).now();
//! assert_eq!(decision.outcomes()[1].remaining(), 9_998);
//! ```
//!
//! Stores compose as services compose. The layer takes only a store that cannot fail; one that can
//! is wrapped, and the wrapper says what becomes of a request meanwhile:
//! [`fail_open`](Store::fail_open), [`fail_closed`](Store::fail_closed) or
//! [`fallback`](Store::fallback), which keeps a limit. Inside it, a [`deadline`](Store::deadline)
//! bounds how long a request waits for its decision, a [`breaker`](Store::breaker) leaves a
//! store alone that fails, a [`deny_cache`](Store::deny_cache) does not ask again for what the
//! store has just refused, and a [`leased`](Store::leased) one does not ask for each unit of a hot key:
//! `store.deadline(d).breaker().deny_cache().leased(5).fallback(local)`.

mod answer;
mod block;
mod boxed;
mod condition;
#[cfg(feature = "governor")]
mod governor;
mod local;
#[cfg(feature = "redis")]
mod redis;
mod rules;
mod shared;
mod wrap;

use std::{
    borrow::Cow, convert::Infallible, error::Error, fmt, future::ready, sync::Arc, time::Duration,
};

use smallvec::SmallVec;

#[cfg(feature = "governor")]
pub use self::governor::{Admission, GovernorStore};
#[cfg(any(feature = "simulate", feature = "testing"))]
pub(crate) use self::local::Clock;
#[cfg(feature = "redis")]
pub use self::redis::{ClusterLink, Link, Probe, RedisError, RedisErrorKind, RedisStore};
pub use self::{
    answer::{Answer, BoxFuture, Never, Resolve},
    block::{BlockError, BlockFuture},
    boxed::{Boxed, DynStore},
    condition::{Condition, State},
    local::{LocalStore, Stats},
    wrap::{
        breaker::{Breaker, BreakerError, BreakerFuture},
        deadline::{Deadline, DeadlineError, DeadlineFuture},
        deny_cache::{DenyCache, DenyCacheFuture},
        fail_closed::{FailClosed, FailClosedFuture},
        fail_open::{FailOpen, FailOpenFuture},
        fallback::{Fallback, FallbackFuture},
        leased::{Leased, LeasedFuture},
        setting::SettingError,
    },
};
use crate::{
    algorithm::Ask,
    decision::Decision,
    key::Key,
    name::RuleName,
    quota::{Algorithm, Quota},
};

/// Any error, boxed, as tower spells it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What one rule asks of one key's account: `cost` units under every one of `quotas`.
///
/// The account's address is the rule's name, the key and the place of a quota in `quotas`; its
/// numbers are not part of it, so changing a quota refills nobody.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    rule: RuleName,
    key: &'a Key,
    quotas: &'a [Quota],
    ask: Ask,
    report_only: bool,
    only: Option<u8>,
}

impl<'a> Charge<'a> {
    /// A charge of one unit.
    #[must_use]
    pub fn new(rule: RuleName, key: &'a Key, quotas: &'a [Quota]) -> Self {
        Self { rule, key, quotas, ask: Ask::units(1), report_only: false, only: None }
    }

    /// Units to take; 0 looks without taking.
    #[must_use]
    pub fn cost(mut self, units: u32) -> Self {
        self.ask.cost = units;
        self
    }

    /// Units that must be left over after the charge.
    #[must_use]
    pub fn headroom(mut self, units: u32) -> Self {
        self.ask.headroom = units;
        self
    }

    /// How long the caller is ready to queue; at most ten years.
    #[must_use]
    pub fn max_wait(mut self, time: Duration) -> Self {
        const LONGEST: u64 = 10 * 365 * 86_400 * 1_000_000_000;
        self.ask.max_wait = u64::try_from(time.as_nanos()).map_or(LONGEST, |ns| ns.min(LONGEST));
        self
    }

    /// Charges where it fits, and refuses nobody where it does not.
    #[must_use]
    pub fn report_only(mut self) -> Self {
        self.report_only = true;
        self
    }

    /// Asks only the quota at `place`, counted from 0, and leaves the accounts of the others alone:
    /// the quotas of one rule may owe different amounts. A rule has no quota at 255 or above.
    ///
    /// ```
    /// use tower_sluice::{Charge, Key, LocalStore, Quota, RuleName, Store};
    ///
    /// let (store, key) = (LocalStore::new(), Key::from("alice"));
    /// let quotas = [Quota::per_second(5), Quota::per_day(100)];
    /// let charge = Charge::new(RuleName::default(), &key, &quotas);
    /// store.settle(&charge.only(1), -3).now();
    ///
    /// let left = store.take(&[charge.cost(0)]).now();
    /// assert_eq!(left.outcomes()[0].remaining(), 5);
    /// assert_eq!(left.outcomes()[1].remaining(), 97);
    /// ```
    #[must_use]
    pub fn only(mut self, place: usize) -> Self {
        self.only = Some(u8::try_from(place).unwrap_or(u8::MAX));
        self
    }

    /// The rule that charges.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Whose account.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        self.key
    }

    /// The quotas, all of which are charged unless [`only`](Charge::only) one is.
    pub fn quotas(&self) -> &'a [Quota] {
        self.quotas
    }

    /// The place of the [`only`](Charge::only) quota that is charged.
    #[must_use]
    pub fn place(&self) -> Option<usize> {
        self.only.map(usize::from)
    }

    /// The quotas that these charges name, each as its rule and its place.
    pub(crate) fn named(charges: &[Charge<'a>]) -> impl Iterator<Item = (RuleName, usize)> + Clone {
        charges.iter().flat_map(|it| it.placed().map(|(place, _)| (it.rule, place)))
    }

    /// The quotas that are charged, with their places.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (usize, &'a Quota)> + Clone + use<'a> {
        let only = self.place();
        let all = self.quotas.iter().enumerate();
        all.filter(move |(place, _)| only.is_none_or(|only| only == *place))
    }

    /// Units to take.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.ask.cost
    }

    /// Units that must be left over.
    #[must_use]
    pub fn reserve(&self) -> u32 {
        self.ask.headroom
    }

    /// How long the caller is ready to queue.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_nanos(self.ask.max_wait)
    }

    /// Whether it may wait for its place.
    #[inline]
    pub(crate) fn queues(&self) -> bool {
        self.ask.max_wait > 0
    }

    /// Whether it refuses nobody.
    #[must_use]
    pub fn is_report_only(&self) -> bool {
        self.report_only
    }

    fn ask(&self) -> Ask {
        self.ask
    }
}

/// Charges that outlive the call: for wrappers and futures that ask again or give back.
#[derive(Clone, Debug)]
pub struct OwnedCharges(SmallVec<[OwnedCharge; 2]>);

#[derive(Clone, Debug)]
struct OwnedCharge {
    rule: RuleName,
    key: Key,
    quotas: SmallVec<[Quota; 2]>,
    ask: Ask,
    report_only: bool,
    only: Option<u8>,
}

impl OwnedCharge {
    fn lend(&self) -> Charge<'_> {
        let Self { rule, key, quotas, ask, report_only, only } = self;
        Charge { rule: *rule, key, quotas, ask: *ask, report_only: *report_only, only: *only }
    }
}

impl OwnedCharges {
    /// Lends the charges to `read`.
    pub fn with<T>(&self, read: impl FnOnce(&[Charge<'_>]) -> T) -> T {
        let lent: SmallVec<[Charge<'_>; 4]> = self.0.iter().map(OwnedCharge::lend).collect();
        read(&lent)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The same of callers who do not queue.
    pub(crate) fn hurried(mut self) -> Self {
        self.0.iter_mut().for_each(|charge| charge.ask.max_wait = 0);
        self
    }
}

impl From<&[Charge<'_>]> for OwnedCharges {
    fn from(charges: &[Charge<'_>]) -> Self {
        let own = |charge: &Charge<'_>| OwnedCharge {
            rule: charge.rule,
            key: charge.key.clone(),
            quotas: charge.quotas.into(),
            ask: charge.ask,
            report_only: charge.report_only,
            only: charge.only,
        };
        Self(charges.iter().map(own).collect())
    }
}

/// Holds accounts and decides over them.
///
/// Implement it for a store of your own. It must keep these promises, which the layer and the
/// wrappers build on:
///
/// - All or nothing: either every quota of every charge is charged, or none is. One account named
///   twice in a call counts as one, costs added.
/// - A refusal charges nothing, and a cost that can never fit is refused without a `retry_after`.
/// - Cost 0 looks: it takes nothing and is allowed.
/// - A full account equals no account, and only such a one may be forgotten.
/// - A charge of [`only`](Charge::only) one quota touches no other.
///
/// It need not be `Clone`: `Arc<S>` is a store too.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rate limit store",
    note = "the embedded store is `LocalStore`; implement `Store` for one of your own"
)]
pub trait Store {
    /// Why the store could not decide. A refusal is a decision, not an error.
    type Error: Into<BoxError>;
    /// A decision that is not there yet; [`Never`] for a store that always answers at once.
    type Future: Future<Output = Result<Decision, Self::Error>> + Send;

    /// Charges everything or nothing, and says what is left.
    ///
    /// Dropping a [`Later`](Answer::Later) answer half way leaves open whether it was charged.
    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future>;

    /// Gives `units` back to every quota of the charge, or, below 0, charges them late. A refund
    /// stops at a full account; a late charge never fails but stops where the limit and
    /// [`max_debt`](Quota::max_debt) are charged, and what is beyond is lost.
    ///
    /// A refund here is an operator's: it gives back whatever it says, also what has flowed back by
    /// itself. What a request was charged is given back by [`undo`](Store::undo).
    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future>;

    /// Ends the accounts of the charge, as if its key had never been seen.
    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future>;

    /// Refuses the charge's key under its rule for so long, whatever its account holds; again, it
    /// replaces the time. A block is a record of its own, no debt, so that it ends when it says.
    ///
    /// A store without room for the record denies, with
    /// [`Source::Overflow`](crate::Source::Overflow): the key is not blocked.
    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future>;

    /// Ends a [`block`](Store::block).
    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future>;

    /// Undoes a charge by its receipt, which is the decision that allowed it: all of it, or, with
    /// `units`, up to that many units of every account. Does not wait and cannot fail, so that a
    /// `Drop` can call it; a store that cannot undo leaves the charge.
    ///
    /// `charges` are those of the decision, or some of them: each is found in it by its rule and the
    /// place of its quota. Less is given back than was charged, and at the least nothing:
    ///
    /// - **What has flowed back since** is not given back again: units that were charged an hour ago
    ///   are there already, and giving them back would let them be used twice. What others were
    ///   charged stays charged.
    /// - **A charge that queued** ([`max_wait`](Charge::max_wait)) is undone only while nobody has
    ///   queued behind it. Otherwise its units are lost to that account until they flow back: those
    ///   behind keep their places, and nobody runs closer to the last of them than the quota says.
    /// - **After a [`reset`](Store::reset)** a charge made before it is gone, and nothing is given
    ///   back. A store may be coarse here and leave a few charges of other accounts too.
    ///
    /// # Limitations
    ///
    /// With GCRA a receipt that was made while other charges were open holds its units until those
    /// would have come back, also if they were undone since. A client that has charges undone at will
    /// can bank up to `limit - 1` more units for one instant; its rate over time does not change. And
    /// an undo of a charge that did not queue, while others of its key do, lets the next caller run at
    /// the instant of the last in the queue.
    ///
    /// A receipt is good for one call: a second one for the same charge may give back units that the
    /// first one did, so a caller has to remember that it was used, as a
    /// [`Reservation`](crate::Reservation) does.
    ///
    /// [`settle`](Store::settle) with a positive number gives back whatever is asked for; it is for
    /// operators.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Charge, Key, Quota, RuleName, Store, testing::FakeClock};
    ///
    /// let clock = FakeClock::new();
    /// let (store, key, quotas) = (clock.store(100), Key::from("alice"), [Quota::per_minute(60)]);
    /// let charge = Charge::new(RuleName::default(), &key, &quotas).cost(10);
    /// let left = || store.take(&[charge.cost(0)]).now().remaining();
    ///
    /// let taken = store.take(&[charge]).now();
    /// store.undo(&[charge], &taken, Some(7)); // three were used
    /// assert_eq!(left(), Some(57));
    ///
    /// let taken = store.take(&[charge]).now();
    /// clock.advance(Duration::from_secs(60));
    /// store.undo(&[charge], &taken, None); // all of it has flowed back
    /// assert_eq!(left(), Some(60));
    /// ```
    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let _ = (charges, taken, units);
    }

    /// Whether this store can do what such charges ask, whatever its accounts hold. Called once
    /// when a layer is built, so that a mismatch does not wait for the first request.
    ///
    /// # Errors
    ///
    /// Names the limit that is in the way.
    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let _ = charges;
        Ok(())
    }

    /// Learns of the rules of a layer, as far as their quotas are fixed. Called once when a layer
    /// is built: clones of a store may serve several layers, and those that give one rule other
    /// quotas would upset each other's accounts.
    ///
    /// # Errors
    ///
    /// Names a rule that another layer brought with other quotas.
    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        let _ = charges;
        Ok(())
    }

    /// How the store is doing, for operators: not for every request, since it may ask a server.
    /// A wrapper tells of what it wraps, too. Unless a store says more, nothing is known of it.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use tower_sluice::{LocalStore, Store};
    ///
    /// let store = LocalStore::new().breaker();
    /// let condition = store.health().await;
    /// assert!(condition.is_well());
    /// assert_eq!((condition.store, condition.inner[0].store), ("breaker", "local"));
    /// # });
    /// ```
    fn health(&self) -> BoxFuture<Condition> {
        Box::pin(ready(Condition::unknown("other")))
    }

    /// Lets requests pass, uncharged, while this store fails: there is no limit meanwhile.
    fn fail_open(self) -> FailOpen<Self>
    where
        Self: Sized,
    {
        FailOpen::new(self)
    }

    /// Refuses requests with 503 while this store fails.
    fn fail_closed(self) -> FailClosed<Self>
    where
        Self: Sized,
    {
        FailClosed::new(self)
    }

    /// Bounds how long an answer may take: past `budget` it is an error.
    ///
    /// # Panics
    ///
    /// When `budget` is zero; one from outside goes through [`Deadline::try_new`].
    #[track_caller]
    fn deadline(self, budget: Duration) -> Deadline<Self>
    where
        Self: Sized,
    {
        Deadline::new(self, budget)
    }

    /// Leaves this store alone for a while when it fails.
    fn breaker(self) -> Breaker<Self>
    where
        Self: Sized,
    {
        Breaker::new(self)
    }

    /// Refuses in this process, for at most a second, what this store has said it will refuse.
    fn deny_cache(self) -> DenyCache<Self>
    where
        Self: Sized,
    {
        DenyCache::new(self)
    }

    /// Borrows units for hot keys from this store, and admits by them without asking it. At most
    /// `percent` of each limit lie unused in this process; in all processes together it should be 25
    /// or less.
    ///
    /// # Panics
    ///
    /// When `percent` is not 1 to 25; one from outside goes through [`Leased::try_new`].
    #[track_caller]
    fn leased(self, percent: u32) -> Leased<Self>
    where
        Self: Sized,
    {
        Leased::new(self, percent)
    }

    /// Decides by `local` what this store could not.
    fn fallback<L>(self, local: L) -> Fallback<Self, L>
    where
        Self: Sized,
        L: Store<Error = Infallible, Future = Never<Result<Decision, Infallible>>>,
    {
        Fallback::new(self, local)
    }

    /// Hides the type, for a store chosen at run time.
    fn boxed(self) -> Arc<DynStore<Self::Error>>
    where
        Self: Sized + Send + Sync + 'static,
        Self::Future: 'static,
    {
        Arc::new(Boxed::new(self))
    }
}

/// The same charges of a caller who does not queue.
pub(crate) fn hurried<'a>(charges: &[Charge<'a>]) -> SmallVec<[Charge<'a>; 4]> {
    charges.iter().map(|charge| charge.max_wait(Duration::ZERO)).collect()
}

/// Whether every quota of those charges that are ready to queue is one that can.
fn can_queue(charges: &[Charge<'_>]) -> Result<(), Unsupported> {
    let queueing = charges.iter().filter(|charge| !charge.patience().is_zero());
    queueing.flat_map(Charge::quotas).try_for_each(|quota| match quota.counted_by() {
        _ if quota.soft_units() > 0 => {
            Err(Unsupported::new("max_wait with a soft quota; choose one of them"))
        }
        Algorithm::Gcra | Algorithm::FixedWindow { paced: true, .. } => Ok(()),
        _ => Err(Unsupported::new("max_wait with an algorithm that cannot queue; use Gcra")),
    })
}

/// Marks the error of a store that always decides, which a layer demands.
///
/// It is implemented for [`Infallible`] only: a store that can fail is wrapped, and the wrapper
/// says what happens to a request meanwhile.
#[diagnostic::on_unimplemented(
    message = "this store can fail with `{Self}`, and nothing says what then becomes of a request",
    label = "choose what happens while the store fails",
    note = "`.fail_open()` lets requests pass without a limit, `.fail_closed()` answers them with 503, \
            `.fallback(local)` decides by a store in this process"
)]
pub trait CannotFail: Sized {
    /// Never runs.
    fn absurd<T>(self) -> T;
}

impl CannotFail for Infallible {
    fn absurd<T>(self) -> T {
        match self {}
    }
}

/// A store was asked for something it does not do; the text names the limit and a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(Cow<'static, str>);

impl Unsupported {
    /// `what` names the limit and, after a semicolon, a way out.
    #[must_use]
    pub const fn new(what: &'static str) -> Self {
        Self(Cow::Borrowed(what))
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Unsupported {}
