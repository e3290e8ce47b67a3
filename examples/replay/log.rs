//! The log files, in sequence, with a progress bar.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    path::{Path, PathBuf},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    entry::Reason,
    lines::{Line, Lines},
};

const BUFFER: usize = 256 * 1024;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// An opened log.
pub(crate) struct Log {
    name: String,
    source: Source,
    /// The number of bytes read; a log may grow during the run.
    read: u64,
}

enum Source {
    File(File),
    /// A stream that can be read once.
    Stream(Box<dyn Read>),
}

impl Log {
    /// Opens all logs, so that a wrong name fails early.
    pub(crate) fn open_all(paths: &[PathBuf]) -> Result<Vec<Self>, String> {
        paths.iter().map(|path| Self::open(path)).collect()
    }

    fn open(path: &Path) -> Result<Self, String> {
        if path == Path::new("-") {
            let source = Source::Stream(Box::new(io::stdin()));
            return Ok(Self { name: "-".to_owned(), source, read: u64::MAX });
        }
        let name = path.display().to_string();
        let wrong = |error: io::Error| format!("{name}: {error}; give a log that can be read");
        let file = File::open(path).map_err(wrong)?;
        let kind = file.metadata().map_err(wrong)?;
        if kind.is_dir() {
            return Err(format!("{name} is a folder; give the logs in it"));
        }
        let source =
            if kind.is_file() { Source::File(file) } else { Source::Stream(Box::new(file)) };
        Ok(Self { name, source, read: u64::MAX })
    }

    /// Rewinds all logs for another pass; `false` if one of them is a stream.
    pub(crate) fn rewind_all(logs: &mut [Self]) -> Result<bool, String> {
        for log in logs {
            match &mut log.source {
                Source::Stream(_) => return Ok(false),
                Source::File(file) => file
                    .rewind()
                    .map_err(|error| format!("{}: {error}; it cannot be read again", log.name))?,
            }
        }
        Ok(true)
    }

    /// Returns the number of remaining bytes, if known.
    fn len(&self) -> Option<u64> {
        match &self.source {
            Source::File(file) => file.metadata().ok().map(|file| file.len().min(self.read)),
            Source::Stream(_) => None,
        }
    }
}

/// Passes each line to `then`, with the name of its file and its line number.
pub(crate) fn read(
    logs: &mut [Log],
    doing: &'static str,
    mut then: impl FnMut(&str, u64, Result<&[u8], Reason>),
) -> Result<(), String> {
    // The bar appears on a terminal only.
    let bar = match logs.iter().map(Log::len).sum::<Option<u64>>() {
        Some(all) => {
            ProgressBar::new(all).with_style(style("{wide_bar} {bytes}/{total_bytes} {eta}"))
        }
        None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes} {bytes_per_sec}")),
    };
    bar.set_message(doing);
    for log in logs {
        let source: &mut dyn Read = match &mut log.source {
            Source::File(file) => file,
            Source::Stream(stream) => stream,
        };
        let mut source = source.take(log.read);
        let watched = bar.wrap_read(&mut source);
        each(&log.name, BufReader::with_capacity(BUFFER, watched), &mut then)?;
        log.read -= source.limit();
    }
    bar.finish_and_clear();
    Ok(())
}

fn each(
    name: &str,
    mut source: impl BufRead,
    then: &mut impl FnMut(&str, u64, Result<&[u8], Reason>),
) -> Result<(), String> {
    let wrong = |error: io::Error| format!("{name}: {error}; give a log that can be read");
    if source.fill_buf().map_err(wrong)?.starts_with(&GZIP) {
        return Err(format!("{name} is compressed; say: zcat {name} | replay … -"));
    }
    let mut lines = Lines::of(source);
    for number in 1.. {
        match lines.next().map_err(wrong)? {
            None => break,
            Some(Line::Whole(line)) => then(name, number, Ok(line)),
            Some(Line::TooLong) => then(name, number, Err(Reason::TooLong)),
        }
    }
    Ok(())
}

fn style(bar: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(&format!("{{msg}} {bar}"));
    style.unwrap_or_else(|_| ProgressStyle::default_bar())
}
