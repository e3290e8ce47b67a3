//! What a layer may be and probably should not: legal, and most likely a mistake.
//!
//! Rules that would refuse or confuse every request are an error when a layer is built
//! ([`RuleError`](crate::RuleError)). What is left can work as written, but does not do what
//! whoever wrote it seems to want: a quota that never refuses, header fields that a client cannot
//! read. That is a [`Finding`], of one of the kinds listed in [`Lint`]. It is no error, so that
//! nobody's server stops for it.
//!
//! A test asserts that there is none:
//!
//! ```
//! use tower_sluice::{PeerIp, Quota, RateLimitLayer, LocalStore};
//!
//! let by_address = [Quota::per_second(10), Quota::per_hour(5_000)];
//! let layer = RateLimitLayer::new(PeerIp::new(), by_address, LocalStore::new());
//! assert_eq!(layer.lints(), []);
//! ```
//!
//! A finding names the rule, the value and the fix; what is meant so is allowed by its kind:
//!
//! ```
//! use tower_sluice::{Lint, LocalStore, PeerIp, Quota, RateLimitLayer};
//!
//! // ten a second are never more than six hundred a minute
//! let by_address = [Quota::per_second(10), Quota::per_minute(600)];
//! let layer = RateLimitLayer::new(PeerIp::new(), by_address, LocalStore::new());
//! let found = layer.lints();
//! assert_eq!(found[0].lint(), Lint::DominatedQuota);
//! assert!(found[0].to_string().starts_with("rule default: quota 2, 600/min, never refuses"));
//!
//! // but clients are to read of both
//! assert_eq!(layer.allow_lint(Lint::DominatedQuota).lints(), []);
//! ```
//!
//! With the feature `tracing` each is also a line at warn when the layer is first put around a
//! service. Others are seen only at work, and are such lines too:
//!
//! | name | when |
//! |---|---|
//! | `one_private_peer` | the first 1 000 requests of a [`PeerIp`](crate::PeerIp) came from one private address: behind a proxy all clients share its account |
//! | `forwarding_header_ignored` | among the first 1 000 requests of a [`PeerIp`](crate::PeerIp), one from a private address has `x-forwarded-for` or the like: behind a proxy all clients share its account |
//! | `layer_rebuilt` | embedded stores are made for layers and dropped all the time, or 16 in a row after one decision each: built per request or per connection, a layer limits nobody |
//! | `no_identity` | none of the first 32 requests of a [`key::Extension`](crate::key::Extension) had one: what puts it there runs behind the limiter |
//! | `no_matched_path` | a request fits a template of `by_route`, and has no matched path: the layer is around the router, or the router lacks the route |
//! | `route_never_met` | a route of `by_route` has met none of the first 100 requests of the rule `other`, and the router has matched a template that differs by its case, a slash at the end, or the path it is nested under |
//!
//! All these lines have the target `tower_sluice::lint` and the name in the field `lint`, so that
//! a filter such as `tower_sluice::lint=error` turns them off.
//!
//! # What it does not protect against
//!
//! What is known before the first request is judged, and nothing else: not quotas and costs chosen per
//! request, and not another layer. A layer without findings may still limit too much or too little.

mod dominated;
mod find;

use std::fmt;

#[cfg(feature = "tracing")]
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

pub(crate) use self::find::{Knobs, find};
use crate::name::RuleName;

/// A kind of probable mistake; see [`RateLimitLayer::lints`](crate::RateLimitLayer::lints).
///
/// The set is closed: [`name`](Lint::name) is what a log line has in its field `lint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lint {
    /// `dominated_quota`: another quota of the same rule refuses whatever this one would, so that
    /// this one limits nothing: `[per_second(10), per_minute(600)]`.
    ///
    /// Only what can be proved for every sequence of charges is said. Judged are
    ///
    /// - two that count alike, but for their names;
    /// - two of one algorithm: GCRA by burst and interval, token buckets of one refill and period,
    ///   aligned windows of which one period is a multiple of the other, the other windows of one
    ///   period (and number of buckets) by their units;
    /// - any two by the most that the tighter one can admit in a span of time. GCRA admits its
    ///   burst and what comes back, a token bucket a refill more than that, windows up to twice
    ///   their units around an edge, a log its units.
    ///
    /// What passes as overage, and what a window lends, counts as admitted. A looser quota that
    /// is paced, or has an `initial` below its burst, is not judged. Where charges are taken back or
    /// made late (the layer settles, or the rule lets requests wait) two accounts may part: there
    /// only quotas that count alike are judged. Charges made late from elsewhere, by a
    /// [`Limiter`](crate::Limiter) or after an outage, are not seen.
    DominatedQuota,
    /// `cost_above_limit`: what a request costs and must leave over is above the limit of a
    /// [`LivePlan`](crate::LivePlan) as it is now, so that every request is refused until that is
    /// replaced. Of quotas that stay it is an [error](crate::RuleError::CostAboveLimit).
    CostAboveLimit,
    /// `unnamed_quotas`: a request is charged under several quotas, and the header fields tell the
    /// numbers of one without its name: all of [`Headers`](crate::Headers) but `Draft11`. A
    /// client cannot tell whose numbers it reads.
    UnnamedQuotas,
    /// `nobody_waits`: a rule has a [`max_wait`](crate::Rule::max_wait), and the layer has
    /// [`max_waiters(0)`](crate::RateLimitLayer::max_waiters), or
    /// [`max_waiters_per_key(0)`](crate::RateLimitLayer::max_waiters_per_key).
    NobodyWaits,
    /// `key_extractor`: a setting of a rule's extractor, by
    /// [`KeyExtractor::lints`](crate::KeyExtractor::lints). [`ClientIp::behind`](crate::ClientIp::behind)
    /// reports that it trusts no network, and an address alone that looks like that of a network.
    KeyExtractor,
    /// `other_methods`: of the routes of one [`by_route`](crate::RateLimitLayer) some are limited
    /// for some methods only, and the rule for all other requests allows more than ten times as
    /// much in the long run. A handler that answers several methods there, as
    /// `axum::routing::any` makes it, is limited by `ByRoute::any_method`.
    OtherMethods,
    /// `adjustment_above_max_debt`: requests that end without an adjustment are charged what
    /// [`reserve_at_least`](crate::RateLimitLayer::reserve_at_least) says, and those that a full
    /// account admits at once come to more than the limit and [`max_debt`](crate::Quota::max_debt) of a quota. What is beyond is
    /// never charged. Costs that are chosen per request, and adjustments by handlers, are not judged.
    AdjustmentAboveMaxDebt,
}

impl Lint {
    /// Its name in log lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DominatedQuota => "dominated_quota",
            Self::CostAboveLimit => "cost_above_limit",
            Self::UnnamedQuotas => "unnamed_quotas",
            Self::NobodyWaits => "nobody_waits",
            Self::KeyExtractor => "key_extractor",
            Self::OtherMethods => "other_methods",
            Self::AdjustmentAboveMaxDebt => "adjustment_above_max_debt",
        }
    }
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A probable mistake; its text names the rule, the value and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Finding {
    lint: Lint,
    rule: Option<RuleName>,
    text: String,
}

impl Finding {
    /// Its kind.
    #[must_use]
    pub fn lint(&self) -> Lint {
        self.lint
    }

    /// The rule it is about; `None` where it is about the layer.
    #[must_use]
    pub fn rule(&self) -> Option<RuleName> {
        self.rule
    }

    fn of(lint: Lint, rule: RuleName, text: &str) -> Self {
        Self { lint, rule: Some(rule), text: format!("rule {rule}: {text}") }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a layer is meant to be, and whether what was found has been told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lints {
    allowed: Vec<Lint>,
    /// Shared by the clones of a layer, which is one limit.
    #[cfg(feature = "tracing")]
    told: Arc<AtomicBool>,
}

impl Lints {
    pub(crate) fn allow(&mut self, lint: Lint) {
        self.allowed.push(lint);
    }

    /// What is found is to be told once more: a knob was turned.
    pub(crate) fn anew(&mut self) {
        #[cfg(feature = "tracing")]
        {
            self.told = Arc::default();
        }
    }

    /// What was found and is not allowed.
    pub(crate) fn sift(&self, mut found: Vec<Finding>) -> Vec<Finding> {
        found.retain(|finding| !self.allowed.contains(&finding.lint));
        found
    }

    /// Tells what `find` finds, the first time.
    #[cfg(feature = "tracing")]
    pub(crate) fn tell(&self, find: impl FnOnce() -> Vec<Finding>) {
        if self.told.swap(true, Relaxed) {
            return;
        }
        for finding in find() {
            let lint = finding.lint.name();
            tracing::warn!(target: "tower_sluice::lint", lint, "{finding}");
        }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn tell(&self, _: impl FnOnce() -> Vec<Finding>) {}
}
