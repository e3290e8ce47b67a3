//! The embedded store's accounts, blocks and held slots under every order of events between threads.
//!
//! They are compiled from the crate's own files, with loom's atomics and mutexes. A small model runs
//! in every order that the memory model allows. A larger model runs in all orders with a bounded
//! number of preemptions, which `LOOM_MAX_PREEMPTIONS` can set.
//!
//! A clock that is behind stands for a thread that read the time and then stalled.

mod blocking;
mod claims;
#[rustfmt::skip] // formatted with the crate
#[path = "../../src/store/local/held.rs"]
#[expect(dead_code, reason = "decisions about several accounts")]
mod held;
mod holding;
mod ledger;
mod queueing;
mod refunds;
mod several;
mod sharing;
mod sync;
#[rustfmt::skip] // formatted with the crate
#[path = "../../src/store/local/table/mod.rs"]
#[expect(dead_code, reason = "statistics")]
mod table;
#[rustfmt::skip] // formatted with the crate
#[path = "../../src/store/waiter.rs"]
#[expect(dead_code, unreachable_pub, reason = "timers, the end of all waits, and public names")]
mod waiter;

/// The modules by which the files name other items of the crate.
mod algorithm {
    pub(crate) use crate::ledger::AccountState;
}

mod name {
    pub(crate) use tower_sluice::rule::RuleName;
}

mod store {
    pub(crate) use crate::{sync, waiter};
}

mod quota {
    pub(crate) use crate::ledger::{Quota, QuotaAddress};
}

/// Runs the model in every order.
fn every_order(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.check(model);
}

/// Runs the model in all orders with at most `preemptions` preemptions.
fn orders(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}
