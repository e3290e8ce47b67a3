//! Plays scenario tables on a store and prints the differences.
//!
//! `cargo run --features testing --example conformance -- --store local [FILE…]`
//!
//! With the feature `redis`, the store can be the address of a Redis or Valkey, such as
//! `redis://127.0.0.1`. Both kinds of stores use a fake clock.
//!
//! The published tables are part of the crate: `tests/scenarios/*.json` in its sources, and
//! `tower_sluice::testing::TABLES` in code. They are played if no file is given.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{path::PathBuf, process::ExitCode};

use lexopt::{Arg, Parser, ValueExt as _};
use tower_sluice::testing::{Case, FakeClock, Subject, TABLES, play};

const USAGE: &str = "usage: conformance [--store local|redis://HOST] [FILE…]";

/// The arguments of the program.
struct Arguments {
    store: String,
    /// Files of tables. The published tables, if empty.
    files: Vec<PathBuf>,
}

impl Arguments {
    fn parse() -> Result<Self, lexopt::Error> {
        let mut arguments = Self { store: "local".to_owned(), files: Vec::new() };
        let mut parser = Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("store") => arguments.store = parser.value()?.string()?,
                Arg::Value(file) => arguments.files.push(file.into()),
                other => return Err(other.unexpected()),
            }
        }
        Ok(arguments)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { store, files } = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let tables = match tables(&files) {
        Ok(tables) => tables,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let played = match store.as_str() {
        "local" => all(&mut FakeClock::new(), &tables).await,
        #[cfg(feature = "redis")]
        url if url.contains("://") => match tower_sluice::RedisStore::connect(url).await {
            Ok(mut redis) => all(&mut redis, &tables).await,
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

/// Returns the names and texts of the tables in `files`, or of the published ones.
fn tables(files: &[PathBuf]) -> Result<Vec<(String, String)>, String> {
    if files.is_empty() {
        return Ok(TABLES.iter().map(|(file, text)| ((*file).into(), (*text).into())).collect());
    }
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file);
        let named = |error| format!("{}: {error}", file.display());
        Ok((file.display().to_string(), text.map_err(named)?))
    };
    files.iter().map(read).collect()
}

/// Returns `true` if all cases of all tables passed.
async fn all(subject: &mut impl Subject, tables: &[(String, String)]) -> Result<bool, String> {
    let [mut passed, mut failed, mut skipped] = [0; 3];
    for (file, text) in tables {
        let named = |error: String| format!("{file}: {error}");
        for case in &Case::read(text).map_err(|error| named(error.to_string()))? {
            match play(subject, case).await {
                Ok(true) => passed += 1,
                Ok(false) => skipped += 1,
                Err(error) => {
                    failed += 1;
                    println!("{}", named(format!("{}: {error}", case.name)));
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0 && passed > 0)
}
