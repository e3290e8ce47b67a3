//! The locks and atomics of the embedded store, and of requests that wait.
//!
//! `tests/interleavings` replaces this module to test all orders of events.

pub(super) use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

pub(super) use parking_lot::{Mutex, MutexGuard};

/// The number of entries in a set.
pub(super) const WAYS: usize = 16;
