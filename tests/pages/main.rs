//! The page of the admin router in a real browser: Chromium, driven over `WebDriver`.
//!
//! `scripts/pages` installs the browser and runs this program. A picture of a failed page is in
//! `target/pages`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "prints a report")]

mod admin;
mod browser;
mod driver;
mod looks;
#[path = "../support/programs.rs"]
mod programs;

use std::{path::PathBuf, process::ExitCode};

use browser::Page;
use driver::Driver;

/// The error, as a text.
type Outcome<T = ()> = Result<T, String>;

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Driver::start().await {
        Err(why) => Err(why),
        Ok(driver) => scene(&driver, "admin", admin::play).await,
    };
    let Err(why) = ended else { return ExitCode::SUCCESS };
    eprintln!("FAILED: {why}");
    ExitCode::FAILURE
}

/// Opens a browser, and plays a scene in it.
async fn scene(driver: &Driver, name: &str, play: impl AsyncFn(&Page) -> Outcome) -> Outcome {
    let page = Page::open(driver).await?;
    let mut ended = play(&page).await;
    if ended.is_ok() {
        ended = page.silent().await;
    }
    if ended.is_err() {
        page.show(name).await;
    }
    page.close().await;
    match &ended {
        Ok(()) => println!("{name}: ok"),
        Err(why) => println!("{name}: failed: {why}"),
    }
    ended.map_err(|why| format!("{name}: {why}"))
}

/// Returns the folder of failure pictures and of the browser's own files.
fn folder() -> PathBuf {
    let beside = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let folder = beside.parent().unwrap_or(&beside).join("pages");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}
