//! What the threads of a process share the slot table by. Whoever includes its files with another
//! `sync` beside them has another table: `tests/interleavings` tries all orders of events on one.

pub(super) use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// Slots of a set.
pub(super) const WAYS: usize = 16;
