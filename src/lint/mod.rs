//! Lints for settings that are valid but probably unintended.
//!
//! A lint reports settings that work, but probably not as intended. An example is a quota that
//! never denies a request. A [`Finding`] does not stop a server. In contrast, a layer that would
//! deny every request cannot be built ([`RuleError`](crate::rule::RuleError)).
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
//! A finding contains the rule, the value and the fix. If the setting is intended, allow the lint:
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
//! With feature `tracing`, findings are also logged as warnings when the layer first wraps a
//! service. The log also reports these mistakes, which are detected at run time:
//!
//! | name | when |
//! |---|---|
//! | `one_private_peer` | The first 1 000 requests of a [`PeerIp`](crate::PeerIp) came from one private address, which is probably a proxy. |
//! | `forwarding_header_ignored` | One of the first 1 000 requests of a [`PeerIp`](crate::PeerIp) came from a private address with `x-forwarded-for` or a similar header. The address is probably a proxy. |
//! | `layer_rebuilt` | A layer with an embedded store is built per request or per connection, so it limits nothing. |
//! | `no_identity` | None of the first 32 requests of a [`key::ExtensionKey`](crate::key::ExtensionKey) had the extension. The middleware that inserts it runs inside the limiter. |
//! | `no_matched_path` | A request fits a template of `by_route`, but has no matched path. The layer is around the router, or the router lacks the route. |
//! | `route_never_met` | A route of `by_route` was never used, but the router has matched a similar template. The templates differ in case, a trailing slash, or a nested prefix. |
//!
//! All these log lines have the target `tower_sluice::lint` and the name in the field `lint`. A
//! filter such as `tower_sluice::lint=error` turns them off.
//!
//! # Limitations
//!
//! Findings do not cover quotas and costs that are chosen per request, or other layers.

mod dominated;
mod find;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

pub(crate) use self::find::{Knobs, find};
use crate::{log::warn, rule::RuleName};

/// Kind of a [`Finding`]. See [`RateLimitLayer::lints`](crate::RateLimitLayer::lints).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lint {
    /// `dominated_quota`: a quota has no effect, because another quota of the rule denies first.
    ///
    /// An example is `[per_second(10), per_minute(600)]`. A quota is reported only if it provably
    /// has no effect for every sequence of charges. These pairs of quotas are compared:
    ///
    /// - Two quotas that differ only in their names.
    /// - Two quotas of one algorithm, by their settings. Token buckets must have the same refill
    ///   and period. One period of aligned windows must be a multiple of the other. Other windows
    ///   must have the same period.
    /// - Any two quotas, by the maximum units that the tighter one can allow in a time span.
    ///
    /// If the layer adjusts charges or requests may queue, only pairs of the first kind are
    /// compared.
    ///
    /// # Limitations
    ///
    /// A looser quota is not compared if it is paced or has an `initial` below its burst. The lint
    /// assumes that no [`Limiter`](crate::Limiter) charges the quotas beyond their limit.
    DominatedQuota,
    /// `cost_above_limit`: a [`LivePlan`](crate::LivePlan) denies every request.
    ///
    /// The cost plus the headroom is above the current limit of a quota. Fixed quotas cause an
    /// [error](crate::rule::RuleError::CostAboveLimit) instead.
    CostAboveLimit,
    /// `paced_cost`: a client that obeys `Retry-After` can be denied forever.
    ///
    /// A cost of several units fits only late in a [paced](crate::Algorithm::paced) window. The lint
    /// reports a cost that fits for less than a second of each window, because `Retry-After` is in
    /// whole seconds. A rule with a [`max_wait`](crate::Rule::max_wait) is not reported.
    PacedCost,
    /// `unnamed_quotas`: the header fields report one of several quotas without its name.
    ///
    /// A client cannot know which quota is reported. [`Headers::RateLimit`](crate::Headers::RateLimit)
    /// reports all names.
    UnnamedQuotas,
    /// `nobody_waits`: a rule has a [`max_wait`](crate::Rule::max_wait), but no request can wait.
    ///
    /// The layer has [`max_waiters(0)`](crate::RateLimitLayer::max_waiters) or
    /// [`max_waiters_per_key(0)`](crate::RateLimitLayer::max_waiters_per_key).
    NobodyWaits,
    /// `key_extractor`: a setting of an extractor is probably a mistake.
    ///
    /// See [`KeyExtractor::lints`](crate::KeyExtractor::lints) and
    /// [`ClientIp::behind`](crate::ClientIp::behind).
    KeyExtractor,
    /// `other_methods`: a [`by_route`](crate::RateLimitLayer) limits only some methods of a path.
    ///
    /// Other methods of the path have more than ten times the rate. If a handler serves several
    /// methods, such as `axum::routing::any`, use `ByRoute::any_method`.
    OtherMethods,
    /// `adjustment_above_max_debt`: parallel requests can use more units than are ever charged.
    ///
    /// A full account allows several requests at once. Their final charges can exceed the limit
    /// plus the [`max_debt`](crate::Quota::max_debt) of a quota. The lint checks only layers with
    /// [`expose_charge_at_least`](crate::RateLimitLayer::expose_charge_at_least).
    AdjustmentAboveMaxDebt,
}

impl Lint {
    /// Returns the name of the lint in log lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DominatedQuota => "dominated_quota",
            Self::CostAboveLimit => "cost_above_limit",
            Self::PacedCost => "paced_cost",
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

/// Probable mistake in the settings. The text names the rule, the value and the fix.
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

/// The lints that a layer does not report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lints {
    allowed: Vec<Lint>,
    /// `true` once the findings were logged. Clones of a layer share the flag.
    logged: Arc<AtomicBool>,
}

impl Lints {
    pub(crate) fn allow(&mut self, lint: Lint) {
        self.allowed.push(lint);
    }

    /// Makes the layer log its findings again, after a setting has changed.
    pub(crate) fn reset_logged(&mut self) {
        self.logged = Arc::default();
    }

    /// Removes the findings of allowed lints.
    pub(crate) fn without_allowed(&self, mut found: Vec<Finding>) -> Vec<Finding> {
        found.retain(|finding| !self.allowed.contains(&finding.lint));
        found
    }

    /// Logs the findings that `find` returns, once per layer.
    pub(crate) fn log_once(&self, find: impl FnOnce() -> Vec<Finding>) {
        if !cfg!(feature = "tracing") || self.logged.swap(true, Relaxed) {
            return;
        }
        for finding in find() {
            let lint = finding.lint.name();
            warn!(target: "tower_sluice::lint", lint, "{finding}");
        }
    }
}
