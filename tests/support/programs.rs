//! The examples as programs, and a client for them.
#![allow(dead_code, reason = "each test uses a part")]

use std::{
    collections::HashMap,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

/// Returns the program, which cargo places beside the folder of the tests. `cargo test` has built
/// it, `cargo test -p dev --test it tooling::examples` has not.
pub(crate) fn example(name: &str) -> Command {
    let here = env::current_exe().expect("the path of this test");
    let profile = here.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    let path = profile.join("examples").join(format!("{name}{}", env::consts::EXE_SUFFIX));
    if !is_fresh(&path) {
        build(name, profile);
    }
    assert!(is_fresh(&path), "{}: out of date; run `cargo build --examples`", path.display());
    Command::new(path)
}

/// Builds the example with the features of this test, by the profile of this folder.
fn build(name: &str, folder: &Path) {
    let mut features = Vec::new();
    let mut feature = |name: &'static str, on: bool| features.extend(on.then_some(name));
    feature("admin", cfg!(feature = "admin"));
    feature("axum", cfg!(feature = "axum"));
    feature("default", cfg!(feature = "default"));
    feature("governor", cfg!(feature = "governor"));
    feature("metrics", cfg!(feature = "metrics"));
    feature("redis", cfg!(feature = "redis"));
    feature("redis-tls", cfg!(feature = "redis-tls"));
    feature("serde", cfg!(feature = "serde"));
    feature("testing", cfg!(feature = "testing"));
    feature("tonic", cfg!(feature = "tonic"));
    feature("tracing", cfg!(feature = "tracing"));
    let profile = folder.file_name().and_then(|name| name.to_str()).expect("a name");
    let profile = if profile == "debug" { "dev" } else { profile };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--workspace", "--no-default-features", "--example", name]);
    cargo.args(["--features", &features.join(","), "--profile", profile, "--target-dir"]);
    cargo.arg(folder.parent().expect("target")).current_dir(env!("CARGO_MANIFEST_DIR"));
    // Cargo sets these for a test. The build script of a dependency reads them, and would run again, now and
    // in the next build.
    for (name, _) in env::vars() {
        if name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    let built = cargo.status().expect("cargo runs");
    assert!(built.success(), "{name} does not build");
}

/// Returns `true` if no source of the program, as listed by cargo beside it, is newer.
fn is_fresh(program: &Path) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    let sources = fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let latest = sources.split_whitespace().skip(1).filter_map(|path| changed(path.as_ref())).max();
    latest.is_some() && changed(program) >= latest
}

/// Waits for a program that ends by itself, and whose output fits in a pipe.
pub(crate) fn end(mut command: Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    let start = Instant::now();
    while child.try_wait().expect("its state").is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().expect("ends");
            panic!("the program did not end: {:?}", child.wait_with_output());
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("its output")
}

/// A running server, which is killed on drop.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) lines: Receiver<String>,
}

impl Server {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
        });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self { child, address: any, lines };
        let line = server.line_with("listening on http://");
        let rest = line.split("http://").nth(1).expect("an address");
        let address = rest.split(';').next().expect("an address");
        server.address = address.parse().expect("an address");
        server
    }

    /// Returns the next printed line that contains `part`.
    pub(crate) fn line_with(&self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("a line");
            if line.contains(part) {
                return line;
            }
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// Sends a `GET` with additional header lines, each ended by `\r\n`.
    pub(crate) fn get_with(&self, path: &str, more: &str) -> Answer {
        ask(TcpStream::connect(self.address).expect("connects"), path, more)
    }

    /// Sends a `POST` of JSON, with additional header lines.
    pub(crate) fn post(&self, path: &str, more: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let kind = "content-type: application/json";
        let more = format!("{more}{kind}\r\ncontent-length: {}\r\n", body.len());
        let stream = TcpStream::connect(self.address).expect("connects");
        exchange(stream, &format!("POST {path}"), &more, &body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

pub(crate) fn ask(stream: TcpStream, path: &str, more: &str) -> Answer {
    exchange(stream, &format!("GET {path}"), more, "")
}

pub(crate) fn exchange(mut stream: TcpStream, what: &str, more: &str, body: &str) -> Answer {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = format!("{what} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{more}\r\n");
    stream.write_all((head + body).as_bytes()).expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let (status, headers) = head.split_once("\r\n").expect("a status line");
    let pair = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_owned(), v.to_owned()));
    Answer {
        status: status.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"),
        headers: headers.lines().filter_map(pair).collect(),
        body: body.to_owned(),
    }
}
