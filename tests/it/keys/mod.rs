//! Tests of key extractors.

#[cfg(feature = "redis")]
mod client_walk;
mod extractors;
mod if_no_key;
mod route;
mod whose;
