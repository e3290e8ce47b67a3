//! What a store said: allowed or not, with one outcome per quota.

use std::time::Duration;

use smallvec::SmallVec;

use crate::name::RuleName;

/// "Waiting does not help", in nanoseconds.
const NEVER: u64 = u64::MAX;

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
    source: Source,
    /// The store's own clock when it decided: with [`Outcome::ahead`] it makes the receipt.
    at: u64,
    wait: u64,
    outcomes: SmallVec<[Outcome; 2]>,
}

impl Decision {
    /// Lets the request pass.
    #[must_use]
    pub fn allow() -> Self {
        Self { allowed: true, source: Source::Local, at: 0, wait: 0, outcomes: SmallVec::new() }
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
    pub fn is_allowed(&self) -> bool {
        self.allowed
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
    /// the least left. `None` when no quota was asked.
    #[must_use]
    pub fn binding(&self) -> Option<&Outcome> {
        match self.outcomes.as_slice() {
            [] => None,
            [one] => Some(one),
            _ if self.allowed => self.outcomes.iter().min_by_key(|o| o.remaining()),
            // the first of equals, as `min_by_key` gives above
            _ => self.outcomes.iter().rev().max_by_key(|o| o.retry()),
        }
    }

    /// Units left under the [binding](Decision::binding) quota.
    #[must_use]
    pub fn remaining(&self) -> Option<u32> {
        self.binding().map(Outcome::remaining)
    }

    /// The shortest wait after which the same request passes if nobody else charges: zero when it
    /// passed, `None` when waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.allowed { Some(Duration::ZERO) } else { self.binding()?.retry_after() }
    }

    pub(crate) fn at(mut self, at: u64) -> Self {
        self.at = at;
        self
    }

    pub(crate) fn waiting(mut self, nanos: u64) -> Self {
        self.wait = nanos;
        self
    }

    /// The stored instant after this charge: what [`Store::give_back`](crate::Store::give_back)
    /// needs to undo it without undoing another's.
    pub(crate) fn receipt(&self, outcome: &Outcome) -> u64 {
        match outcome.numbers {
            Numbers::Refilling { ahead, .. } => self.at.saturating_add(ahead),
            _ => 0,
        }
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
    /// The store failed and [`FailOpen`](crate::store::FailOpen) let the request pass, uncharged.
    FailedOpen,
    /// The store failed and [`FailClosed`](crate::store::FailClosed) refused the request.
    FailedClosed,
    /// A store of another crate, by its own name.
    Other(&'static str),
}

/// What became of one quota in a [`Decision`].
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    rule: RuleName,
    place: u8,
    numbers: Numbers,
}

#[derive(Clone, Copy, Debug)]
enum Numbers {
    /// One unit comes back every `interval` ns; the account is full in `ahead` ns.
    Refilling {
        ahead: u64,
        interval: u64,
        limit: u32,
        need: u32,
    },
    Known {
        limit: u32,
        remaining: u32,
        full: u64,
        next: u64,
        retry: u64,
    },
    /// The store does not tell.
    Unknown {
        retry: u64,
    },
}

impl Outcome {
    /// The outcome of the quota at `place` of the charge of `rule`, in numbers.
    ///
    /// `reset_after` is the time until the account is full, `next_after` until more is left than
    /// now, and `retry_after` until this cost passes: zero when it passed, `None` when waiting
    /// does not help.
    #[must_use]
    pub fn new(
        rule: RuleName,
        place: usize,
        limit: u32,
        remaining: u32,
        reset_after: Duration,
        next_after: Duration,
        retry_after: Option<Duration>,
    ) -> Self {
        let (full, next) = (nanos(reset_after), nanos(next_after));
        let retry = retry_after.map_or(NEVER, nanos);
        Self::with(rule, place, Numbers::Known { limit, remaining, full, next, retry })
    }

    /// For a store that cannot tell what is left: header fields leave the quota out.
    #[must_use]
    pub fn unknown(rule: RuleName, place: usize, retry_after: Option<Duration>) -> Self {
        Self::with(rule, place, Numbers::Unknown { retry: retry_after.map_or(NEVER, nanos) })
    }

    /// An account that refills one unit every `interval` and is full in `ahead`, after it was
    /// asked for `need` units (0: nothing is wanted any more).
    pub(crate) fn refilling(
        rule: RuleName,
        place: usize,
        (limit, interval): (u32, u64),
        ahead: u64,
        need: u32,
    ) -> Self {
        Self::with(rule, place, Numbers::Refilling { ahead, interval, limit, need })
    }

    #[expect(clippy::cast_possible_truncation, reason = "a rule has at most 255 quotas")]
    fn with(rule: RuleName, place: usize, numbers: Numbers) -> Self {
        Self { rule, place: place as u8, numbers }
    }

    /// The rule that charged.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Which of the rule's quotas this is, counted from 0.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place.into()
    }

    /// Whether this quota refused.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.retry() > 0
    }

    /// The most units ever available at once.
    #[must_use]
    pub fn limit(&self) -> u32 {
        match self.numbers {
            Numbers::Refilling { limit, .. } | Numbers::Known { limit, .. } => limit,
            Numbers::Unknown { .. } => 0,
        }
    }

    /// Whole units that would pass now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        match self.numbers {
            Numbers::Refilling { ahead, interval, limit, .. } => {
                // at most `limit`: what is owed rounded up to whole units
                let owed = ahead.div_ceil(interval).min(limit.into());
                limit - u32::try_from(owed).unwrap_or(limit)
            }
            Numbers::Known { remaining, .. } => remaining,
            Numbers::Unknown { .. } => 0,
        }
    }

    /// The time until the account is full again, as if it had never been used.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_nanos(match self.numbers {
            Numbers::Refilling { ahead, .. } => ahead,
            Numbers::Known { full, .. } => full,
            Numbers::Unknown { .. } => 0,
        })
    }

    /// The shortest wait until more is [remaining](Outcome::remaining) than now; zero when
    /// nothing is to come.
    #[must_use]
    pub fn next_after(&self) -> Duration {
        Duration::from_nanos(match self.numbers {
            Numbers::Refilling { ahead, interval, limit, .. } => {
                let more = u64::from(limit - self.remaining()).saturating_sub(1);
                ahead.saturating_sub(more * interval)
            }
            Numbers::Known { next, .. } => next,
            Numbers::Unknown { .. } => 0,
        })
    }

    /// The shortest wait after which this cost passes: zero when nothing stood in its way, `None`
    /// when waiting does not help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let retry = self.retry();
        (retry != NEVER).then(|| Duration::from_nanos(retry))
    }

    pub(crate) fn is_known(&self) -> bool {
        !matches!(self.numbers, Numbers::Unknown { .. })
    }

    fn retry(&self) -> u64 {
        match self.numbers {
            Numbers::Refilling { need: 0, .. } => 0,
            Numbers::Refilling { limit, need, .. } if need > limit => NEVER,
            Numbers::Refilling { ahead, interval, limit, need } => {
                ahead.saturating_sub(u64::from(limit - need) * interval)
            }
            Numbers::Known { retry, .. } | Numbers::Unknown { retry } => retry,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER - 1)
}
