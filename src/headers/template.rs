//! The quotas of a layer as clients see them, and the header fields of a decision.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use http::{
    HeaderMap, HeaderValue,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use smallvec::SmallVec;

use super::{
    HeaderPolicy, Headers,
    item::{Item, RuleQuotas, policy},
    lines::{Lines, NO_STORE, TEXT, number, permanent, retry_seconds},
    recent::{Reading, RecentKey},
};
use crate::{
    decision::{Decision, Outcome},
    fingerprint::FingerprintKey,
    key::Key,
    quota::Quota,
    rule::{Quotas, RuleError, RuleInfo, RuleName},
    store::Charge,
};

/// The quotas of a layer, or of one request, and their header fields.
#[derive(Debug)]
pub(crate) struct Template {
    pub(super) family: Headers,
    /// `true` if the response to an allowed request has fields.
    reports_allowed: bool,
    pub(super) items: Vec<Item>,
    /// The policy field, unless no quota is a policy.
    pub(super) policy: Option<HeaderValue>,
    /// The number of quotas that the fields report if all rules charge a request.
    shown: usize,
    /// `true` if each request needs a template of its own, because a rule chooses its quotas for each
    /// request, or because of partition keys.
    is_per_request: bool,
    /// The secret of partition keys, if they are enabled.
    secret: Option<FingerprintKey>,
    /// Set if many requests share the template.
    pub(super) prepared: Option<Prepared>,
    /// The template of the current quotas, if the layer has a live plan. Requests then use it instead of this
    /// one.
    latest: Option<ArcSwap<Self>>,
    /// The rules of the layer with these quotas. Only the template in `latest` has them, since it is made
    /// again when a plan is replaced.
    rules: Vec<LiveRule>,
}

/// The fields that a response gets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldSet {
    /// The quota fields.
    Quotas,
    /// All fields of a plain-text rejection with a wait.
    PlainRejection,
}

/// Fields with placeholder values. A copy costs less than a new map, which hashes each name.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The identity of the template in the cache.
    id: u64,
    /// The quota fields.
    pub(super) fields: HeaderMap,
    /// The fields of a plain-text rejection: `Retry-After`, the quota fields, and others.
    pub(super) denial: HeaderMap,
}

type Readings = SmallVec<[Reading; 2]>;

impl Template {
    fn of(family: Headers, items: Vec<Item>) -> Self {
        let shown = items
            .iter()
            .filter(|item| !item.is_reporting && item.is_listed());
        Self {
            family,
            reports_allowed: family != Headers::None,
            policy: policy(shown.clone()),
            shown: shown.count(),
            items,
            is_per_request: false,
            secret: None,
            prepared: None,
            rules: Vec::new(),
            latest: None,
        }
    }

    /// Creates the template of a layer with these rules.
    pub(crate) fn new(policy: HeaderPolicy, infos: &[RuleInfo<'_>]) -> Self {
        let family = policy.family;
        let secret = policy.secret.filter(|_| family.has_lists());
        let infos: Vec<_> = infos.iter().filter(|info| !info.is_hidden()).collect();
        let rules: Vec<_> = infos.iter().map(|info| LiveRule::new(info)).collect();
        let is_live = infos.iter().any(|info| info.live.is_some());
        let mut template = Self::prepared(family, rules.iter().map(LiveRule::current));
        template.reports_allowed &= !policy.only_denied;
        template.is_per_request = secret.is_some() || infos.iter().any(|info| info.is_chosen());
        template.secret = secret;
        if is_live && !template.is_per_request {
            let mut latest = Self::prepared(family, rules.iter().map(LiveRule::current));
            latest.rules = rules;
            template.latest = Some(ArcSwap::from_pointee(latest));
        }
        template
    }

    /// Creates a template with prepared fields, which many requests share.
    fn prepared<'a>(family: Headers, rules: impl Iterator<Item = RuleQuotas<'a>>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut template = Self::of(family, Item::named(rules, family));
        template.policy = template.policy.map(permanent);
        template.prepared = Some(Prepared {
            id: NEXT.fetch_add(1, Relaxed),
            fields: template.blank(FieldSet::Quotas),
            denial: template.blank(FieldSet::PlainRejection),
        });
        template
    }

    /// Creates this template with the quotas of these charges.
    #[cold]
    fn renewed(&self, charges: &[Charge<'_>]) -> Self {
        let mut rules = self.rules.clone();
        for rule in &mut rules {
            if let Some(charge) = Charge::find(charges, rule.name) {
                rule.quotas = charge.quotas.into();
            }
        }
        let template = Self::prepared(self.family, rules.iter().map(LiveRule::current));
        Self { rules, ..template }
    }

    /// Returns `true` if the template has the quotas of these charges.
    fn has(&self, charges: &[Charge<'_>]) -> bool {
        self.rules.iter().all(|rule| {
            let charge = Charge::find(charges, rule.name);
            charge.is_none_or(|charge| charge.quotas == rule.quotas.as_ref())
        })
    }

    /// Creates the template of one request. With a secret, each quota has a partition key.
    fn of_charges(
        family: Headers,
        charges: &[Charge<'_>],
        secret: Option<&FingerprintKey>,
    ) -> Arc<Self> {
        // The fields describe the pool of a share.
        let shown = charges.iter().filter(|charge| !charge.is_client_share());
        let rules = shown.map(|charge| RuleQuotas {
            rule: charge.rule,
            quotas: charge.quotas,
            is_reporting: charge.report_only,
        });
        let mut items = Item::named(rules, family);
        if let Some(secret) = secret {
            items
                .iter_mut()
                .for_each(|item| item.set_partition_key(charges, secret));
        }
        Arc::new(Self::of(family, items))
    }

    /// Creates the template for the quotas of one call of a limiter.
    pub(crate) fn of_call(family: Headers, decision: &Decision, quotas: &[Quota]) -> Arc<Self> {
        let rule = decision
            .outcomes()
            .first()
            .map(Outcome::rule)
            .unwrap_or_default();
        let key = Key::everyone();
        Self::of_charges(family, &[Charge::new(rule, &key, quotas)], None)
    }

    /// Returns the template for the charges of a request, unless it is this one.
    #[inline]
    pub(crate) fn fit(&self, charges: &[Charge<'_>]) -> Option<Guard<Arc<Self>>> {
        let is_fixed = !self.is_per_request && self.latest.is_none();
        if is_fixed {
            None
        } else {
            self.find_fitting(charges)
        }
    }

    #[inline(never)]
    fn find_fitting(&self, charges: &[Charge<'_>]) -> Option<Guard<Arc<Self>>> {
        if self.is_per_request {
            let own = Self::of_charges(self.family, charges, self.secret.as_ref());
            return Some(Guard::from_inner(own));
        }
        let latest = self.latest.as_ref()?;
        let template = latest.load();
        if template.has(charges) {
            return Some(template);
        }
        let template = Arc::new(template.renewed(charges));
        latest.store(template.clone());
        Some(Guard::from_inner(template))
    }

    /// Returns the quota fields of the response to an allowed request, if it has any.
    #[inline(always)]
    pub(crate) fn lines(&self, charges: &[Charge<'_>], decision: &Decision) -> Option<Lines> {
        if !self.reports_allowed || !decision.is_allowed() {
            return None;
        }
        // An allowed decision has outcomes of all rules, so no charges are needed to find them.
        match self.fit(charges) {
            Some(template) => template.fields(decision, &[], None, FieldSet::Quotas),
            None => self.fields(decision, &[], None, FieldSet::Quotas),
        }
    }

    /// Adds the fields of a rejection. Existing fields are kept, except for the quota fields.
    #[inline(always)]
    pub(crate) fn complete(
        &self,
        headers: &mut HeaderMap,
        decision: Option<&Decision>,
        charges: &[Charge<'_>],
        retry_after: Option<Duration>,
    ) {
        if let Some(decision) = decision
            && retry_after.is_some()
            && headers.capacity() == 0
            && self.family != Headers::ByUnit
            && let Some(fields) =
                self.fields(decision, charges, retry_after, FieldSet::PlainRejection)
        {
            return fields.replace(headers);
        }
        self.complete_custom(headers, decision, charges, retry_after);
    }

    /// Completes a rejection that [`complete`](Self::complete) does not write in one piece.
    #[inline(never)]
    fn complete_custom(
        &self,
        headers: &mut HeaderMap,
        decision: Option<&Decision>,
        charges: &[Charge<'_>],
        retry_after: Option<Duration>,
    ) {
        self.add_to(headers, decision, charges, retry_after);
        headers.entry(CONTENT_TYPE).or_insert(TEXT);
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
    }

    /// Adds the quota fields, and `Retry-After` if it is missing.
    pub(super) fn add_to(
        &self,
        headers: &mut HeaderMap,
        decision: Option<&Decision>,
        charges: &[Charge<'_>],
        retry_after: Option<Duration>,
    ) {
        if let Some(decision) = decision
            && let Some(fields) = self.fields(decision, charges, retry_after, FieldSet::Quotas)
        {
            fields.write(headers);
        }
        if let Some(wait) = retry_after {
            headers
                .entry(RETRY_AFTER)
                .or_insert_with(|| number(retry_seconds(wait)));
        }
    }

    /// Adds the numbers of the quotas that clients see to `readings`.
    ///
    /// A family that reports one quota reports the first. It is the decisive one. Its reset is required.
    /// Therefore, a denial without a reset gets `retry`, the seconds of `Retry-After`.
    #[inline(always)]
    fn read(&self, decision: &Decision, retry: Option<u64>, readings: &mut Readings) {
        for outcome in decision.outcomes() {
            if let Some(reading) = self.reading(decision, outcome) {
                readings.push(reading);
            }
        }
        if self.family.has_lists() {
            return;
        }
        let decisive = self.decisive(decision);
        let is_decisive = |reading: &Reading| Some(usize::from(reading.item)) == decisive;
        match readings.iter().position(is_decisive) {
            Some(at) => readings.swap(0, at),
            None => readings.clear(),
        }
        if let Some(retry) = retry
            && let Some(first) = readings.first_mut()
            && first.time == 0
        {
            first.time = u32::try_from(retry).unwrap_or(u32::MAX);
        }
    }

    /// Returns the index of the decisive quota, of those that clients see.
    #[inline(always)]
    fn decisive(&self, decision: &Decision) -> Option<usize> {
        let binding = decision.binding_among(|outcome| {
            (decision.is_allowed() || outcome.is_denied())
                && self.reading(decision, outcome).is_some()
        });
        binding.and_then(|outcome| self.find(outcome))
    }

    /// Returns the numbers of a quota, or `None` if the fields leave it out.
    #[inline(always)]
    fn reading(&self, decision: &Decision, outcome: &Outcome) -> Option<Reading> {
        if !outcome.is_known() || !outcome.is_deciding() {
            return None;
        }
        let at = self.find(outcome)?;
        let item = Some(&self.items[at]).filter(|item| item.is_listed())?;
        let (left, next) = outcome.remaining_and_next();
        // Rounded up to seconds.
        let next = u32::try_from(next.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
        let time = if decision.is_allowed() {
            next.max(item.time_for(left))
        } else if left == 0 && outcome.is_denied() {
            next
        } else {
            // The effective window of the units that are left could end after `Retry-After`.
            0
        };
        Some(Reading {
            item: u16::try_from(at).ok()?,
            remaining: left,
            time,
        })
    }

    /// Returns the name of a quota as clients see it.
    pub(crate) fn name(&self, outcome: &Outcome) -> &str {
        let found = self.find(outcome);
        found.map_or(outcome.rule().as_str(), |at| &self.items[at].name)
    }

    /// Returns `true` if a quota has a unit that `qu` cannot name.
    #[inline]
    pub(crate) fn has_unregistered_unit(&self) -> bool {
        self.items
            .iter()
            .any(|item| item.unregistered_unit.is_some())
    }

    /// Returns the decisive quota and its unit, if `qu` cannot name the unit.
    pub(crate) fn unregistered_unit<'d>(
        &self,
        decision: &'d Decision,
    ) -> Option<(&'d Outcome, &'static str)> {
        let outcome = decision.binding()?;
        let item = &self.items[self.find(outcome)?];
        Some((outcome, item.unregistered_unit?))
    }

    /// Returns the quota fields or, for a plain-text rejection with a wait, all of its fields. Returns
    /// `None` if clients see no quota, unless the request was allowed beyond one.
    #[inline(never)]
    fn fields(
        &self,
        decision: &Decision,
        charges: &[Charge<'_>],
        wait: Option<Duration>,
        set: FieldSet,
    ) -> Option<Lines> {
        let mut readings = Readings::new();
        let wait = wait.map(retry_seconds);
        self.read(decision, wait, &mut readings);
        if self.family == Headers::ByUnit {
            return self.fields_by_unit(decision, charges, &readings);
        }
        let overage = decision.is_overage();
        if readings.is_empty() {
            return overage.then(|| Lines::new(self.family, 0, true, HeaderMap::new()));
        }
        let is_plain = set == FieldSet::PlainRejection;
        let retry = wait.filter(|_| is_plain).unwrap_or(0);
        let is_cached = self.family != Headers::XRateLimit // has the time of the clock
            && !readings.spilled()
            && (charges.is_empty() || self.are_all(&readings));
        let Some(Prepared { id, .. }) = self.prepared.as_ref().filter(|_| is_cached) else {
            return Some(self.render(&readings, charges, retry, overage));
        };
        let key = RecentKey {
            template: *id,
            retry,
            overage,
            readings: [readings.first().copied(), readings.get(1).copied()],
        };
        Some(key.lines(|| self.render(&readings, charges, retry, overage)))
    }

    /// Returns `true` if the policy field of the layer fits: all rules charged the request, and no
    /// report-only flag has changed.
    #[inline]
    pub(super) fn are_all(&self, readings: &[Reading]) -> bool {
        readings.len() == self.shown
            && readings
                .iter()
                .all(|reading| !self.item(reading).is_reporting)
    }

    pub(super) fn find(&self, outcome: &Outcome) -> Option<usize> {
        let rule = outcome.rule();
        let index = outcome.quota_index();
        self.items
            .iter()
            .position(|item| item.rule == rule && item.place == index)
    }

    pub(super) fn item(&self, reading: &Reading) -> &Item {
        &self.items[usize::from(reading.item)]
    }
}

/// Checks that no two quotas of a layer have the same name in header fields: of fixed plans, and of live plans
/// as they are now.
///
/// Report-only rules are included, because they can be enforced at run time.
pub(crate) fn check_names(infos: &[RuleInfo<'_>]) -> Result<(), RuleError> {
    let rules: Vec<_> = infos.iter().map(LiveRule::new).collect();
    let list = Item::named(rules.iter().map(LiveRule::current), Headers::None);
    for (at, item) in list.iter().enumerate() {
        if list[..at].iter().any(|earlier| earlier.name == item.name) {
            return Err(RuleError::SameQuotaName(item.name.to_string()));
        }
    }
    Ok(())
}

/// A rule with its current quotas.
#[derive(Clone, Debug)]
struct LiveRule {
    name: RuleName,
    quotas: Quotas,
    is_reporting: bool,
}

impl LiveRule {
    fn new(info: &RuleInfo<'_>) -> Self {
        let quotas = match info.live {
            Some(live) => live.quotas(),
            None => info.quotas.unwrap_or_default().into(),
        };
        Self {
            name: info.name,
            quotas,
            is_reporting: info.report_only.is_on(),
        }
    }

    fn current(&self) -> RuleQuotas<'_> {
        RuleQuotas {
            rule: self.name,
            quotas: self.quotas.as_ref(),
            is_reporting: self.is_reporting,
        }
    }
}
