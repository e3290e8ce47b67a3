//! The cost of a limiter for a server: axum behind a socket, driven by `wrk` over loopback.
//!
//! `cargo run --release --features wire --manifest-path benches/peers/Cargo.toml --bin wire [SECONDS]
//! [ROUNDS]` prints requests per second and the server's CPU time for each, beside those of the
//! server without a layer. Servers are separate processes on one core, and `wrk` runs on another.
//! They alternate, each for the given number of seconds per round. Requires Linux and `wrk`.

mod drive;
mod server;
#[path = "../versions.rs"]
mod versions;

use std::process::ExitCode;

use drive::{Driven, Places, Run};
use server::{Limit, Subject};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse().expect("whole seconds, then a number of rounds");
    let (seconds, rounds) = match words.as_slice() {
        ["serve", subject, limit] => {
            server::serve(Subject::named(subject), Limit::named(limit));
            return ExitCode::SUCCESS;
        }
        [] => (1, 20),
        [seconds] => (number(seconds), 20),
        [seconds, rounds] => (number(seconds), number(rounds)),
        _ => panic!("give seconds and a number of rounds, or nothing"),
    };
    assert!(seconds > 0 && rounds > 0, "a second and a round at least");
    if let Err(error) = drive::find_wrk() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    let places = Places::find();
    println!(
        "{}\n\n{rounds} rounds of {seconds} s each; {places}",
        versions::line(&["tower-sluice", "tower_governor", "governor"])
    );
    for limit in Limit::ALL {
        table(limit, &places, seconds, rounds);
    }
    ExitCode::SUCCESS
}

/// Runs all servers of one limit alternately.
fn table(limit: Limit, places: &Places, seconds: u32, rounds: u32) {
    let start = |subject| (subject, Driven::start(subject, limit, places), Vec::new());
    let mut servers: Vec<(Subject, Driven, Vec<Run>)> = Subject::ALL.map(start).into();
    for (subject, server, _) in &servers {
        // Opens the accounts, and exhausts them if required.
        server.drive(1, *subject, None);
    }
    for _ in 0..rounds {
        for (subject, server, runs) in &mut servers {
            runs.push(server.drive(seconds, *subject, Some(limit)));
        }
    }
    println!("\n### {}\n", limit.title());
    println!(
        "| | requests/s of bare | CPU of bare | requests/s | CPU µs a request | beyond bare | p50 µs | p99 µs |\n\
         |---|---|---|---|---|---|---|---|"
    );
    let bare = &servers[0].2;
    for (subject, _, runs) in &servers {
        let each = |of: fn(&Run) -> f64| median(runs.iter().map(of));
        let beside = |of: fn(&Run, &Run) -> f64| {
            median(runs.iter().zip(bare).map(|(mine, bare)| of(mine, bare)))
        };
        println!(
            "| {} | {:.2} | {:.2} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} |",
            subject.title(),
            beside(|mine, bare| mine.rate / bare.rate),
            beside(|mine, bare| mine.cpu / bare.cpu),
            each(|run| run.rate),
            each(|run| run.cpu),
            beside(|mine, bare| mine.cpu - bare.cpu),
            each(|run| run.p50),
            each(|run| run.p99),
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
