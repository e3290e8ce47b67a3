//! Rules for requests.
//!
//! A rule has the quotas, the key and the cost of a request.

mod adaptive;
mod alternatives;
mod attempts;
#[cfg(feature = "axum")]
mod by_route;
mod check;
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

#[cfg(feature = "testing")]
pub(crate) use self::attempts::Decided;
pub use self::attempts::{Candidates, Choice};
#[cfg(feature = "axum")]
pub use self::by_route::{ByRoute, by_route, try_by_route};
#[cfg(all(feature = "axum", feature = "serde"))]
pub use self::routes::RouteSettings;
use self::rules::{Selected, Then, append_charge, sealed::Sealed};
#[cfg(feature = "serde")]
pub use self::settings::RuleSettings;
pub use self::{
    adaptive::Adaptive,
    alternatives::Alternatives,
    check::RuleError,
    controller::Measurement,
    fair::FairRule,
    plan::{Cost, LivePlan, Plan, RequestDeadline},
    quotas::Quotas,
    rules::{Bypass, RuleInfo, Rules},
};
pub(crate) use self::{
    attempts::{Attempts, OwnedCandidates, decide},
    check::{check, register},
    controller::Controller,
    plan::longest_wait,
    rules::{infos, with_charges},
};
pub use crate::name::{NameError, RuleName};
use crate::{
    key::{Key, KeyError, KeyExtractor, RequestHead, check_status, share_unless_client},
    store::{Charge, literal},
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
    /// reads no key, and a [block](crate::Limiter::block) has no effect. A [`LivePlan`] without quotas
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
    /// The units of a dropped waiting request are returned only if no later request waits. If a
    /// [`LivePlan`] raises a paced window, the last request of the smaller window
    /// may return its units nevertheless: two requests then have one turn.
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

impl<K: KeyExtractor> Rule<K> {
    /// Returns how the rule treats a request. A rule that limits nothing skips it.
    #[inline]
    fn applies_to(&self, head: &RequestHead<'_>) -> Applies {
        if self.plan.is_unlimited() && self.if_no_key.is_none() {
            return Applies::Skip;
        }
        self.applies
            .as_ref()
            .map_or(Applies::Charge, |applies| applies(head))
    }

    /// Returns the key to charge, or `None` if the request has no key, or if the key is unusable and the
    /// rule is report-only.
    ///
    /// Borrows the key, because moving it costs as much as hashing it. Stores the key in `made` if
    /// it is not the one that was `found`.
    #[inline(always)]
    fn key<'k>(
        &self,
        found: &'k Result<Option<Key>, KeyError>,
        made: &'k mut Option<Result<Option<Key>, KeyError>>,
        applies: Applies,
    ) -> Result<Option<&'k Key>, &'k KeyError> {
        if let Ok(Some(key)) = found
            && key.len() <= self.max_key_len
            && !key.is_blank()
        {
            return Ok(Some(key));
        }
        let resolved = made.insert(self.resolve_missing(found, applies));
        if resolved.is_err() && self.report_only.is_on() {
            return Ok(None);
        }
        resolved.as_ref().map(Option::as_ref)
    }

    /// Calls `then` with the charge of a request that has this key.
    #[inline(always)]
    fn with_charge<T>(
        &self,
        head: &RequestHead<'_>,
        key: &Key,
        then: impl FnOnce(&Charge<'_>) -> T,
    ) -> T {
        let mut made = None;
        let quotas = self.plan.quotas(head, key, &mut made);
        let mut charge = Charge::new(self.name, key, quotas);
        charge.cost = self.cost.of(head);
        charge.headroom = self.headroom.of(head);
        charge.report_only = self.report_only.is_on();
        if let Some(max_wait) = self.max_wait {
            charge.max_wait = longest_wait(head, max_wait);
        }
        then(&charge)
    }

    /// Applies the policy for a missing key, and rejects a key that is too long.
    #[cold]
    fn resolve_missing(
        &self,
        found: &Result<Option<Key>, KeyError>,
        applies: Applies,
    ) -> Result<Option<Key>, KeyError> {
        let is_required = applies == Applies::Require;
        let error = match found {
            Ok(Some(key)) if key.len() > self.max_key_len => return Err(self.too_long(key)),
            Ok(Some(key)) if key.is_blank() => KeyError::missing("key"),
            Ok(None) if is_required => KeyError::missing("key"),
            Err(error) if error.is_missing() => error.clone(),
            // This rule does not charge a request without a key.
            Ok(None) => return Ok(None),
            // A key that may be used, or that cannot be read.
            Ok(Some(_)) | Err(_) => return found.clone(),
        };
        if self.if_no_key.is_some() && !is_required {
            return Ok(None);
        }
        match self.on_missing_key {
            OnMissingKey::Reject(status) => Err(error.with_status(status)),
            _ if is_required => Err(error),
            OnMissingKey::Skip => Ok(None),
            OnMissingKey::Share => Ok(Some(Key::unidentified())),
        }
    }

    fn too_long(&self, key: &Key) -> KeyError {
        let bytes = key.len();
        let most = self.max_key_len;
        let why = format!("key of {bytes} bytes is too long; send at most {most}");
        KeyError::unusable(StatusCode::BAD_REQUEST, why)
    }
}

impl<K: KeyExtractor> Sealed for Rule<K> {
    fn select<'a>(&'a self, _: &RequestHead<'_>, rules: &mut Selected<'a>) {
        rules.push(self);
    }

    #[inline]
    fn append_charges(
        &self,
        head: &RequestHead<'_>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        let applies = self.applies_to(head);
        if applies == Applies::Skip {
            then(before);
            return Ok(());
        }
        let mut found = self.extractor.extract(head);
        share_unless_client(&self.extractor, &mut found);
        let mut made = None;
        let key = self.key(&found, &mut made, applies).map_err(Clone::clone)?;
        match (key, &self.if_no_key) {
            (None, Some(rules)) => return rules.append_charges(head, before, then),
            (Some(key), _) if !self.plan.is_unlimited() => {
                self.with_charge(head, key, |charge| append_charge(charge, before, then));
            }
            _ => then(before),
        }
        Ok(())
    }

    #[inline(always)]
    fn with_charges<T>(
        &self,
        head: &RequestHead<'_>,
        one: impl FnOnce(&Charge<'_>) -> T,
        several: impl FnOnce(Candidates<'_, '_>) -> T,
        bypassed: impl FnOnce(Bypass) -> T,
    ) -> T {
        if self.if_no_key.is_some() {
            return rules::with_charges(self, head, several, bypassed);
        }
        let applies = self.applies_to(head);
        if applies == Applies::Skip {
            return bypassed(Bypass::NO_RULE);
        }
        // Found here, since a helper that returned it would copy the key.
        let mut found = self.extractor.extract(head);
        share_unless_client(&self.extractor, &mut found);
        let mut made = None;
        match self.key(&found, &mut made, applies) {
            Ok(Some(key)) => self.with_charge(head, key, one),
            Ok(None) => bypassed(Bypass::NO_RULE),
            Err(error) => bypassed(error.clone().into()),
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
            report_only: &self.report_only,
            first_alternative: None,
            can_be_client: self.extractor.can_be_client(),
            share_of: None,
            sharers: None,
            sample: None,
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
