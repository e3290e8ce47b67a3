//! The checks of the fuzz targets, for any bytes. A test runs them over the seeds, without a
//! fuzzer.
#![allow(dead_code, reason = "a target checks one of them")]

pub(crate) mod admin;
pub(crate) mod entries;
pub(crate) mod forwarded;
pub(crate) mod headers;
pub(crate) mod quota;
pub(crate) mod replies;
pub(crate) mod scenario;

mod fields;
mod input;
mod networks;
