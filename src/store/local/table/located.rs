//! The position of an account in the table.

use super::{
    NO_SET,
    shared::{SET_GROUPS, SetGroup},
};
use crate::{name::RuleName, quota::QuotaAddress};

/// An account of a decision: its address, and its position in the table.
#[derive(Clone, Copy)]
pub(crate) struct Located {
    pub(crate) id: u64,
    pub(crate) rule: RuleName,
    pub(crate) quota_index: usize,
    pub(crate) address: QuotaAddress,
    /// The index of the set in the table.
    pub(super) set: usize,
    /// The index of that set's lock in [`LockedAccounts`](super::LockedAccounts).
    pub(super) lock: usize,
    pub(super) position: Position,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    Entry(usize),
    /// A free entry, for a key without an account. A new account starts with the debt of the shared
    /// account.
    Room(usize),
    /// No entry: the account was not looked up yet, or the key has none and no entry is free. Then it is the
    /// account that new keys share.
    Shared,
    /// Not in this table: the account counts held slots, or the key is new, and there is no room for an entry
    /// or a shared account.
    Nowhere,
}

impl Located {
    /// Creates an account that counts held slots, or whose position [`Table::lock`](super::Table::lock)
    /// finds.
    #[inline]
    pub(crate) fn new(
        id: u64,
        rule: RuleName,
        quota_index: usize,
        address: QuotaAddress,
        counts_slots: bool,
    ) -> Self {
        Self {
            id,
            rule,
            quota_index,
            address,
            set: NO_SET,
            lock: 0,
            position: if counts_slots {
                Position::Nowhere
            } else {
                Position::Shared
            },
        }
    }

    /// Returns `true` if the key has an account of its own.
    pub(crate) fn has_entry(&self) -> bool {
        matches!(self.position, Position::Entry(_))
    }

    /// Returns `true` if there is a free entry for a new account of the key.
    pub(crate) fn has_room(&self) -> bool {
        matches!(self.position, Position::Room(_))
    }

    /// Returns `true` if the account is not in the table.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.position == Position::Nowhere
    }

    /// Returns `true` if the account is in an entry of its set, or will be.
    pub(super) fn is_at(&self, entry: usize) -> bool {
        [Position::Entry(entry), Position::Room(entry)].contains(&self.position)
    }

    /// Returns `true` if the key shares the account, or if the account was not looked up yet.
    pub(super) fn has_no_entry(&self) -> bool {
        self.position == Position::Shared
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the number is at most 2,048"
    )]
    pub(super) fn set_group(&self) -> SetGroup {
        SetGroup {
            rule: self.rule,
            sets: (self.set % SET_GROUPS) as u16,
        }
    }

    /// Returns `true` if this is the account that new keys share, and `other` is one of its keys, or will be
    /// while it has no entry.
    pub(crate) fn is_shared_by(&self, other: &Self) -> bool {
        self.is_in_group_of(other) && self.address == other.address
    }

    /// Returns `true` if this is an account that new keys share, of the rule and the group of sets of `other`.
    pub(super) fn is_in_group_of(&self, other: &Self) -> bool {
        self.has_no_entry() && self.set_group() == other.set_group()
    }
}
