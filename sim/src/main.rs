//! The whole system from one seed. `sim/README.md` describes it.

mod driver;
mod source;
mod world;

use std::{env, process::ExitCode};

use self::world::Topic;
use sim::{node, option, quotas, random};

const USAGE: &str = "\
usage: sim --seeds 0..1000 [--sharing] [--minutes N] [--first] [--trace]
                                          runs seeds of a range, and those of seeds.txt
       sim --seed 42 [--sharing] [--trace]
                                          runs one seed, and prints its story
With --sharing, the runs have the capabilities that share a limit, instead of the others.
Each seed runs in a process of its own. Minutes are of CPU time, of all processes.";

fn main() -> ExitCode {
    let has = |name: &str| env::args().any(|arg| arg == name);
    let recorded = has("--trace");
    let topic = if has("--sharing") { Topic::Sharing } else { Topic::Requests };
    world::count_panics();
    let well = if let Some(seed) = option("--seed") {
        driver::one(seed, recorded, topic)
    } else if let Some(range) = option::<String>("--seeds").as_deref().and_then(driver::range) {
        let more = ["--trace", "--sharing"].into_iter().filter(|name| has(name));
        let more = more.map(Into::into).collect();
        driver::many(range, option("--minutes"), has("--first"), topic, more)
    } else {
        eprintln!("{USAGE}");
        false
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
