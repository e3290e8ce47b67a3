//! Draws each algorithm's decisions on one series of calls.
//!
//! `cargo run -p dev --example plot` writes the pictures to `target/plots`. With
//! `-- --out src/guide/plots`, it redraws those of the guide.
#![allow(clippy::print_stdout)]

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
    #[arg(long, value_name = "DIR", default_value = "target/plots")]
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
    let singles = PICTURES.iter().map(|picture| Ok((picture.name, draw::single(picture)?)));
    let overview = std::iter::once_with(|| Ok(("overview", draw::overview(&PICTURES)?)));
    for picture in overview.chain(singles) {
        let (name, svg): (&str, String) = picture.map_err(|error: Box<dyn Error>| error)?;
        save(&format!("{name}.svg"), &svg)?;
        writeln!(links, "[{name}.svg]: data:image/svg+xml;base64,{}", STANDARD.encode(&svg))?;
    }
    save("links.md", &links)?;
    println!("wrote {} pictures to {}", PICTURES.len() + 1, out.display());
    Ok(())
}
