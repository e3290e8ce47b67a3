//! Draws each algorithm's decisions on one series of calls.
//!
//! `cargo run -p dev --example plot` redraws the pictures of the guide; `--out DIR` writes them
//! elsewhere.

mod draw;
mod parts;
mod pictures;
mod scene;

use std::{error::Error, fmt::Write, fs, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Parser;

use crate::pictures::PICTURES;

/// Draws each algorithm's decisions on one series of calls, as SVG.
#[derive(Parser)]
struct Flags {
    /// Output folder
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/guide/plots"))]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Flags { out } = Flags::parse();
    fs::create_dir_all(&out)?;
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    // rustdoc copies no files, so it gets the pictures as links.
    let mut links = String::new();
    for picture in &PICTURES {
        let svg = draw::single(picture)?;
        save(&format!("{}.svg", picture.name), &svg)?;
        writeln!(
            links,
            "[{}.svg]: data:image/svg+xml;base64,{}",
            picture.name,
            STANDARD.encode(&svg)
        )?;
    }
    save("overview.svg", &draw::overview(&PICTURES)?)?;
    save("links.md", &links)?;
    Ok(())
}
