//! Whether the inner store answers, and whether to tell when that changes.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::store::{BoxFuture, Condition, State};

/// A store that fails now and then would fill the log.
const QUIET: Duration = Duration::from_secs(1);

/// Counts the changes: even while the inner store answers, odd while it fails.
///
/// Only the answer to a call that began since the last change can make the next one: an answer that
/// was long on its way says how things were.
#[derive(Debug, Default)]
pub(super) struct Health {
    changes: AtomicU64,
    /// When a failure was last told, and whether this one was.
    last_told: Mutex<Option<Instant>>,
    told: AtomicBool,
}

impl Health {
    pub(super) fn now(&self) -> u64 {
        self.changes.load(Acquire)
    }

    pub(super) fn is_failing(&self) -> bool {
        is_failing(self.now())
    }

    /// Whether the failure of a call that began at `begun` is the first.
    pub(super) fn fails(&self, begun: u64) -> bool {
        !is_failing(begun) && self.changes(begun)
    }

    /// Whether the success of a call that began at `begun` is the first.
    pub(super) fn recovers(&self, begun: u64) -> bool {
        is_failing(begun) && self.changes(begun)
    }

    /// Whether to tell of a failure that has just begun.
    pub(super) fn tells(&self) -> bool {
        let mut last = self.last_told.lock().unwrap_or_else(PoisonError::into_inner);
        let tells = last.is_none_or(|last| last.elapsed() >= QUIET);
        if tells {
            *last = Some(Instant::now());
        }
        self.told.store(tells, Release);
        tells
    }

    /// Whether the failure that has just ended was told.
    pub(super) fn told(&self) -> bool {
        self.told.swap(false, AcqRel)
    }

    /// What a wrapper tells of what it wraps: whether that answers now, or else did when it was last
    /// asked, and what becomes of requests meanwhile.
    pub(super) fn condition(
        &self,
        store: &'static str,
        inner: BoxFuture<Condition>,
        meanwhile: String,
    ) -> BoxFuture<Condition> {
        let failing = self.is_failing();
        Condition::wrapping(store, inner, move |inner| match inner.state {
            _ if !inner.is_well() => (State::Failing, meanwhile),
            State::Unknown if failing => (State::Failing, meanwhile),
            _ if failing => (State::Well, "failed when it was last asked".to_owned()),
            _ => (State::Well, String::new()),
        })
    }

    fn changes(&self, begun: u64) -> bool {
        self.changes.compare_exchange(begun, begun + 1, AcqRel, Acquire).is_ok()
    }
}

fn is_failing(changes: u64) -> bool {
    changes % 2 == 1
}
