//! Accounts that new keys share while their set has no free entry.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::{algorithm::AccountState, name::RuleName, quota::QuotaAddress};

/// The maximum number of groups of sets with the same shared accounts.
pub(super) const SET_GROUPS: usize = 2_048;
/// The number of quotas of a rule with shared accounts in a group. New keys under other quotas are
/// denied.
const SHARED_QUOTAS: usize = 32;

/// A rule in a group of sets.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SetGroup {
    pub(super) rule: RuleName,
    /// The number of the group.
    pub(super) sets: u16,
}

pub(super) type SharedTable = HashMap<SetGroup, SharedAccounts>;

/// The shared accounts of a rule in a group of sets, at most one for each address of a quota.
#[derive(Default)]
pub(super) struct SharedAccounts(Vec<Shared>);

pub(super) struct Shared {
    pub(super) address: QuotaAddress,
    pub(super) expires_at: u64,
    pub(super) state: AccountState,
}

impl SharedAccounts {
    /// Returns the accounts that have not expired.
    fn live(&self, now: u64) -> impl Iterator<Item = &Shared> {
        self.0.iter().filter(move |shared| shared.expires_at > now)
    }

    /// Returns the state of an account, unless it has expired.
    pub(super) fn find(&self, address: QuotaAddress, now: u64) -> Option<&AccountState> {
        let found = self.live(now).find(|shared| shared.address == address)?;
        Some(&found.state)
    }

    /// Takes an account out, and returns its state unless it has expired.
    pub(super) fn take(&mut self, address: QuotaAddress, now: u64) -> Option<AccountState> {
        if self.0.len() >= SHARED_QUOTAS {
            self.0.retain(|shared| shared.expires_at > now);
        }
        let at = self.0.iter().position(|shared| shared.address == address)?;
        let taken = self.0.swap_remove(at);
        (taken.expires_at > now).then_some(taken.state)
    }

    pub(super) fn put(&mut self, account: Shared) {
        // Most rules have one quota.
        self.0.reserve_exact(1);
        self.0.push(account);
    }

    /// Returns `true` if the account of this address exists or can be opened, after accounts of the addresses
    /// `opened`.
    pub(super) fn has_room(
        &self,
        address: QuotaAddress,
        opened: impl Iterator<Item = QuotaAddress>,
        now: u64,
    ) -> bool {
        let live = self.live(now).map(|shared| shared.address);
        let mut all: SmallVec<[_; SHARED_QUOTAS]> = live.collect();
        for address in opened {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        all.contains(&address) || all.len() < SHARED_QUOTAS
    }

    /// Returns the time until one of the accounts ends, or `None` if there is none.
    pub(super) fn wait(&self, now: u64) -> Option<u64> {
        self.live(now).map(|shared| shared.expires_at - now).min()
    }
}
