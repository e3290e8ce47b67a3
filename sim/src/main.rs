//! The whole system from one seed. `sim/README.md` describes it.

mod driver;
mod source;
mod world;

use std::{env, process::ExitCode};

use sim::{node, option, quotas, random};

const USAGE: &str = "\
usage: sim --seeds 0..1000 [--minutes N] [--first] [--trace]
                                          runs seeds of a range, and those of seeds.txt
       sim --seed 42 [--trace]
                                          runs one seed, and prints its story
Each seed runs in a process of its own. Minutes are of CPU time, of all processes.";

fn main() -> ExitCode {
    let recorded = env::args().any(|arg| arg == "--trace");
    world::count_panics();
    let well = if let Some(seed) = option("--seed") {
        driver::one(seed, recorded)
    } else if let Some(range) = option::<String>("--seeds").as_deref().and_then(driver::range) {
        let first = env::args().any(|arg| arg == "--first");
        let more = if recorded { vec!["--trace".into()] } else { Vec::new() };
        driver::many(range, option("--minutes"), first, more)
    } else {
        eprintln!("{USAGE}");
        false
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
