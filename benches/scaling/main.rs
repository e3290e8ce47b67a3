//! How a decision's cost grows: with threads, keys, rules, quotas of a rule, what an account holds,
//! and how full the store is; and what an account takes in memory.
//!
//! `cargo bench --all-features --bench scaling [-- SECONDS]` prints tables, for each of which it takes
//! so many seconds (4). A row is a case: the ratio to the first one, nanoseconds of a decision,
//! and decisions a second of all threads. The cases of a table run by turns in short rounds; times
//! are medians over the rounds, ratios are medians of each round's ratio. Memory is counted in
//! processes of their own, and only on Linux.
//!
//! # What bounds each on larger machines
//!
//! Figures are of a noisy two-core virtual machine, November 2026.
//!
//! - *One hot key*: a decision is one compare-and-swap of the account's word, so that all threads
//!   together decide no faster than its cache line goes from core to core. One thread takes 67 ns;
//!   two on one key take 160 to 200 each, which is 10 to 12 million decisions a second for that key,
//!   fewer than one thread makes alone. More cores do not raise it, and two sockets lower it. A
//!   request takes a server some 8 µs (`peers/`, `--bin wire`): some eighty cores would have to
//!   serve one key and nothing else.
//! - *Keys apart* write nothing in common: two threads take as long as one, and decide twice as much.
//! - *Many keys*: a decision reads one cache line as a rule, wherever it is. A million keys are 35 MB,
//!   beyond what caches hold, and cost 3 to 4 times a thousand: memory's latency, 190 ns more. It
//!   does not grow further, and each core waits for its own.
//! - *A full store*: a known key costs the same at any load; a newcomer a third more where it finds
//!   no room, since it searches its set under the set's lock.
//! - *Rules and quotas*: one quota has a way of its own (257 instructions). From two on, accounts are
//!   listed, all are looked at and then all charged: 1400 for that and the second, 560 for each that
//!   follows, 770 from the fifth on, where the lists no longer fit the stack. Eight rules are so 12
//!   to 15 times one in the store, and 5 to 6 times through the layer. That is a core's own work, and
//!   grows with the cores.
//! - *Algorithms other than GCRA*: a lock for each set of sixteen accounts. Two threads on one key
//!   take about 1 µs each, 2 million decisions a second for that key. How long a log is and how many
//!   buckets a window has costs memory, and no time.
//! - *Redis*: one core runs all scripts, one after the other: 18 to 23 µs of it for a decision over one
//!   quota, 44 000 to 56 000 a second; three quotas of one key 28 to 36, three keys about 55
//!   (`--bench redis`). More servers' processes do not raise it; a cluster does, as accounts spread
//!   over its slots. One account is in one slot, and so on one core, for good; a decision over accounts
//!   in several slots costs a script in each.
#![expect(clippy::print_stdout, reason = "prints tables")]

mod accounts;
#[path = "../support/hello.rs"]
mod hello;
mod layer;
mod memory;
mod room;
mod rounds;
mod threads;
mod windows;

use std::time::Duration;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [word, keys] = arguments.as_slice()
        && word == "memory"
    {
        return memory::count(keys.parse().expect("a number of keys"));
    }
    let seconds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(4);
    let time = Duration::from_secs(seconds);
    threads::tables(time);
    accounts::tables(time);
    layer::tables(time);
    windows::tables(time);
    room::tables(time);
    memory::table();
}
