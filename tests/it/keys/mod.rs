//! Tests of key extractors.

mod client_ip;
#[cfg(all(feature = "redis", feature = "serde", feature = "testing"))]
mod client_walk;
mod extractors;
#[cfg(feature = "axum")]
#[cfg(feature = "axum")]
mod route;
