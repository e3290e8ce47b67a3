//! The cost of a limiter: this crate and its peers around one service, interleaved in one run.
//!
//! `cargo run --release --features speed --ignore-rust-version --manifest-path benches/peers/Cargo.toml
//! --bin speed [ROUNDS [TITLE]]` prints tables, or those with TITLE in their title; `counted` and `floods`
//! print the last two alone. Allocations and instructions are counted if valgrind is installed.

mod cases;
mod counts;
mod floods;
mod floor;
#[path = "../resident.rs"]
mod resident;
mod subject;

use cases::CASES;
use subject::{Limit, Subject};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let subject = |title| Subject::named(title).expect("a subject");
    match words.as_slice() {
        ["serve", title, limit, requests] => {
            let limit = Limit::named(limit).expect("a limit");
            counts::serve(subject(title), limit, requests.parse().expect("a number"));
        }
        ["keys", title, kind] => counts::keys(subject(title), kind),
        ["counted"] => counted(),
        ["floods"] => floods::table(),
        [] => all(60),
        [rounds] => all(rounds.parse().expect("a number of rounds")),
        [rounds, title] => table(rounds.parse().expect("a number of rounds"), title),
        _ => panic!("give a number of rounds, and maybe a part of a title, or nothing"),
    }
}

fn all(rounds: usize) {
    table(rounds, "");
    counted();
    floods::table();
}

/// Prints the cases whose title contains `title`.
fn table(rounds: usize, title: &str) {
    for case in CASES.iter().filter(|case| case.title.contains(title)) {
        let costs = cases::measure(case, rounds);
        let of = |wanted| &costs.iter().find(|(subject, _)| *subject == wanted).expect("it ran").1;
        let (quiet, told) = (of(Subject::Governor), of(Subject::GovernorTold));
        println!("\n### {}\n", case.title);
        println!(
            "| | of the floor | of tower_governor | of it with 2 fields | ns |\n|---|---|---|---|---|"
        );
        for (subject, costs) in &costs {
            let ratio = |to: &[f64]| spread(costs.iter().zip(to).map(|(cost, to)| cost / to));
            let ([least, quiet, most], [_, told, _]) = (ratio(quiet), ratio(told));
            let [low, floor, high] = ratio(of(subject.floor()));
            let [_, cost, _] = spread(costs.iter().copied());
            println!(
                "| {} | {floor:.2} ({low:.2} to {high:.2}) | {quiet:.2} ({least:.2} to {most:.2}) | \
                 {told:.2} | {cost:.0} |",
                subject.title()
            );
        }
    }
}

/// Prints the results that do not depend on the moment.
fn counted() {
    println!("\n### Counted\n");
    println!(
        "| | allocations, admitted | denied | instructions, admitted | denied | bytes an address | \
         a 36-character key |\n|---|---|---|---|---|---|---|"
    );
    let counts = |subject| [Limit::Ample, Limit::One].map(|limit| counts::counts(subject, limit));
    let bare = counts(Subject::Bare);
    for subject in Subject::ALL.into_iter().skip(1) {
        let own = counts(subject);
        let told = |limit: usize, which: usize| match (own[limit], bare[limit]) {
            (Some(own), Some(bare)) => format!("{:.0}", own[which] - bare[which]),
            _ => "–".into(),
        };
        let bytes = counts::memory(subject);
        let [address, text] =
            bytes.map(|bytes| bytes.map_or("–".into(), |bytes| format!("{bytes:.0}")));
        println!(
            "| {} | {} | {} | {} | {} | {address} | {text} |",
            subject.title(),
            told(0, 0),
            told(1, 0),
            told(0, 1),
            told(1, 1),
        );
    }
}

/// Returns the minimum, the median and the maximum.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}
