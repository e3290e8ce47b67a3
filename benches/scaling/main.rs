//! The growth of a decision's cost with threads, keys, rules, quotas per rule, the content of an
//! account and the load of the store; and the memory of an account.
//!
//! `cargo bench -p dev --all-features --bench scaling [-- SECONDS]` prints tables and spends the
//! given number of seconds on each (default 4). A row is a case: the ratio to the first case,
//! nanoseconds per decision, and decisions per second of all threads. The cases of a table
//! alternate in short rounds. Times are medians over the rounds; ratios are medians of each round's
//! ratio. Memory is counted in separate processes, and only on Linux. `-- denials` prints only the
//! share of new keys that a store denies early, by load.
//!
//! # Bounds on larger machines
//!
//! The figures are from a noisy two-core virtual machine, November 2026.
//!
//! - *One hot key*: a decision locks the set of its account. One thread takes 28 ns. Two on one key
//!   take 75 each: 27 million decisions per second for that key, fewer than one thread alone. More
//!   cores do not raise it, and two sockets lower it. A server spends about 8 µs on a request
//!   (`benches/peers/`, `--bin wire`), so some two hundred cores would have to serve only that key to reach
//!   the bound.
//! - *Separate keys* share no written memory: two threads take as long as one, and decide twice as
//!   much.
//! - *Many keys*: a decision usually reads one cache line, at any position. A million keys take 35
//!   MB, more than caches hold, and cost 8 to 9 times as much as a thousand: the latency of memory,
//!   290 ns more. The cost does not grow further, and each core waits independently.
//! - *A full store*: a known key costs the same at any load. A new key costs a third more if it
//!   finds no slot, because it searches its set under the set's lock.
//! - *Rules and quotas*: one rule of one GCRA quota takes 230 instructions, two take 660, and three
//!   1020 (`cargo bench -p dev --bench paths`). With four or more, or with several quotas of a rule,
//!   accounts are listed, all are checked, and then all are charged. Four rules
//!   therefore cost 11 times as much as one in the store, and eight 25 times; through the layer 3
//!   and 5 to 6 times. This work is local to a core, so it scales with the cores.
//! - *Algorithms other than GCRA*: a lock per set of sixteen accounts. Two threads on one key take
//!   some 460 ns each, 4 million decisions per second for that key. The length of a log and the
//!   number of buckets cost memory, not time.
//! - *Redis*: one core runs all scripts in sequence. A decision over one quota takes 18 to 23 µs of
//!   it, 44 000 to 56 000 per second; three quotas of one key take 28 to 36, and three keys about
//!   55 (`--bench redis`). More client processes do not raise it. A cluster does, as accounts
//!   spread over its slots. One account is always in one slot, and thus on one core. A decision
//!   over accounts in several slots costs a script in each.
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
    if arguments.iter().any(|argument| argument == "denials") {
        return room::denials();
    }
    let seconds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(4);
    let time = Duration::from_secs(seconds);
    threads::tables(time);
    threads::longest(time);
    accounts::tables(time);
    layer::tables(time);
    windows::tables(time);
    room::tables(time);
    memory::table();
}
