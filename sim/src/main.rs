//! The whole system from one seed. `src/guide/simulation.md` of the crate describes it.

mod differential;
mod driver;
mod mutants;
mod node;
mod quotas;
mod random;
mod world;

use std::process::ExitCode;

const USAGE: &str = "\
usage: sim --seeds 0..1000 [--jobs 2]     runs seeds, and those of seeds.txt
       sim --seed 42 [--trace] [--mutant N]
                                          runs one seed, and prints its story
       sim mutants [--most 10000] [--mutant N]
                                          changes the scripts, which the oracle has to find
       sim differential [--sequences N] [--first N]
                                          compares the node with real servers";

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).cloned()
    };
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
    let mutant = number("--mutant").and_then(|at| usize::try_from(at).ok());
    world::count_panics();
    let well = if args.first().is_some_and(|arg| arg == "differential") {
        let sequences = number("--sequences").unwrap_or(2_000);
        differential::run(number("--first").unwrap_or(0), sequences)
    } else if args.first().is_some_and(|arg| arg == "mutants") {
        mutants::run(number("--most").unwrap_or(10_000), mutant)
    } else if let Some(seed) = number("--seed") {
        let recorded = args.iter().any(|arg| arg == "--trace");
        driver::one(seed, recorded, mutant.and_then(mutants::get))
    } else if let Some(range) = value("--seeds").as_deref().and_then(driver::range) {
        driver::many(range, number("--jobs").unwrap_or(1), number("--minutes"))
    } else {
        eprintln!("{USAGE}");
        false
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
