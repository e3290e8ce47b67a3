//! Tests of the servers of the tests (`tests/support/servers`).

mod failover;
mod fake;
mod proxy;
mod server;
