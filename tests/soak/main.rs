//! The soak test: load for minutes, half of it from temporary keys.
//!
//! Memory must stay flat. The units of steady keys must be exactly those of their quota.
//!
//! `scripts/release-check soak` runs it for twenty minutes on each store; `cargo test -p dev --release
//! --all-features --test soak -- --minutes 1 --store local` for another time and on one store.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints a report")]

mod load;
mod options;
mod record;
#[path = "../support/servers/mod.rs"]
mod servers;
mod subject;

use std::{
    process::ExitCode,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use load::Load;
use options::{Kind, Options};
use record::{Course, Sample};
use subject::{Local, Redis, Subject};

const LOOKS: u32 = 300;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    let mut well = true;
    for kind in options.stores {
        println!("{kind:?} for {:?}", options.time);
        let course = match kind {
            Kind::Local => soak(&Local::new(), options.time).await,
            Kind::Redis => soak(&Redis::new().await, options.time).await,
        };
        println!("{}", course.table());
        let faults = course.faults();
        faults.iter().for_each(|fault| println!("FAULT: {fault}"));
        well &= faults.is_empty();
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn soak<S: Subject>(subject: &S, time: Duration) -> Course {
    let mut load = Load::on(subject.store());
    let (start, mut samples) = (subject.now().await, Vec::new());
    load.tick().await;
    let all_asked = subject.now().await;
    let (begun, mut next, mut last, mut pause) =
        (Instant::now(), Duration::ZERO, Instant::now(), Duration::ZERO);
    while next < time {
        load.tick().await;
        pause = pause.max(last.elapsed());
        last = Instant::now();
        if begun.elapsed() >= next {
            samples.push(look(subject, &load, start).await);
            next += time / LOOKS;
        }
    }
    let sure = subject.now().await - all_asked;
    load.drain().await;
    samples.push(look(subject, &load, start).await);
    Course { samples, sure, pause }
}

async fn look<S: Subject>(subject: &S, load: &Load<S::Store>, start: Duration) -> Sample {
    let counts = load.counts();
    let admitted = || counts.admitted.iter().map(|units| units.load(Relaxed));
    Sample {
        decisions: counts.decisions.load(Relaxed),
        errors: counts.errors.load(Relaxed),
        most: admitted().max().unwrap_or(0),
        least: admitted().min().unwrap_or(0),
        elapsed: subject.now().await - start,
        resident: resident(),
        server: subject.memory().await,
    }
}

/// Returns the memory of this process in bytes, or 0 if it is unknown.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: u64| pages * 4_096)
}
