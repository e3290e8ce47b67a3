//! Rules for requests.
//!
//! A rule has the quotas, the key and the cost of a request. The path of a request:
//!
//! ```text
//! head ─▶ append_charges ─▶ Candidates ─▶ Attempts ─▶ store
//!         Rule: a charge
//!         by_route: a charge of one of its rules
//!         alternatives: a choice of one of its rules
//!         fair: a choice of share and pool, or the pool
//!         tuple, Vec: the charges of all rules
//! ```

mod adaptive;
mod alternatives;
mod attempts;
#[cfg(feature = "axum")]
mod by_route;
mod charging;
mod check;
mod choice;
mod controller;
mod fair;
mod plan;
mod quotas;
#[cfg(all(feature = "axum", feature = "serde"))]
mod routes;
mod rules;
#[cfg(feature = "serde")]
mod settings;
mod sharers;

use std::{fmt, sync::Arc, time::Duration};

#[cfg(feature = "axum")]
pub use self::by_route::{ByRoute, by_route, try_by_route};
#[cfg(all(feature = "axum", feature = "serde"))]
pub use self::routes::RouteSettings;
#[cfg(feature = "serde")]
pub use self::settings::RuleSettings;
pub use self::{
    adaptive::Adaptive,
    alternatives::Alternatives,
    check::RuleError,
    choice::{Candidates, Choice},
    controller::Measurement,
    fair::FairRule,
    plan::{Cost, LivePlan, Plan, RequestDeadline},
    quotas::Quotas,
    rules::{Bypass, RuleInfo, Rules},
};
pub(crate) use self::{
    attempts::{Attempts, decide},
    check::{check, register},
    choice::OwnedCandidates,
    controller::Controller,
    plan::longest_wait,
    rules::{infos, with_charges},
};
pub use crate::name::{NameError, RuleName};
use crate::{
    key::{KeyExtractor, RequestHead, check_status},
    store::literal,
    toggle::Toggle,
};
use http::StatusCode;

/// The default maximum length of a key, in bytes.
const DEFAULT_MAX_KEY_LEN: usize = 1024;

/// Rule that limits requests: a name, an extractor, quotas and a cost.
///
/// ```
/// use tower_sluice::{Quota, Rule, key::HeaderKey, rule::OnMissingKey};
///
/// let rule = Rule::new(
///     "user",
///     HeaderKey::new("x-api-key"),
///     [Quota::per_second(5).with_burst(20), Quota::per_day(10_000)],
/// )
/// .cost(2)
/// .on_missing_key(OnMissingKey::Skip);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rule<K> {
    name: RuleName,
    extractor: K,
    plan: Plan,
    cost: Cost,
    headroom: Cost,
    max_wait: Option<Duration>,
    applies: Option<Arc<dyn Fn(&RequestHead<'_>) -> Applies + Send + Sync>>,
    on_missing_key: OnMissingKey,
    /// The rules of requests without a key, instead of `on_missing_key`.
    if_no_key: Option<Arc<dyn Rules + Send + Sync>>,
    report_only: Toggle,
    max_key_len: usize,
}

impl<K> Rule<K> {
    /// Creates a rule with one quota, with several quotas, or with a [`Plan`].
    ///
    /// Several quotas are charged together. A rule with an empty list, `[]`, ignores all requests: it
    /// reads no key (unless [`if_no_key`](Rule::if_no_key) needs it), and a
    /// [block](crate::Limiter::block) has no effect. A [`LivePlan`] without quotas
    /// reads keys, and denies those that are blocked.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not a valid [`RuleName`]. For a name known only at run time, create the
    /// [`RuleName`] first, and pass its text.
    #[track_caller]
    pub fn new(name: &str, extractor: K, plan: impl Into<Plan>) -> Self {
        Self::named(literal(RuleName::new(name)), extractor, plan)
    }

    /// Creates a rule with a name that is already validated.
    pub(crate) fn named(name: RuleName, extractor: K, plan: impl Into<Plan>) -> Self {
        Self {
            name,
            extractor,
            plan: plan.into(),
            cost: Cost::from(1),
            headroom: Cost::from(0),
            max_wait: None,
            applies: None,
            on_missing_key: OnMissingKey::default(),
            if_no_key: None,
            report_only: Toggle::from(false),
            max_key_len: DEFAULT_MAX_KEY_LEN,
        }
    }

    /// Replaces the quotas of the rule.
    pub fn plan(self, plan: impl Into<Plan>) -> Self {
        Self {
            plan: plan.into(),
            ..self
        }
    }

    /// Sets the cost of a request, as units or as a [`Cost::from_fn`]. Defaults to 1.
    ///
    /// A request of cost 0 is always allowed, even if its key or its quota is blocked. If clients
    /// can influence the cost, make the cost at least 1.
    pub fn cost(self, cost: impl Into<Cost>) -> Self {
        Self {
            cost: cost.into(),
            ..self
        }
    }

    /// Sets the number of units that must remain after a request. Defaults to 0.
    ///
    /// A request is denied if cost plus headroom exceed the units left. Low-priority requests with
    /// a headroom are therefore denied earlier than other requests.
    ///
    /// ```
    /// use tower_sluice::{Cost, Quota, RequestHead, Rule, key::Everyone};
    ///
    /// // Batch jobs leave at least 20 units for all other requests.
    /// let batch = |head: &RequestHead<'_>| head.headers.contains_key("x-batch");
    /// Rule::new("site", Everyone, Quota::per_second(100))
    ///     .headroom(Cost::from_fn(move |head| if batch(head) { 20 } else { 0 }));
    /// ```
    pub fn headroom(self, units: impl Into<Cost>) -> Self {
        Self {
            headroom: units.into(),
            ..self
        }
    }

    /// Sets the maximum time that a request waits instead of being denied. Defaults to zero.
    ///
    /// Waiting requests run at even intervals, in the order of arrival. No request waits beyond its
    /// deadline (`grpc-timeout` or [`RequestDeadline`]), which includes the time of the store call.
    ///
    /// A request also waits for a free slot of a [concurrent](crate::Quota::concurrent) quota. It is
    /// not charged until a slot is free; see [waiting for a
    /// slot](crate::guide::slots#waiting-for-a-slot). A request that needs more than one slot does not
    /// wait, neither for slots nor for a rate beside them: it is denied at once.
    ///
    /// By default, as many requests of a key wait for a rate as have their turn within `time`: one for each
    /// [interval](crate::Quota::interval) of the slowest quota, but at most 16. For example, ten wait under
    /// `Quota::per_minute(1)` and a `max_wait` of ten minutes. At most as many wait for slots as there are
    /// slots. At most 1,024 requests of a layer wait. See
    /// [`max_waiters_per_key`](crate::RateLimitLayer::max_waiters_per_key).
    ///
    /// At the shutdown of a service, [`queue_handle`](crate::RateLimitLayer::queue_handle) ends all waits.
    ///
    /// A request that waits for a rate is already admitted: a block or a new plan affects only later requests.
    /// The units of a dropped waiting request are returned only if no later request waits. There is one
    /// exception: after a [`LivePlan`] has raised the limit of a paced fixed window, the last request that
    /// waits under the old limit may return its units although later ones wait. Two requests then have
    /// one turn.
    ///
    /// Supported for GCRA and paced fixed windows, unless the quota has
    /// [soft units](crate::Quota::with_soft), and for slots of a [`LocalStore`](crate::LocalStore) or a
    /// `RedisStore`.
    pub fn max_wait(self, time: Duration) -> Self {
        Self {
            max_wait: Some(time).filter(|time| !time.is_zero()),
            ..self
        }
    }

    /// Sets a function that decides if the rule applies to a request. Defaults to
    /// [`Applies::Charge`].
    ///
    /// | result | effect |
    /// |---|---|
    /// | [`Applies::Charge`] | the rule charges the request |
    /// | [`Applies::Skip`] | the rule ignores the request; other rules still apply |
    /// | [`Applies::Require`] | the rule charges the request, and rejects it without an identity |
    ///
    /// To exempt requests from all rules, use an [allow list](crate::RateLimitLayer::allow).
    ///
    /// ```
    /// use tower_sluice::{PeerIp, Quota, Rule, rule::Applies};
    ///
    /// Rule::new("ip", PeerIp::new(), Quota::per_second(10)).applies(|head| {
    ///     if head.path().starts_with("/static/") { Applies::Skip } else { Applies::Charge }
    /// });
    /// ```
    pub fn applies(
        self,
        applies: impl Fn(&RequestHead<'_>) -> Applies + Send + Sync + 'static,
    ) -> Self {
        Self {
            applies: Some(Arc::new(applies)),
            ..self
        }
    }

    /// Sets the policy for a request without an identity. Defaults to a rejection with 400.
    ///
    /// To limit such a request by another key, use [`if_no_key`](Rule::if_no_key).
    ///
    /// # Panics
    ///
    /// Panics if the status of a rejection is outside 400 to 599.
    #[track_caller]
    pub fn on_missing_key(self, policy: OnMissingKey) -> Self {
        if let OnMissingKey::Reject(status) = policy {
            check_status("on_missing_key", status);
        }
        Self {
            on_missing_key: policy,
            ..self
        }
    }

    /// Sets the rules that limit a request without an identity. They replace the policy of
    /// [`on_missing_key`](Rule::on_missing_key), in any order of the two calls. If this rule
    /// [requires](Applies::Require) the key, that policy still sets the status of the rejection.
    ///
    /// ```
    /// use tower_sluice::{LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::HeaderKey};
    ///
    /// // 100 requests per minute for each key, and 10 for each address that sends no key.
    /// let anonymous = Rule::new("anonymous", PeerIp::new(), Quota::per_minute(10));
    /// let client = Rule::new("client", HeaderKey::new("x-api-key"), Quota::per_minute(100))
    ///     .if_no_key(anonymous);
    /// let layer = RateLimitLayer::rules(client, LocalStore::new());
    /// ```
    ///
    /// A request is charged to this rule or to `rules`, and never to both:
    ///
    /// | request | charged to |
    /// |---|---|
    /// | with a key | this rule, even if its quotas are empty or it is report-only |
    /// | without a key: absent, blank, or `Ok(None)` from the extractor | `rules` |
    /// | with an unusable key: sent twice, too long | neither: it is rejected |
    /// | with an unusable key, and this rule is report-only | `rules` |
    /// | [skipped](Applies::Skip) by this rule, or on an [allow list](crate::AccessList) | neither |
    /// | without a key, and this rule [requires](Applies::Require) it | neither: it is rejected |
    /// | without a key, and this rule requires it, but is report-only | `rules` |
    ///
    /// `rules` keep all their own settings, such as [`report_only`](Rule::report_only) and a
    /// [`LivePlan`].
    pub fn if_no_key(self, rules: impl Rules + Send + Sync + 'static) -> Self {
        Self {
            if_no_key: Some(Arc::new(rules)),
            ..self
        }
    }

    /// Makes the rule report-only while `toggle` is on, or always with `true`.
    ///
    /// A report-only rule counts requests but never denies them. The decision reports if the rule
    /// would have denied the request. Clones of the rule share the toggle.
    ///
    /// ```
    /// use tower_sluice::{PeerIp, Quota, Rule, middleware::Toggle};
    ///
    /// let report_only = Toggle::on();
    /// let rule = Rule::new("ip", PeerIp::new(), Quota::per_second(10)).report_only(&report_only);
    /// report_only.set(false); // the rule denies from the next request on
    /// ```
    ///
    /// # Limitations
    ///
    /// A decision fails if any server that it needs fails, in a Redis Cluster perhaps only that of a
    /// report-only rule. The policy for outages then decides for the other rules, too:
    /// [`fail_closed`](crate::StoreExt::fail_closed) denies, and
    /// [`fail_open`](crate::StoreExt::fail_open) allows.
    pub fn report_only(self, toggle: impl Into<Toggle>) -> Self {
        Self {
            report_only: toggle.into(),
            ..self
        }
    }

    /// Sets the maximum length of a key in bytes. Defaults to 1 KiB.
    ///
    /// A request with a longer key is rejected with 400.
    ///
    /// # Panics
    ///
    /// Panics if `bytes` is 0.
    #[track_caller]
    pub fn max_key_len(self, bytes: usize) -> Self {
        assert!(bytes > 0, "max_key_len is 0; give at least 1");
        Self {
            max_key_len: bytes,
            ..self
        }
    }
}

impl<K: KeyExtractor> Rules for Rule<K> {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        infos.push(RuleInfo {
            name: self.name,
            quotas: self.plan.fixed(),
            live: self.plan.live(),
            cost: self.cost.fixed(),
            headroom: self.headroom.fixed(),
            queues: self.max_wait.is_some(),
            max_wait: self.max_wait,
            report_only: &self.report_only,
            first_alternative: None,
            can_be_client: self.extractor.can_be_client(),
            share_of: None,
            sharers: None,
            has_reserve: false,
        });
        if let Some(rules) = &self.if_no_key {
            rules.info(infos);
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for Rule<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("name", &self.name)
            .field("extractor", &self.extractor)
            .field("plan", &self.plan)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

/// Treatment of a request by a rule: [`Charge`](Self::Charge), [`Skip`](Self::Skip) or
/// [`Require`](Self::Require). See [`Rule::applies`](crate::Rule::applies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applies {
    /// The rule charges the request.
    #[default]
    Charge,
    /// The rule ignores the request, but other rules still apply.
    Skip,
    /// The rule charges the request, and rejects a request without an identity.
    ///
    /// The [`OnMissingKey`] policy then has no effect, except for the status of
    /// [`Reject`](OnMissingKey::Reject).
    Require,
}

/// Policy for a request without an identity.
///
/// With feature `serde`, it is read from `"reject"` (with 400), `"skip"`, `"share"`, or
/// `"reject 401"` with a status from 400 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request with this status.
    Reject(StatusCode),
    /// Ignores the request. Clients can then avoid the rule by omitting their identity.
    Skip,
    /// Charges all requests without an identity to one account of the rule.
    Share,
}

/// Returns [`OnMissingKey::Reject`] with status 400.
impl Default for OnMissingKey {
    fn default() -> Self {
        Self::Reject(StatusCode::BAD_REQUEST)
    }
}
