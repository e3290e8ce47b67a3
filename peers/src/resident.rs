//! How much memory a process has.

use std::fs;

/// Bytes of this process in memory.
pub fn resident() -> f64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = pages.split(' ').nth(1).expect("the second number");
    4096.0 * pages.parse::<f64>().expect("a number")
}
