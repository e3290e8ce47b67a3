//! Lua scripts. A script is assembled from the files in `lua/`: a clock, the algorithms that a call
//! needs, and a main part.

use std::{
    array::from_fn,
    sync::{OnceLock, atomic::Ordering::Relaxed},
};

use super::algorithms::{ALGORITHMS, CONCURRENT, GCRA, SETS, SLOTS};
use crate::store::redis::{RedisStore, cluster::hash_slot, connection, error::RedisError};
use redis::{
    Cmd, ErrorKind as Raw, ServerErrorKind as Server, ToRedisArgs, Value, aio::ConnectionLike,
};

const CLOCK: &str = include_str!("../../../../lua/clock.lua");
/// Reads the time from the last two arguments.
const TEST_CLOCK: &str = include_str!("../../../../lua/clock_driven.lua");
const STEADY: &str = include_str!("../../../../lua/steady.lua");
const ONE: &str = include_str!("../../../../lua/one.lua");
const RENEW: &str = include_str!("../../../../lua/renew.lua");
const INSTANCES: &str = include_str!("../../../../lua/instances.lua");
const PROBE: &str = include_str!("../../../../lua/probe.lua");
const RATE: &str = include_str!("../../../../lua/rate.lua");
const PLAIN: &str = include_str!("../../../../lua/plain.lua");
const PEEK: &str = include_str!("../../../../lua/peek.lua");
const TIME: &str = include_str!("../../../../lua/time.lua");
const ACCOUNT: &str = include_str!("../../../../lua/account.lua");
const TAKE: &str = include_str!("../../../../lua/take.lua");
const SINGLE: &str = include_str!("../../../../lua/single.lua");
const GROUPS: &str = include_str!("../../../../lua/groups.lua");
const SETTLE: &str = include_str!("../../../../lua/settle.lua");
const SLOTS_BATCH: &str = include_str!("../../../../lua/slots_batch.lua");
/// The Lua text before and after the general part of a script for the most common requests, which makes
/// that part a function.
const GENERAL: &str = "local function general()\n";
const END: &str = "return decide, answer\nend\n";
/// The parts of the scripts for the most common requests, after the clock.
const PLAIN_PARTS: &[&str] = &[ONE, STEADY, GENERAL, TIME, ACCOUNT, GCRA, TAKE, END, PLAIN];
const SLOTS_PARTS: &[&str] = &[
    SLOTS,
    GENERAL,
    TIME,
    STEADY,
    ACCOUNT,
    CONCURRENT,
    TAKE,
    END,
    SLOTS_BATCH,
];
const SLOTS_AND_RATE_PARTS: &[&str] = &[
    STEADY,
    SLOTS,
    RATE,
    GENERAL,
    TIME,
    ACCOUNT,
    GCRA,
    CONCURRENT,
    TAKE,
    END,
    SLOTS_BATCH,
];

/// A script and its SHA-1 hash.
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

/// The kind of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptKind {
    /// Runs one request or many that charge only GCRA quotas that start full. Most are of this kind.
    Plain,
    Take,
    /// Decides as `Take`, and changes nothing.
    Peek,
    Adjust,
    /// Runs one request or many that take slots of one quota, alone or with one GCRA quota.
    Slots,
    /// Renews slots.
    Renew,
    /// Runs many requests in one call.
    Groups,
    /// Counts the processes that run.
    Instances,
    /// Runs each command that another script runs.
    Probe,
}

/// All scripts of a store: one for each kind and set of algorithms, assembled on first use.
pub(crate) struct Scripts([[OnceLock<Script>; SETS]; ScriptKind::Probe as usize + 1]);

impl Default for Scripts {
    fn default() -> Self {
        Self(from_fn(|_| from_fn(|_| OnceLock::new())))
    }
}

impl Script {
    fn assemble(clock: &'static str, kind: ScriptKind, set: usize) -> Self {
        let parts = match kind {
            ScriptKind::Take | ScriptKind::Peek | ScriptKind::Groups | ScriptKind::Adjust => {
                return Self::of_algorithms(clock, kind, set);
            }
            ScriptKind::Plain => PLAIN_PARTS,
            // Without rates, only the general part needs the instant of the call.
            ScriptKind::Slots if set & 1 == 0 => SLOTS_PARTS,
            ScriptKind::Slots => SLOTS_AND_RATE_PARTS,
            ScriptKind::Renew => &[SLOTS, RENEW],
            ScriptKind::Instances => &[SLOTS, INSTANCES],
            ScriptKind::Probe => return Self::new(&[PROBE]),
        };
        Self::new(&[&[clock], parts].concat())
    }

    fn of_algorithms(clock: &'static str, kind: ScriptKind, set: usize) -> Self {
        let algorithms = ALGORITHMS.iter().enumerate();
        let chosen = algorithms.filter(|(at, _)| set >> at & 1 == 1);
        let algorithms: Vec<_> = chosen.flat_map(|(_, (_, texts))| *texts).copied().collect();
        let peek = if kind == ScriptKind::Peek { PEEK } else { "" };
        let main = match kind {
            ScriptKind::Groups => [TAKE, GROUPS],
            ScriptKind::Adjust => [SETTLE, ""],
            _ => [TAKE, SINGLE],
        };
        Self::new(&[&[clock, peek, TIME, STEADY, ACCOUNT], &*algorithms, &main].concat())
    }

    fn new(parts: &[&str]) -> Self {
        let text = strip(&parts.concat());
        Self {
            sha: redis::Script::new(&text).get_hash().to_owned(),
            text,
        }
    }
}

/// Removes comments and indentation, because the server keeps the text.
fn strip(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the command that calls a script.
fn script_call<K: ToRedisArgs>(name: &str, script: &str, keys: &[K], args: &[Vec<u8>]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(name).arg(script);
    command.arg(keys.len()).arg(keys).arg(args);
    command
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Returns the script with the algorithms of these letters.
    pub(crate) fn script(
        &self,
        kind: ScriptKind,
        letters: impl IntoIterator<Item = u8>,
    ) -> &Script {
        let bit = |letter| {
            1 << ALGORITHMS
                .iter()
                .take_while(|(known, _)| *known != letter)
                .count()
        };
        let set = letters
            .into_iter()
            .fold(0_usize, |set, letter| set | bit(letter))
            % SETS;
        let clock = if self.settings.test_clock.is_some() {
            TEST_CLOCK
        } else {
            CLOCK
        };
        let script = &self.shared.scripts.0[kind as usize][set];
        script.get_or_init(|| Script::assemble(clock, kind, set))
    }

    pub(crate) async fn send(&self, command: &Cmd) -> redis::RedisResult<Value> {
        connection::runtime()?;
        self.connection
            .clone()
            .req_packed_command(command)
            .await
            .and_then(Value::extract_error)
    }

    /// Calls a script by its hash, and reads the reply. Sends the text if the server does not know the hash.
    pub(crate) async fn run<K: ToRedisArgs + AsRef<str>, T>(
        &self,
        script: &Script,
        keys: &[K],
        mut args: Vec<Vec<u8>>,
        read: impl FnOnce(Value) -> Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        if let Some(test_clock) = &self.settings.test_clock {
            let now = test_clock.load(Relaxed);
            args.extend([now / 1_000, now % 1_000].map(|part| part.to_string().into()));
        }
        let mut reply = self
            .send(&script_call("EVALSHA", &script.sha, keys, &args))
            .await;
        if let Err(error) = &reply
            && error.kind() == Raw::Server(Server::NoScript)
        {
            reply = self
                .send(&script_call("EVAL", &script.text, keys, &args))
                .await;
        }
        read(reply?).inspect_err(|_| self.discard_link(keys))
    }

    /// Discards the connection to the server of these keys after an invalid reply, because later replies
    /// may belong to other requests, too.
    fn discard_link<K: AsRef<str>>(&self, keys: &[K]) {
        let hash_slot = keys
            .first()
            .map_or(0, |key| hash_slot(key.as_ref().as_bytes()));
        if let Some(link) = self.link(hash_slot) {
            link.discard_current();
        }
    }
}
