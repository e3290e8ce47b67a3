//! What became of one call.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    decision::{Decision, Outcome},
    key::KeyError,
    name::RuleName,
};

/// The names of rules.
pub(super) type Names = SmallVec<[RuleName; 2]>;

/// What became of one [`Call`](super::Call) of a trace.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Quota, Rule, key::Header, simulate::{Call, simulate}};
///
/// let (parts, ()) = http::Request::new(()).into_parts();
/// let rule = Rule::new("user", Header::new("x-api-key"), Quota::per_minute(1));
/// let verdict = simulate(rule, [Call::new(Duration::ZERO, parts)]).next().unwrap();
///
/// // no quota refused it: it has no key
/// assert!(!verdict.passes() && !verdict.is_limited());
/// assert!(verdict.decision().is_none() && verdict.error().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct Verdict {
    pub(super) at: Duration,
    pub(super) late: bool,
    pub(super) waits_for: Names,
    /// `None` where no rule charges it, the error where it has no usable key.
    pub(super) decided: Result<Option<Decision>, KeyError>,
}

impl Verdict {
    /// When it was decided, since the Unix epoch: when the call came, or, of one that is
    /// [late](Verdict::is_late), when the latest before it came.
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Whether a call before it in the trace came later. The clock never runs back: such a call is
    /// decided as if it had come at that time. Logs are written when a request ends, so that some
    /// are.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// Whether the request reaches the service, be it after a [wait](Decision::wait).
    #[must_use]
    pub fn passes(&self) -> bool {
        match &self.decided {
            Ok(decision) => decision.as_ref().is_none_or(Decision::is_allowed),
            Err(_) => false,
        }
    }

    /// Whether a quota stood in its way: it is refused, has to wait, passes as overage, or would be
    /// refused by a rule that only reports.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.decision().is_some_and(|decision| {
            let denied = decision.outcomes().iter().any(Outcome::is_denied);
            !decision.is_allowed() || decision.is_overage() || decision.waits() || denied
        })
    }

    /// Whether it passes after a [wait](Decision::wait) to which a quota of this rule made it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Quota, Rule, RuleName, key::Everyone, simulate::{Call, simulate}};
    ///
    /// let day = Rule::new("day", Everyone, Quota::per_day(2));
    /// let pace = Rule::new("pace", Everyone, Quota::per_second(1)).max_wait(Duration::from_secs(1));
    /// let calls = [0, 0].map(|second| {
    ///     let (parts, ()) = http::Request::new(()).into_parts();
    ///     Call::new(Duration::from_secs(second), parts)
    /// });
    ///
    /// // it takes the last of the day, but waits for the second
    /// let verdict = simulate((day, pace), calls).nth(1).unwrap();
    /// assert!(verdict.passes() && verdict.is_limited());
    /// let waits_for = |rule| verdict.waits_for(RuleName::new(rule).unwrap());
    /// assert!(waits_for("pace") && !waits_for("day"));
    /// ```
    #[must_use]
    pub fn waits_for(&self, rule: RuleName) -> bool {
        self.waits_for.contains(&rule)
    }

    /// The decision. `None` when no quota was asked: no rule charges the request, or it has no
    /// usable key.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decided.as_ref().ok()?.as_ref()
    }

    /// Why it has no usable key, where it was refused for that.
    #[must_use]
    pub fn error(&self) -> Option<&KeyError> {
        self.decided.as_ref().err()
    }
}
