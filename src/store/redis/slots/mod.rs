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
    /// `true` while a task renews and frees slots.
    is_running: bool,
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

    #[cfg(feature = "testing")]
    pub(crate) fn with_clock(self, test_clock: Option<Arc<AtomicU64>>) -> Self {
        Self { test_clock, ..self }
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
