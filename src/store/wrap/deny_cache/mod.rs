//! Refuses by what the store has just said, without asking it again.

mod account;
mod entry;
mod known;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use self::{
    account::Asking,
    known::{Known, Met},
};
use super::setting::{self, SettingError, literal};
use crate::{
    decision::{Decision, Source},
    store::{Answer, BoxFuture, Charge, Condition, Store, Unsupported},
};

/// Refusals kept unless set: 9 MB when it is full.
const CAPACITY: usize = 65_536;
/// 2 GB when it is full.
const LARGEST: usize = 1 << 24;

/// A store that refuses in this process whatever the inner one has said it will refuse: a client that
/// goes on asking while it is refused costs the server one question, those asked before its answer
/// came, and no more until its wait is over.
///
/// Whoever is refused has to wait for a time that the store tells. Until then, counted from when it
/// was asked, it would only say the same again: nothing but a change of the account can let the
/// key pass earlier. So the same refusal is told here, its times being what is left of them, with
/// [`Source::DenyCache`] as its [source](Decision::source).
///
/// - **Never more than the store.** What is refused here the inner store would refuse: the same
///   rule, key and quotas, at the same cost (with its headroom) or, where the store counts by GCRA, a
///   greater one, whose wait is worked out. Who is ready to queue is refused only while its wait is
///   longer than that. Always asked for are looks, charges that [only report](Charge::report_only) or
///   name [only](Charge::only) one quota, an account named twice, fixed windows that pace or carry
///   over, and several quotas of which one has an [initial](crate::Quota::initial) state: its account
///   is opened by being asked for.
/// - **What is changed here** is known at once: a [`settle`](Store::settle), an
///   [`undo`](Store::undo), a [`reset`](Store::reset), [`block`](Store::block) or
///   [`unblock`](Store::unblock) through this store, an allowed charge, and a quota that was replaced
///   end what is known of the account, and so does what they overtook on its way.
/// - **What is changed elsewhere**, by another process or by a server that lost what was owed, is seen
///   after [`at_most`](DenyCache::at_most) 1 s.
/// - **Several charges** in one call pass together, so one that is known to be refused refuses them
///   all. The outcomes of the others are [unknown](crate::Outcome::unknown): header fields leave their
///   quotas out, counters count only the rules that are known to refuse, and the wait is theirs,
///   though another rule may refuse for longer.
/// - **Bounded.** A flood of refused keys takes each other's place, those that end first going first:
///   then the store is asked again.
///
/// Put it **outside** the breaker: `store.deadline(d).breaker().deny_cache().fallback(local)`. While
/// the server is down, who was refused stays so, and neither a breaker nor a fallback takes what is
/// told here for a sign of life. Refusals of a [`Fallback`](crate::store::Fallback) or a
/// [`FailClosed`](crate::store::FailClosed) inside it are not kept. In front of an embedded store it
/// gains nothing.
///
/// It does **not** spare the store those who are *admitted*, nor the first question of each new key:
/// against a flood of fresh keys it is of no use.
///
/// A clone shares what is known; a setting begins anew, so set first.
///
/// ```
/// use tower_sluice::{Limiter, LocalStore, Quota, Source, Store};
///
/// let shared = LocalStore::new(); // in real life a remote one
/// let store = shared.deny_cache();
/// let (limiter, quota) = (Limiter::new(store.clone()), Quota::per_hour(1));
///
/// # tokio_test::block_on(async {
/// assert!(limiter.take("alice", &quota, 1).await?.is_allowed());
/// assert_eq!(limiter.take("alice", &quota, 1).await?.source(), Source::Local);
/// let again = limiter.take("alice", &quota, 1).await?;
/// assert_eq!((again.is_allowed(), again.source()), (false, Source::DenyCache));
/// assert_eq!(store.refusals(), 1);
///
/// limiter.reset("alice", &quota).await?;
/// assert!(limiter.take("alice", &quota, 1).await?.is_allowed());
/// # Ok::<(), std::convert::Infallible>(())
/// # }).unwrap();
/// ```
///
/// Before a server, with less delay for what other processes change:
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Store, store::Deadline};
///
/// let shared = LocalStore::new(); // in real life a remote one
/// let store = shared
///     .deadline(Deadline::DEFAULT)
///     .breaker()
///     .deny_cache()
///     .at_most(Duration::from_millis(250))
///     .capacity(10_000)
///     .fallback(LocalStore::with_capacity(100_000));
/// let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_second(100), store);
/// ```
#[derive(Clone, Debug)]
pub struct DenyCache<S> {
    inner: S,
    known: Arc<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    capacity: usize,
    at_most: Duration,
}

impl Settings {
    /// In nanoseconds.
    fn at_most(&self) -> u64 {
        u64::try_from(self.at_most.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl<S> DenyCache<S> {
    pub(crate) fn new(inner: S) -> Self {
        let settings = Settings { capacity: CAPACITY, at_most: Duration::from_secs(1) };
        Self { inner, known: Arc::new(Known::new(settings)) }
    }

    /// How long a refusal is told at most before the store is asked again: the delay with which
    /// this process sees what another one changed. 1 s unless set.
    ///
    /// # Panics
    ///
    /// When it is zero or more than a minute.
    #[track_caller]
    #[must_use]
    pub fn at_most(self, time: Duration) -> Self {
        literal(self.try_at_most(time))
    }

    /// [`at_most`](DenyCache::at_most) for a time from outside.
    ///
    /// # Errors
    ///
    /// Where [`at_most`](DenyCache::at_most) panics.
    pub fn try_at_most(self, time: Duration) -> Result<Self, SettingError> {
        let at_most = setting::at_most("deny cache: at most", time)?;
        Ok(self.with(|settings| settings.at_most = at_most))
    }

    /// How many refusals are kept at most, rounded up to whole sets of eight; 65 536 unless set. A set
    /// takes 48 bytes from the start, a refusal 128 once it is there, and 64 for every quota if its
    /// rule has several.
    ///
    /// # Panics
    ///
    /// When it is 0 or more than 16 777 216.
    #[track_caller]
    #[must_use]
    pub fn capacity(self, refusals: usize) -> Self {
        literal(self.try_capacity(refusals))
    }

    /// [`capacity`](DenyCache::capacity) for a number from outside.
    ///
    /// # Errors
    ///
    /// Where [`capacity`](DenyCache::capacity) panics.
    pub fn try_capacity(self, refusals: usize) -> Result<Self, SettingError> {
        const FIELD: &str = "deny cache: capacity";
        if refusals == 0 {
            const FIX: &str = "give room for at least 1, or leave the cache out";
            return Err(SettingError::new(FIELD, refusals, FIX));
        }
        if refusals > LARGEST {
            const FIX: &str = "give at most 16777216, as many as are refused within a second";
            return Err(SettingError::new(FIELD, refusals, FIX));
        }
        Ok(self.with(|settings| settings.capacity = refusals))
    }

    /// Refusals so far for which the store was not asked.
    ///
    /// With the feature `metrics` they are also the samples of `ratelimit.decision.duration` whose
    /// `store` is `deny_cache`.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.known.told()
    }

    fn with(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.known.settings();
        set(&mut settings);
        Self { known: Arc::new(Known::new(settings)), ..self }
    }
}

impl<S: Store> DenyCache<S> {
    /// Makes a call that changes an account, whose end it is for what is known.
    fn change(
        &self,
        charge: &Charge<'_>,
        call: impl FnOnce(&S) -> Answer<S::Future>,
    ) -> Answer<DenyCacheFuture<S::Future>> {
        let ending = Ending { known: self.known.clone(), tag: self.known.tag(charge) };
        match call(&self.inner) {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(inner) => {
                Answer::Later(DenyCacheFuture { inner, asked: Some(Asked::Change(ending)) })
            }
        }
    }
}

impl<S: Store> Store for DenyCache<S> {
    type Error = S::Error;
    type Future = DenyCacheFuture<S::Future>;

    fn take(&self, charges: &[Charge<'_>]) -> Answer<Self::Future> {
        let asking = match self.known.ask(charges) {
            Met::Unknown(asking) => asking,
            Met::Known(refusal) => return Answer::Now(Ok(refusal)),
        };
        match self.inner.take(charges) {
            Answer::Now(Ok(decision)) => {
                self.known.answered(&asking, &decision);
                Answer::Now(Ok(decision))
            }
            Answer::Now(Err(error)) => Answer::Now(Err(error)),
            Answer::Later(inner) => {
                let asked = Some(Asked::Take(self.known.clone(), asking));
                Answer::Later(DenyCacheFuture { inner, asked })
            }
        }
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answer<Self::Future> {
        self.change(charge, |inner| inner.settle(charge, units))
    }

    fn reset(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.change(charge, |inner| inner.reset(charge))
    }

    fn block(&self, charge: &Charge<'_>, time: Duration) -> Answer<Self::Future> {
        self.change(charge, |inner| inner.block(charge, time))
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answer<Self::Future> {
        self.change(charge, |inner| inner.unblock(charge))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        if taken.source() != Source::DenyCache {
            self.inner.undo(charges, taken, units);
            charges.iter().for_each(|charge| self.known.end(self.known.tag(charge)));
        }
    }

    fn check(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.check(charges)
    }

    fn announce(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.inner.announce(charges)
    }

    fn health(&self) -> BoxFuture<Condition> {
        Condition::wrapping("deny_cache", self.inner.health(), Condition::same)
    }
}

pin_project! {
    /// The later answer of a [`DenyCache`].
    #[derive(Debug)]
    pub struct DenyCacheFuture<F> {
        #[pin]
        inner: F,
        asked: Option<Asked>,
    }
}

#[derive(Debug)]
enum Asked {
    Take(Arc<Known>, Asking),
    Change(#[expect(dead_code, reason = "works when it is dropped")] Ending),
}

/// An account that is being changed. Whatever becomes of the call, what was known is over then.
#[derive(Debug)]
struct Ending {
    known: Arc<Known>,
    tag: u64,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.known.end(self.tag);
    }
}

impl<F, E> Future for DenyCacheFuture<F>
where
    F: Future<Output = Result<Decision, E>>,
{
    type Output = Result<Decision, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let decision = ready!(this.inner.poll(cx));
        if let (Some(Asked::Take(known, asking)), Ok(decision)) = (this.asked.take(), &decision) {
            known.answered(&asking, decision);
        }
        Poll::Ready(decision)
    }
}
