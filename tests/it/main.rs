//! Tests that need no server and share one process, in folders by capability.
//!
//! They do not change process-wide state.
//!
//! A module that needs a feature is declared under that feature.
#![allow(clippy::print_stdout, reason = "figures of tests")]

mod attacks;
#[cfg(feature = "redis")]
#[path = "../../fuzz/bodies/mod.rs"]
mod bodies;
mod grpc;
mod keys;
mod layer;
mod local;
mod resilience;
mod rules;
mod slots;
#[path = "../support/mod.rs"]
mod support;
mod tooling;
