//! The lines of a log file, each with bounded memory.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use crate::entry::Reason;

const BUFFER: usize = 256 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The longest line that is read, in bytes. Servers limit the head of a request to 8 or 16 KiB.
const LONGEST: usize = 64 * 1024;

/// An opened log.
pub(crate) struct Log {
    name: String,
    source: BufReader<Box<dyn Read>>,
}

/// A line of a log.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) file: &'a str,
    pub(crate) line: u64,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let wrong = |error: io::Error| format!("{name}: {error}; give a log that can be read");
        let source: Box<dyn Read> = if name == "-" {
            Box::new(io::stdin())
        } else if path.is_dir() {
            return Err(format!("{name} is a folder; give the logs in it"));
        } else {
            Box::new(File::open(path).map_err(wrong)?)
        };
        Ok(Self { name, source: BufReader::with_capacity(BUFFER, source) })
    }

    /// Passes each line to `then`, without its end.
    pub(crate) fn read(
        mut self,
        mut then: impl FnMut(Place<'_>, Result<&[u8], Reason>),
    ) -> Result<(), String> {
        let name = &self.name;
        let wrong = |error: io::Error| format!("{name}: {error}; give a log that can be read");
        if self.source.fill_buf().map_err(wrong)?.starts_with(&GZIP) {
            return Err(format!("{name} is compressed; say: zcat {name} | replay … -"));
        }
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let most = LONGEST as u64 + 2; // with the line's end
            let mut part = self.source.by_ref().take(most);
            if part.read_until(b'\n', &mut text).map_err(wrong)? == 0 {
                break;
            }
            let ended = text.pop_if(|last| *last == b'\n').is_some();
            text.pop_if(|last| *last == b'\r');
            let place = Place { file: name, line };
            if text.len() <= LONGEST {
                then(place, Ok(&text));
                continue;
            }
            if !ended {
                self.source.skip_until(b'\n').map_err(wrong)?;
            }
            then(place, Err(Reason::TooLong));
        }
        Ok(())
    }
}
