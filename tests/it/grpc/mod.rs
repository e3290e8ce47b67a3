//! Tests of the layer around tonic services.

#[cfg(feature = "tonic")]
mod calls;
#[cfg(feature = "tonic")]
mod web;
#[cfg(feature = "tonic")]
mod wire;
