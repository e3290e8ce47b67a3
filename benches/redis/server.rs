//! A server that runs for the duration of the bench.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{self, Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use redis::{
    Client, Connection, FromRedisValue, InfoDict, IntoConnectionInfo, RedisResult, Value,
    io::tcp::TcpSettings,
};

pub(crate) struct Server {
    process: Child,
    /// The files of callgrind, if it counts the server's instructions.
    counts: Option<PathBuf>,
    pinned: bool,
    port: u16,
    control: Connection,
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
        Self { process, counts: None, pinned, port, control: wait_for(port) }
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
        let control = wait_for(port);
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
        let info: InfoDict = self.call(&["INFO", "server"]);
        let version: String = info.get("redis_version").expect("a version");
        let pinned = if self.pinned { "pinned to CPU 0" } else { "not pinned: no taskset here" };
        let name = if info.contains_key(&"valkey_version") {
            "Valkey, compatible with Redis"
        } else {
            "Redis"
        };
        format!("{name} {version}, {pinned}")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn call<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(&mut self.control).expect("the server answers")
    }

    /// Returns the answer to a packed command.
    pub(crate) fn ask(&mut self, packed: &[u8]) -> Value {
        self.control.send_packed_command(packed).expect("the server reads");
        read(&mut self.control)
    }

    /// Sends packed commands and waits for all answers.
    pub(crate) fn play<'a>(&mut self, packed: impl Iterator<Item = &'a Vec<u8>>) {
        let packed: Vec<_> = packed.collect();
        for some in packed.chunks(100) {
            let all = some.iter().copied().flatten().copied().collect::<Vec<_>>();
            self.control.send_packed_command(&all).expect("the server reads");
            some.iter().for_each(|_| drop(read(&mut self.control)));
        }
    }

    /// Loads a script and returns its hash.
    pub(crate) fn load(&mut self, script: &str) -> String {
        self.call(&["SCRIPT", "LOAD", script])
    }

    /// Returns the seconds of CPU that the server has used.
    pub(crate) fn cpu(&mut self) -> f64 {
        let info: InfoDict = self.call(&["INFO", "cpu"]);
        let used = |name| info.get::<f64>(name).expect("a time");
        used("used_cpu_user") + used("used_cpu_sys")
    }

    /// Returns the number of script calls so far.
    pub(crate) fn script_calls(&mut self) -> f64 {
        let info: InfoDict = self.call(&["INFO", "commandstats"]);
        let stats = info.get::<String>("cmdstat_evalsha").unwrap_or_default();
        let calls = stats.strip_prefix("calls=").and_then(|stats| stats.split(',').next());
        calls.map_or(0.0, |calls| calls.parse().expect("a number"))
    }

    /// Logs script calls that take a tenth of a millisecond or longer.
    pub(crate) fn log_long_calls(&mut self) {
        self.call::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "100"]);
        self.call::<()>(&["SLOWLOG", "RESET"]);
    }

    /// Returns the microseconds of the longest logged script call, or 0.
    pub(crate) fn longest_call(&mut self) -> f64 {
        // The id, the time, the microseconds, the words, and the client.
        type Entry = (u64, u64, u32, Vec<Vec<u8>>, String, String);
        let entries: Vec<Entry> = self.call(&["SLOWLOG", "GET", "1000"]);
        let scripts = entries.iter().filter(|(_, _, _, words, ..)| words[0] == b"EVALSHA");
        scripts.map(|(_, _, micros, ..)| f64::from(*micros)).fold(0.0, f64::max)
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

/// Returns a client with the settings of the store.
pub(crate) fn client(url: &str) -> Client {
    let info = url.into_connection_info().expect("an address");
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    Client::open(info).expect("an address")
}

pub(crate) fn connect(url: &str) -> RedisResult<Connection> {
    client(url).get_connection()
}

/// Returns the next answer. An error ends the bench.
pub(crate) fn read(connection: &mut Connection) -> Value {
    connection.recv_response().and_then(Value::extract_error).expect("the server answers")
}

/// Returns a connection, once the server listens.
fn wait_for(port: u16) -> Connection {
    let url = format!("redis://127.0.0.1:{port}");
    let connection = (0..500).find_map(|_| {
        sleep(Duration::from_millis(20));
        connect(&url).ok()
    });
    connection.expect("the server starts")
}

fn spawn(command: &[&str], port: u16) -> Option<Child> {
    let mut process = Command::new(command[0]);
    process.args(&command[1..]).args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    process.args(["--save", "", "--appendonly", "no"]);
    process.stdin(Stdio::null()).stdout(Stdio::null()).spawn().ok()
}
