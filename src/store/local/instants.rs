//! Accounts that are one instant: those of GCRA, in slots, or shared by newcomers for want of one.

use super::{
    crowd::Crowd,
    overflow::{Address, Overflow},
    slots::Slots,
    windows::Place,
};

#[derive(Debug)]
pub(super) struct Instants {
    slots: Slots,
    overflow: Overflow<u64>,
    crowd: Crowd,
}

impl Instants {
    /// A table of at least so many slots.
    pub(super) fn new(slots: usize) -> Self {
        let slots = Slots::new(slots);
        let overflow = Overflow::new(slots.sets());
        Self { slots, overflow, crowd: Crowd::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn in_debt(&self, now: u64) -> usize {
        self.slots.in_debt(now)
    }

    pub(super) fn overflowed(&self) -> u64 {
        self.overflow.decisions()
    }

    /// Applies `step` to an account that has a slot; `None` where there is none.
    #[inline]
    pub(super) fn find<R>(&self, id: u64, step: impl Fn(u64) -> (Option<u64>, R)) -> Option<R> {
        self.slots.update(id, step)
    }

    pub(super) fn look<R>(&self, at: Place<'_>, now: u64, read: impl Fn(u64) -> R) -> R {
        self.slots.look(at.id, &read).unwrap_or_else(|| read(self.shared(at, now)))
    }

    /// Applies `step`, with the instant at which it counts, to an account, which is opened if need
    /// be.
    #[inline]
    pub(super) fn update<R>(
        &self,
        at: Place<'_>,
        now: u64,
        step: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> R {
        match self.slots.update(at.id, |stored| step(stored, now)) {
            Some(said) => said,
            None => self.enter(at, now, step),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter<R>(&self, at: Place<'_>, now: u64, step: impl Fn(u64, u64) -> (Option<u64>, R)) -> R {
        // A newcomer inherits the debt it may have had part in.
        let open = |now| step(self.shared(at, now), now);
        let mut shared = false;
        let share = |now| {
            shared = true;
            self.overflow.update(self.address(at), |stored| {
                let (new, said) = step(*stored, now);
                *stored = new.unwrap_or(*stored);
                (*stored, said)
            })
        };
        let said = self.slots.claim(at.id, now, |stored| step(stored, now), open, share);
        if shared {
            self.crowd.note(now, self.slots.len());
        }
        said
    }

    /// Lowers an account by `step`, with the instant at which it counts: for steps that give
    /// something back, which those who share an account have no claim to. Where there is no slot,
    /// shows that account to `read`.
    pub(super) fn lower<R>(
        &self,
        at: Place<'_>,
        now: u64,
        step: impl Fn(u64, u64) -> (Option<u64>, R),
        read: impl FnOnce(u64, u64) -> R,
    ) -> R {
        let lowered = self.slots.lower(at.id, now, step);
        lowered.unwrap_or_else(|floor| read(self.shared(at, floor), floor))
    }

    /// [`lower`](Instants::lower) to the end of an account: what was charged up to the reading of
    /// `clock` is gone, and receipts of it are void.
    pub(super) fn reset<R>(
        &self,
        at: Place<'_>,
        now: u64,
        step: impl Fn(u64, u64) -> (Option<u64>, R),
        read: impl FnOnce(u64, u64) -> R,
        clock: impl FnOnce() -> u64,
    ) -> R {
        let lowered = self.slots.reset(at.id, now, step, clock);
        lowered.unwrap_or_else(|floor| read(self.shared(at, floor), floor))
    }

    /// Undoes by `step` what was `charged` to an account at that instant, or to what keys without
    /// a slot share.
    pub(super) fn undo(
        &self,
        at: Place<'_>,
        now: u64,
        charged: u64,
        step: impl Fn(u64, u64) -> Option<u64>,
    ) {
        if let Err(now) = self.slots.undo(at.id, now, charged, &step) {
            self.overflow.lower(self.address(at), |stored| {
                *stored = step(*stored, now).unwrap_or(*stored);
            });
        }
    }

    /// What is stored for an account without a slot: nothing, or the debt that newcomers share.
    fn shared(&self, at: Place<'_>, now: u64) -> u64 {
        self.overflow.get(self.address(at), now)
    }

    fn address(&self, at: Place<'_>) -> Address {
        at.address(self.slots.set_of(at.id))
    }
}
