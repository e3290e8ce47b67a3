//! Processes of their own: a test that does nothing by itself, and runs with the addresses of
//! servers in its environment.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
};

/// The environment variable with the addresses of the servers, separated by spaces.
const URLS: &str = "SLUICE_URLS";

/// Returns the addresses, or `None` if this is not such a process.
pub(crate) fn urls() -> Option<String> {
    env::var(URLS).ok()
}

/// A running process.
pub(crate) struct Worker {
    process: Child,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts the test of this name as a process, and waits until it prints `ready`.
    pub(crate) fn start(test: &str, urls: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("a path"));
        command.args(["--exact", test, "--nocapture"]).env(URLS, urls);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let printed = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let (tx, lines) = channel();
        // A full pipe would stop the process.
        thread::spawn(move || printed.map_while(Result::ok).try_for_each(|line| tx.send(line)));
        let mut worker = Self { process, lines };
        worker.hear("ready");
        worker
    }

    /// Waits for a line that starts with `word`.
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let line = self.lines.iter().find(|line| line.starts_with(word));
        line.unwrap_or_else(|| panic!("a process ended before it said {word}"))
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([format!("-{name}"), pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "the process gets SIG{name}");
    }

    /// Kills the process, and returns the lines that it printed until then.
    pub(crate) fn kill(&mut self) -> Vec<String> {
        self.process.kill().expect("the process is killed");
        self.lines.iter().collect()
    }

    pub(crate) fn send(&mut self, line: &str) {
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("it listens");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.kill().expect("the process is killed");
        self.process.wait().expect("it ends");
    }
}
