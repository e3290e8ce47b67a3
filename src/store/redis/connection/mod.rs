//! Connections to servers: how a store opens, repairs and tests them.

pub(crate) mod link;
mod open;
pub(crate) mod probe;
mod watchdog;
