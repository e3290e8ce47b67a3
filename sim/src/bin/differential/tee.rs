//! A connection that sends each command to a real server and to the node, and compares the replies.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use redis::{
    Cmd, Pipeline, RedisFuture, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::sync::Mutex as Turns;

use crate::node::{Node, Reply, Request, Session, parse};

/// The commands before a difference that are shown.
const SHOWN: usize = 40;
/// The milliseconds by which a reply may reach us late, and by which two times to live may differ.
const SLACK: i64 = 500;
/// The milliseconds around the end of a key in which only the server knows if the key is there, if
/// the reply has the clock of the server, which reads it twice and may be stopped in between.
const UNSURE: u64 = 100;
/// The microseconds between a reply's clock and this machine's, at most.
const NEAR: i64 = 10_000_000;

/// The connection. Clones share the server and the node.
#[derive(Clone)]
pub struct Tee {
    real: MultiplexedConnection,
    inner: Arc<Mutex<Inner>>,
    /// Both sides run one command after another.
    turn: Arc<Turns<()>>,
}

struct Inner {
    node: Node,
    story: Vec<String>,
    difference: Option<String>,
    /// `true` if the current sequence cannot continue, because a key ended just then.
    unsure: bool,
    /// The longest time that a command of this sequence took, in milliseconds.
    late: i64,
}

impl Tee {
    pub fn new(real: MultiplexedConnection) -> Self {
        let (node, story) = (Node::default(), Vec::new());
        let inner = Inner { node, story, difference: None, unsure: false, late: 0 };
        Self { real, inner: Arc::new(Mutex::new(inner)), turn: Arc::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the commands so far, and all keys.
    pub async fn begin(&self) {
        let mut real = self.real.clone();
        let _: redis::Value = ask(&mut real, &[b"FLUSHALL"]).await;
        let mut inner = self.inner();
        inner.node.lose();
        inner.story.clear();
        (inner.unsure, inner.late) = (false, 0);
    }

    /// Returns `true` if the sequence is to end, with a difference or without a result.
    pub fn is_over(&self) -> bool {
        let inner = self.inner();
        inner.unsure || inner.difference.is_some()
    }

    /// Returns the first difference, after the commands before it.
    pub fn difference(&self) -> Option<String> {
        let inner = self.inner();
        let story = &inner.story[inner.story.len().saturating_sub(SHOWN)..];
        inner.difference.as_ref().map(|last| format!("{}\n{last}", story.join("\n")))
    }

    pub fn node_keys(&self) -> Vec<Vec<u8>> {
        self.inner().node.keys()
    }

    /// Runs a command on both sides.
    pub async fn send(&self, request: &[Vec<u8>]) -> Option<Value> {
        let mut command = Cmd::new();
        command.arg(request);
        self.clone().req_packed_command(&command).await.ok()
    }

    /// Fails if the server has a key that the node lacks.
    pub async fn compare_keys(&self) {
        let mut real = self.real.clone();
        let names: Vec<Vec<u8>> = ask(&mut real, &[b"KEYS", b"*"]).await;
        let (known, late) = (self.node_keys(), self.inner().late);
        for name in names.into_iter().filter(|name| !known.contains(name)) {
            let left: i64 = ask(&mut real, &[b"PTTL", &name]).await;
            if left == -1 || left > SLACK + late {
                let text = format!("only the server has {}", name.escape_ascii());
                self.inner().difference.get_or_insert(text);
            }
        }
    }
}

async fn ask<T: redis::FromRedisValue>(real: &mut MultiplexedConnection, parts: &[&[u8]]) -> T {
    let mut command = Cmd::new();
    command.arg(parts);
    command.query_async(real).await.expect("the server answers")
}

impl Inner {
    /// Compares the replies to a request, which was sent at `sent`.
    fn compare(&mut self, request: &Request, real: &Value, sent: i64) {
        let wall = wall_clock();
        // A busy machine may stop either process for a while.
        self.late = self.late.max((wall - sent) / 1_000);
        let late = self.late.unsigned_abs();
        // The reply of a script of the store has the instant of its run, after at most one byte.
        let is_store = request[0] == b"EVALSHA" || request[0] == b"EVAL" && request[1].len() > 500;
        let instant = match real {
            Value::BulkString(bytes) if is_store => [0, 1].into_iter().find_map(|at| {
                let mut eight = [0; 8];
                eight[..7].copy_from_slice(bytes.get(at..at + 7)?);
                let instant = i64::from_le_bytes(eight);
                (instant.abs_diff(wall) < NEAR.unsigned_abs()).then_some(instant)
            }),
            _ => None,
        };
        self.node.set_clock(instant.unwrap_or(wall));
        let margin = late + if instant.is_some() { UNSURE } else { SLACK.unsigned_abs() };
        let unsure = self.node.is_ending(request, margin);
        let node = self.node.run(&mut Session::default(), request);
        let (left, right) = (show(real), show_reply(&node));
        let is_time = request[0] == b"PTTL";
        let near = is_time && near(real, &node, late);
        self.story.push(format!("{} -> {right}", words(request)));
        // Equal replies may hide different times to live, which a later command would show.
        let hides = instant.is_none() && Node::writes(&request[0]);
        if unsure && (left != right || hides) {
            self.unsure = true;
        } else if left != right && !near && !self.unsure {
            self.difference.get_or_insert(format!("the server: {left}\nthe node:   {right}"));
        }
    }
}

fn near(real: &Value, node: &Reply, late: u64) -> bool {
    match (real, node) {
        (Value::Int(left), Reply::Integer(right)) => {
            let left = if *left == -2 { 0 } else { *left };
            left.abs_diff((*right).max(0)) < SLACK.unsigned_abs() + late
        }
        _ => false,
    }
}

fn wall_clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

fn words(request: &Request) -> String {
    let short = |part: &Vec<u8>| match part.len() {
        0..400 => part.escape_ascii().to_string(),
        length => format!("({length} bytes)"),
    };
    request.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// The text of an error up to the position in a script, which differs between versions.
fn plain(error: &str) -> String {
    let end = error.find(" script: ").unwrap_or(error.len());
    // Errors of Lua itself name the line, and have other texts in each version.
    let error = &error[..end];
    match error {
        _ if error.contains("user_script") => "ERR of Lua".into(),
        // Valkey has shorter texts.
        _ if error.starts_with("NOSCRIPT") => "NOSCRIPT".into(),
        _ => error.replace("Unknown Redis command", "Unknown command"),
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::Nil => "nil".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Value::Okay => "+OK".into(),
        Value::SimpleString(text) => format!("+{text}"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))
        }
        Value::ServerError(error) => {
            let code = error.code();
            let text = error.details().unwrap_or_default();
            format!("-{}", plain(&format!("{code} {text}")))
        }
        other => format!("{other:?}"),
    }
}

fn show_reply(reply: &Reply) -> String {
    match reply {
        Reply::Nil => "nil".into(),
        Reply::Integer(number) => number.to_string(),
        Reply::Bulk(bytes) => format!("\"{}\"", bytes.escape_ascii()),
        Reply::Status(text) => format!("+{text}"),
        Reply::Array(items) => {
            format!("[{}]", items.iter().map(show_reply).collect::<Vec<_>>().join(", "))
        }
        Reply::Error(text) => format!("-{}", plain(text)),
        Reply::Map(pairs) => format!("{pairs:?}"),
    }
}

impl ConnectionLike for Tee {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let _turn = self.turn.lock().await;
            let mut packed = command.get_packed_command();
            let request = parse(&mut packed).ok().flatten().expect("a command");
            let sent = wall_clock();
            let value: RedisResult<Value> = self.real.req_packed_command(command).await;
            let value = value.expect("the server answers");
            self.inner().compare(&request, &value, sent);
            Ok(value)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { panic!("the store sends no pipelines") })
    }

    fn get_db(&self) -> i64 {
        0
    }
}
