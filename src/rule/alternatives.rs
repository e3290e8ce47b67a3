//! Rules of which a request is charged to one.

use std::{fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    Rule, RuleInfo, Rules,
    choice::{Candidates, Choice},
    rules::{Bypass, Then, append_choice, chain, infos, sealed::Sealed},
};
use crate::{
    key::{KeyExtractor, RequestHead},
    quota::Quota,
    store::Charge,
};

/// Rules of which a request is charged to the first that fits, created by
/// [`Rule::or`](crate::Rule::or).
#[derive(Clone)]
#[must_use]
pub struct Alternatives(Vec<Arc<dyn Rules + Send + Sync>>);

impl<K: KeyExtractor + Send + Sync + 'static> Rule<K> {
    /// Adds an alternative: a request that does not fit this rule is charged to `other`.
    ///
    /// ```
    /// use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::HeaderKey};
    ///
    /// let key = HeaderKey::new("x-api-key");
    /// // three requests per minute, and then a hundred per day from the credits
    /// let plan = Rule::new("plan", key.clone(), Quota::per_minute(3));
    /// let credits = Rule::new("credits", key, Quota::per_day(100));
    /// let layer = RateLimitLayer::rules(plan.or(credits), LocalStore::new());
    /// ```
    ///
    /// The first alternative that fits, in order, is charged under all its quotas, and the others are
    /// not. A request that fits none is denied until the first of them fits again. Each rule keeps
    /// its own key, cost and other settings:
    ///
    /// | an alternative | effect |
    /// |---|---|
    /// | whose key is blocked | a request that reaches it is denied; one that an earlier alternative fits is not |
    /// | without a key | as its [`on_missing_key`](Rule::on_missing_key) says; with `Skip`, the others decide |
    /// | that [skips](super::Applies::Skip) the request | the others decide |
    /// | whose plan is empty for the request | none is charged; only its block and the other rules of the layer decide |
    /// | whose quota is [`Quota::blocked`](crate::Quota::blocked) | the others decide; to ban a key, block it |
    /// | whose key is denied early, because a full [`LocalStore`](crate::LocalStore) has no room for it | the others decide |
    /// | that is [report-only](Rule::report_only) | the ones after it are charged only for requests that it does not charge, such as those without its key |
    /// | with a [`max_wait`](Rule::max_wait) | it fits if the request can wait for it; slots are not waited for: fixed or live quotas of slots are an error when the layer is built, and slots chosen per request deny at once |
    ///
    /// **To ban a key, block it under the first rule**, whose block holds unless a later alternative has an
    /// empty plan for the request. A [penalty](crate::RateLimitLayer::penalty) blocks
    /// under its own rule, so give it to the first. A [`DenyCache`](crate::store::DenyCache) that repeats a
    /// denial of that rule hides a block by another process for up to its
    /// [`max_age`](crate::store::DenyCache::max_age), by default 1 s: until then, the others may pay.
    ///
    /// The alternatives are asked one after another, each in a call to the store, until one fits. A
    /// [`DenyCache`](crate::store::DenyCache) saves the calls of alternatives that are used up, and leases
    /// and batches apply as to any rule. Every store can do this. On a cluster, a request needs the servers
    /// of the alternatives that it asks. The time of a [`Timeout`](crate::store::Timeout) applies to each
    /// call. A plan that refills between two calls is not used for this request.
    ///
    /// See [plan and credits](crate::guide::plans#plan-then-credits).
    ///
    /// # Panics
    ///
    /// Panics if one of the two rules has [`if_no_key`](Rule::if_no_key), or a fixed list of quotas
    /// that is empty.
    #[track_caller]
    pub fn or<L>(self, other: Rule<L>) -> Alternatives
    where
        L: KeyExtractor + Send + Sync + 'static,
    {
        Alternatives(Vec::new()).or(self).or(other)
    }
}

impl Alternatives {
    /// Adds another alternative. See [`Rule::or`](crate::Rule::or).
    ///
    /// # Panics
    ///
    /// Panics if the rule has [`if_no_key`](Rule::if_no_key), or a fixed list of quotas that is empty.
    #[track_caller]
    pub fn or<K>(mut self, other: Rule<K>) -> Self
    where
        K: KeyExtractor + Send + Sync + 'static,
    {
        let name = other.name;
        assert!(
            other.if_no_key.is_none(),
            "rule {name}: if_no_key in an alternative; use on_missing_key, or add the rules of \
             if_no_key to the alternatives"
        );
        assert!(
            !other.plan.is_unlimited(),
            "rule {name}: an alternative without quotas is always available; give it a quota, or \
             remove the alternatives"
        );
        self.0.push(Arc::new(other));
        self
    }
}

impl Sealed for Alternatives {
    fn append_charges(
        &self,
        head: &RequestHead<'_>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        chain(&self.0, head, before, &mut |all| {
            append_alternatives(&all.charges[before.charges.len()..], before, then);
        })
    }
}

/// Calls `then` with the charges in `before`, followed by a choice between its `own`. If some of these have
/// no quotas, the request is not limited: only they are left, so that the store finds a block of their key.
fn append_alternatives(own: &[Charge<'_>], before: Candidates<'_, '_>, then: &mut Then<'_>) {
    let mut own: SmallVec<[Charge<'_>; 4]> = own.into();
    if own.iter().any(is_unlimited) {
        own.retain(|charge| is_unlimited(charge));
        return append_choice(&own, None, before, then);
    }
    for charge in &mut own {
        if waits_for_slots(charge) {
            charge.max_wait = Duration::ZERO;
        }
    }
    let choice = (own.len() > 1).then(|| Choice::new(before.charges.len(), own.iter().map(|_| 1)));
    append_choice(&own, choice, before, then);
}

/// Returns `true` for the charge of an empty plan.
fn is_unlimited(charge: &Charge<'_>) -> bool {
    charge.quotas.is_empty()
}

/// Returns `true` for a charge that would wait in a queue for slots, which alternatives do not have.
fn waits_for_slots(charge: &Charge<'_>) -> bool {
    charge.queues() && charge.quotas.iter().any(Quota::is_concurrent)
}

impl Rules for Alternatives {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        let start = infos.len();
        self.0.iter().for_each(|rule| rule.info(infos));
        let first = infos[start].name;
        for info in &mut infos[start..] {
            info.first_alternative = Some(first);
        }
    }
}

impl fmt::Debug for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = infos(self).into_iter().map(|info| info.name);
        f.debug_tuple("Alternatives")
            .field(&names.collect::<Vec<_>>())
            .finish()
    }
}
