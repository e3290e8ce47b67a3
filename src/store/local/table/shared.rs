//! Accounts that new keys share while their set has no free entry.

use std::collections::HashMap;

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
    /// Returns the state of an account, unless it has expired.
    pub(super) fn find(&self, address: QuotaAddress, now: u64) -> Option<&AccountState> {
        let mut all = self.0.iter();
        let found = all.find(|shared| shared.address == address && shared.expires_at > now)?;
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

    /// Returns the time until there is room for another account, or `None` if there is room.
    pub(super) fn wait(&self, now: u64) -> Option<u64> {
        let left = self
            .0
            .iter()
            .map(|shared| shared.expires_at.saturating_sub(now))
            .filter(|left| *left > 0);
        if left.clone().count() < SHARED_QUOTAS {
            None
        } else {
            left.min()
        }
    }
}
