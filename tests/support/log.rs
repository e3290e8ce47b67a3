//! The log of a test.

use std::{
    io,
    sync::{Arc, Mutex},
};

use tracing::{Level, subscriber::DefaultGuard};
use tracing_subscriber::util::SubscriberInitExt;

/// The lines of this thread.
///
/// Tests that read a log must not run in parallel: the first thread that meets a log line decides
/// whether it is enabled.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts a log of lines at this level or above, which ends when the guard is dropped.
    pub(crate) fn start(level: Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone());
        (log, lines.finish().set_default())
    }

    /// Returns the lines since the last call, without the field `help`, which each warning and
    /// error has.
    pub(crate) fn read(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("a log"));
        String::from_utf8(bytes).expect("text").lines().map(without_help).collect()
    }
}

fn without_help(line: &str) -> String {
    let help = " help=\"guide::troubleshooting#warnings-in-the-log\"";
    let levels = [" WARN tower_sluice", "ERROR tower_sluice"];
    let warns = levels.iter().any(|level| line.contains(level));
    assert_eq!(warns, line.contains(help), "{line}");
    line.replace(help, "")
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a log").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
