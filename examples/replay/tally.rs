//! The sums of the verdicts, in memory that does not grow with the log, and their report.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use jiff::Timestamp;
use tower_sluice::{ClientIp, Key, KeyExtractor};

use crate::{
    Rules,
    entry::{Fault, Reason, shown},
    log::Place,
    rule::{AnyKey, KeyFlag, RuleFlag},
    simulate::{Call, Simulator, Verdict},
    top::Top,
};

/// The maximum number of malformed lines that are named.
const NAMED: usize = 10;
/// The maximum length of shown faulty text, in bytes.
const SHOWN: usize = 80;

/// The times of the first and the last request.
#[derive(Clone, Copy)]
struct Span {
    first: Duration,
    last: Duration,
}

impl Span {
    fn with(before: Option<Self>, at: Duration) -> Self {
        Self { first: before.map_or(at, |span| span.first), last: at }
    }

    fn text(self) -> String {
        format!("from {} to {}", instant(self.first), instant(self.last))
    }
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) lines: u64,
    malformed: BTreeMap<Reason, u64>,
    /// The first malformed lines, as they are printed.
    named: Vec<String>,
    requests: u64,
    span: Option<Span>,
    passed: u64,
    delayed: u64,
    longest_wait: Duration,
    overage: u64,
    denied: u64,
    unkeyed: u64,
    late: u64,
    rules: Vec<ByRule>,
}

/// Counts for one rule.
struct ByRule {
    flag: RuleFlag,
    extractor: AnyKey,
    asked: u64,
    /// Requests that the rule denied, or would have denied if it were not report-only.
    denied: u64,
    span: Option<Span>,
    top: Top,
}

impl Tally {
    pub(crate) fn of(rules: &[RuleFlag], client: Option<&ClientIp>) -> Result<Self, String> {
        let by_rule = |flag: &RuleFlag| {
            let extractor = flag.key.extractor(client)?;
            let (span, top) = Default::default();
            Ok(ByRule { flag: flag.clone(), extractor, asked: 0, denied: 0, span, top })
        };
        let rules = rules.iter().map(by_rule).collect::<Result<_, String>>()?;
        Ok(Self { rules, ..Self::default() })
    }

    pub(crate) fn fault(&mut self, place: Place<'_>, (reason, part): Fault<'_>) {
        *self.malformed.entry(reason).or_default() += 1;
        if self.named.len() < NAMED {
            let cut = &part[..part.len().min(SHOWN)];
            let more = if cut.len() < part.len() { "…" } else { "" };
            let colon = if part.is_empty() { "" } else { ": " };
            let Place { file, line } = place;
            let what = shown(cut);
            self.named.push(format!("{file}:{line}: {}{colon}{what}{more}", reason.text()));
        }
    }

    pub(crate) fn note(&mut self, call: &Call, verdict: &Verdict) {
        self.by_rule(call, verdict);
        self.requests += 1;
        self.late += u64::from(verdict.is_late);
        self.span = Some(Span::with(self.span, verdict.at));
        let Some(decision) = verdict.decision() else {
            let free = verdict.passes();
            self.passed += u64::from(free);
            self.unkeyed += u64::from(!free);
            return;
        };
        if !decision.is_allowed() {
            self.denied += 1;
            return;
        }
        let wait = decision.wait();
        self.passed += u64::from(wait.is_zero());
        self.delayed += u64::from(!wait.is_zero());
        self.longest_wait = self.longest_wait.max(wait);
        self.overage += u64::from(decision.is_overage());
    }

    fn by_rule(&mut self, call: &Call, verdict: &Verdict) {
        let outcomes = verdict.decision().map_or(&[][..], |decision| decision.outcomes());
        for rule in &mut self.rules {
            let mut its =
                outcomes.iter().filter(|outcome| outcome.rule() == rule.flag.settings.name);
            rule.asked += u64::from(its.clone().next().is_some());
            if its.any(|outcome| outcome.is_denied()) {
                rule.denied += 1;
                rule.span = Some(Span::with(rule.span, verdict.at));
                // None for a request without a key of its own.
                rule.top.add(rule.extractor.extract(&call.head()).ok().flatten());
            }
        }
    }

    /// Prints the report, which names this number of keys for each rule.
    pub(crate) fn print(
        &self,
        simulator: &Simulator<Rules>,
        top: usize,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let malformed: u64 = self.malformed.values().sum();
        writeln!(out, "{} lines, {} requests, {malformed} malformed", self.lines, self.requests)?;
        if let Some(span) = self.span {
            writeln!(out, "{}", span.text())?;
        }
        for (reason, n) in &self.malformed {
            writeln!(out, "{n:>12} {}", reason.text())?;
        }
        for line in &self.named {
            writeln!(out, "  {line}")?;
        }
        let wait = format!("wait, at most {} ms", self.longest_wait.as_millis());
        let late = "came later than the log has them, and count as of the latest before";
        let shared = "decisions or counts are of accounts that keys share because the store is \
                      full; give a larger --capacity";
        writeln!(out, "\nWith these rules")?;
        for (n, what) in [
            (self.passed, "pass at once"),
            (self.delayed, &*wait),
            (self.overage, "of these pass as overage"),
            (self.denied, "are denied"),
            (self.unkeyed, "are rejected without a key"),
            (self.late, late),
            (simulator.overflowed(), shared),
        ] {
            if n > 0 {
                writeln!(out, "{n:>12} {what}")?;
            }
        }
        for rule in &self.rules {
            rule.print(top, out)?;
        }
        writeln!(out, "\nThe smallest limits that limit no request")?;
        for least in simulator.least() {
            let quota = least.quota().map(|quota| format!("quota=\"{quota}\""));
            let quota = quota.unwrap_or_else(|| "no quota can express it,".into());
            writeln!(out, "  rule {}: {quota} instead of \"{}\"", least.rule, least.given)?;
        }
        Ok(())
    }
}

impl ByRule {
    fn print(&self, top: usize, out: &mut impl Write) -> io::Result<()> {
        let Self { flag: RuleFlag { key, settings }, asked, denied, span, top: counted, .. } = self;
        let name = settings.name;
        let Some(span) = span else {
            return writeln!(out, "\nrule {name}: {asked} requests, no request denied");
        };
        let would = if settings.report_only { "would deny" } else { "denies" };
        let about = if counted.short > 0 { "at least " } else { "" };
        writeln!(out, "\nrule {name}: {would} {denied} of {asked}, {}", span.text())?;
        writeln!(out, "  {about}{} keys, most often", counted.len())?;
        for (known, count) in counted.most(top) {
            let known = known.as_ref().map_or("(none)".into(), |known| shown_key(known, key));
            writeln!(out, "  {about}{count:>8} {known}")?;
        }
        if counted.short > 0 {
            let n = counted.short;
            writeln!(out, "  a count may be too low by {n}: more keys than are counted")?;
        }
        Ok(())
    }
}

/// Returns a key as the log has it. Its bytes are a kind and the extracted value: an address, for
/// IPv6 the first 64 bits, or text.
fn shown_key(key: &Key, flag: &KeyFlag) -> String {
    let bytes = key.to_bytes();
    let found = bytes.get(1..).unwrap_or_default();
    match flag {
        KeyFlag::Everyone => "everyone".to_owned(),
        KeyFlag::Peer | KeyFlag::Client => {
            match (<[u8; 4]>::try_from(found), <[u8; 16]>::try_from(found)) {
                (Ok(address), _) => Ipv4Addr::from(address).to_string(),
                (_, Ok(address)) => format!("{}/64", Ipv6Addr::from(address)),
                _ => "(unreadable)".to_owned(),
            }
        }
        KeyFlag::Header(_) | KeyFlag::Route => shown(found),
    }
}

/// Formats an instant in UTC.
fn instant(at: Duration) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    match Timestamp::from_second(seconds) {
        Ok(time) => time.to_string(),
        Err(_) => format!("{seconds} s"),
    }
}
