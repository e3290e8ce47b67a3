//! Whatever the order of events between threads: the slot table and the accounts that newcomers
//! share, compiled from the crate's own files with loom's atomics and locks in place of the standard
//! library's. A small model is run in every order that the memory model allows, a larger one in all
//! with so many preemptions; `LOOM_MAX_PREEMPTIONS` sets another number.
//!
//! A clock that is behind another's stands for a thread that read the time and was then held up.

mod blocking;
#[path = "../../src/store/local/blocks.rs"]
#[expect(dead_code, reason = "statistics")]
mod blocks;
mod claims;
mod lowering;
#[path = "../../src/store/local/overflow.rs"]
#[expect(dead_code, reason = "statistics")]
mod overflow;
mod sharing;
#[path = "../../src/store/local/slots.rs"]
#[expect(dead_code, reason = "statistics")]
mod slots;
mod sync;
mod table;

/// Where the files look for what they name from the crate's root.
mod name {
    pub(crate) use tower_sluice::RuleName;
}

/// Runs the model in every order.
fn every_order(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = None;
    builder.check(model);
}

/// Runs the model in all orders in which threads are interrupted so often.
fn orders(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}
