//! Tests of the layer around tonic services.

#[cfg(all(feature = "testing", feature = "tonic"))]
mod calls;
#[cfg(all(feature = "testing", feature = "tonic"))]
mod web;
#[cfg(all(feature = "axum", feature = "testing", feature = "tonic"))]
mod wire;
