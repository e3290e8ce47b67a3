//! Accounts that new keys share if their set has no free slot.
//!
//! The sets are divided into groups. Each group has one shared account per rule and quota, which
//! limits all new keys of the group together. A key that later gets a slot starts with the debt of
//! the shared account. A flood of new keys therefore neither frees an exhausted key nor affects
//! other rules.
//!
//! Each set records the instant until which its new keys may be in debt. Otherwise, one full set
//! would put the new keys of its whole group into debt.

use std::collections::HashMap;

use super::sync::{
    AtomicU32, AtomicU64, Mutex, MutexGuard,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::name::RuleName;

const GROUPS: usize = 2_048;
const SECOND: u64 = 1_000_000_000;

/// The address of a shared account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SharedAddress {
    rule: RuleName,
    group: u16,
    quota_index: u8,
}

impl SharedAddress {
    #[expect(clippy::cast_possible_truncation, reason = "a rule has at most 255 quotas")]
    pub(super) fn new(set: usize, rule: RuleName, quota_index: usize) -> Self {
        Self { rule, group: (set % GROUPS) as u16, quota_index: quota_index as u8 }
    }
}

/// Shared accounts, each with the instant at which it expires.
pub(super) type SharedAccounts<A> = HashMap<SharedAddress, (u64, A)>;

/// The shared accounts of a table.
#[derive(Debug)]
pub(super) struct Overflow<A> {
    /// The end of possible debt of new keys, per set, in seconds of Unix time.
    until: Box<[AtomicU32]>,
    accounts: Mutex<SharedAccounts<A>>,
    decisions: AtomicU64,
}

impl<A> Overflow<A> {
    /// Creates the shared accounts of a table with `sets` sets.
    pub(super) fn new(sets: usize) -> Self {
        Self {
            until: (0..sets).map(|_| AtomicU32::new(0)).collect(),
            accounts: Mutex::default(),
            decisions: AtomicU64::new(0),
        }
    }

    /// Returns `true` if new keys of this set are possibly in debt.
    pub(super) fn may_be_in_debt(&self, set: usize, now: u64) -> bool {
        u64::from(self.until[set].load(Acquire)) > now / SECOND
    }

    /// Records that new keys of this set may be in debt until this instant.
    pub(super) fn extend_debt(&self, set: usize, until: u64) {
        let second = u32::try_from(until / SECOND + 1).unwrap_or(u32::MAX);
        self.until[set].fetch_max(second, Release);
    }

    /// Locks the shared accounts. The caller must not lock a set while it holds this lock.
    pub(super) fn lock(&self) -> MutexGuard<'_, SharedAccounts<A>> {
        self.accounts.lock()
    }

    /// Counts a decision that used a shared account.
    pub(super) fn count(&self) {
        self.decisions.fetch_add(1, Relaxed);
    }

    /// Returns the number of decisions that used a shared account.
    pub(super) fn decisions(&self) -> u64 {
        self.decisions.load(Relaxed)
    }
}
