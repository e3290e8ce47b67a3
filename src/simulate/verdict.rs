//! The decisions of single calls.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    decision::{Decision, Outcome},
    key::KeyError,
    rule::RuleName,
};

/// The names of rules.
pub(super) type RuleNames = SmallVec<[RuleName; 2]>;

/// Decision on one [`Call`](super::Call) of a trace.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::{Quota, Rule, key::HeaderKey, simulate::{Call, simulate}};
///
/// let (parts, ()) = http::Request::new(()).into_parts();
/// let rule = Rule::new("user", HeaderKey::new("x-api-key"), Quota::per_minute(1));
/// let verdict = simulate(rule, [Call::new(Duration::ZERO, parts)]).next().unwrap();
///
/// // No quota denied it: it has no key.
/// assert!(!verdict.passes() && !verdict.is_limited());
/// assert!(verdict.decision().is_none() && verdict.error().is_some());
/// ```
#[derive(Clone, Debug)]
pub struct SimulatedDecision {
    pub(super) at: Duration,
    pub(super) late: bool,
    pub(super) waits_for: RuleNames,
    /// The decision, or `None` if no rule charges the call. An error if the call has no usable key.
    pub(super) decided: Result<Option<Decision>, KeyError>,
}

impl SimulatedDecision {
    /// Returns the time of the decision, since the Unix epoch.
    ///
    /// The time of the decision is the time of the call, unless the call is
    /// [late](SimulatedDecision::is_late).
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Returns `true` if an earlier call in the trace has a later time.
    ///
    /// The clock never goes back, so a late call is decided at the latest time so far. Logs contain
    /// late calls, because many servers log a request when the request ends.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// Returns `true` if the request reaches the service, immediately or after a
    /// [wait](Decision::wait).
    #[must_use]
    pub fn passes(&self) -> bool {
        match &self.decided {
            Ok(decision) => decision.as_ref().is_none_or(Decision::is_allowed),
            Err(_) => false,
        }
    }

    /// Returns `true` if a quota affected the request.
    ///
    /// The request was denied, had to wait, was overage, or would have been denied by a report-only
    /// rule.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.decision().is_some_and(|decision| {
            let denied = decision.outcomes().iter().any(Outcome::is_denied);
            !decision.is_allowed() || decision.is_overage() || decision.waits() || denied
        })
    }

    /// Returns `true` if a quota of this rule makes the request [wait](Decision::wait).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::{Quota, Rule, key::Everyone, rule::RuleName, simulate::{Call, simulate}};
    ///
    /// let day = Rule::new("day", Everyone, Quota::per_day(2));
    /// let pace = Rule::new("pace", Everyone, Quota::per_second(1)).max_wait(Duration::from_secs(1));
    /// let calls = [0, 0].map(|second| {
    ///     let (parts, ()) = http::Request::new(()).into_parts();
    ///     Call::new(Duration::from_secs(second), parts)
    /// });
    ///
    /// // It takes the last unit of the day, but waits for the per-second quota.
    /// let verdict = simulate((day, pace), calls).nth(1).unwrap();
    /// assert!(verdict.passes() && verdict.is_limited());
    /// let waits_for = |rule| verdict.waits_for(RuleName::new(rule).unwrap());
    /// assert!(waits_for("pace") && !waits_for("day"));
    /// ```
    #[must_use]
    pub fn waits_for(&self, rule: RuleName) -> bool {
        self.waits_for.contains(&rule)
    }

    /// Returns the decision, or `None` if no rule charges the request or its key is unusable.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        self.decided.as_ref().ok()?.as_ref()
    }

    /// Returns the error of a request without a usable key.
    #[must_use]
    pub fn error(&self) -> Option<&KeyError> {
        self.decided.as_ref().err()
    }
}
