//! The accounts of GCRA, each of which is one instant. New keys without a slot share accounts.

use super::{
    overflow::{Overflow, SharedAddress},
    overflow_warning::OverflowWarning,
    slots::Slots,
    state_table::Address,
};

#[derive(Debug)]
pub(super) struct GcraTable {
    slots: Slots,
    overflow: Overflow<u64>,
    warning: OverflowWarning,
}

impl GcraTable {
    /// Creates a table with at least `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        let slots = Slots::new(slots);
        let overflow = Overflow::new(slots.sets());
        Self { slots, overflow, warning: OverflowWarning::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn active(&self, now: u64) -> usize {
        self.slots.active(now)
    }

    pub(super) fn overflowed(&self) -> u64 {
        self.overflow.decisions()
    }

    /// Applies `change` to an account. Returns `None` if the account has no slot.
    #[inline]
    pub(super) fn find<R>(&self, id: u64, change: impl Fn(u64) -> (Option<u64>, R)) -> Option<R> {
        self.slots.update(id, change)
    }

    pub(super) fn look<R>(&self, address: Address<'_>, now: u64, read: impl Fn(u64) -> R) -> R {
        self.slots.look(address.id, &read).unwrap_or_else(|| read(self.shared(address, now)))
    }

    /// Applies `change` to an account. A new account is created, or shared if there is no room.
    /// `change` receives the stored value and the instant of the change.
    #[inline]
    pub(super) fn update<R>(
        &self,
        address: Address<'_>,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> R {
        match self.slots.update(address.id, |stored| change(stored, now)) {
            Some(result) => result,
            None => self.insert(address, now, change),
        }
    }

    #[cold]
    #[inline(never)]
    fn insert<R>(
        &self,
        address: Address<'_>,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> R {
        // A new account starts with the debt of the shared account, which the key may have used.
        let open = |now| change(self.shared(address, now), now);
        let mut shared = false;
        let share = |now| {
            shared = true;
            self.overflow.update(self.shared_address(address), |stored| {
                let (new, result) = change(*stored, now);
                *stored = new.unwrap_or(*stored);
                (*stored, result)
            })
        };
        let result = self.slots.claim(address.id, now, |stored| change(stored, now), open, share);
        if shared {
            self.warning.record(now, self.slots.len());
        }
        result
    }

    /// Like [`update`](GcraTable::update), for changes that return units. A key without a slot
    /// receives no units, because it shares its account; `read` then reads the shared account.
    pub(super) fn lower<R>(
        &self,
        address: Address<'_>,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
        read: impl FnOnce(u64, u64) -> R,
    ) -> R {
        let lowered = self.slots.lower(address.id, now, change);
        lowered.unwrap_or_else(|floor| read(self.shared(address, floor), floor))
    }

    /// Like [`lower`](GcraTable::lower), to reset an account. Charges up to the reading of `clock`
    /// are removed, and their receipts are void.
    pub(super) fn reset<R>(
        &self,
        address: Address<'_>,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
        read: impl FnOnce(u64, u64) -> R,
        clock: impl FnOnce() -> u64,
    ) -> R {
        let lowered = self.slots.reset(address.id, now, change, clock);
        lowered.unwrap_or_else(|floor| read(self.shared(address, floor), floor))
    }

    /// Applies `change` to undo a charge made at the instant `charged`. If the account has no slot,
    /// the change applies to the shared account.
    pub(super) fn undo(
        &self,
        address: Address<'_>,
        now: u64,
        charged: u64,
        change: impl Fn(u64, u64) -> Option<u64>,
    ) {
        if let Err(now) = self.slots.undo(address.id, now, charged, &change) {
            self.overflow.lower(self.shared_address(address), |stored| {
                *stored = change(*stored, now).unwrap_or(*stored);
            });
        }
    }

    /// Returns the value of the shared account for a key without a slot, or 0.
    fn shared(&self, address: Address<'_>, now: u64) -> u64 {
        self.overflow.get(self.shared_address(address), now)
    }

    fn shared_address(&self, address: Address<'_>) -> SharedAddress {
        address.shared(self.slots.set_of(address.id))
    }
}
