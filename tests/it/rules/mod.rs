//! Rules, quotas, and the results that every algorithm must produce.

#[cfg(feature = "testing")]
mod alternatives;
#[cfg(all(feature = "axum", feature = "testing"))]
mod bad_input;
#[cfg(feature = "axum")]
mod by_route;
#[cfg(feature = "testing")]
mod changing;
#[cfg(all(feature = "serde", feature = "testing"))]
mod config;
#[cfg(feature = "testing")]
mod conformance;
#[cfg(feature = "testing")]
mod definition;
#[cfg(feature = "testing")]
mod fair;
#[cfg(feature = "testing")]
mod fair_flood;
#[cfg(all(
    feature = "axum",
    feature = "governor",
    feature = "redis",
    feature = "serde",
    feature = "testing"
))]
mod messages;
mod own_decisions;
#[cfg(all(feature = "calendar", feature = "serde", feature = "testing"))]
mod periods;
#[cfg(feature = "testing")]
mod plans;
#[cfg(feature = "testing")]
mod scenarios;
#[cfg(feature = "testing")]
mod shares;
#[cfg(feature = "testing")]
mod undo;
