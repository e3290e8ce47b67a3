//! Results that do not depend on the moment: allocations, instructions, and the memory of a million
//! keys, each counted in separate processes.

use std::process::Command;

use axum::body::Body;
use http::{HeaderValue, Request};

use crate::{
    cases::request,
    resident::resident,
    subject::{Limit, Setup, Subject},
};

const KEYS: u32 = 1_000_000;
const BATCH: usize = 1_000;
const CALLGRIND: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
/// Requests until everything is warm.
const FEW: u32 = 20_000;

/// Returns the allocations and instructions per request; `None` without valgrind.
pub fn counts(subject: Subject, limit: Limit) -> Option<[f64; 2]> {
    let allocated = per_request(subject, limit, &["--undef-value-errors=no"], 20_000, heap)?;
    Some([allocated, per_request(subject, limit, &CALLGRIND, 300_000, collected)?])
}

/// Returns a valgrind tool's count per request, from processes that serve different numbers of
/// requests.
fn per_request(
    subject: Subject,
    limit: Limit,
    arguments: &[&str],
    more: u32,
    read: fn(&str) -> Option<&str>,
) -> Option<f64> {
    let counted = |requests: u32| {
        let itself = std::env::current_exe().expect("this program");
        let output = Command::new("valgrind")
            .args(arguments)
            .arg(itself)
            // Otherwise, the allocator merges free blocks in some subjects and not in others.
            .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=4000")
            .args(["serve", subject.title(), limit.name(), &requests.to_string()])
            .output()
            .ok()?;
        let told = String::from_utf8(output.stderr).expect("text");
        read(&told)?.replace(',', "").parse::<f64>().ok()
    };
    Some((counted(FEW + more)? - counted(FEW)?) / f64::from(more))
}

/// Parses the line `total heap usage: 1,234 allocs, ...`.
fn heap(told: &str) -> Option<&str> {
    told.split("total heap usage: ").nth(1)?.split(' ').next()
}

/// Parses the line `Collected : 1234`.
fn collected(told: &str) -> Option<&str> {
    told.split("Collected : ").nth(1)?.split_whitespace().next()
}

/// Runs the child process.
pub fn serve(subject: Subject, limit: Limit, requests: u32) {
    let runner = &mut subject.runners(Setup::new(limit))[0];
    for _ in 0..requests / 1_000 {
        runner((0..1_000).map(|_| request(0)).collect());
    }
}

/// Returns the bytes of memory per key, of a million keys: addresses, and texts of 36 characters.
pub fn memory(subject: Subject) -> [Option<f64>; 2] {
    ["addresses", "texts"].map(|kind| {
        let itself = std::env::current_exe().expect("this program");
        let output = Command::new(itself).args(["keys", subject.title(), kind]).output();
        let told = String::from_utf8(output.expect("it runs").stdout).expect("text");
        told.trim().parse().ok()
    })
}

/// Runs the child process: prints the memory, if the subject has such keys.
pub fn keys(subject: Subject, kind: &str) {
    let before = resident();
    let texts = kind == "texts";
    let runner = match texts {
        true => subject.by_text(Limit::Slow),
        false => subject.runners(Setup::new(Limit::Slow)).into_iter().next(),
    };
    let Some(mut runner) = runner else { return };
    for start in (0..KEYS).step_by(BATCH) {
        let keys = (start..).take(BATCH);
        runner(if texts { keys.map(with_text).collect() } else { keys.map(request).collect() });
    }
    println!("{}", (resident() - before) / f64::from(KEYS));
}

fn with_text(key: u32) -> Request<Body> {
    let mut request = request(key);
    let text = HeaderValue::try_from(format!("{key:036}")).expect("a value");
    request.headers_mut().insert("x-api-key", text);
    request
}
