//! A rate limit service for Envoy: limits from a file, and the service over any store.

pub mod limits;
pub mod service;
