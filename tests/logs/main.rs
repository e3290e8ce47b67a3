//! Log lines and spans.
//!
//! The tests run one by one ([`alone`]), because the first thread that meets a log line decides
//! whether it is enabled.

#[cfg(feature = "redis")]
mod cluster;
mod denials;
mod fingerprint;
mod flood;
mod lints;
#[path = "../support/log.rs"]
mod log;
mod max_debt;
mod outage;
mod peer;
mod penalties;
mod spans;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The turn of one test, until it is dropped.
struct Turn(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

/// Waits until no other test of this program runs.
fn alone() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    Turn(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
