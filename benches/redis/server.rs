//! A server that runs for the duration of the bench.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{self, Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use crate::wire::{Reply, Wire};

pub(crate) struct Server {
    process: Child,
    /// The files of callgrind, if it counts the server's instructions.
    counts: Option<PathBuf>,
    pinned: bool,
    pub(crate) port: u16,
    control: Wire,
}

impl Server {
    /// Starts the program that `REDIS_SERVER` names, or `redis-server`.
    pub(crate) fn start() -> Self {
        let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let port = free_port();
        let pinned = spawn(&["taskset", "-c", "0", &program], port);
        let (process, pinned) = match pinned {
            Some(process) => (process, true),
            None => (spawn(&[&program], port).expect("the server is installed"), false),
        };
        Self { process, counts: None, pinned, port, control: connect(port) }
    }

    /// Starts a server whose instructions can be counted.
    pub(crate) fn counted() -> Self {
        let counts = env::temp_dir().join(format!("redis-counts-{}", process::id()));
        fs::create_dir_all(&counts).expect("a folder");
        let file = format!("--callgrind-out-file={}", counts.join("out").display());
        let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let words = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", &file, &program];
        let port = free_port();
        let process = spawn(&words, port).expect("valgrind is installed");
        let control = connect(port);
        Self { process, counts: Some(counts), pinned: false, port, control }
    }

    /// Returns the instructions of the server during `work`.
    pub(crate) fn instructions(&mut self, work: impl FnOnce(&mut Self)) -> u64 {
        self.control_callgrind(&["--instr=on"]);
        self.control_callgrind(&["--dump"]);
        let before = self.dumps();
        work(self);
        self.control_callgrind(&["--dump"]);
        self.control_callgrind(&["--instr=off"]);
        let new = self.dumps().into_iter().find(|dump| !before.contains(dump));
        let text = fs::read_to_string(new.expect("a dump")).expect("a dump is text");
        let total = text.lines().find_map(|line| line.strip_prefix("summary: "));
        total.and_then(|total| total.trim().parse().ok()).expect("a sum")
    }

    fn control_callgrind(&self, words: &[&str]) {
        let id = self.process.id().to_string();
        let done = Command::new("callgrind_control").args(words).arg(id).output();
        assert!(done.expect("valgrind is installed").status.success(), "{words:?}");
    }

    fn dumps(&self) -> Vec<PathBuf> {
        let folder = fs::read_dir(self.counts.as_ref().expect("a counted server"));
        let files = folder.expect("a folder").map(|entry| entry.expect("an entry").path());
        files.filter(|file| file.file_name().is_some_and(|name| name != "out")).collect()
    }

    pub(crate) fn about(&mut self) -> String {
        let version = self.info("server", "redis_version");
        let pinned = if self.pinned { "pinned to CPU 0" } else { "not pinned: no taskset here" };
        let valkey = self.call(&["INFO", "server"]).text().contains("valkey_version");
        let name = if valkey { "Valkey, compatible with Redis" } else { "Redis" };
        format!("{name} {version}, {pinned}")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.control.call(args)
    }

    /// Returns the answer to a packed command.
    pub(crate) fn ask(&mut self, packed: &[u8]) -> Reply {
        self.control.send(packed);
        self.control.read()
    }

    /// Sends packed commands and waits for all answers.
    pub(crate) fn play<'a>(&mut self, packed: impl Iterator<Item = &'a Vec<u8>>) {
        let packed: Vec<_> = packed.collect();
        for some in packed.chunks(100) {
            self.control.send(&some.iter().copied().flatten().copied().collect::<Vec<_>>());
            some.iter().for_each(|_| drop(self.control.read()));
        }
    }

    /// Loads a script and returns its hash.
    pub(crate) fn load(&mut self, script: &str) -> String {
        self.call(&["SCRIPT", "LOAD", script]).text()
    }

    /// Returns the seconds of CPU that the server has used.
    pub(crate) fn cpu(&mut self) -> f64 {
        let info = self.call(&["INFO", "cpu"]).text();
        ["used_cpu_user", "used_cpu_sys"].map(|name| number(&field(&info, name))).iter().sum()
    }

    /// Returns the number of script calls so far.
    pub(crate) fn script_calls(&mut self) -> f64 {
        let info = self.call(&["INFO", "commandstats"]).text();
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.and_then(|line| line.split(',').next()).map_or(0.0, number)
    }

    /// Logs script calls that take a tenth of a millisecond or longer.
    pub(crate) fn log_long_calls(&mut self) {
        self.call(&["CONFIG", "SET", "slowlog-log-slower-than", "100"]);
        self.call(&["SLOWLOG", "RESET"]);
    }

    /// Returns the microseconds of the longest logged script call, or 0.
    pub(crate) fn longest_call(&mut self) -> f64 {
        let Reply::List(entries) = self.call(&["SLOWLOG", "GET", "1000"]) else { return 0.0 };
        let micros = entries.iter().filter_map(|entry| match entry {
            Reply::List(fields) => match fields.get(2..4)? {
                [micros, Reply::List(words)] => {
                    (words.first()?.bytes() == b"EVALSHA").then(|| micros.int() as f64)
                }
                _ => None,
            },
            _ => None,
        });
        micros.fold(0.0, f64::max)
    }

    fn info(&mut self, section: &str, name: &str) -> String {
        field(&self.call(&["INFO", section]).text(), name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if let Some(counts) = &self.counts {
            drop(fs::remove_dir_all(counts));
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

fn connect(port: u16) -> Wire {
    let control = (0..500).find_map(|_| {
        sleep(Duration::from_millis(20));
        Wire::connect(port).ok()
    });
    control.expect("the server starts")
}

fn spawn(command: &[&str], port: u16) -> Option<Child> {
    let mut process = Command::new(command[0]);
    process.args(&command[1..]).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    process.args(["--save", "", "--appendonly", "no"]);
    process.stdin(Stdio::null()).stdout(Stdio::null()).spawn().ok()
}

fn field(info: &str, name: &str) -> String {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("INFO has no {name}")).to_owned()
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}
