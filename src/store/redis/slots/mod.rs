//! The slots that this process holds.
//!
//! Each slot is an entry of its own on the server, and has a number that no other slot of this
//! process has. Taking, freeing and renewing a slot are therefore idempotent, and calls on one
//! account need no order.

mod renew;
mod take;

#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

pub(crate) use self::take::{SlotCall, SlotTake};
use super::protocol::addresses::Addresses;
use crate::decision::{FreeSlots, LossSignal};

/// The maximum number of slots that one request takes.
pub(crate) const MAX_COST: u32 = 256;
/// The maximum number of slots that a call frees.
const MAX_FREED: u32 = 1_024;

/// The slots that this process holds.
pub(crate) struct Slots {
    /// The first half of the members of all slots.
    pub(crate) store: u64,
    /// The time for which a slot counts, unless it is renewed.
    pub(crate) life: Duration,
    created: Instant,
    #[cfg(feature = "testing")]
    test_clock: Option<Arc<AtomicU64>>,
    ids: RandomState,
    state: Mutex<SlotsState>,
    /// Wakes the task, to free slots.
    wake: Notify,
}

#[derive(Default)]
struct SlotsState {
    /// The number of the next slot.
    next: u64,
    accounts: HashMap<u64, SlotAccount>,
    /// `true` while a task renews and frees slots.
    is_running: bool,
}

/// An account in which this process holds, takes or frees slots. The slots of a request have
/// consecutive numbers, and the first is the key of a map.
struct SlotAccount {
    /// The key of its sorted set.
    address: String,
    held: HashMap<u64, RunningSlots>,
    /// Slots that the server may still count.
    freed: BTreeMap<u64, FreedSlots>,
    /// The number of calls without an answer.
    calls: usize,
}

struct RunningSlots {
    units: u32,
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
        let ids = RandomState::new();
        Self {
            store: ids.hash_one("store"),
            life,
            created: Instant::now(),
            #[cfg(feature = "testing")]
            test_clock: None,
            ids,
            state: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Returns the slots of another process with the same settings, which holds none.
    pub(crate) fn renewed(&self, life: Duration) -> Self {
        Self {
            #[cfg(feature = "testing")]
            test_clock: self.test_clock.clone(),
            ..Self::new(life)
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn with_clock(&self, clock: Arc<AtomicU64>) -> Self {
        Self { test_clock: Some(clock), ..Self::new(self.life) }
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

    fn id(&self, address: &str, quota_index: usize) -> u64 {
        self.ids.hash_one((address, quota_index))
    }

    pub(crate) fn life_micros(&self) -> u64 {
        nanos(self.life) / 1_000
    }
}

impl SlotAccount {
    fn new(address: &str, quota_index: usize) -> Self {
        let address = Addresses::slots(address, quota_index);
        Self { address, held: HashMap::new(), freed: BTreeMap::new(), calls: 0 }
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.freed.is_empty() && self.calls == 0
    }
}

impl FreeSlots for Slots {
    /// Frees the slots from the number `first` on, unless they were lost.
    fn free(&self, id: u64, first: u64, _: u64) {
        let ends_at = self.end();
        let mut state = self.state();
        let Some(account) = state.accounts.get_mut(&id) else { return };
        if let Some(held) = account.held.remove(&first) {
            account.freed.insert(first, FreedSlots { units: held.units, ends_at });
            drop(state);
            self.wake.notify_one();
        }
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
