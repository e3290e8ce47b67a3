//! Sets of rules that form one decision.

use std::{slice, sync::Arc, time::Duration};

use smallvec::SmallVec;

use super::{
    LivePlan, RuleName,
    choice::{Candidates, Choice},
    sharers::Sharers,
};
use crate::{
    key::{KeyError, RequestHead},
    observe::OnDecision,
    quota::Quota,
    store::Charge,
    toggle::Toggle,
};

/// Rules of a layer: a [`Rule`](crate::Rule), [alternatives](crate::Rule::or), a rule with [fair
/// shares](crate::Rule::fair_by), a tuple of up to four rules, or a `Vec` of rules.
///
/// A request is charged to the accounts of all rules or to none. Tuples can be nested. The rules of a
/// `Vec` have one type: for extractors of several types, box the rules as `Box<dyn Rules + Send + Sync>`,
/// or use a tuple.
///
/// This trait is sealed: it cannot be implemented outside of this crate.
///
/// ```
/// use tower_sluice::{LocalStore, Quota, RateLimitLayer, Rule, key::Everyone};
///
/// let rule = |name, units| Rule::new(name, Everyone, Quota::per_second(units));
/// let nested = ((rule("a", 1), rule("b", 2), rule("c", 3)), (rule("d", 4), rule("e", 5)));
/// RateLimitLayer::rules(nested, LocalStore::new());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a rule or a tuple of rules",
    note = "a tuple has up to four rules; for more, nest tuples, or use a `Vec` of rules with one type \
            of extractors, or of `Box<dyn Rules + Send + Sync>`",
    note = "`RateLimitLayer::new(extractor, quota, store)` creates a rule from an extractor"
)]
pub trait Rules: sealed::Sealed {
    /// Adds the description of each rule to `infos`.
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>);
}

// The trait can be a trait object.
const _: Option<&dyn Rules> = None;

/// Returns the descriptions of the rules.
pub(crate) fn infos<K: Rules + ?Sized>(rules: &K) -> Vec<RuleInfo<'_>> {
    let mut infos = Vec::new();
    rules.info(&mut infos);
    infos
}

/// Receives the charges of a request.
pub(crate) type Then<'t> = dyn FnMut(Candidates<'_, '_>) + 't;

pub(crate) mod sealed {
    use super::*;

    pub trait Sealed {
        /// Calls `then` once, with the charges in `before`, followed by the charges of the request.
        ///
        /// # Errors
        ///
        /// Returns a [`Bypass`] if the request is handled without the store. `then` is not called in
        /// this case.
        fn append_charges(
            &self,
            head: &RequestHead<'_>,
            before: Candidates<'_, '_>,
            then: &mut Then<'_>,
        ) -> Result<(), Bypass>;

        /// Calls `one` with the charge of a request, or `several` with its charges. Calls `bypassed`
        /// instead if there are no charges.
        ///
        /// Only [`Rule`](crate::Rule) calls `one`. The default passes even a single charge to `several`.
        /// The compiler inlines `one`, because it has no other caller.
        #[inline]
        fn with_charges<T>(
            &self,
            head: &RequestHead<'_>,
            _: impl FnOnce(&Charge<'_>) -> T,
            several: impl FnOnce(Candidates<'_, '_>) -> T,
            bypassed: impl FnOnce(Bypass) -> T,
        ) -> T
        where
            Self: Sized,
        {
            with_charges(self, head, several, bypassed)
        }
    }
}

/// Properties of a rule that do not depend on a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuleInfo<'a> {
    /// The name of the rule.
    pub name: RuleName,
    /// The quotas, or `None` if they are not fixed.
    pub quotas: Option<&'a [Quota]>,
    /// The [`LivePlan`] of the rule, if the quotas can be replaced at run time.
    pub live: Option<&'a LivePlan>,
    /// The cost of a request, or `None` if it is read from the request.
    pub cost: Option<u32>,
    /// The headroom of a request, or `None` if it is read from the request.
    pub headroom: Option<u32>,
    /// `true` if requests may wait instead of being denied.
    pub queues: bool,
    /// The longest time for which requests wait, if they may.
    pub(crate) max_wait: Option<Duration>,
    /// On while the rule is report-only.
    pub report_only: &'a Toggle,
    /// The name of the first rule of the [alternatives](crate::Rule::or) that this rule is one of, if
    /// any.
    pub first_alternative: Option<RuleName>,
    /// `true` if the key of a request may be that of [one client](crate::Key::is_client).
    pub can_be_client: bool,
    /// For the hidden rule of [fair shares](crate::Rule::fair_by), the pool whose limit is shared.
    pub share_of: Option<RuleName>,
    /// For the rule of fair shares, its clients.
    pub(crate) sharers: Option<&'a Sharers>,
    /// `true` if some requests leave units besides their headroom.
    pub(crate) has_reserve: bool,
}

impl RuleInfo<'_> {
    /// Returns `true` if header fields do not describe the rule: the shares of a pool.
    pub(crate) fn is_hidden(&self) -> bool {
        self.share_of.is_some()
    }

    /// Returns `true` if the rule has slots, or may have slots later or for some requests.
    pub(crate) fn may_hold(&self) -> bool {
        let quotas = self.quotas;
        self.share_of.is_none()
            && quotas.is_none_or(|quotas| quotas.iter().any(Quota::is_concurrent))
    }

    /// Returns the hook that the rule needs, if any.
    pub(crate) fn hook(&self) -> Option<Arc<dyn OnDecision>> {
        Some(Arc::new(self.sharers?.clone()))
    }

    /// Returns `true` if the quotas are chosen for each request.
    pub(crate) fn is_chosen(&self) -> bool {
        self.quotas.is_none() && self.live.is_none()
    }

    /// Returns the cost plus the headroom of a request, or 0 for a cost of 0.
    ///
    /// A cost that is read from the request counts as 1, and such a headroom counts as 0.
    pub(crate) fn min_need(&self) -> u64 {
        match self.cost.unwrap_or(1) {
            0 => 0,
            cost => u64::from(cost) + u64::from(self.headroom.unwrap_or(0)),
        }
    }

    /// Returns the limit of these quotas that every request exceeds, if any.
    pub(crate) fn exceeded(&self, quotas: &[Quota]) -> Option<u64> {
        let limits = quotas
            .iter()
            .filter(|quota| !quota.is_blocked())
            .map(Quota::raised_limit);
        limits.min().filter(|limit| self.min_need() > *limit)
    }
}

/// Reason why a request is handled without a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bypass {
    /// The request passes without a charge. The text is the reason.
    Exempt(&'static str),
    /// The request has no usable key, or access is denied.
    Rejected(KeyError),
}

impl Bypass {
    pub(crate) const NO_RULE: Self = Self::Exempt("no rule charges it");
}

impl From<KeyError> for Bypass {
    fn from(error: KeyError) -> Self {
        Self::Rejected(error)
    }
}

/// Calls `then` with the charges of a request, or `bypassed` if no rule charges it.
#[inline]
pub(crate) fn with_charges<T>(
    rules: &impl sealed::Sealed,
    head: &RequestHead<'_>,
    then: impl FnOnce(Candidates<'_, '_>) -> T,
    bypassed: impl FnOnce(Bypass) -> T,
) -> T {
    let mut then = Some(then);
    let mut result = None;
    let charged = rules.append_charges(head, Candidates::from(&[][..]), &mut |all| {
        if !all.charges.is_empty()
            && let Some(then) = then.take()
        {
            result = Some(then(all));
        }
    });
    result.unwrap_or_else(|| bypassed(charged.err().unwrap_or(Bypass::NO_RULE)))
}

/// Calls `then` with the charges in `before`, followed by this one.
#[inline]
pub(super) fn append_charge(charge: &Charge<'_>, before: Candidates<'_, '_>, then: &mut Then<'_>) {
    if before.charges.is_empty() {
        return then(slice::from_ref(charge).into());
    }
    let mut charges: SmallVec<[Charge<'_>; 4]> = before.charges.into();
    charges.push(*charge);
    then(Candidates {
        charges: &charges,
        ..before
    });
}

/// Calls `then` with the charges in `before`, followed by these, and with a choice between these.
pub(super) fn append_choice(
    own: &[Charge<'_>],
    choice: Option<Choice>,
    before: Candidates<'_, '_>,
    then: &mut Then<'_>,
) {
    if before.charges.is_empty() {
        return then(Candidates {
            charges: own,
            choices: choice.as_slice(),
        });
    }
    let mut charges: SmallVec<[Charge<'_>; 4]> = before.charges.into();
    charges.extend_from_slice(own);
    let mut choices: SmallVec<[Choice; 2]> = before.choices.into();
    choices.extend(choice);
    then(Candidates {
        charges: &charges,
        choices: &choices,
    });
}

/// Calls `then` once, with the charges in `before`, followed by the charges of `rules`.
///
/// A key lives in the call that appends its charge, so the next rule appends within that call.
pub(super) fn chain<R: sealed::Sealed>(
    rules: &[R],
    head: &RequestHead<'_>,
    before: Candidates<'_, '_>,
    then: &mut Then<'_>,
) -> Result<(), Bypass> {
    let Some((first, rest)) = rules.split_first() else {
        then(before);
        return Ok(());
    };
    let mut later = Ok(());
    first.append_charges(head, before, &mut |all| {
        later = chain(rest, head, all, then);
    })?;
    later
}

macro_rules! tuple {
    ($($rules:ident $index:tt),+) => {
        impl<$($rules: Rules),+> sealed::Sealed for ($($rules,)+) {
            fn append_charges(
                &self,
                head: &RequestHead<'_>,
                before: Candidates<'_, '_>,
                then: &mut Then<'_>,
            ) -> Result<(), Bypass> {
                let rules = [$(&self.$index as &dyn sealed::Sealed),+];
                chain(&rules, head, before, then)
            }
        }

        impl<$($rules: Rules),+> Rules for ($($rules,)+) {
            fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
                $(self.$index.info(infos);)+
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

impl<R: Rules> sealed::Sealed for Vec<R> {
    fn append_charges(
        &self,
        head: &RequestHead<'_>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        chain(self, head, before, then)
    }
}

impl<R: Rules> Rules for Vec<R> {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        self.iter().for_each(|rules| rules.info(infos));
    }
}

macro_rules! pointer {
    ($pointer:ty) => {
        impl<R: sealed::Sealed + ?Sized> sealed::Sealed for $pointer {
            fn append_charges(
                &self,
                head: &RequestHead<'_>,
                before: Candidates<'_, '_>,
                then: &mut Then<'_>,
            ) -> Result<(), Bypass> {
                (**self).append_charges(head, before, then)
            }
        }
    };
}

pointer!(&R);
pointer!(Arc<R>);
pointer!(Box<R>);

impl<R: Rules + ?Sized> Rules for Arc<R> {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        (**self).info(infos);
    }
}

impl<R: Rules + ?Sized> Rules for Box<R> {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        (**self).info(infos);
    }
}
