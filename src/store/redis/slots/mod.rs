//! The slots that this process holds.
//!
//! Each slot is an entry of its own on the server, and has a number that no other slot of this
//! process has. Taking, freeing and renewing a slot are therefore idempotent, and calls on one
//! account need no order.

mod renew;

#[cfg(feature = "testing")]
use std::sync::atomic::AtomicU64;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, RandomState},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

use crate::{
    algorithm::Demand,
    decision::{FreeSlots, Hold, LossSignal},
    log::warn,
    quota::Quota,
    store::redis::protocol::{Request, addresses::Addresses},
};

/// The maximum number of slots that one request takes.
pub(crate) const MAX_COST: u32 = 256;
/// The maximum number of slots that a call frees.
const MAX_FREED: u32 = 1_024;

/// The slots that this process holds.
pub(crate) struct Slots {
    /// The first half of the members of all slots.
    pub(crate) store: u64,
    /// The time for which a slot counts, unless it is renewed.
    life: Duration,
    created: Instant,
    #[cfg(feature = "testing")]
    test_clock: Option<Arc<AtomicU64>>,
    state: Mutex<SlotsState>,
    /// Wakes the task, to free slots.
    wake: Notify,
}

/// The slots of each request have consecutive numbers. The first number stands for the request.
#[derive(Default)]
struct SlotsState {
    /// The number of the next slot.
    next: u64,
    held: HashMap<u64, RunningSlots>,
    /// Slots that the server may still count, by the key of their sorted set.
    freed: BTreeMap<(Arc<str>, u64), FreedSlots>,
    /// The number of takes without an answer.
    taking: usize,
    /// The task that renews and frees slots, while it runs.
    task: Weak<()>,
}

struct RunningSlots {
    /// The key of the sorted set.
    set: Arc<str>,
    units: u32,
    renewed_at: u64,
    lost: Arc<LossSignal>,
}

#[derive(Clone, Copy)]
struct FreedSlots {
    units: u32,
    /// The instant from which the server does not count them in any case.
    ends_at: u64,
}

impl Slots {
    pub(crate) fn new(life: Duration) -> Self {
        Self {
            store: RandomState::new().hash_one("store"),
            life,
            created: Instant::now(),
            #[cfg(feature = "testing")]
            test_clock: None,
            state: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Returns the nanoseconds of a clock that does not step back.
    fn now(&self) -> u64 {
        #[cfg(feature = "testing")]
        if let Some(clock) = &self.test_clock {
            return clock.load(Relaxed);
        }
        nanos(self.created.elapsed())
    }

    fn state(&self) -> MutexGuard<'_, SlotsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end of an entry that the server makes now.
    fn end(&self) -> u64 {
        self.now().saturating_add(nanos(self.life))
    }

    pub(crate) fn life_micros(&self) -> u64 {
        nanos(self.life) / 1_000
    }
}

impl SlotsState {
    /// Returns `true` if this process neither holds, takes nor frees slots.
    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.freed.is_empty() && self.taking == 0
    }
}

impl FreeSlots for Slots {
    /// Frees the slots from the number `first` on, unless they were lost.
    fn free(&self, first: u64, _: u64, _: u64) {
        let ends_at = self.end();
        let mut state = self.state();
        let Some(RunningSlots { set, units, .. }) = state.held.remove(&first) else { return };
        state.freed.insert((set, first), FreedSlots { units, ends_at });
        drop(state);
        self.wake.notify_one();
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("life", &self.life).finish_non_exhaustive()
    }
}

/// The slots of one quota in a call. The callers of equal requests have consecutive slots.
#[derive(Debug)]
pub(crate) struct SlotTake {
    account: usize,
    quota_index: usize,
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    /// The number of the first slot of the first caller.
    pub(crate) first: u64,
    /// The slots that each caller takes.
    pub(crate) cost: u32,
    /// `true` if the slots are free at the head of the response.
    until_head: bool,
    /// The number of callers that take slots.
    callers: u32,
    pub(crate) freed: Vec<(u64, u32)>,
}

impl SlotTake {
    /// Returns the number of the first slot of each caller.
    fn firsts(&self) -> impl Iterator<Item = u64> {
        let (first, cost) = (self.first, u64::from(self.cost));
        (0..u64::from(self.callers)).map(move |caller| first + caller * cost)
    }
}

/// The slots of a call. Without an answer, they are freed, because the server may count them.
pub(crate) struct SlotCall {
    slots: Arc<Slots>,
    pub(crate) takes: SmallVec<[SlotTake; 1]>,
}

impl Slots {
    /// Returns the share of a caller in the 4,096 callers of a call, so that the call takes at most
    /// 1,024 slots.
    pub(crate) fn weight(quota: &Quota, ask: Demand) -> usize {
        let cost = if raised(quota) > MAX_FREED { 4 * ask.cost.min(MAX_COST) } else { 1 };
        cost.max(1) as usize
    }

    /// Creates a call that neither takes nor frees slots.
    pub(crate) fn without(self: &Arc<Self>) -> SlotCall {
        SlotCall { slots: self.clone(), takes: SmallVec::new() }
    }

    /// Numbers the slots that equal requests of several callers take.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request, callers: u32) -> SlotCall {
        let mut call = self.without();
        for (at, account) in request.accounts.iter().enumerate() {
            for (quota_index, (quota, ask)) in account.slots() {
                let cost = if ask.cost > MAX_COST { too_many(ask.cost) } else { ask.cost };
                // No more callers than fit.
                let callers = callers.min(raised(quota).checked_div(cost).unwrap_or(0));
                let set: Arc<str> = Addresses::slots(&account.address, quota_index).into();
                let mut state = self.state();
                state.taking += 1;
                let (account, first, freed) = (at, state.next, state.freed(&set));
                state.next += u64::from(cost) * u64::from(callers);
                drop(state);
                let until_head = quota.sheds();
                call.takes.push(SlotTake {
                    account,
                    quota_index,
                    set,
                    first,
                    cost,
                    until_head,
                    callers,
                    freed,
                });
            }
        }
        call
    }
}

/// Returns the most slots that a quota allows.
fn raised(quota: &Quota) -> u32 {
    quota.burst().saturating_add(quota.soft())
}

impl SlotsState {
    /// Returns the freed slots in a set that the server may still count, oldest first.
    fn freed(&self, set: &Arc<str>) -> Vec<(u64, u32)> {
        let mut room = MAX_FREED;
        let all = self.freed.range((set.clone(), 0)..=(set.clone(), u64::MAX));
        all.map_while(|((_, first), FreedSlots { units, .. })| {
            room = room.checked_sub(*units)?;
            Some((*first, *units))
        })
        .collect()
    }
}

impl SlotCall {
    /// Returns the slots of one quota.
    pub(crate) fn of(&self, account: usize, quota_index: usize) -> Option<(&Slots, &SlotTake)> {
        let own = |it: &&SlotTake| it.account == account && it.quota_index == quota_index;
        Some((&*self.slots, self.takes.iter().find(own)?))
    }

    /// Records the answer, by which the first `charged` callers took the slots of an account. Returns
    /// the slots of each of them.
    pub(crate) fn answered(mut self, charged: impl Fn(usize) -> usize) -> Vec<Vec<Hold>> {
        let (mut holds, renewed_at) = (Vec::new(), self.slots.now());
        for take in mem::take(&mut self.takes) {
            let mut state = self.slots.state();
            state.taking -= 1;
            for (first, _) in &take.freed {
                state.freed.remove(&(take.set.clone(), *first));
            }
            for (caller, first) in take.firsts().take(charged(take.account)).enumerate() {
                let (set, units, lost) = (take.set.clone(), take.cost, Arc::new(LossSignal::new()));
                let held = RunningSlots { set, units, renewed_at, lost: lost.clone() };
                state.held.insert(first, held);
                let hold = Hold::new(self.slots.clone(), first, 0, units.into());
                holds.resize_with(holds.len().max(caller + 1), Vec::new);
                holds[caller].push(hold.until_head(take.until_head).with_loss(lost));
            }
            if state.is_idle() {
                // Ends the task.
                self.slots.wake.notify_one();
            }
        }
        holds
    }
}

impl Drop for SlotCall {
    fn drop(&mut self) {
        let ends_at = self.slots.end();
        for take in &self.takes {
            let mut state = self.slots.state();
            state.taking -= 1;
            let freed = FreedSlots { units: take.cost, ends_at };
            state.freed.extend(take.firsts().map(|first| ((take.set.clone(), first), freed)));
            drop(state);
            self.slots.wake.notify_one();
        }
    }
}

/// Logs that a request is denied, and returns the slots that it takes.
#[cold]
fn too_many(cost: u32) -> u32 {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if !LOGGED.swap(true, Relaxed) {
        warn!(
            "a request for {cost} slots is denied, because a request takes at most {MAX_COST} on Redis; \
             lower its cost (logged once)"
        );
    }
    0
}
