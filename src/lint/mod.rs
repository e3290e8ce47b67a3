//! Lints for settings that are valid but probably unintended.
//!
//! Building a layer fails with a [`RuleError`](crate::rule::RuleError) if its rules would deny
//! every request. A lint is less severe. The settings work, but probably not as intended. Examples
//! are a quota that never denies a request, and header fields that a client cannot interpret. Each
//! [`Finding`] has one of the kinds in [`Lint`]. A finding is not an error, so it does not stop a
//! server.
//!
//! Assert in a test that a layer has no findings:
//!
//! ```
//! use tower_sluice::{PeerIp, Quota, RateLimitLayer, LocalStore};
//!
//! let by_address = [Quota::per_second(10), Quota::per_hour(5_000)];
//! let layer = RateLimitLayer::new(PeerIp::new(), by_address, LocalStore::new());
//! assert_eq!(layer.lints(), []);
//! ```
//!
//! A finding names the rule, the value and the fix. Allow the kind of a finding if the setting is
//! intended:
//!
//! ```
//! use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, lint::Lint};
//!
//! // 10 per second is never more than 600 per minute
//! let by_address = [Quota::per_second(10), Quota::per_minute(600)];
//! let layer = RateLimitLayer::new(PeerIp::new(), by_address, LocalStore::new());
//! let found = layer.lints();
//! assert_eq!(found[0].lint(), Lint::DominatedQuota);
//! assert!(found[0].to_string().starts_with("rule default: quota 2, 600/min, never denies"));
//!
//! // both quotas are intended, because clients should see both
//! assert_eq!(layer.allow_lint(Lint::DominatedQuota).lints(), []);
//! ```
//!
//! With the feature `tracing`, each finding is also logged as a warning when the layer first wraps
//! a service. The following mistakes are detected at run time, and logged in the same way:
//!
//! | name | when |
//! |---|---|
//! | `one_private_peer` | The first 1 000 requests of a [`PeerIp`](crate::PeerIp) came from one private address. Behind a proxy, all clients share its account. |
//! | `forwarding_header_ignored` | Among the first 1 000 requests of a [`PeerIp`](crate::PeerIp), one from a private address has `x-forwarded-for` or a similar header. Behind a proxy, all clients share its account. |
//! | `layer_rebuilt` | Embedded stores are created for layers and dropped continuously, or 16 consecutive stores are dropped after one decision each. A layer that is built per request or per connection limits nothing. |
//! | `no_identity` | None of the first 32 requests of a [`key::ExtensionKey`](crate::key::ExtensionKey) had the extension. The middleware that inserts it runs inside the limiter. |
//! | `no_matched_path` | A request fits a template of `by_route` and has no matched path. The layer is around the router, or the router lacks the route. |
//! | `route_never_met` | A route of `by_route` matched none of the first 100 requests of the rule `other`, and the router has matched a template that differs in its case, a trailing slash, or the path under which it is nested. |
//!
//! All these log lines have the target `tower_sluice::lint` and the name in the field `lint`. A
//! filter such as `tower_sluice::lint=error` turns them off.
//!
//! # Limitations
//!
//! Findings cover settings that are known before the first request. They do not cover quotas and
//! costs that are chosen per request, or other layers. A layer without findings may still limit too
//! much or too little.

mod dominated;
mod find;

use std::fmt;

#[cfg(feature = "tracing")]
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

pub(crate) use self::find::{Knobs, find};
use crate::rule::RuleName;

/// The kind of a [`Finding`]. See [`RateLimitLayer::lints`](crate::RateLimitLayer::lints).
///
/// Log lines have the [`name`](Lint::name) in the field `lint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lint {
    /// `dominated_quota`: another quota of the same rule denies every request that this quota would
    /// deny, so this quota has no effect. An example is `[per_second(10), per_minute(600)]`.
    ///
    /// A quota is reported only if this is proved for every sequence of charges. The following
    /// pairs of quotas are compared:
    ///
    /// - two quotas that differ only in their names;
    /// - two quotas of one algorithm: GCRA by burst and interval; token buckets with the same
    ///   refill and period; aligned windows if one period is a multiple of the other; other windows
    ///   with the same period (and number of buckets) by their units;
    /// - any two quotas, by the maximum number of units that the tighter quota can allow in a time
    ///   span. GCRA allows its burst and the units that are replenished in the span. A token bucket
    ///   allows one refill more. Windows allow up to twice their units around the boundary of two
    ///   windows. A log allows its units.
    ///
    /// Overage and units that a window carries over count as allowed. A looser quota is not
    /// compared if it is paced or has an `initial` below its burst. Two accounts can diverge if
    /// charges are refunded or made late. This is possible if the layer adjusts charges or if
    /// requests of the rule may queue. In these cases, only quotas that count alike are compared.
    /// Late charges by a [`Limiter`](crate::Limiter) or after an outage are not considered.
    DominatedQuota,
    /// `cost_above_limit`: the sum of cost and headroom is above the current limit of a
    /// [`LivePlan`](crate::LivePlan), so every request is denied until the plan is replaced. For
    /// fixed quotas this is an [error](crate::rule::RuleError::CostAboveLimit).
    CostAboveLimit,
    /// `unnamed_quotas`: a request is charged under several quotas, and the header fields report
    /// one quota without its name. A client cannot identify the quota. This applies to all
    /// [`Headers`](crate::Headers) except `Draft11`.
    UnnamedQuotas,
    /// `nobody_waits`: a rule has a [`max_wait`](crate::Rule::max_wait), but the layer has
    /// [`max_waiters(0)`](crate::RateLimitLayer::max_waiters), or
    /// [`max_waiters_per_key(0)`](crate::RateLimitLayer::max_waiters_per_key).
    NobodyWaits,
    /// `key_extractor`: a setting of the rule's extractor is probably a mistake, as reported by
    /// [`KeyExtractor::lints`](crate::KeyExtractor::lints).
    /// [`ClientIp::behind`](crate::ClientIp::behind) reports that it trusts no network, or that a
    /// single address looks like the address of a network.
    KeyExtractor,
    /// `other_methods`: a [`by_route`](crate::RateLimitLayer) limits some paths for some methods
    /// only, and its rule for all other requests allows more than ten times the rate. If a handler
    /// serves several methods, as with `axum::routing::any`, limit its path with
    /// `ByRoute::any_method`.
    OtherMethods,
    /// `adjustment_above_max_debt`: a full account allows several parallel requests, and their
    /// adjusted charges can exceed the limit plus the [`max_debt`](crate::Quota::max_debt) of a
    /// quota. The excess is never charged. The charge of a request without an adjustment is set by
    /// [`expose_charge_at_least`](crate::RateLimitLayer::expose_charge_at_least). Costs that are
    /// chosen per request, and adjustments by handlers, are not considered.
    AdjustmentAboveMaxDebt,
}

impl Lint {
    /// Returns the name of the lint in log lines.
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

/// A probable mistake. The text names the rule, the value and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Finding {
    lint: Lint,
    rule: Option<RuleName>,
    text: String,
}

impl Finding {
    /// Returns the kind of the finding.
    #[must_use]
    pub fn lint(&self) -> Lint {
        self.lint
    }

    /// Returns the affected rule, or `None` if the finding affects the layer.
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

/// The lints that a layer allows, and a flag that is `true` after the findings of the layer are
/// logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lints {
    allowed: Vec<Lint>,
    /// The flag is shared by the clones of a layer, so that their findings are logged only once.
    #[cfg(feature = "tracing")]
    logged: Arc<AtomicBool>,
}

impl Lints {
    pub(crate) fn allow(&mut self, lint: Lint) {
        self.allowed.push(lint);
    }

    /// Clears the flag, because a setting of the layer has changed and the findings must be logged
    /// again.
    pub(crate) fn reset_logged(&mut self) {
        #[cfg(feature = "tracing")]
        {
            self.logged = Arc::default();
        }
    }

    /// Removes the findings whose lints are allowed.
    pub(crate) fn without_allowed(&self, mut found: Vec<Finding>) -> Vec<Finding> {
        found.retain(|finding| !self.allowed.contains(&finding.lint));
        found
    }

    /// Logs the findings that `find` returns, once.
    #[cfg(feature = "tracing")]
    pub(crate) fn log_once(&self, find: impl FnOnce() -> Vec<Finding>) {
        if self.logged.swap(true, Relaxed) {
            return;
        }
        for finding in find() {
            let lint = finding.lint.name();
            tracing::warn!(target: "tower_sluice::lint", lint, "{finding}");
        }
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn log_once(&self, _: impl FnOnce() -> Vec<Finding>) {}
}
