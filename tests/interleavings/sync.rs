//! Loom's counterparts of `src/store/local/sync.rs`, with sets small enough for models to end.

use std::cell::Cell;
pub(super) use std::sync::{OnceLock, PoisonError};

use loom::sync::atomic;
pub(super) use loom::sync::{Mutex, MutexGuard, atomic::Ordering};

pub(super) const WAYS: usize = 2;

/// Threads of a model.
const THREADS: usize = 3;

loom::thread_local! {
    static THREAD: Cell<usize> = Cell::new(0);
}

/// Sets the number of this thread in the model. The first thread is 0.
pub(super) fn is_thread(number: usize) {
    THREAD.with(|thread| thread.set(number));
}

/// An atomic that makes loom explore every order. Loom remembers only the last access of each
/// atomic, so that a load hides an earlier load of another thread from a later store, and orders
/// are missing (loom issues 166 and 392). Here each thread that loads leaves its own mark, and
/// each store touches the marks of all other threads.
#[derive(Debug, Default)]
pub(super) struct AtomicU64 {
    value: atomic::AtomicU64,
    marks: [atomic::AtomicBool; THREADS],
}

impl AtomicU64 {
    pub(super) fn new(value: u64) -> Self {
        Self { value: atomic::AtomicU64::new(value), marks: Default::default() }
    }

    pub(super) fn load(&self, order: Ordering) -> u64 {
        THREAD.with(|thread| self.marks[thread.get()].store(true, Ordering::Relaxed));
        self.value.load(order)
    }

    pub(super) fn store(&self, value: u64, order: Ordering) {
        self.changing().store(value, order);
    }

    pub(super) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.changing().compare_exchange(current, new, success, failure)
    }

    /// Never fails spuriously, as in loom.
    pub(super) fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }

    pub(super) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.changing().fetch_add(value, order)
    }

    pub(super) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.changing().fetch_max(value, order)
    }

    fn changing(&self) -> &atomic::AtomicU64 {
        let own = THREAD.with(Cell::get);
        for (_, mark) in self.marks.iter().enumerate().filter(|(of, _)| *of != own) {
            mark.store(true, Ordering::Relaxed);
        }
        &self.value
    }
}
