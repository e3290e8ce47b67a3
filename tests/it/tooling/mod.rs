//! Features built on the layer: explanations, metrics, the admin router,
//! examples.

#[cfg(all(feature = "admin", feature = "governor", feature = "redis", feature = "testing"))]
mod admin;
#[cfg(feature = "axum")]
mod examples;
#[cfg(all(feature = "governor", feature = "testing"))]
mod explain;
#[cfg(feature = "testing")]
mod explain_tables;
#[cfg(feature = "testing")]
mod fair_shares;
#[cfg(all(feature = "redis", feature = "serde", feature = "testing"))]
mod fuzz_seeds;
#[cfg(all(feature = "axum", feature = "redis", feature = "serde", feature = "testing"))]
mod guide;
#[cfg(all(feature = "metrics", feature = "testing"))]
mod metrics;
#[cfg(feature = "testing")]
mod operators;
#[cfg(all(feature = "axum", feature = "testing"))]
mod outgoing;
#[cfg(feature = "testing")]
mod parsers;
#[cfg(all(feature = "axum", feature = "testing"))]
mod replay;
