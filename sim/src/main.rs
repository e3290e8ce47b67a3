//! The whole system from one seed. `sim/README.md` describes it.

mod driver;
mod mutants;
mod source;
mod world;

use std::{env, process::ExitCode};

use sim::{node, option, quotas, random};

const USAGE: &str = "\
usage: sim --seeds 0..1000 [--minutes N] [--first]
                                          runs seeds of a range, and those of seeds.txt
       sim --seed 42 [--trace] [--mutant N]
                                          runs one seed, and prints its story
       sim mutants [--most 10000] [--mutant N]
                                          changes the scripts, which the oracle has to find
Minutes are of CPU time. A process has one random source, so it runs one seed at a time: start
several processes with disjoint ranges to use several cores.";

fn main() -> ExitCode {
    let mutant = option("--mutant");
    world::count_panics();
    let well = if env::args().nth(1).is_some_and(|arg| arg == "mutants") {
        mutants::run(option("--most").unwrap_or(10_000), mutant)
    } else if let Some(seed) = option("--seed") {
        let recorded = env::args().any(|arg| arg == "--trace");
        driver::one(seed, recorded, mutant.and_then(mutants::get))
    } else if let Some(range) = option::<String>("--seeds").as_deref().and_then(driver::range) {
        let first = env::args().any(|arg| arg == "--first");
        driver::many(range, option("--minutes"), first)
    } else {
        eprintln!("{USAGE}");
        false
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
