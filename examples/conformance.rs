//! Plays scenario files on a store and says where they differ.
//!
//! `cargo run --features testing --example conformance -- --store local FILE…`
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use tower_sluice::testing::{Case, CaseError, Local, Played, Subject, play};

/// Plays scenario files on a store; every number is compared to the nanosecond.
#[derive(Parser)]
struct Flags {
    /// Where accounts live: local, or the address of a Redis or Valkey, as `redis://127.0.0.1` (with
    /// the feature `redis`); both on a clock that is driven
    #[arg(long, default_value = "local")]
    store: String,
    /// Scenario files, JSON
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Flags { store, files } = Flags::parse();
    let played = match store.as_str() {
        "local" => all(&mut Local::default(), &files).await,
        #[cfg(feature = "redis")]
        url if url.contains("://") => match tower_sluice::testing::Redis::connect(url).await {
            Ok(mut redis) => all(&mut redis, &files).await,
            Err(error) => Err(error.to_string()),
        },
        other => Err(format!("--store {other}: give local, or with the feature redis an address")),
    };
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all cases of all files passed.
async fn all(subject: &mut impl Subject, files: &[PathBuf]) -> Result<bool, String> {
    let [mut passed, mut failed, mut skipped] = [0; 3];
    for file in files {
        let named = |error: String| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
        for case in &Case::read(&text).map_err(|error| named(error.to_string()))? {
            match play(subject, case).await {
                Ok(Played::Passed) => passed += 1,
                Ok(Played::Skipped) => skipped += 1,
                Err(error) => {
                    failed += 1;
                    println!("{}", named(told(case, &error)));
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

fn told(case: &Case, error: &CaseError) -> String {
    match error {
        CaseError::Mismatch(mismatch) => mismatch.to_string(),
        other => format!("{}: {other}", case.name()),
    }
}
