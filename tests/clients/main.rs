//! Clients of others against a real server of ours: what they were told, and what they did.
//!
//! `scripts/clients` installs them and runs this with the programs that call them as arguments
//! (`node http.js`, one argument each). Each is given the server's address in `SERVER`, and prints
//! a line of JSON per check; a check that fails, or a program that does, fails the whole.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program that reports")]

#[path = "../support/corpus.rs"]
mod corpus;
mod seen;
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::{
    process::{ExitCode, Stdio},
    time::Duration,
};

use serde::Deserialize;
use tokio::{process::Command, time::timeout};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a program says of one check.
#[derive(Deserialize)]
struct Row {
    client: String,
    version: String,
    expected: String,
    happened: String,
    ok: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let programs: Vec<_> = std::env::args().skip(1).collect();
    let address = server::start().await;
    println!("listening on http://{address}");
    if programs.is_empty() {
        // for a look around by hand
        return tokio::signal::ctrl_c().await.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let server = format!("http://{address}");
    let running = programs.iter().map(|program| run(program, &server));
    let ended = futures::future::join_all(running).await;
    let mut failures = Vec::new();
    let mut rows = Vec::new();
    for (program, ended) in programs.iter().zip(ended) {
        match ended {
            Ok(told) if told.is_empty() => failures.push(format!("{program}: it checked nothing")),
            Ok(told) => rows.extend(told),
            Err(why) => failures.push(format!("{program}: {why}")),
        }
    }
    show(&rows);
    failures.extend(rows.iter().filter(|row| !row.ok).map(|row| {
        format!("{} {}: {}, not {}", row.client, row.version, row.happened, row.expected)
    }));
    failures.iter().for_each(|failure| eprintln!("FAILED: {failure}"));
    println!("{} checks; failures: {}", rows.len(), failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(program: &str, server: &str) -> Result<Vec<Row>, String> {
    let mut command = Command::new("sh");
    command.args(["-c", program]).env("SERVER", server).kill_on_drop(true);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = timeout(PATIENCE, command.output()).await;
    let output = output.map_err(|_| format!("not done within {PATIENCE:?}"))?;
    let output = output.map_err(|why| why.to_string())?;
    if !output.status.success() {
        return Err(output.status.to_string());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let row = |line| serde_json::from_str(line).map_err(|why| format!("{line:?}: {why}"));
    said.lines().map(row).collect()
}

fn show(rows: &[Row]) {
    let cells = |row: &Row| {
        let mark = if row.ok { "ok" } else { "FAILED" };
        // an error may have more to say, which is told below
        let happened = row.happened.lines().next().unwrap_or_default();
        [&row.client, &row.version, &row.expected, happened, mark].map(str::to_owned)
    };
    let head = ["client", "version", "expected", "happened", ""].map(str::to_owned);
    let table: Vec<_> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let width = |at: usize| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    for row in &table {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
