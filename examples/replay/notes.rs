//! Notes on numbers that are less exact than they look.

use crate::report::Report;

pub(crate) fn notes(report: &Report) -> Vec<String> {
    let Report { late, late_by_s, requests, .. } = report;
    let mut notes = Vec::new();
    if *late > requests / 100 {
        notes.push(format!(
            "{late} of {requests} requests come late, by up to {late_by_s} s, and count as of the \
             latest before, many at one instant; where files are not in the order of time, that \
             is why: give the oldest first, as ls -tr lists them"
        ));
    }
    for (n, what) in [
        (report.overflowed, "decisions were"),
        (
            report.overflowed_in_least,
            "counts for the smallest limits, which may be too large, were",
        ),
        (report.overflowed_with_least, "decisions with the smallest limits were"),
    ] {
        if n > 0 {
            notes.push(format!(
                "{n} {what} on accounts that keys share because the store is full; give a larger --capacity"
            ));
        }
    }
    notes
}
