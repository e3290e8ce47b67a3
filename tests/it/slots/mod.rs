//! Limits on concurrent requests: `Quota::concurrent`.

mod adaptive;
mod layer;
mod local;
#[cfg(feature = "metrics")]
mod metrics;
mod responses;
mod tables;
mod waiting;
mod wire;
