//! A page that sends requests through two limits of the real layer and shows the results side by
//! side.
//!
//! `cargo run -p dev --example playground`, then open the address it prints.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../support/algorithm.rs"]
mod algorithm;
mod code;
mod fire;
mod limit;
mod page;
#[path = "../support/store.rs"]
mod store;
mod visit;

use std::{convert::Infallible, io, net::SocketAddr, process::ExitCode, sync::Arc};

use clap::{CommandFactory, Parser, error::ErrorKind};
use tokio::{net::TcpListener, select, signal::ctrl_c};
use tower_sluice::store::DynStore;

use crate::{store::StoreFlags, visit::Visits};

/// Serves a page on this machine that shows each algorithm on your own requests.
#[derive(Parser)]
#[command(name = "playground")]
struct Flags {
    /// Loopback address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:3000", value_parser = loopback)]
    addr: SocketAddr,
    #[command(flatten)]
    store: StoreFlags,
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().init();
    let flags = Flags::parse();
    let store = flags.store.open().await.unwrap_or_else(|text| {
        Flags::command().error(ErrorKind::ValueValidation, text).exit();
    });
    let Err(error) = serve(flags.addr, store).await else { return ExitCode::SUCCESS };
    let address = flags.addr;
    eprintln!("error: cannot serve on {address}: {error}; give a free address with --addr");
    ExitCode::FAILURE
}

async fn serve(address: SocketAddr, store: Arc<DynStore<Infallible>>) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let here = listener.local_addr()?;
    println!("listening on http://{here}; open it in a browser");
    let visits = Visits::new(store);
    let fire = fire::router(here, visits.clone());
    let app = page::router().merge(visit::router(visits)).merge(fire);
    // A steady series of requests has no end to wait for.
    select! {
        served = axum::serve(listener, app) => served,
        _ = ctrl_c() => Ok(()),
    }
}

/// Anybody who reaches the page may set limits, so only this machine may reach it.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: &dyn std::fmt::Display| format!("{why}; give ip:port, as 127.0.0.1:3000");
    let address: SocketAddr = text.parse().map_err(|error| wrong(&error))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(wrong(&format!("{} is not a loopback address", address.ip())))
}
