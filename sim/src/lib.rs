//! The node, and what the simulation and the comparison with real servers share.

pub mod node;
pub mod quotas;
pub mod random;

use std::str::FromStr;

/// Returns the value of a command-line option, such as `--seed 42`.
///
/// # Panics
///
/// Panics if the value is of another form.
pub fn option<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::args().skip_while(|arg| arg != name).nth(1)?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} has no value like {value}")))
}
