//! The examples of the guide and of the README, as documentation tests with the dependencies of
//! `dev/Cargo.toml`.
#![cfg(all(
    doctest,
    feature = "axum",
    feature = "governor",
    feature = "redis",
    feature = "testing"
))]

#[rustfmt::skip] // formatted with the crate
#[path = "../src/guide/mod.rs"]
pub mod guide;

pub use tower_sluice::*;

#[doc = include_str!("../README.md")]
pub struct Readme;
