//! What a closed breaker remembers of the answers.

use std::time::Duration;

const TENTHS: usize = 10;

/// Failures in a row, and the answers of the last second, counted by tenths of it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    in_a_row: u32,
    tenths: [Tenth; TENTHS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Tenth {
    number: usize,
    answers: u32,
    failures: u32,
}

impl Tally {
    pub(super) fn add(&mut self, now: Duration, ok: bool) {
        self.in_a_row = if ok { 0 } else { self.in_a_row.saturating_add(1) };
        let number = tenth(now);
        let counted = &mut self.tenths[number % TENTHS];
        if counted.number != number {
            *counted = Tenth { number, ..Tenth::default() };
        }
        counted.answers = counted.answers.saturating_add(1);
        counted.failures = counted.failures.saturating_add(u32::from(!ok));
    }

    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Answers, and failures among them, of this tenth of a second and the nine before.
    pub(super) fn last_second(&self, now: Duration) -> (u64, u64) {
        let recent = |counted: &&Tenth| counted.number + TENTHS > tenth(now);
        let add = |(answers, failures), counted: &Tenth| {
            (answers + u64::from(counted.answers), failures + u64::from(counted.failures))
        };
        self.tenths.iter().filter(recent).fold((0, 0), add)
    }
}

fn tenth(now: Duration) -> usize {
    usize::try_from(now.as_millis() / 100).unwrap_or(0)
}
