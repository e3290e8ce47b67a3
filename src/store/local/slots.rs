//! The slot table: accounts whose whole state is one instant. Its memory is fixed at construction.
//!
//! A slot holds one account: a 64-bit fingerprint of its address, and the instant at which it
//! expires (0 if never used). The table is an array of sets of 16 slots. An address hashes to one
//! set and to a first slot in it, where the search begins. A lookup therefore usually reads one
//! cache line, and at most four. A full account equals a new one, so a slot whose instant has
//! passed can be claimed. There is no sweep, no account in debt is evicted, and every operation
//! takes constant time at any load.
//!
//! Updates are lock-free. A claim locks the set and searches again. With compare-and-swap alone,
//! two threads that make the first charge of one key would create two accounts. A claim *hides* the
//! fingerprint, swaps the instant, and then publishes the new fingerprint:
//!
//! - An update reads the instant first and the fingerprint second. If it read the instant of a
//!   claim, it also reads a fingerprint that is not its own, and searches again.
//! - If an update swaps the instant of the old owner first, the swap of the claim fails. The claim
//!   then restores the fingerprint, because the old owner uses the slot again.
//! - An instant never returns to a value that it had before a claim. A claim takes only a slot
//!   whose instant is strictly in the past, and no operation lowers an instant below the set's
//!   latest claim.

use super::sync::{
    AtomicU64, Mutex, MutexGuard,
    Ordering::{AcqRel, Acquire, Release},
    PoisonError, WAYS,
};

/// The fingerprint of a slot that was never used. A search stops there, because a claim takes the
/// first free slot in search order.
const EMPTY: u64 = 0;
/// The fingerprint of a slot during a claim.
const HIDDEN: u64 = 1;
/// Groups of sets that share the instant of the latest reset.
const GROUPS: usize = 1_024;

#[derive(Debug, Default)]
struct Slot {
    fingerprint: AtomicU64,
    expires_at: AtomicU64,
}

/// A set of slots: 256 bytes, which are four cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([Slot; WAYS]);

impl Set {
    /// Returns all slots in the search order of `id`.
    fn probe(&self, id: u64) -> impl Iterator<Item = &Slot> {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
        let first = id as usize;
        (0..WAYS).map(move |offset| &self.0[(first + offset) % WAYS])
    }

    /// Returns the slot of `id`. Most accounts are in the first slot of their search order.
    #[inline]
    fn find(&self, id: u64) -> Option<&Slot> {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
        let first = &self.0[id as usize % WAYS];
        if first.fingerprint.load(Acquire) == id { Some(first) } else { self.search(id) }
    }

    #[inline(never)]
    fn search(&self, id: u64) -> Option<&Slot> {
        for slot in self.probe(id) {
            match slot.fingerprint.load(Acquire) {
                found if found == id => return Some(slot),
                EMPTY => return None,
                _ => {}
            }
        }
        None
    }

    /// Returns `true` if an account that a search did not find may exist.
    fn may_hide(&self, id: u64) -> bool {
        self.0.iter().any(|slot| [id, HIDDEN].contains(&slot.fingerprint.load(Acquire)))
    }
}

#[derive(Debug)]
pub(super) struct Slots {
    sets: Box<[Set]>,
    /// Per set: the instant of the latest claim.
    claims: Box<[Mutex<u64>]>,
    /// Per group of sets: charges before this instant cannot be undone, because an account of the
    /// group was reset. That costs the other accounts of the group a few units.
    void_before: Box<[AtomicU64]>,
}

impl Slots {
    /// Creates a table with at least `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        let sets = slots.div_ceil(WAYS).max(1);
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            claims: (0..sets).map(|_| Mutex::default()).collect(),
            void_before: (0..sets.min(GROUPS)).map(|_| AtomicU64::default()).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sets.len() * WAYS
    }

    pub(super) fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Counts the accounts in debt. Reads every slot.
    pub(super) fn active(&self, now: u64) -> usize {
        let slots = self.sets.iter().flat_map(|set| &set.0);
        slots.filter(|slot| slot.expires_at.load(Acquire) > now).count()
    }

    /// Returns the set of `id`, by its high bits. The low bits select the first slot in the set.
    pub(super) fn set_of(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.sets.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// Applies `change` to the instant of an account, and returns its result. `change` also returns
    /// the instant to store, or `None` to leave it. Returns `None` if the account has no slot.
    ///
    /// `change` runs again if another thread changed the instant first.
    #[inline]
    pub(super) fn update<R>(&self, id: u64, change: impl Fn(u64) -> (Option<u64>, R)) -> Option<R> {
        let id = id.max(HIDDEN + 1);
        let set = &self.sets[self.set_of(id)];
        'search: loop {
            let slot = set.find(id)?;
            let mut old = slot.expires_at.load(Acquire);
            loop {
                if slot.fingerprint.load(Acquire) != id {
                    continue 'search;
                }
                let (new, result) = change(old);
                let Some(new) = new else { return Some(result) };
                match slot.expires_at.compare_exchange_weak(old, new, AcqRel, Acquire) {
                    Ok(_) => return Some(result),
                    Err(current) => old = current,
                }
            }
        }
    }

    /// Reads the instant of an account without changing it. A claim hides a slot for a moment, and
    /// may then restore it. If a search finds no account during a claim, it waits for the claim and
    /// searches once more.
    pub(super) fn look<R>(&self, id: u64, read: impl Fn(u64) -> R) -> Option<R> {
        let id = id.max(HIDDEN + 1);
        let look = |stored| (None, read(stored));
        self.update(id, look).or_else(|| {
            let set = self.set_of(id);
            if !self.sets[set].may_hide(id) {
                return None;
            }
            let _no_claim = self.lock(set);
            self.update(id, look)
        })
    }

    /// Creates an account in a free slot. If another thread created it first, applies `change` as
    /// [`update`](Slots::update) does.
    ///
    /// `open` computes the instant of the new account. If every slot is in debt, `full` makes the
    /// decision. Both receive the instant of the claim. All closures run under the lock of the set.
    #[cold]
    #[inline(never)]
    pub(super) fn claim<R>(
        &self,
        id: u64,
        now: u64,
        change: impl Fn(u64) -> (Option<u64>, R),
        open: impl Fn(u64) -> (Option<u64>, R),
        full: impl FnOnce(u64) -> R,
    ) -> R {
        let id = id.max(HIDDEN + 1);
        let set = self.set_of(id);
        let mut claimed = self.lock(set);
        if let Some(result) = self.update(id, change) {
            return result;
        }
        // Another thread's clock may be ahead, and that thread may have claimed slots by its clock.
        let now = now.max(*claimed);
        for slot in self.sets[set].probe(id) {
            let owner = slot.fingerprint.load(Acquire);
            let expires_at = slot.expires_at.load(Acquire);
            if owner != EMPTY && expires_at >= now {
                continue;
            }
            let (new, result) = open(now);
            let Some(new) = new else { return result };
            slot.fingerprint.store(HIDDEN, Release);
            if slot.expires_at.compare_exchange(expires_at, new, AcqRel, Acquire).is_err() {
                slot.fingerprint.store(owner, Release);
                continue;
            }
            slot.fingerprint.store(id, Release);
            *claimed = now;
            return result;
        }
        full(now)
    }

    /// Like [`update`](Slots::update), for changes that lower the instant. The instant stops at a
    /// floor: the later of `now` and the set's latest claim. `change` receives the floor. Returns
    /// the floor as `Err` if the account has no slot.
    pub(super) fn lower<R>(
        &self,
        id: u64,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> Result<R, u64> {
        let id = id.max(HIDDEN + 1);
        let claimed = self.lock(self.set_of(id));
        self.lower_to(*claimed, id, now, change)
    }

    /// Like [`lower`](Slots::lower), and voids the receipts of earlier charges. `clock` is read
    /// after the account is lowered, so no charge that the reset removes is later than that
    /// reading.
    pub(super) fn reset<R>(
        &self,
        id: u64,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
        clock: impl FnOnce() -> u64,
    ) -> Result<R, u64> {
        let id = id.max(HIDDEN + 1);
        let set = self.set_of(id);
        let claimed = self.lock(set);
        let lowered = self.lower_to(*claimed, id, now, change);
        self.void_before(set).fetch_max(clock() + 1, AcqRel);
        lowered
    }

    /// Like [`lower`](Slots::lower), to undo a charge made at the instant `charged`. Does nothing
    /// if an account in the group of sets was reset since.
    pub(super) fn undo(
        &self,
        id: u64,
        now: u64,
        charged: u64,
        change: impl Fn(u64, u64) -> Option<u64>,
    ) -> Result<(), u64> {
        let id = id.max(HIDDEN + 1);
        let set = self.set_of(id);
        let claimed = self.lock(set);
        if charged < self.void_before(set).load(Acquire) {
            return Ok(());
        }
        self.lower_to(*claimed, id, now, |stored, floor| (change(stored, floor), ()))
    }

    fn lower_to<R>(
        &self,
        claimed: u64,
        id: u64,
        now: u64,
        change: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> Result<R, u64> {
        let floor = now.max(claimed);
        let lowered = |stored: u64| {
            let (new, result) = change(stored, floor);
            (new.map(|new| new.max(stored.min(floor))), result)
        };
        self.update(id, lowered).ok_or(floor)
    }

    fn void_before(&self, set: usize) -> &AtomicU64 {
        &self.void_before[set % GROUPS]
    }

    fn lock(&self, set: usize) -> MutexGuard<'_, u64> {
        self.claims[set].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
