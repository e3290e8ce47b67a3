//! The simulation of fair shares.

#[path = "../../../examples/fair_shares.rs"]
#[expect(dead_code, reason = "the example prints")]
mod example;
