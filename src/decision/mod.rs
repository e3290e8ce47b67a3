//! What a store said: allowed or not, with one outcome per quota.

mod outcome;

use std::{fmt, time::Duration};

use smallvec::SmallVec;

pub use self::outcome::Outcome;
pub(crate) use self::outcome::{NEVER, Numbers};
use crate::name::RuleName;

/// The answer of a store to one `take`: every quota was charged, or none was.
///
/// Numbers are worked out when they are read, from what the store saw at the instant it decided.
///
/// ```
/// use tower_sluice::{Limiter, Quota};
///
/// let quota = Quota::per_second(5).burst(10);
/// let limiter = Limiter::local();
/// let decision = limiter.take("alice", &quota, 3).now();
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), Some(7));
/// ```
#[derive(Clone, Debug)]
pub struct Decision {
    allowed: bool,
    overage: bool,
    /// Refused because its key is blocked.
    blocked: bool,
    source: Source,
    /// The store's own clock when it decided: with [`Outcome::ahead`] it makes the receipt.
    at: u64,
    wait: u64,
    outcomes: SmallVec<[Outcome; 4]>,
}

impl Decision {
    /// Lets the request pass.
    #[must_use]
    pub fn allow() -> Self {
        Self {
            allowed: true,
            overage: false,
            blocked: false,
            source: Source::Local,
            at: 0,
            wait: 0,
            outcomes: SmallVec::new(),
        }
    }

    /// Refuses the request. Without outcomes, waiting does not help.
    #[must_use]
    pub fn deny() -> Self {
        Self { allowed: false, ..Self::allow() }
    }

    /// Adds what became of one quota.
    #[must_use]
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcomes.push(outcome);
        self
    }

    /// Says who decided.
    #[must_use]
    pub fn from_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Whether every quota was charged. A look (cost 0) is always allowed.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Whether the request passed beyond what a quota has, because the quota is soft or the system
    /// had room ([`Elastic`](crate::Elastic)).
    #[must_use]
    pub fn is_overage(&self) -> bool {
        self.overage
    }

    /// Whether a rule that only reports would have refused the request.
    #[must_use]
    pub fn would_deny(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.is_report_only() && outcome.is_denied())
    }

    /// How long an allowed request has to wait before it may run: zero unless it asked to queue.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_nanos(self.wait)
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// One outcome per quota, in the order of the charges and of their quotas.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The quota that decided: of a refusal the one with the longest wait, otherwise the one with
    /// the least left; one that only reports never decides. `None` when no quota was asked.
    #[must_use]
    pub fn binding(&self) -> Option<&Outcome> {
        if let [one] = self.outcomes.as_slice() {
            return Some(one).filter(|one| !one.is_report_only());
        }
        let deciding = self.outcomes.iter().filter(|outcome| !outcome.is_report_only());
        if self.allowed {
            deciding.min_by_key(|outcome| outcome.remaining())
        } else {
            // the first of equals, as `min_by_key` gives above
            deciding.rev().max_by_key(|outcome| outcome.retry())
        }
    }

    /// Units left under the [binding](Decision::binding) quota.
    #[must_use]
    pub fn remaining(&self) -> Option<u32> {
        self.binding().map(Outcome::remaining)
    }

    /// The least that any quota has left.
    pub(crate) fn least(&self) -> u32 {
        self.outcomes.iter().map(Outcome::remaining).min().unwrap_or(0)
    }

    /// The shortest wait after which the same request passes if nobody else charges: zero when it
    /// passed, `None` when waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed { Some(Duration::ZERO) } else { self.binding()?.retry_after() }
    }

    /// Whether an allowed decision charged `rule`: what only reports and does not fit is not.
    pub(crate) fn charged(&self, rule: RuleName) -> bool {
        let unpaid = |o: &Outcome| o.rule() == rule && o.is_report_only() && o.is_denied();
        !self.outcomes.iter().any(unpaid)
    }

    /// A decision to which outcomes are [pushed](Decision::push) in place: it is large, and moving
    /// it costs as much as deciding.
    #[inline]
    pub(crate) fn new(allowed: bool, at: u64) -> Self {
        Self {
            allowed,
            overage: false,
            blocked: false,
            source: Source::Local,
            at,
            wait: 0,
            outcomes: SmallVec::new(),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Says how it was allowed.
    #[inline]
    pub(crate) fn passes(&mut self, overage: bool, wait: u64) {
        (self.overage, self.wait) = (overage, wait);
    }

    /// Whether it has to wait before it may run.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.wait > 0
    }

    pub(crate) fn blocked(mut self) -> Self {
        self.blocked = true;
        self
    }

    /// Whether it is refused because a key is blocked: its outcome is of the block, not of a quota.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether it is a quota that refuses, of which there will be more.
    pub(crate) fn may_pass_beyond(&self) -> bool {
        self.retry_after().is_some() && !self.blocked && self.source != Source::FailedClosed
    }

    /// Passes after all, uncharged.
    pub(crate) fn passed(mut self) -> Self {
        (self.allowed, self.overage) = (true, true);
        self
    }

    /// Refused after all: its place was given back, and its wait is now until this cost passes.
    pub(crate) fn turned_away(mut self) -> Self {
        let wait = std::mem::take(&mut self.wait);
        self.allowed = false;
        let deciding = self.outcomes.iter_mut().filter(|outcome| !outcome.is_report_only());
        if let Some(outcome) = deciding.min_by_key(|outcome| outcome.remaining()) {
            outcome.set_retry(wait);
        }
        self
    }

    /// When the store decided, by its own clock.
    pub(crate) fn instant(&self) -> u64 {
        self.at
    }
}

/// Who made a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The embedded store.
    Local,
    /// A governor limiter.
    Governor,
    /// Redis or Valkey.
    Redis,
    /// The store failed and [`FailOpen`](crate::store::FailOpen) let the request pass, uncharged.
    FailedOpen,
    /// The store failed and [`FailClosed`](crate::store::FailClosed) refused the request.
    FailedClosed,
    /// The store failed and the local one of a [`Fallback`](crate::store::Fallback) decided.
    Fallback,
    /// A [`DenyCache`](crate::store::DenyCache) refused by what its store had said before.
    DenyCache,
    /// A [`Leased`](crate::store::Leased) store admitted by units that it had borrowed before.
    Leased,
    /// The embedded store had no room to [block](crate::Store::block) a key.
    Overflow,
    /// A store of another crate, by its own name.
    Other(&'static str),
}

impl Source {
    /// One word: `local`, `governor`, `redis`, `failed_open`, `failed_closed`, `fallback`, `deny_cache`,
    /// `leased`, `overflow`, or the store's own name.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Governor => "governor",
            Self::Redis => "redis",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::Fallback => "fallback",
            Self::DenyCache => "deny_cache",
            Self::Leased => "leased",
            Self::Overflow => "overflow",
            Self::Other(name) => name,
        }
    }

    /// Whether the store itself decided, and not what stands in for it.
    pub(crate) fn is_of_store(self) -> bool {
        !matches!(self, Self::FailedOpen | Self::FailedClosed | Self::Fallback) && !self.is_known()
    }

    /// Whether it was decided by what was known, and no store was asked: no sign of life of one.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Self::DenyCache | Self::Leased)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
