//! Plays scenario files on a store and says where they differ.
//!
//! `cargo run --features testing --example conformance -- --store local FILE…`
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};
use tower_sluice::testing::{Case, CaseError, Local, Played, Subject, play};

/// Plays scenario files on a store; every number is compared to the nanosecond.
#[derive(Parser)]
struct Flags {
    /// Where accounts live
    #[arg(long, default_value = "local")]
    store: StoreFlag,
    /// Scenario files, JSON
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// The stores there are.
#[derive(Clone, Copy, ValueEnum)]
enum StoreFlag {
    /// The embedded store, on a clock that is driven
    Local,
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let StoreFlag::Local = flags.store;
    let mut subject = Local::default();
    let [mut passed, mut failed, mut skipped] = [0; 3];
    for file in &flags.files {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
        let cases = text.and_then(|text| Case::read(&text).map_err(|error| error.to_string()));
        match cases {
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::from(2);
            }
            Ok(cases) => {
                for case in &cases {
                    match run(&mut subject, case).await {
                        Ok(Played::Passed) => passed += 1,
                        Ok(Played::Skipped) => skipped += 1,
                        Err(error) => {
                            failed += 1;
                            println!("{}: {error}", file.display());
                        }
                    }
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(subject: &mut impl Subject, case: &Case) -> Result<Played, String> {
    play(subject, case).await.map_err(|error| match error {
        CaseError::Mismatch(mismatch) => mismatch.to_string(),
        other => format!("{}: {other}", case.name()),
    })
}
