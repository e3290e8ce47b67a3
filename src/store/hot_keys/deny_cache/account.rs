//! The charges of a call to the inner store, and a cached denial of one of them.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    algorithm::Demand,
    decision::{Decision, NEVER, Outcome},
    name::RuleName,
    quota::Quota,
    store::{Charge, hot_keys::table::Hashes, wrappers::recompute},
};

/// The longest time for which a denial by slots is repeated: 10 ms.
const SLOTS_MAX_AGE: u64 = 10_000_000;

/// One charge of a call, with the hashes of its account.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashedCharge {
    /// Hash of the rule and the key.
    pub(super) tag: u64,
    /// Hash of the quotas, the rule and the key.
    pub(super) revision: u64,
    pub(super) rule: RuleName,
    /// The units that must be available: cost plus headroom.
    pub(super) need: u64,
    /// The longest time that the caller will queue, in nanoseconds.
    pub(super) max_wait: u64,
    /// The number of outcomes of this charge.
    pub(super) outcomes: usize,
    /// `true` if the cost is above 0.
    pub(super) charges: bool,
    pub(super) cacheable: bool,
    /// `true` if a quota has `initial` units.
    pub(super) has_initial: bool,
    /// The version of the account's `CacheSet` at the start of the call.
    pub(super) version: u64,
}

/// A call to the inner store.
#[derive(Debug)]
pub(super) struct PendingTake {
    /// The time of the call.
    pub(super) at: u64,
    /// `true` if cached denials may answer the call.
    ///
    /// `false` if the call names an account twice, or if a denied call would create an account.
    pub(super) cacheable: bool,
    pub(super) accounts: SmallVec<[HashedCharge; 2]>,
}

impl PendingTake {
    /// Returns each account with its outcomes in `denial`.
    ///
    /// Accounts have no outcomes if a wrapper made the denial.
    pub(super) fn outcomes<'a>(
        &'a self,
        denial: &'a Decision,
    ) -> impl Iterator<Item = (&'a HashedCharge, &'a [Outcome])> {
        let (all, mut start) = (denial.outcomes(), 0);
        let rule = all.first().map(Outcome::rule);
        let blocked = move |account: &HashedCharge| account.charges && Some(account.rule) == rule;
        let usable = self.cacheable && denial.source().is_of_store();
        let assignable = usable
            && if denial.is_blocked() {
                self.accounts.iter().filter(|account| blocked(account)).count() == 1
            } else {
                self.accounts.iter().map(|account| account.outcomes).sum::<usize>() == all.len()
            };
        self.accounts.iter().map(move |account| {
            let range = match denial.is_blocked() {
                _ if !assignable => 0..0,
                true if blocked(account) => 0..all.len(),
                true => 0..0,
                false => start..start + account.outcomes,
            };
            start = range.end;
            let own = &all[range];
            let is_own = own.iter().all(|outcome| outcome.rule() == account.rule);
            (account, if is_own { own } else { &[] })
        })
    }
}

impl Hashes {
    pub(super) fn pending_take(&self, charges: &[Charge<'_>], at: u64) -> PendingTake {
        let accounts: SmallVec<[HashedCharge; 2]> =
            charges.iter().map(|charge| self.account(charge)).collect();
        let (mut quotas, single) = (charges.iter().flat_map(Charge::quotas), accounts.len() == 1);
        let any_initial = !(single && charges[0].quotas().len() == 1) && quotas.any(has_initial);
        let named = |tag, before: &[HashedCharge]| before.iter().any(|account| account.tag == tag);
        let repeated = |at: usize| named(accounts[at].tag, &accounts[..at]);
        let cacheable = !any_initial && !(1..accounts.len()).any(repeated);
        PendingTake { at, cacheable, accounts }
    }

    fn account(&self, charge: &Charge<'_>) -> HashedCharge {
        let ask = charge.demand();
        HashedCharge {
            tag: self.tag(charge),
            revision: self.revision(charge),
            rule: charge.rule(),
            need: ask.need(),
            max_wait: ask.max_wait,
            outcomes: charge.charged_quotas().count(),
            charges: ask.cost > 0,
            cacheable: ask.cost > 0
                && !charge.is_report_only()
                && charge.quota_index().is_none()
                && !charge.quotas().iter().any(may_lose_units),
            has_initial: charge.quotas().iter().any(has_initial),
            version: 0,
        }
    }
}

/// Returns `true` if the store creates the account even for a denied call.
fn has_initial(quota: &Quota) -> bool {
    quota.initial().is_some()
}

/// Returns `true` if units may expire, or if the units left may exceed the limit.
fn may_lose_units(quota: &Quota) -> bool {
    quota.algorithm().max_carry_over() > 0 || quota.algorithm().is_paced()
}

/// A cached denial. Instants are nanoseconds since the cache was created.
#[derive(Debug)]
pub(super) struct CachedDenial {
    pub(super) tag: u64,
    pub(super) revision: u64,
    pub(super) need: u64,
    /// The end of the denial, computed from the start of the call.
    pub(super) until: u64,
    /// The instant of the answer, from which waits are computed.
    answered_at: u64,
    blocked: bool,
    /// `true` if the entry can also deny a higher cost.
    refilling: bool,
    outcomes: SmallVec<[Outcome; 1]>,
}

impl CachedDenial {
    /// Creates an entry, or returns `None` if the outcomes did not deny the call.
    pub(super) fn new(
        account: &HashedCharge,
        outcomes: &[Outcome],
        blocked: bool,
        (called_at, answered_at): (u64, u64),
        max_age: u64,
    ) -> Option<Self> {
        // Another process may free a slot at any time.
        let unknown = outcomes.iter().any(Outcome::is_wait_unknown);
        let max_age = if unknown { max_age.min(SLOTS_MAX_AGE) } else { max_age };
        let denied = outcomes.iter().filter(|outcome| outcome.is_denied());
        let retry = denied.map(Outcome::retry_ns).max()?;
        if retry == NEVER && account.has_initial {
            return None;
        }
        Some(Self {
            tag: account.tag,
            revision: account.revision,
            need: if blocked { 1 } else { account.need },
            until: called_at.saturating_add(retry.min(max_age)),
            answered_at,
            blocked,
            refilling: outcomes.iter().all(|it| it.interval().is_some()),
            outcomes: outcomes.into(),
        })
    }

    /// Returns `true` if the account is denied for longer than the caller may queue.
    pub(super) fn denies(&self, account: &HashedCharge, now: u64) -> bool {
        let same = self.tag == account.tag && self.revision == account.revision;
        let covered = account.need == self.need
            || account.need > self.need && (self.blocked || self.refilling);
        // A caller may queue for a slot.
        let queues = account.max_wait > 0 && self.outcomes.iter().any(Outcome::is_wait_unknown);
        let lasts = now.saturating_add(account.max_wait) < self.until;
        account.cacheable && same && covered && lasts && !queues
    }

    /// Adds the cached outcomes to `denial`, for the cost of `charge`.
    pub(super) fn add_to(&self, denial: &mut Decision, charge: &Charge<'_>, now: u64) {
        let age = now.saturating_sub(self.answered_at);
        let ask = Demand { max_wait: 0, ..charge.demand() };
        let same = self.blocked || ask.need() == self.need;
        for outcome in self.outcomes.iter().map(|outcome| outcome.aged(age)) {
            denial.push(if same { outcome } else { recompute(&outcome, charge, ask) });
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }
}

/// Adds an unknown outcome for each quota of `charge`.
pub(super) fn add_unknown(denial: &mut Decision, charge: &Charge<'_>) {
    for (quota_index, _) in charge.charged_quotas() {
        let unknown = Outcome::unknown(charge.rule(), quota_index, Some(Duration::ZERO));
        denial.push(unknown.with_report_only(charge.is_report_only()));
    }
}
