//! Rules of which a request is charged to one.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use super::{
    Rule, RuleInfo, Rules,
    rules::{Bypass, Selected, Then, chain, infos, sealed::Sealed},
};
use crate::{
    key::{KeyExtractor, RequestHead},
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
    /// | whose key is blocked | the request is denied |
    /// | without a key | as its [`on_missing_key`](Rule::on_missing_key) says; with `Skip`, the others decide |
    /// | that [skips](super::Applies::Skip) the request | the others decide |
    /// | whose plan is empty for the request | none is charged; only its block and the other rules of the layer decide |
    /// | whose quota is [`Quota::blocked`](crate::Quota::blocked), or whose account is shared in a flood of the store | the others decide; to ban a key, block it |
    /// | that is [report-only](Rule::report_only) | the ones after it are never charged |
    /// | with a [`max_wait`](Rule::max_wait) | it fits if the request can wait for it; not for slots |
    ///
    /// On a cluster without `RedisBuilder::hash_tag_by_key`, a request needs the
    /// servers of all alternatives, because a key may be blocked on each. For one round trip, a charge
    /// that is undone may make another request pay from the next alternative. Denials are not cached,
    /// batched or leased, so a flood of them reaches the store.
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
    fn select<'a>(&'a self, _: &RequestHead<'_>, rules: &mut Selected<'a>) {
        rules.push(self);
    }

    fn charge(
        &self,
        head: &RequestHead<'_>,
        before: &[Charge<'_>],
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        let mut rules = Selected::new();
        self.0.iter().for_each(|rule| rule.select(head, &mut rules));
        let groups = before.iter().map(Charge::group).filter(|group| *group != Charge::SHARE);
        let group = groups.max().unwrap_or(0) + 1;
        chain(&rules, head, before, &mut |all| {
            let own = &all[before.len()..];
            if own.iter().any(|charge| charge.quotas().is_empty()) {
                // A block holds without quotas, too.
                let unlimited = own.iter().filter(|charge| charge.quotas().is_empty());
                let all: SmallVec<[_; 4]> = before.iter().chain(unlimited).copied().collect();
                return then(&all);
            }
            if own.len() < 2 {
                return then(all);
            }
            let mut all: SmallVec<[Charge<'_>; 4]> = all.into();
            all[before.len()..].iter_mut().for_each(|it| *it = it.with_group(group));
            then(&all);
        })
    }
}

impl Rules for Alternatives {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        let start = infos.len();
        self.0.iter().for_each(|rule| rule.info(infos));
        let first = infos[start].name;
        infos[start..].iter_mut().for_each(|info| info.first_alternative = Some(first));
    }
}

impl fmt::Debug for Alternatives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = infos(self).into_iter().map(|info| info.name);
        f.debug_tuple("Alternatives").field(&names.collect::<Vec<_>>()).finish()
    }
}
