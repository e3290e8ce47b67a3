//! Features built on the layer: explanations, metrics, the admin router,
//! examples.

#[cfg(all(feature = "admin", feature = "redis"))]
mod admin;
mod examples;
mod explain;
mod fair_shares;
#[cfg(feature = "redis")]
mod fuzz_seeds;
#[cfg(feature = "redis")]
mod guide;
#[cfg(feature = "metrics")]
mod metrics;
mod operators;
mod outgoing;
mod parsers;
mod replay;
