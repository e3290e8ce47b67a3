//! The memory of a process.

use std::fs;

/// Returns the resident memory of this process in bytes.
pub fn resident() -> f64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux reports it");
    let pages = pages.split(' ').nth(1).expect("the second number");
    4096.0 * pages.parse::<f64>().expect("a number")
}
