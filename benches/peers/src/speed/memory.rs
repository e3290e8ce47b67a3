//! The memory of a million keys, counted in a process of its own.

use std::process::Command;

use crate::{
    cases::request,
    resident::resident,
    subject::{Limit, Setup, Subject},
};

const KEYS: u32 = 1_000_000;
const BATCH: usize = 1_000;

/// Returns the bytes of memory per address, of a million.
pub fn memory(subject: Subject) -> f64 {
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new(itself).args(["keys", subject.title()]).output();
    let told = String::from_utf8(output.expect("it runs").stdout).expect("text");
    told.trim().parse().expect("a number")
}

/// Runs the child process: prints the memory.
pub fn keys(subject: Subject) {
    let before = resident();
    let mut runners = subject.runners(Setup::new(Limit::Slow));
    for start in (0..KEYS).step_by(BATCH) {
        runners[0]((start..).take(BATCH).map(request).collect());
    }
    println!("{}", (resident() - before) / f64::from(KEYS));
}
