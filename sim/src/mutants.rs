//! Changes of a line of the scripts. Each must be found, or the table says why it is not.

use crate::{node::Mutant, world};

const fn of(file: &'static str, from: &'static str, to: &'static str) -> Mutant {
    Mutant { file, from, to }
}

/// The mutants, and the reason for each that no seed finds.
static MUTANTS: [(Mutant, Option<&str>); 29] = [
    (of("one.lua", "local allowed = tat < most", "local allowed = true or tat < most"), None),
    (
        of("one.lua", "tat, tat_nano = tat + cost, tat_nano + cost_nano", "tat = tat + cost - 1"),
        None,
    ),
    (of("one.lua", "local ms = math.ceil((tat + 1 - now) / 1000)", "local ms = 1"), None),
    (
        of("one.lua", "length == 9 and last <= now and ns < 1000", "length == 9 and ns < 1000"),
        Some("the account only waits for longer after a step back, and no bound covers waits"),
    ),
    (of("plain.lua", "}, allowed and charged", "}, charged"), None),
    (of("plain.lua", "ends = math.max(ends, tat + 1)", "ends = now + 1"), None),
    (
        of("account.lua", "local back, places = account.last - now,", "local back, places = 0,"),
        None,
    ),
    (
        of(
            "account.lua",
            "local ms = math.ceil((ends - now) / 1000)",
            "local ms = math.ceil((ends - now) / 2000)",
        ),
        None,
    ),
    (
        of(
            "take.lua",
            "passed = account.binding and math.min(passed,",
            "passed = account.binding and math.max(passed,",
        ),
        None,
    ),
    (
        of(
            "take.lua",
            "account.charging and math.min(passed, account.times) or 0",
            "account.charging and account.times or 0",
        ),
        None,
    ),
    (
        of(
            "fixed_window.lua",
            "if last <= come(place, state) + place.soft then",
            "if last <= come(place, state) + 1 then",
        ),
        None,
    ),
    (
        of(
            "token_bucket.lua",
            "state.tokens = state.tokens - units",
            "state.tokens = state.tokens - units + 1",
        ),
        None,
    ),
    (
        of(
            "token_bucket.lua",
            "return ahead * place.cost + place.need - place.soft <= bucket(place).tokens",
            "return ahead * place.cost + place.need <= bucket(place).tokens + 1",
        ),
        None,
    ),
    (
        of(
            "sliding_log.lua",
            "return total + ahead * place.cost + place.need <= place.units",
            "return total + ahead * place.cost + place.need <= 1 + place.units",
        ),
        None,
    ),
    (of("sliding_window.lua", "inner = inner - units", "inner = inner - units - 1"), None),
    (
        of(
            "batch.lua",
            "passed, tat, tat_nano = passed + 1, tat + cost, tat_nano + cost_nano",
            "passed = passed + 1",
        ),
        None,
    ),
    (
        of(
            "batch.lua",
            "fit, tat, tat_nano = fit + 1, tat + quota.cost, tat_nano + quota.cost_nano",
            "fit = fit + 1",
        ),
        None,
    ),
    (of("settle.lua", "place.algorithm.late(place)", "local _ = 0"), None),
    (of("settle.lua", "account.block = nil", "account.block = account.block"), None),
    (
        of(
            "settle.lua",
            "account.block, account.block_nano = plus(now, nano, us, ns)",
            "account.block, account.block_nano = plus(now, nano, 0, ns)",
        ),
        None,
    ),
    (
        of(
            "settle.lua",
            "account.void = math.max(account.void or 0, ends,",
            "account.void = math.min(now,",
        ),
        None,
    ),
    (of("take.lua", "passed = blocked and 0 or passed", "passed = passed"), None),
    (
        of(
            "account.lua",
            "wary and algorithm.letter == 'g' or algorithm.odd(place)",
            "wary or algorithm.odd(place)",
        ),
        None,
    ),
    (
        of(
            "gcra.lua",
            "place.possible == 0 and (us ~= place.room or ns ~= place.room_nano)",
            "false",
        ),
        None,
    ),
    (
        of(
            "gcra.lua",
            "if before(held, held_nano, place.cost, place.cost_nano) then",
            "if false then",
        ),
        None,
    ),
    (
        of("gcra.lua", "us, ns = minus(us, ns, place.cost, place.cost_nano)", "us, ns = now, nano"),
        None,
    ),
    (
        of(
            "token_bucket.lua",
            "if before(taken, taken_nano, state.opened, state.opened_nano) then",
            "if false then",
        ),
        None,
    ),
    (
        of(
            "fixed_window.lua",
            "local product = (k - 1) * place.period",
            "local product = (k - 2) * place.period",
        ),
        None,
    ),
    (of("batch.lua", "passed = others[i].block and 0 or passed", "passed = passed"), None),
];

/// Returns the mutant at a line of the table, counted from 0.
pub fn get(at: usize) -> Option<&'static Mutant> {
    MUTANTS.get(at).map(|(mutant, _)| mutant)
}

/// Runs seeds against each mutant until one finds it.
pub fn run(most: u64, only: Option<usize>) -> bool {
    println!("| file | changed to | found by seed | as |\n|---|---|---|---|");
    let mut well = true;
    let chosen = |(at, _): &(usize, _)| only.is_none_or(|only| only == *at);
    for (_, (mutant, reason)) in MUTANTS.iter().enumerate().filter(chosen) {
        let found = (0..most).find_map(|seed| {
            let report = world::run(seed, false, Some(mutant));
            report.violations.into_iter().next().map(|violation| (seed, violation))
        });
        let (seed, violation) = match (&found, reason) {
            (Some((seed, violation)), _) => (seed.to_string(), violation.as_str()),
            (None, Some(reason)) => ("none".into(), *reason),
            (None, None) => {
                well = false;
                ("NONE".into(), "not found")
            }
        };
        let what = violation.split(':').next().unwrap_or_default();
        println!("| {} | `{}` | {seed} | {what} |", mutant.file, mutant.to);
    }
    well
}
