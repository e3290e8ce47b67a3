//! A server that speaks RESP and runs the real scripts, on a clock of its own.

mod commands;
mod data;
mod reply;
mod script;
mod sorted;
mod structs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::script::{Scripts, State};
pub use self::{
    data::Changes,
    reply::{Reply, Request, parse},
};

/// A node with its keys, its scripts and its clock.
pub struct Node {
    state: Arc<Mutex<State>>,
    scripts: Scripts,
}

/// The part of a connection that the node remembers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    pub resp3: bool,
    /// `true` if the last command was `ASKING`.
    pub asking: bool,
}

impl Default for Node {
    /// Creates a node without keys.
    ///
    /// # Panics
    ///
    /// Panics if Lua cannot start.
    fn default() -> Self {
        let state = Arc::<Mutex<State>>::default();
        let scripts = Scripts::new(state.clone()).expect("Lua starts");
        Self { state, scripts }
    }
}

impl Node {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock, in microseconds of Unix time.
    pub fn set_clock(&mut self, micros: i64) {
        self.state().data.now = micros;
    }

    /// Sets whether commands that need memory fail.
    pub fn set_full(&mut self, full: bool) {
        self.state().full = full;
    }

    pub fn is_read_only(&self) -> bool {
        self.state().read_only
    }

    /// Sets whether commands that change keys fail.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.state().read_only = read_only;
    }

    pub fn has(&self, key: &[u8]) -> bool {
        self.state().data.get(key).is_some()
    }

    /// Returns the changes of keys since the last call.
    pub fn changes(&mut self) -> Changes {
        self.state().data.changes()
    }

    /// Takes over keys that another node has given away, and passes them to the replica.
    pub fn receive(&mut self, taken: Changes) {
        taken.iter().for_each(|(key, _)| self.state().data.touch(key));
        self.apply(taken);
    }

    /// Applies the changes of another node.
    pub fn apply(&mut self, changes: Changes) {
        self.state().data.apply(changes);
    }

    /// Replaces all keys by those of another node.
    pub fn copy(&mut self, other: &Self) {
        self.state().data.copy(&other.state().data);
    }

    /// Removes a key and returns it, for another node.
    pub fn take(&mut self, key: &[u8]) -> Changes {
        drop(self.changes());
        self.state().data.touch(key);
        let taken = self.changes();
        self.state().data.touch(key);
        self.state().data.remove(key);
        taken
    }

    /// Loses all keys.
    pub fn lose(&mut self) {
        self.state().data.clear();
    }

    pub fn forget_scripts(&mut self) {
        self.scripts.forget();
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.state().data.keys()
    }

    /// Returns `true` if a key that a request names ends within a few milliseconds of now.
    pub fn is_ending(&self, request: &Request, millis: u64) -> bool {
        request.iter().any(|part| self.state().data.is_ending(part, millis))
    }

    /// Returns `true` if this is a command that changes keys, and not a script.
    pub fn writes(command: &[u8]) -> bool {
        commands::effect(command).is_some_and(|effect| effect.writes)
    }

    /// Removes a key, as an eviction does.
    pub fn evict(&mut self, key: &[u8]) -> bool {
        self.state().data.remove(key)
    }

    /// Runs a request and returns its reply.
    pub fn run(&mut self, session: &mut Session, request: &Request) -> Reply {
        let Some((name, args)) = request.split_first() else {
            return Reply::error("ERR empty request");
        };
        match (name.to_ascii_lowercase().as_slice(), args) {
            (b"ping", []) => Reply::Status("PONG".into()),
            (b"select" | b"client" | b"auth", _) => Reply::ok(),
            (b"asking", []) => {
                session.asking = true;
                Reply::ok()
            }
            (b"hello", args) => hello(session, args),
            (b"info", _) => Reply::bulk("redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\n"),
            (b"script", args) => self.script(args),
            (b"evalsha" | b"eval", [script, count, rest @ ..]) => {
                self.eval(name.len() == 4, script, count, rest)
            }
            _ => self.state().run(request),
        }
    }

    fn script(&mut self, args: &[Vec<u8>]) -> Reply {
        match args {
            [load, text] if load.eq_ignore_ascii_case(b"load") => {
                self.scripts.load(text).map_or_else(|error| error, Reply::bulk)
            }
            [flush, ..] if flush.eq_ignore_ascii_case(b"flush") => {
                self.scripts.forget();
                Reply::ok()
            }
            [exists, shas @ ..] if exists.eq_ignore_ascii_case(b"exists") => {
                let loaded = |sha: &Vec<u8>| self.scripts.is_loaded(&String::from_utf8_lossy(sha));
                Reply::Array(shas.iter().map(|sha| Reply::Integer(loaded(sha).into())).collect())
            }
            _ => Reply::error("ERR unknown subcommand of SCRIPT"),
        }
    }

    fn eval(&mut self, is_text: bool, script: &[u8], count: &[u8], rest: &[Vec<u8>]) -> Reply {
        let Some(count) = str::from_utf8(count).ok().and_then(|it| it.parse::<usize>().ok()) else {
            return Reply::error("ERR value is not an integer or out of range");
        };
        if count > rest.len() {
            return Reply::error("ERR Number of keys can't be greater than number of args");
        }
        let sha = match is_text {
            true => self.scripts.load(script),
            false => Ok(String::from_utf8_lossy(script).to_ascii_lowercase()),
        };
        let (keys, args) = rest.split_at(count);
        sha.map_or_else(|error| error, |sha| self.scripts.run(&sha, keys, args))
    }
}

fn hello(session: &mut Session, args: &[Vec<u8>]) -> Reply {
    match args.first().map(Vec::as_slice) {
        Some(b"3") => session.resp3 = true,
        Some(b"2") => session.resp3 = false,
        None => {}
        Some(_) => return Reply::error("NOPROTO unsupported protocol version"),
    }
    let version = Reply::Integer(if session.resp3 { 3 } else { 2 });
    Reply::Map(vec![
        (Reply::bulk("server"), Reply::bulk("redis")),
        (Reply::bulk("version"), Reply::bulk("7.0.15")),
        (Reply::bulk("proto"), version),
        (Reply::bulk("id"), Reply::Integer(1)),
        (Reply::bulk("mode"), Reply::bulk("standalone")),
        (Reply::bulk("role"), Reply::bulk("master")),
        (Reply::bulk("modules"), Reply::Array(Vec::new())),
    ])
}
