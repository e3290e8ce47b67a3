//! What does each algorithm do with the same calls?
//!
//! `cargo run --example plot` draws the pictures of the guide anew, and with `--out DIR` elsewhere.

mod draw;
mod parts;
mod pictures;
mod scene;

use std::{error::Error, fmt::Write, fs, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use clap::Parser;

use crate::pictures::PICTURES;

/// Draws what each algorithm does with the same calls, as SVG.
#[derive(Parser)]
struct Flags {
    /// Where the pictures go
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/src/guide/plots"))]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Flags { out } = Flags::parse();
    fs::create_dir_all(&out)?;
    let save = |name: &str, text: &str| {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    // for rustdoc, which takes no files along
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
