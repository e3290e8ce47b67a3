//! Accounts that new keys share while their set has no free slot.

use std::collections::HashMap;

use crate::{algorithm::AccountState, name::RuleName, quota::QuotaAddress};

/// The maximum number of groups of sets with the same shared accounts.
pub(super) const SHARED_GROUPS: usize = 2_048;
/// The number of quotas of a rule with shared accounts in a group. New keys under other quotas are
/// denied.
pub(super) const SHARED_QUOTAS: usize = 32;

/// The shared accounts of a rule in a group of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedGroup {
    pub(super) rule: RuleName,
    pub(super) group: u16,
}

/// A shared account.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) address: QuotaAddress,
    pub(super) expires_at: u64,
    pub(super) state: AccountState,
}

pub(super) type SharedAccounts = HashMap<SharedGroup, Vec<Shared>>;
