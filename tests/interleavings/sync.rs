//! Loom's counterparts of `src/store/sync.rs`, with sets small enough for models to end.

pub(super) use std::sync::OnceLock;

pub(super) use loom::sync::{
    MutexGuard,
    atomic::{AtomicU64, Ordering},
};

pub(super) const WAYS: usize = 2;

/// A lock that is never poisoned, as those of `parking_lot`.
#[derive(Debug, Default)]
pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no panic under a lock")
    }
}
