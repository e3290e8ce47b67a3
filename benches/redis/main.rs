//! What a decision costs in Redis: ratios between scripts that run by turns on one server.
//!
//! `cargo bench --features redis --bench redis [-- ROUNDS]` starts a `redis-server` of its own
//! (pinned to CPU 0 where there is `taskset`) and prints
//!
//! - server CPU per decision of the commands that the store really sends, next to `PING`, an empty
//!   script and the GCRA script that is usually published. They were recorded from the store and
//!   are sent again, over 1000 keys, on 50 connections without pipelining (P1) and 16 deep (P16);
//! - latency through the whole store, next to `PING`;
//! - client CPU per decision, without any server;
//! - memory per account;
//! - up to 1024 callers at once: decisions that travel together, next to `PING`, to the same script
//!   called by redis-rs over one connection and to the store with a call for each. `callers` as an
//!   argument runs this alone.
//!
//! Times are medians over all rounds, and ratios are medians of each round's ratio.
#![expect(clippy::print_stdout, reason = "prints tables")]

mod callers;
mod case;
mod forms;
mod latency;
mod memory;
mod offline;
mod record;
mod server;
mod stats;
mod throughput;
mod wire;

use server::Server;

fn main() {
    // a RedisStore asks in a runtime only, also where no server is
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let rounds = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(40);
    let mut server = Server::start();
    println!("{}, {rounds} rounds\n", server.about());
    if !std::env::args().any(|arg| arg == "callers") {
        throughput::run(&mut server, rounds);
        latency::run(&server, rounds);
        offline::run(&mut server, rounds);
        memory::run(&mut server);
    }
    callers::run(&mut server, rounds);
}
