//! Rules, quotas, and the results that every algorithm must produce.

mod alternatives;
mod bad_input;
mod by_route;
mod changing;
mod config;
mod conformance;
mod definition;
mod fair;
mod fair_flood;
#[cfg(all(
    feature = "axum",
    feature = "calendar",
    feature = "governor",
    feature = "redis",
    feature = "serde",
    feature = "testing"
))]
mod messages;
mod own_decisions;
#[cfg(feature = "calendar")]
mod periods;
mod plans;
mod scenarios;
mod shares;
mod undo;
