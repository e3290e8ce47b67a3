//! Atomics and locks of the slot table. `tests/interleavings` compiles the table with another
//! `sync` module, to test all orders of events.

pub(super) use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// The number of slots in a set.
pub(super) const WAYS: usize = 16;
