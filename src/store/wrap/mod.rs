//! Stores that wrap other stores.

pub(super) mod breaker;
pub(super) mod deny_cache;
pub(super) mod fail_closed;
pub(super) mod fail_open;
pub(super) mod fallback;
mod hashes;
pub(super) mod leased;
mod outage_log;
mod outage_state;
mod recompute;
pub(super) mod setting;
pub(super) mod timeout;
