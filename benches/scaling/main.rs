//! The growth of a decision's cost with threads and with the load of the embedded store.
//!
//! `cargo bench -p dev --all-features --bench scaling [-- SECONDS]` prints tables and spends the
//! given number of seconds on each (default 4). A row is a case: the ratio to the first case,
//! nanoseconds per decision, and decisions per second of all threads. The cases of a table
//! alternate in short rounds. Times are medians over the rounds; ratios are medians of each round's
//! ratio. `-- denials` prints only the share of new keys that a store denies early, by load.
//!
//! On a noisy two-core virtual machine, November 2026:
//!
//! - *One hot key*: a decision locks the set of its account. One thread takes 28 ns. Two on one key
//!   take 75 each: 27 million decisions per second for that key, fewer than one thread alone.
//! - *Separate keys* share no written memory: two threads take as long as one, and decide twice as
//!   much.
//! - *A full store*: a known key costs the same at any load. A new key costs a third more if it
//!   finds no slot, because it searches its set under the set's lock.
#![expect(clippy::print_stdout, reason = "prints tables")]

mod room;
mod rounds;
mod threads;

use std::time::Duration;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "denials") {
        return room::denials();
    }
    let seconds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(4);
    let time = Duration::from_secs(seconds);
    threads::tables(time);
    room::tables(time);
}
