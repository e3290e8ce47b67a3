//! The guide: what to choose, and why.
//!
//! - [`patterns`]: the rate limiters that people build on Redis, the race of each, and what to use
//!   instead.

#[doc = include_str!("patterns.md")]
pub mod patterns {}
