//! The report as text.

use std::{
    io::{self, Write},
    time::Duration,
};

use crate::{
    bursts::BurstTable,
    entry::Reason,
    report::{ByKey, LeastQuota, Report, Rule, instant},
};

/// The longest bar, in characters.
const BAR: u64 = 40;

impl Reason {
    /// Returns the fault and its fix.
    fn text(self) -> &'static str {
        match self {
            Self::Empty => "the line is empty",
            Self::TooLong => "the line is longer than 64 KiB",
            Self::Address => "no address where one should be (a log with host names? log %a)",
            Self::Time => "no time where one should be, as [10/Oct/2000:13:55:36 -0700]",
            Self::Ahead => {
                "the time is more than a day ahead of all before, and no next line confirms it"
            }
            Self::Request => "no request that a service would see, as \"GET / HTTP/1.1\"",
            Self::Status => "no status and size behind the request, as 200 2326",
            Self::Quote => "a quote is missing or not closed",
            Self::Header => "no header may have such a value",
        }
    }
}

pub(crate) fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let Report { lines, malformed, requests, .. } = report;
    writeln!(out, "{lines} lines, {requests} requests, {malformed} malformed")?;
    if let (Some(from), Some(to)) = (&report.from, &report.to) {
        writeln!(out, "from {from} to {to}")?;
    }
    malformed_lines(report, out)?;
    if report.excepted > 0 {
        writeln!(out, "{:>12} more requests are exempt by --except", report.excepted)?;
    }
    if *requests == 0 {
        return Ok(());
    }
    writeln!(out, "\nWith these rules")?;
    let mut row = |what: &str, n: u64| match n {
        0 => Ok(()),
        n => writeln!(out, "{n:>12} {what}"),
    };
    row("pass at once", report.passed)?;
    row(&format!("wait, at most {} ms", report.longest_wait_ms), report.delayed)?;
    row("of these pass as overage", report.overage)?;
    row("are denied", report.denied)?;
    row("are rejected without a key", report.without_key)?;
    row("came later than the log has them, and count as of the latest before", report.late)?;
    report.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    report.rules.iter().try_for_each(|rule| by_rule(rule, out))?;
    course(report, out)?;
    least(report, out)?;
    report.bursts.iter().try_for_each(|table| bursts(table, out))
}

fn bursts(table: &BurstTable, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nrule {}: keys that a burst would have limited", table.rule)?;
    writeln!(out, "{:>12} {:>12} {:>12}", "burst", "keys", "requests")?;
    table.rows.iter().try_for_each(|row| {
        let keys = if row.more { format!("over {}", row.keys) } else { row.keys.to_string() };
        writeln!(out, "{:>12} {keys:>12} {:>12}", row.limit, row.requests)
    })
}

fn malformed_lines(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for (reason, n) in &report.malformed_by_reason {
        writeln!(out, "{n:>12} {}", reason.text())?;
    }
    for named in &report.malformed_first {
        write!(out, "  {}:{}: {}", named.file, named.line, named.reason.text())?;
        match &named.what {
            Some(what) => writeln!(out, ": {what}")?,
            None => writeln!(out)?,
        }
    }
    let left = report.malformed - report.malformed_first.len() as u64;
    if left > 0 { writeln!(out, "  and {left} more") } else { Ok(()) }
}

fn by_rule(rule: &Rule, out: &mut impl Write) -> io::Result<()> {
    let Rule { name, requests, denied, delayed, .. } = rule;
    if denied.count + delayed.count == 0 {
        return writeln!(out, "\nrule {name}: {requests} requests, no request denied or delayed");
    }
    let would = if rule.only_reported > 0 { "would deny" } else { "denies" };
    for (does, limited) in [(would, denied), ("delays", delayed)] {
        if let (Some(first), Some(last)) = (&limited.first, &limited.last) {
            let n = limited.count;
            writeln!(out, "\nrule {name}: {does} {n} of {requests}, from {first} to {last}")?;
            by_key(limited, out)?;
        }
    }
    Ok(())
}

fn by_key(limited: &ByKey, out: &mut impl Write) -> io::Result<()> {
    let ByKey { keys, short, top, .. } = limited;
    let (about, least) = if *short > 0 { ("at least ", "at least ") } else { ("", "") };
    let plural = if *keys == 1 { "key" } else { "keys" };
    writeln!(out, "  {about}{keys} {plural}, most often")?;
    for who in top {
        let times = if who.first == who.last {
            format!("at {}", who.first)
        } else {
            format!("from {} to {}", who.first, who.last)
        };
        writeln!(out, "{least:>12}{:>8} {} {times}", who.count, who.key)?;
    }
    match short {
        0 => Ok(()),
        n => writeln!(out, "  a count may be too low by {n}: more keys than are counted at a time"),
    }
}

fn course(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let Some(minute) = &report.worst_minute else { return Ok(()) };
    writeln!(out, "\nMost in one minute: {}, from {}", minute.denied, minute.start)?;
    writeln!(out, "Requests (-) and denials (#) in every {} s", report.slice_seconds)?;
    let most = report.slices.iter().map(|slice| slice.requests).max().unwrap_or(1).max(1);
    for slice in &report.slices {
        // Rounded up, so that any denial is visible.
        let denied = (slice.denied * BAR).div_ceil(most);
        let passed = (slice.requests * BAR).div_ceil(most).saturating_sub(denied);
        let bar = "#".repeat(usize::try_from(denied).unwrap_or(0))
            + &"-".repeat(usize::try_from(passed).unwrap_or(0));
        let start = instant(Duration::from_secs(slice.start));
        writeln!(out, "  {start} {:>9} {:>9} {bar}", slice.requests, slice.denied)?;
    }
    Ok(())
}

fn least(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nThe smallest limits that limit no request")?;
    for LeastQuota { rule, given, least, .. } in &report.least {
        match least {
            Some(least) => {
                writeln!(out, "  rule {rule}: quota=\"{least}\" instead of \"{given}\"")
            }
            None => writeln!(
                out,
                "  rule {rule}: none instead of \"{given}\"; no quota can express a sufficient limit"
            ),
        }?;
    }
    match report.limited_with_least {
        Some(0) => writeln!(out, "Replayed with them: no request limited"),
        Some(n) => writeln!(
            out,
            "Replayed with them: {n} still limited, because keys share accounts for lack of \
             room; give a larger --capacity"
        ),
        None => {
            writeln!(out, "Not replayed with them: that takes files, and a limit for each quota")
        }
    }
}
