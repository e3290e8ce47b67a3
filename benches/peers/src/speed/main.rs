//! The cost of a limiter: this crate and its peers around one service, interleaved in one run.
//!
//! `cargo run --release --features speed --manifest-path benches/peers/Cargo.toml
//! --bin speed [ROUNDS [TITLE]]` prints tables, or those with TITLE in their title; `floods` prints
//! the last one alone.

mod cases;
mod floods;
mod memory;
#[path = "../resident.rs"]
mod resident;
mod subject;

use cases::CASES;
use subject::Subject;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["keys", title] => {
            memory::keys(Subject::named(title).expect("a subject"));
        }
        ["floods"] => floods::table(),
        [] => all(60),
        [rounds] => all(rounds.parse().expect("a number of rounds")),
        [rounds, title] => table(rounds.parse().expect("a number of rounds"), title),
        _ => panic!("give a number of rounds, and maybe a part of a title, or nothing"),
    }
}

fn all(rounds: usize) {
    table(rounds, "");
    floods::table();
}

/// Prints the cases whose title contains `title`.
fn table(rounds: usize, title: &str) {
    for case in CASES.iter().filter(|case| case.title.contains(title)) {
        let costs = cases::measure(case, rounds);
        let of = |wanted| &costs.iter().find(|(subject, _)| *subject == wanted).expect("it ran").1;
        let (quiet, told) = (of(Subject::Governor), of(Subject::GovernorTold));
        println!("\n### {}\n", case.title);
        println!("| | of tower_governor | of it with 2 fields | ns |\n|---|---|---|---|");
        for (subject, costs) in &costs {
            let ratio = |to: &[f64]| spread(costs.iter().zip(to).map(|(cost, to)| cost / to));
            let ([least, quiet, most], [_, told, _]) = (ratio(quiet), ratio(told));
            let [_, cost, _] = spread(costs.iter().copied());
            println!(
                "| {} | {quiet:.2} ({least:.2} to {most:.2}) | \
                 {told:.2} | {cost:.0} |",
                subject.title()
            );
        }
    }
}

/// Returns the minimum, the median and the maximum.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}
