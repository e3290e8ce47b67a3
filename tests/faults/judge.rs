//! Checks the logs of a fault against its requirements.
//!
//! During every fault:
//!
//! - Each decision arrives within its timeout and a margin.
//! - Nothing panics.
//! - No key exceeds its limit by more than the fault allows.
//! - Decisions are nearly free while the breaker is open.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fault::{Findings, Must},
    log::{Entry, Log},
    overshoot::overshoot,
    row::{Row, Times},
    stack::{BUDGET, QUOTA},
    stage::Ran,
};

/// The margin of a decision above its timeout. Without optimization, rounds of the runtime take
/// longer.
const SLACK: Duration = Duration::from_millis(if cfg!(debug_assertions) { 15 } else { 5 });
/// The highest permitted 99th percentile of decisions while the breaker is open.
const OPEN: Duration = Duration::from_micros(if cfg!(debug_assertions) { 500 } else { 50 });
/// The most lines that an app may log in one fault.
const LINES: usize = 20;
/// The margin for a breaker to open.
const SLOWER: u32 = if cfg!(debug_assertions) { 2 } else { 1 };

pub(crate) fn judge(
    name: &'static str,
    holds: &'static str,
    must: &Must,
    ran: &Ran,
    found: Findings,
) -> Row {
    let mut row = Row::new(name, holds);
    overshoots(&mut row, must, ran, &found.allowance);
    durations(&mut row, ran);
    sources(&mut row, must, ran);
    errors(&mut row, must, ran);
    let lines = ran.logs.iter().map(|log| log.lines).max().unwrap_or_default();
    row.lines = Some(lines);
    row.demand(lines <= LINES, || format!("{lines} log lines"));
    let healed: u64 = ran.logs.iter().map(|log| log.healed).sum();
    if healed > 0 {
        row.notes.push(format!("{healed} accounts healed"));
    }
    row.notes.extend(found.notes);
    row.broken.extend(found.broken);
    row
}

/// Returns the admissions of each key.
pub(crate) fn admissions(ran: &Ran) -> BTreeMap<u16, Vec<(Duration, Duration)>> {
    let mut admitted = BTreeMap::<_, Vec<_>>::new();
    for (_, entry) in ran.entries().filter(|(_, entry)| entry.allowed) {
        admitted.entry(entry.key).or_default().push(entry.decided());
    }
    admitted
}

fn overshoots(row: &mut Row, must: &Must, ran: &Ran, allowance: &BTreeMap<u16, u64>) {
    let (mut worst, mut total, mut beyond) = (0, 0, 0);
    for (key, admitted) in admissions(ran) {
        let over = overshoot(&admitted, &QUOTA);
        (worst, total) = (worst.max(over), total + over);
        let more = allowance.get(&key).copied().unwrap_or(0);
        let bound = must.overshoot.map(|bound| bound + more);
        beyond += u64::from(bound.is_some_and(|bound| over > bound));
    }
    row.overshoot = Some((worst, total));
    if beyond > 0 {
        let (bound, more) = (must.overshoot.unwrap_or(0), allowance.values().sum::<u64>());
        let bound =
            if more == 0 { bound.to_string() } else { format!("{bound} and {more} in all") };
        row.broken.push(format!("{beyond} keys more than {bound} above their limit"));
    }
}

fn durations(row: &mut Row, ran: &Ran) {
    let during = |entry: &&Entry| (ran.struck..ran.healed).contains(&entry.asked);
    let all = ran.entries().map(|(_, entry)| entry);
    row.times = Times::of(all.clone().filter(during).map(Entry::took));
    let without_store = |entry: &&Entry| entry.at_once && !entry.is_from_redis();
    row.open = Times::of(all.filter(without_store).map(Entry::took));
    if let Some(open) = &row.open
        && open.p99 > OPEN
    {
        row.broken.push(format!("p99 of {:?} while the breaker is open", open.p99));
    }

    let (mut late, mut stalled_late, mut worst) = (0, 0, Duration::ZERO);
    for log in &ran.logs {
        row.lag = row.lag.max(log.lag);
        for entry in log.entries.iter().filter(|entry| entry.took() > BUDGET + SLACK) {
            if stalled(log, entry) {
                stalled_late += 1;
            } else {
                (late, worst) = (late + 1, worst.max(entry.took()));
            }
        }
    }
    if late > 0 {
        row.broken.push(format!("{late} decisions beyond their budget, of up to {worst:.1?}"));
    }
    if stalled_late > 0 {
        row.notes.push(format!("{stalled_late} beyond their budget while the machine stalled"));
    }
}

fn stalled(log: &Log, entry: &Entry) -> bool {
    log.stalls.iter().any(|(from, to)| *from <= entry.answered && *to >= entry.asked)
}

fn sources(row: &mut Row, must: &Must, ran: &Ran) {
    for (_, entry) in ran.entries() {
        *row.sources.entry(entry.source.as_str()).or_default() += 1;
    }
    let (mut detect, mut opened, mut recover) = (None, None, Some(Duration::ZERO));
    for log in &ran.logs {
        let mut entries: Vec<_> = log.entries.iter().collect();
        entries.sort_by_key(|entry| entry.answered);
        let astray = |entry: &&&Entry| !entry.is_from_redis() && entry.answered >= ran.struck;
        let since = |entry: &&Entry| entry.answered - ran.struck;
        // The slower of both apps counts.
        detect = detect.max(entries.iter().find(astray).map(since));
        let without_store = |entry: &&&Entry| astray(entry) && entry.at_once;
        opened = opened.max(entries.iter().find(without_store).map(since));
        if let Some(last) = entries.iter().rposition(|entry| astray(&entry)) {
            let back = entries[last].answered.saturating_sub(ran.healed);
            recover = recover.filter(|_| last + 1 < entries.len()).map(|so_far| so_far.max(back));
        }
    }
    (row.detect, row.opened) = (detect, opened);
    row.recover = detect.map(|_| recover);
    let stalls: Vec<Duration> = ran.logs.iter().map(Log::stalled).collect();
    let stalled = stalls.into_iter().max().unwrap_or_default();
    if let Some(bound) = must.open {
        row.within("the breakers opened", opened, bound * SLOWER, stalled);
    }
    if let Some(bound) = must.recover {
        row.within("all decisions were by Redis again", recover, bound, stalled);
    }
}

fn errors(row: &mut Row, must: &Must, ran: &Ran) {
    for log in &ran.logs {
        for (kind, count) in &log.errors {
            *row.errors.entry(kind.clone()).or_default() += count;
        }
        row.texts.extend(log.texts.clone());
    }
    let astray = ran.entries().filter(|(_, entry)| !entry.is_from_redis()).count();
    if must.errors.is_empty() && astray > 0 {
        row.broken.push(format!("{astray} decisions without Redis"));
    }
    if !must.may_pass && row.errors.is_empty() {
        row.broken.push("no error was seen".into());
    }
    let odd: Vec<_> =
        row.errors.keys().filter(|kind| !must.errors.contains(&kind.as_str())).cloned().collect();
    for kind in odd {
        let text = row.texts.get(&kind).cloned().unwrap_or_default();
        row.broken.push(format!("errors of kind {kind}: {text}"));
    }
}
