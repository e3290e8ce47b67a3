//! What does not depend on the moment: allocations, instructions, and memory of a million keys.
//! Instructions and memory are counted in processes of their own.

use std::process::Command;

use crate::{
    cases::request,
    resident::resident,
    subject::{Limit, Subject},
};

const KEYS: u32 = 1_000_000;
const BATCH: usize = 1_000;

/// Allocations of a request.
pub fn allocations(subject: Subject, limit: Limit) -> f64 {
    let runner = &mut subject.runners(limit, 1)[0];
    runner((0..10).map(|_| request(0)).collect());
    let requests: Vec<_> = (0..BATCH).map(|_| request(0)).collect();
    let counted = allocation_counter::measure(|| {
        runner(requests);
    });
    counted.count_total as f64 / BATCH as f64
}

/// Instructions of a request, of which the bare service's are none; `None` without valgrind.
pub fn instructions(subject: Subject, limit: Limit) -> Option<f64> {
    let of = |subject: Subject, requests| counted(subject, limit, requests);
    let each = |subject| Some((of(subject, 401_000)? - of(subject, 101_000)?) / 300_000.0);
    Some(each(subject)? - each(Subject::Bare)?)
}

/// What callgrind counts of a process that serves so many.
fn counted(subject: Subject, limit: Limit, requests: u32) -> Option<f64> {
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(itself)
        .args(["serve", subject.title(), limit.name(), &requests.to_string()])
        .output()
        .ok()?;
    let told = String::from_utf8(output.stderr).expect("text");
    let count = told.split("Collected :").nth(1)?.split_whitespace().next()?;
    count.parse().ok()
}

/// The child's part.
pub fn serve(subject: Subject, limit: Limit, requests: u32) {
    let runner = &mut subject.runners(limit, 1)[0];
    for _ in 0..requests / 1_000 {
        runner((0..1_000).map(|_| request(0)).collect());
    }
}

/// Bytes of memory for each of a million keys.
pub fn memory(subject: Subject) -> f64 {
    let itself = std::env::current_exe().expect("this program");
    let output = Command::new(itself).args(["keys", subject.title()]).output().expect("it runs");
    let told = String::from_utf8(output.stdout).expect("text");
    told.trim().parse().unwrap_or_else(|_| panic!("{subject:?}: {told:?}"))
}

/// The child's part: prints it.
pub fn keys(subject: Subject) {
    let before = resident();
    let runner = &mut subject.runners(Limit::Slow, 1)[0];
    for start in (0..KEYS).step_by(BATCH) {
        runner((start..).take(BATCH).map(request).collect());
    }
    println!("{}", (resident() - before) / f64::from(KEYS));
}
