//! Stores made of stores.

pub(super) mod fail_closed;
pub(super) mod fail_open;
