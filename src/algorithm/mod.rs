//! Pure steps: what an account holds, the instant and the price give what it holds next.
//!
//! No clock, no I/O and no atomics here: `now` is an argument, in nanoseconds of the store's own
//! clock, and the store decides how a step is applied.

pub(crate) mod gcra;
