//! Tests of key extractors.

#[cfg(all(feature = "redis", feature = "serde", feature = "testing"))]
mod client_walk;
mod extractors;
#[cfg(feature = "axum")]
mod if_no_key;
#[cfg(feature = "axum")]
mod route;
#[cfg(all(feature = "axum", feature = "testing"))]
mod whose;
