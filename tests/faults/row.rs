//! The result of a fault: a row of a Markdown table.

use std::{collections::BTreeMap, time::Duration};

/// The figures of one fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    holds: &'static str,
    /// Units above the limit: for the worst key, and for all keys.
    pub(crate) overshoot: Option<(u64, u64)>,
    /// Decisions during the fault.
    pub(crate) times: Option<Times>,
    /// Decisions while the breaker was open.
    pub(crate) open: Option<Times>,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) sources: BTreeMap<&'static str, u64>,
    /// The time to the first decision without Redis, and to the open breaker.
    pub(crate) detect: Option<Duration>,
    pub(crate) opened: Option<Duration>,
    /// The time to the last decision without Redis. `Some(None)` if it did not end.
    pub(crate) recover: Option<Option<Duration>>,
    /// The longest delay of the control task.
    pub(crate) lag: Duration,
    /// The lines that the noisier app logged.
    pub(crate) lines: Option<usize>,
    pub(crate) notes: Vec<String>,
    pub(crate) broken: Vec<String>,
}

/// Percentiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Times {
    pub(crate) fn of(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        let part = |percent: usize| times.get((times.len() * percent / 100).min(times.len() - 1));
        let max = *times.last()?;
        Some(Self { p50: *part(50)?, p99: *part(99)?, max })
    }

    fn cell(&self) -> String {
        format!("{} / {} / {}", millis(self.p50), millis(self.p99), millis(self.max))
    }
}

impl Row {
    pub(crate) fn new(name: &'static str, holds: &'static str) -> Self {
        Self { name, holds, ..Self::default() }
    }

    /// Fails the row unless the condition holds.
    pub(crate) fn demand(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(what());
        }
    }

    /// Fails the row unless `what` was within its bound. A delay beyond it by no more than the
    /// stall of the machine is only noted.
    pub(crate) fn within(
        &mut self,
        what: &str,
        time: Option<Duration>,
        bound: Duration,
        stalled: Duration,
    ) {
        match time {
            Some(time) if time <= bound => {}
            Some(time) if time <= bound + stalled => self.notes.push(format!(
                "{what} after {}, while the machine stalled for {}",
                whole(time),
                whole(stalled)
            )),
            Some(time) => self.broken.push(format!("{what} only after {}", whole(time))),
            None => self.broken.push(format!("never: {what}")),
        }
    }

    fn verdict(&self) -> String {
        if self.broken.is_empty() {
            "holds".into()
        } else {
            format!("**BROKEN**: {}", list(&self.broken))
        }
    }

    /// Returns a line for the console.
    pub(crate) fn line(&self) -> String {
        format!("{}: {}", self.name, self.verdict())
    }

    fn cells(&self) -> [String; 12] {
        let time = |time: Option<Duration>| time.map_or("–".into(), whole);
        let detect = match (self.detect, self.opened) {
            (None, None) => "–".into(),
            (detect, opened) => format!("{} / {}", time(detect), time(opened)),
        };
        let times = |times: Option<Times>| times.map_or("–".into(), |times| times.cell());
        [
            self.name.into(),
            self.holds.into(),
            self.overshoot.map_or("–".into(), |(worst, total)| format!("{worst} / {total}")),
            times(self.times),
            self.open.map_or("–".into(), |open| format!("{:.0?}", open.p99)),
            counts(self.errors.iter().map(|(kind, count)| (kind.as_str(), *count))),
            counts(self.sources.iter().map(|(source, count)| (*source, *count))),
            detect,
            match self.recover {
                None => "–".into(),
                Some(None) => "never".into(),
                Some(Some(time)) => whole(time),
            },
            if self.lag.is_zero() { "–".into() } else { millis(self.lag) },
            self.lines.map_or("–".into(), |lines| lines.to_string()),
            list(&[&[self.verdict()], &self.notes[..]].concat()),
        ]
    }
}

/// Formats the rows as a table.
pub(crate) fn table(rows: &[Row]) -> String {
    let head = [
        "fault",
        "requirement",
        "overshoot: worst key / all",
        "decision during the fault, ms: p50 / p99 / max",
        "p99, breaker open",
        "errors",
        "decided by",
        "noticed / breaker open after",
        "recovered after",
        "lag, ms",
        "log lines",
        "verdict",
    ];
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(head.map(String::from).to_vec());
    text += &line(head.map(|_| "---".to_owned()).to_vec());
    rows.iter().for_each(|row| text += &line(row.cells().to_vec()));
    text
}

fn list(words: &[String]) -> String {
    words.join("; ")
}

fn counts<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let words: Vec<_> = counts.map(|(what, count)| format!("{what} {count}")).collect();
    if words.is_empty() { "–".into() } else { words.join(", ") }
}

fn whole(time: Duration) -> String {
    format!("{} ms", time.as_micros().div_ceil(1_000))
}

/// Formats a time in milliseconds, to a hundredth.
fn millis(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1_000.0)
}
