//! The fault suite: real servers and real faults under load.
//!
//! `cargo test -p dev --all-features --test faults` runs every fault for some seconds, and fails if
//! a requirement is broken. `-- --list` lists the faults, and `-- --only NAME` runs one.
//!
//! `scripts/faults` runs them longer, in release, and prints the table of `README.md` in this
//! folder.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints a report")]

mod app;
#[path = "../support/busy_key.rs"]
mod busy_key;
mod child;
mod control;
mod fault;
mod judge;
mod log;
mod options;
mod overshoot;
mod panics;
mod random;
mod row;
#[path = "../support/rule_kinds.rs"]
mod rule_kinds;
#[path = "../support/servers/mod.rs"]
mod servers;
mod stack;
mod stage;
mod turnstile;
mod witness;
mod worlds;

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use fault::Fault;
use options::Options;
use row::Row;

fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(order) = &options.child {
        child::obey(order);
        return ExitCode::SUCCESS;
    }
    let faults: Vec<_> =
        worlds::all().into_iter().filter(|fault| options.wants(fault.name)).collect();
    if options.list {
        faults.iter().for_each(|fault| println!("{}: {}", fault.name, fault.holds));
        return ExitCode::SUCCESS;
    }
    overshoot::check_itself();
    panics::watch();
    let start = Instant::now();
    let rows = play(&faults, &options);
    println!("{}", row::table(&rows));
    let broken: Vec<_> = rows.iter().filter(|row| !row.broken.is_empty()).collect();
    let (count, time) = (broken.len(), start.elapsed());
    let name = |row: &&Row| format!("; {}: {}", row.name, row.broken.join(", "));
    let names: String = broken.iter().map(name).collect();
    println!("{} faults, {count} with a broken bound, in {time:.0?}{names}", rows.len());
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the faults, a few at a time where possible. Rows keep the order of the faults.
fn play(faults: &[Fault], options: &Options) -> Vec<Row> {
    let (together, alone): (Vec<_>, Vec<_>) =
        faults.iter().enumerate().partition(|(_, fault)| !fault.alone);
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let add = |at: usize, fault: &Fault| {
        let row = fault.play(options);
        eprintln!("{}", row.line());
        rows.lock().expect("no panic here").push((at, row));
    };
    let work = || {
        while let Some((at, fault)) = together.get(next.fetch_add(1, Relaxed)) {
            add(*at, fault);
        }
    };
    thread::scope(|scope| {
        for _ in 0..options.at_a_time {
            scope.spawn(work);
        }
    });
    alone.into_iter().for_each(|(at, fault)| add(at, fault));
    let mut rows = rows.into_inner().expect("no panic here");
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}
