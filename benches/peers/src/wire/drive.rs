//! A server in its own process, driven by `wrk`, with its CPU time.

use std::{
    fmt, fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use crate::server::{Limit, Subject};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/wire/summary.lua");
const CONNECTIONS: &str = "16";
/// Linux counts a process's time in hundredths of a second.
const MICROS_A_TICK: f64 = 10_000.0;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Requests per second.
    pub rate: f64,
    /// Microseconds of the server's CPU time per request.
    pub cpu: f64,
    /// Microseconds until the response, for the median request and for the 99th percentile.
    pub p50: f64,
    pub p99: f64,
}

/// The placement on cores: separate ones for servers and `wrk`, if possible.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pinned: bool,
}

impl Places {
    pub fn find() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let there = Command::new("taskset").arg("--version").output().is_ok();
        Self { pinned: there && cores > 1 }
    }

    /// Returns a command pinned to `core`, if pinning is possible.
    fn on(self, core: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if !self.pinned {
            return Command::new(program);
        }
        let mut command = Command::new("taskset");
        command.args(["-c", core]).arg(program);
        command
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.pinned {
            true => "servers on core 0, wrk on core 1",
            false => "servers and wrk on any core: there is no second one, or no taskset",
        })
    }
}

/// Checks that `wrk` is installed; the error names the fix.
pub fn find_wrk() -> Result<(), String> {
    // `wrk --version` exits with an error, even if `wrk` is installed
    match Command::new("wrk").arg("--version").output() {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("wrk cannot be run ({error}): install it (apt-get install wrk)")),
    }
}

/// A server that stops when this value is dropped.
pub struct Driven {
    server: Child,
    url: String,
    places: Places,
}

impl Driven {
    pub fn start(subject: Subject, limit: Limit, places: &Places) -> Self {
        let itself = std::env::current_exe().expect("this program");
        let mut command = places.on("0", itself);
        command.args(["serve", subject.title(), limit.title()]);
        let mut server =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut port = String::new();
        let stdout = server.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut port).expect("it prints its port");
        let url = format!("http://127.0.0.1:{}/", port.trim());
        Self { server, url, places: *places }
    }

    /// Runs `wrk` for some seconds. All responses must match `limit`, if given.
    pub fn drive(&self, seconds: u32, subject: Subject, limit: Option<Limit>) -> Run {
        let before = self.ticks();
        let mut wrk = self.places.on("1", "wrk");
        wrk.args(["-t1", "-c", CONNECTIONS, "-d", &format!("{seconds}s"), "-s", SCRIPT, &self.url]);
        let output = wrk.output().expect("wrk runs");
        let ticks = self.ticks() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = text.lines().find_map(|line| line.strip_prefix("summary "));
        let summary = summary.unwrap_or_else(|| panic!("wrk says {output:?}"));
        let numbers: Vec<f64> =
            summary.split(' ').map(|number| number.parse().expect("a number")).collect();
        let &[requests, micros, denied, broken, p50, p99] = numbers.as_slice() else {
            panic!("wrk says {summary:?}")
        };
        let title = subject.title();
        assert!(requests > 0.0 && broken == 0.0, "{title}: {broken} requests broken; {summary}");
        if let Some(limit) = limit {
            let due = if limit == Limit::One && subject != Subject::Bare { requests } else { 0.0 };
            assert!(denied == due, "{title}: {denied} of {requests} denied");
        }
        Run { rate: requests / micros * 1e6, cpu: ticks * MICROS_A_TICK / requests, p50, p99 }
    }

    /// Returns the server's CPU time so far, in user and kernel mode.
    fn ticks(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.server.id());
        let stat = fs::read_to_string(path).expect("the server runs, on Linux");
        let (_, after_name) = stat.rsplit_once(')').expect("a name in parentheses");
        let mut fields = after_name.split_whitespace().skip(11);
        let mut next = || fields.next().and_then(|ticks| ticks.parse::<f64>().ok());
        next().zip(next()).map(|(user, system)| user + system).expect("two times")
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
