//! The cost of a decision in Redis: ratios between scripts that alternate on one server.
//!
//! `cargo bench -p dev --features redis --bench redis [-- ROUNDS]` starts its own `redis-server`, or
//! the program that `REDIS_SERVER` names (pinned to CPU 0 if `taskset` is available), and prints
//!
//! - server CPU per decision for the commands that the store sends, beside `PING`, an empty script
//!   and the usual published GCRA script. The commands are recorded from the store and replayed
//!   over 1000 keys, on 50 connections without pipelining (P1) and 16 deep (P16);
//! - up to 1024 concurrent callers: coalesced decisions, beside `PING`, the script called by
//!   redis-rs over one connection, and the store with a call per decision. The argument `callers`
//!   runs this part alone, and `slots` only its slots, whose frees are included, beside a rate.
//!
//! The argument `instructions` prints only the server's instructions per call (requires valgrind).
//!
//! Times are medians over all rounds. Ratios are medians of each round's ratio.
#![expect(clippy::print_stdout, reason = "prints tables")]

mod callers;
mod case;
mod forms;
mod instructions;
mod record;
mod server;
mod stats;
mod throughput;

use server::Server;

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    // A RedisStore needs a runtime, even without a server.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let rounds = arguments.iter().find_map(|arg| arg.parse().ok()).unwrap_or(40);
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    if has("instructions") {
        return instructions::run();
    }
    let mut server = Server::start();
    println!("{}, {rounds} rounds\n", server.about());
    if !has("callers") && !has("slots") {
        throughput::run(&mut server, rounds);
    }
    callers::run(&mut server, rounds, has("slots"));
}
