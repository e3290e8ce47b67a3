//! Third-party clients against a real server.
//!
//! The clients report the headers that they receive, and how they react. `scripts/clients` installs
//! them and runs this program with the commands that call them, such as `node http.js`.
//!
//! Each client receives the server's address in `SERVER`, that of nginx in `PROXY` if nginx is
//! installed, and prints a line of JSON per check. A
//! failed check or command fails the whole run.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints a report")]

#[path = "../support/corpus.rs"]
mod corpus;
mod nginx;
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

use self::nginx::Nginx;

const PATIENCE: Duration = Duration::from_secs(120);

/// The result of one check of a program.
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
        // For manual use.
        return tokio::signal::ctrl_c().await.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let server = format!("http://{address}");
    let nginx = Nginx::start(address);
    let proxy = nginx.as_ref().map(|nginx| format!("http://{}", nginx.address));
    let running = programs.iter().map(|program| run(program, &server, proxy.as_deref()));
    let ended = futures::future::join_all(running).await;
    let mut failures = Vec::new();
    let mut rows = Vec::new();
    for (program, ended) in programs.iter().zip(ended) {
        match ended {
            Ok(found) if found.is_empty() => {
                failures.push(format!("{program}: no check was printed"));
            }
            Ok(found) => rows.extend(found),
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

async fn run(program: &str, server: &str, proxy: Option<&str>) -> Result<Vec<Row>, String> {
    let mut command = Command::new("sh");
    command.args(["-c", program]).env("SERVER", server).kill_on_drop(true);
    command.envs(proxy.map(|proxy| ("PROXY", proxy)));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
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
        // The failures below show the whole text of an error.
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
