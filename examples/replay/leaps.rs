//! Implausible times. One line dated years ahead would make all later lines late, and count them at
//! one instant.
//!
//! A line that is more than a day ahead of all previous ones is held until the next line confirms
//! it. The first line has no predecessor and is also held. This needs no clock: a log may be of any
//! year.

use std::time::Duration;

use crate::{
    entry::{Fault, Reason},
    report::instant,
    simulate::Call,
};

const DAY: Duration = Duration::from_secs(86_400);

/// Forwards calls, and holds at most one.
#[derive(Default)]
pub(crate) struct Leaps {
    latest: Option<Duration>,
    held: Option<Held>,
}

struct Held {
    file: String,
    line: u64,
    call: Call,
}

impl Leaps {
    pub(crate) fn pass(
        &mut self,
        (file, line): (&str, u64),
        call: Call,
        then: &mut impl FnMut(&str, u64, Result<Call, Fault<'_>>),
    ) {
        if let Some(held) = self.held.take() {
            let confirmed = call.at + DAY >= held.call.at;
            self.release(held, confirmed, then);
        }
        if self.latest.is_none_or(|latest| call.at > latest + DAY) {
            self.held = Some(Held { file: file.to_owned(), line, call });
        } else {
            self.latest = self.latest.max(Some(call.at));
            then(file, line, Ok(call));
        }
    }

    /// Forwards the held line: no later line can confirm it, and a log may have only one line.
    pub(crate) fn end(mut self, then: &mut impl FnMut(&str, u64, Result<Call, Fault<'_>>)) {
        if let Some(held) = self.held.take() {
            let alone = self.latest.is_none();
            self.release(held, alone, then);
        }
    }

    fn release(
        &mut self,
        Held { file, line, call }: Held,
        right: bool,
        then: &mut impl FnMut(&str, u64, Result<Call, Fault<'_>>),
    ) {
        if right {
            self.latest = Some(call.at);
            then(&file, line, Ok(call));
        } else {
            then(&file, line, Err((Reason::Ahead, instant(call.at).as_bytes())));
        }
    }
}
