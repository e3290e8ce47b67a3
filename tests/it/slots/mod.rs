//! Limits on concurrent requests: `Quota::concurrent`.

#[cfg(feature = "testing")]
mod adaptive;
#[cfg(feature = "axum")]
mod layer;
#[cfg(feature = "testing")]
mod local;
#[cfg(all(feature = "axum", feature = "metrics", feature = "testing"))]
mod metrics;
mod model;
#[cfg(feature = "axum")]
mod responses;
#[cfg(feature = "testing")]
mod stores;
#[cfg(feature = "testing")]
mod tables;
#[cfg(feature = "testing")]
mod waiting;
mod wire;
