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
    /// No entry: the account was not looked up yet, or the key has none and no entry is free.
    Shared,
    /// Not in this table. The account counts held slots.
    Elsewhere,
}

impl Located {
    /// Creates an account that is elsewhere, or whose position [`Table::lock`](super::Table::lock) finds.
    #[inline]
    pub(crate) fn new(
        id: u64,
        rule: RuleName,
        quota_index: usize,
        address: QuotaAddress,
        is_elsewhere: bool,
    ) -> Self {
        Self {
            id,
            rule,
            quota_index,
            address,
            set: NO_SET,
            lock: 0,
            position: if is_elsewhere {
                Position::Elsewhere
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

    /// Returns `true` if the account is in an entry of its set, or will be.
    pub(super) fn is_at(&self, entry: usize) -> bool {
        [Position::Entry(entry), Position::Room(entry)].contains(&self.position)
    }

    /// Returns `true` if the key has no account of its own, and no free entry is known.
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

    /// Returns `true` if both keys are new and share one account.
    pub(crate) fn shares(&self, other: &Self) -> bool {
        self.has_no_entry()
            && other.has_no_entry()
            && self.set_group() == other.set_group()
            && self.address == other.address
    }
}
