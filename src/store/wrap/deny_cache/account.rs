//! What a call asks of each account, as far as its answer has to be judged by it.

use smallvec::SmallVec;

use crate::{
    decision::{Decision, Outcome},
    name::RuleName,
    quota::{Algorithm, Quota},
    store::{Charge, wrap::hashes::Hashes},
};

/// One charge of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    /// The rule and the key, hashed.
    pub(super) tag: u64,
    /// The quotas and once more the key, hashed: a refusal is told to whom both are the same.
    pub(super) revision: u64,
    pub(super) rule: RuleName,
    /// Units that must fit, headroom among them.
    pub(super) need: u64,
    /// How long it is ready to queue, in nanoseconds.
    pub(super) patience: u64,
    /// How many outcomes are its own.
    pub(super) places: usize,
    /// Whether it asks for more than a look.
    pub(super) charges: bool,
    /// Whether a refusal may be told to it without asking.
    pub(super) binds: bool,
    /// Whether its first contact opens it, unless the cost never fits.
    pub(super) opens: bool,
    /// How often what is known was changed when it was asked.
    pub(super) changes: u64,
}

/// A call on its way.
#[derive(Debug)]
pub(super) struct Asking {
    /// When it was asked.
    pub(super) at: u64,
    /// Each account is named once, and a refusal opens none: it may be told without asking.
    pub(super) plain: bool,
    pub(super) accounts: SmallVec<[Account; 2]>,
}

impl Asking {
    /// What a refusal says of each account by itself; nothing where that is not the store's word, or
    /// not clear.
    pub(super) fn own<'a>(
        &'a self,
        refusal: &'a Decision,
    ) -> impl Iterator<Item = (&'a Account, &'a [Outcome])> {
        let (all, mut from) = (refusal.outcomes(), 0);
        let rule = all.first().map(Outcome::rule);
        let blocked = move |account: &Account| account.charges && Some(account.rule) == rule;
        let told = self.plain && refusal.source().is_of_store();
        let clear = told
            && if refusal.is_blocked() {
                self.accounts.iter().filter(|account| blocked(account)).count() == 1
            } else {
                self.accounts.iter().map(|account| account.places).sum::<usize>() == all.len()
            };
        self.accounts.iter().map(move |account| {
            let range = match refusal.is_blocked() {
                _ if !clear => 0..0,
                true if blocked(account) => 0..all.len(),
                true => 0..0,
                false => from..from + account.places,
            };
            from = range.end;
            let own = &all[range];
            let is_own = own.iter().all(|outcome| outcome.rule() == account.rule);
            (account, if is_own { own } else { &[] })
        })
    }
}

impl Hashes {
    pub(super) fn asking(&self, charges: &[Charge<'_>], at: u64) -> Asking {
        let accounts: SmallVec<[Account; 2]> =
            charges.iter().map(|charge| self.account(charge)).collect();
        let (mut quotas, alone) = (charges.iter().flat_map(Charge::quotas), accounts.len() == 1);
        let opens = !(alone && charges[0].quotas().len() == 1) && quotas.any(starts);
        let named = |tag, before: &[Account]| before.iter().any(|account| account.tag == tag);
        let again = |at: usize| named(accounts[at].tag, &accounts[..at]);
        Asking { at, plain: !opens && !(1..accounts.len()).any(again), accounts }
    }

    fn account(&self, charge: &Charge<'_>) -> Account {
        let ask = charge.ask();
        Account {
            tag: self.tag(charge),
            revision: self.revision(charge),
            rule: charge.rule(),
            need: ask.need(),
            patience: ask.max_wait,
            places: charge.placed().count(),
            charges: ask.cost > 0,
            binds: ask.cost > 0
                && !charge.is_report_only()
                && charge.place().is_none()
                && !charge.quotas().iter().any(wanes),
            opens: charge.quotas().iter().any(starts),
            changes: 0,
        }
    }
}

/// Whether a first contact opens the account, be it refused.
fn starts(quota: &Quota) -> bool {
    quota.initial_units().is_some()
}

/// Whether what it has left may become less, though nobody charges, or more than its limit.
fn wanes(quota: &Quota) -> bool {
    matches!(
        quota.counted_by(),
        Algorithm::FixedWindow { carry_over: 1.., .. } | Algorithm::FixedWindow { paced: true, .. }
    )
}
