//! The lines of a log, each with bounded memory.

use std::io::{self, BufRead, Read};

/// The longest line that is read, in bytes. Servers limit the head of a request to 8 or 16 KiB.
pub(crate) const LONGEST: usize = 64 * 1024;

pub(crate) struct Lines<R> {
    log: R,
    line: Vec<u8>,
}

pub(crate) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn of(log: R) -> Self {
        Self { log, line: Vec::new() }
    }

    /// Returns the next line, without its end, or `None` at the end of the log.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let most = LONGEST as u64 + 2; // with the line's end
        if self.log.by_ref().take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        let ended = self.line.pop_if(|last| *last == b'\n').is_some();
        self.line.pop_if(|last| *last == b'\r');
        if self.line.len() <= LONGEST {
            return Ok(Some(Line::Whole(&self.line)));
        }
        if !ended {
            self.log.skip_until(b'\n')?;
        }
        Ok(Some(Line::TooLong))
    }
}
