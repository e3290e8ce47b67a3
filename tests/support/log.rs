//! What is logged.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Level, subscriber::DefaultGuard};

/// The lines of this thread.
///
/// One test to a file: what another thread does first decides whether this one's lines are caught.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// A log of lines at this level or above it, kept until the guard is dropped.
    pub(crate) fn start(level: Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone());
        (log, tracing::subscriber::set_default(lines.finish()))
    }

    /// The lines since it was last read.
    pub(crate) fn read(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("a log"));
        String::from_utf8(bytes).expect("text").lines().map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a log").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
