//! The attack table: every attack on this crate and its peers, through the real layers, in one
//! process.
//!
//! `cargo run --release --manifest-path benches/peers/Cargo.toml --bin attacks` prints it. It fails if an
//! attack on tower-sluice succeeds.

mod apps;
mod cell;
mod log;
mod requests;
mod resident;
mod rows;
mod table;
mod versions;

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [flood, peer] = arguments.as_slice() {
        rows::memory::flooded(flood, peer).await;
        return ExitCode::SUCCESS;
    }
    let mut table = table::Table::default();
    rows::behind_proxy::fill(&mut table).await;
    rows::direct::fill(&mut table).await;
    rows::methods::fill(&mut table).await;
    rows::memory::fill(&mut table);
    rows::answers::fill(&mut table).await;
    println!(
        "{}\n\n{table}",
        versions::line(&["tower-sluice", "tower_governor", "axum-governor", "governor"])
    );
    match table.broken() {
        0 => ExitCode::SUCCESS,
        broken => {
            eprintln!("{broken} attacks on tower-sluice succeed");
            ExitCode::FAILURE
        }
    }
}
