//! Settings that are checked when they are made.

use std::fmt;

/// Returns a valid setting, and panics with the error of an invalid one.
#[track_caller]
pub(crate) fn literal<T>(setting: Result<T, impl fmt::Display>) -> T {
    match setting {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
