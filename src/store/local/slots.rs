//! The slot table: accounts whose whole state is one instant, in memory fixed at construction.
//!
//! An account is a slot: a 64-bit fingerprint of its address and the instant from which it may be
//! forgotten (0: never used). The table is an array of sets of 16 slots. An address hashes to one
//! set and to a first place within it, and its slot is searched from there, so that a lookup reads
//! one cache line as a rule and four at most. Because a full account equals no account, a slot
//! whose instant has passed is free to claim: nothing sweeps, nothing in debt is evicted, and
//! every operation takes constant time at any load.
//!
//! Updates are lock-free. Claims happen under a lock per set that searches again, because with
//! compare-and-swap alone two threads making the first charge of one key would open two accounts.
//! A claimer *hides* the fingerprint, swaps the instant, and publishes the new fingerprint:
//!
//! - An update reads the instant first and the fingerprint second. If it saw a claimer's instant,
//!   it also sees that the fingerprint is no longer its own, and searches again.
//! - If an update swaps the old owner's instant first, the claimer's swap fails, and it restores
//!   the fingerprint: the old owner had just come back.
//! - An instant never returns to a value it had before a claim: claims take slots whose instant is
//!   strictly past, and nothing lowers an instant below the set's latest claim.

use super::sync::{
    AtomicU64, Mutex, MutexGuard,
    Ordering::{AcqRel, Acquire, Release},
    PoisonError, WAYS,
};

/// No account yet: a search stops here, since claims take the first free slot on its way.
const EMPTY: u64 = 0;
/// Between two owners.
const HIDDEN: u64 = 1;
/// Groups of sets that share the instant of the latest reset.
const GROUPS: usize = 1_024;

#[derive(Debug, Default)]
struct Slot {
    fingerprint: AtomicU64,
    until: AtomicU64,
}

/// 256 bytes, four cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([Slot; WAYS]);

impl Set {
    /// All slots, from where the search for `id` begins.
    fn probe(&self, id: u64) -> impl Iterator<Item = &Slot> {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
        let first = id as usize;
        (0..WAYS).map(move |step| &self.0[(first + step) % WAYS])
    }

    /// Most accounts are found where the search begins.
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

    /// Whether an account that was not found may be there all the same.
    fn may_hide(&self, id: u64) -> bool {
        self.0.iter().any(|slot| [id, HIDDEN].contains(&slot.fingerprint.load(Acquire)))
    }
}

#[derive(Debug)]
pub(super) struct Slots {
    sets: Box<[Set]>,
    /// Per set: the latest instant at which a slot was claimed.
    claims: Box<[Mutex<u64>]>,
    /// Per group of sets: what was charged before cannot be undone, since an account was reset. So
    /// a reset voids receipts of the account's neighbours too, which lose a few units by it.
    voids: Box<[AtomicU64]>,
}

impl Slots {
    /// A table of at least so many slots.
    pub(super) fn new(slots: usize) -> Self {
        let sets = slots.div_ceil(WAYS).max(1);
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            claims: (0..sets).map(|_| Mutex::default()).collect(),
            voids: (0..sets.min(GROUPS)).map(|_| AtomicU64::default()).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sets.len() * WAYS
    }

    pub(super) fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Accounts in debt now. Looks at every slot.
    pub(super) fn in_debt(&self, now: u64) -> usize {
        let slots = self.sets.iter().flat_map(|set| &set.0);
        slots.filter(|slot| slot.until.load(Acquire) > now).count()
    }

    /// The set in which `id` lives: the high bits, as the low ones say where in it.
    pub(super) fn set_of(&self, id: u64) -> usize {
        let scaled = (u128::from(id) * self.sets.len() as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// Applies `step` to the instant of an account that has a slot: what it gives is stored (`None`
    /// stores nothing), and what it says is returned. `None` where there is no slot.
    ///
    /// `step` runs again when another thread was quicker.
    #[inline]
    pub(super) fn update<R>(&self, id: u64, step: impl Fn(u64) -> (Option<u64>, R)) -> Option<R> {
        let id = id.max(HIDDEN + 1);
        let set = &self.sets[self.set_of(id)];
        'search: loop {
            let slot = set.find(id)?;
            let mut old = slot.until.load(Acquire);
            loop {
                if slot.fingerprint.load(Acquire) != id {
                    continue 'search;
                }
                let (new, said) = step(old);
                let Some(new) = new else { return Some(said) };
                match slot.until.compare_exchange_weak(old, new, AcqRel, Acquire) {
                    Ok(_) => return Some(said),
                    Err(now) => old = now,
                }
            }
        }
    }

    /// [`update`](Slots::update) for looks: where nothing is found but a claimer is at work, which may
    /// have hidden an account that it will put back, it searches once more when that is done.
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

    /// Opens an account for a newcomer, or applies `step` as [`update`](Slots::update) does if
    /// another thread was first.
    ///
    /// All closures run under the set's lock, `open` and `full` with the instant of the claim: `open`
    /// is a step from nothing, `full` decides when every slot is in debt.
    #[cold]
    #[inline(never)]
    pub(super) fn claim<R>(
        &self,
        id: u64,
        now: u64,
        step: impl Fn(u64) -> (Option<u64>, R),
        open: impl Fn(u64) -> (Option<u64>, R),
        full: impl FnOnce(u64) -> R,
    ) -> R {
        let id = id.max(HIDDEN + 1);
        let set = self.set_of(id);
        let mut claimed = self.lock(set);
        if let Some(said) = self.update(id, step) {
            return said;
        }
        // Another thread's clock may be ahead, and slots were forgotten as of its time.
        let now = now.max(*claimed);
        for slot in self.sets[set].probe(id) {
            let (owner, until) = (slot.fingerprint.load(Acquire), slot.until.load(Acquire));
            if owner != EMPTY && until >= now {
                continue;
            }
            let (new, said) = open(now);
            let Some(new) = new else { return said };
            slot.fingerprint.store(HIDDEN, Release);
            if slot.until.compare_exchange(until, new, AcqRel, Acquire).is_err() {
                slot.fingerprint.store(owner, Release);
                continue;
            }
            slot.fingerprint.store(id, Release);
            *claimed = now;
            return said;
        }
        full(now)
    }

    /// [`update`](Slots::update) for steps that lower the instant, which stops at `now` and at the
    /// set's latest claim; `step` gets that floor. `Err` with the floor where there is no slot.
    pub(super) fn lower<R>(
        &self,
        id: u64,
        now: u64,
        step: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> Result<R, u64> {
        let id = id.max(HIDDEN + 1);
        let claimed = self.lock(self.set_of(id));
        self.lower_to(*claimed, id, now, step)
    }

    /// [`lower`](Slots::lower) that voids the receipts of what was charged up to the reading of
    /// `clock`, which is made once the account is lowered: no charge that it ends was made later.
    pub(super) fn reset<R>(
        &self,
        id: u64,
        now: u64,
        step: impl Fn(u64, u64) -> (Option<u64>, R),
        clock: impl FnOnce() -> u64,
    ) -> Result<R, u64> {
        let id = id.max(HIDDEN + 1);
        let set = self.set_of(id);
        let claimed = self.lock(set);
        let lowered = self.lower_to(*claimed, id, now, step);
        self.void(set).fetch_max(clock() + 1, AcqRel);
        lowered
    }

    /// [`lower`](Slots::lower) by a receipt of what was `charged` at that instant, unless an account
    /// of the set was reset since.
    pub(super) fn undo(
        &self,
        id: u64,
        now: u64,
        charged: u64,
        step: impl Fn(u64, u64) -> Option<u64>,
    ) -> Result<(), u64> {
        let id = id.max(HIDDEN + 1);
        let set = self.set_of(id);
        let claimed = self.lock(set);
        if charged < self.void(set).load(Acquire) {
            return Ok(());
        }
        self.lower_to(*claimed, id, now, |stored, floor| (step(stored, floor), ()))
    }

    fn lower_to<R>(
        &self,
        claimed: u64,
        id: u64,
        now: u64,
        step: impl Fn(u64, u64) -> (Option<u64>, R),
    ) -> Result<R, u64> {
        let floor = now.max(claimed);
        let lowered = |until: u64| {
            let (new, said) = step(until, floor);
            (new.map(|new| new.max(until.min(floor))), said)
        };
        self.update(id, lowered).ok_or(floor)
    }

    fn void(&self, set: usize) -> &AtomicU64 {
        &self.voids[set % GROUPS]
    }

    fn lock(&self, set: usize) -> MutexGuard<'_, u64> {
        self.claims[set].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
