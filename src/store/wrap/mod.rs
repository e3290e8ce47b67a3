//! Stores made of stores.

pub(super) mod breaker;
pub(super) mod deadline;
pub(super) mod deny_cache;
pub(super) mod fail_closed;
pub(super) mod fail_open;
pub(super) mod fallback;
mod hashes;
mod health;
pub(super) mod leased;
mod outage;
mod repriced;
pub(super) mod setting;
