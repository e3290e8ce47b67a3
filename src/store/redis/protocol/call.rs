//! Calls of the scripts.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    reply::Reply,
    request::{Request, ScriptOp},
    script::{Script, ScriptKind},
};
use crate::{
    observe::store_failed,
    store::redis::{
        RedisStore,
        connection::link::{self, Link},
        error::RedisError,
    },
};
use redis::{Cmd, ErrorKind as Raw, ServerErrorKind as Server, Value, aio::ConnectionLike};

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub(crate) fn script(
        &self,
        kind: ScriptKind,
        letters: impl IntoIterator<Item = u8>,
    ) -> &Script {
        self.shared.scripts.get(kind, letters.into_iter())
    }

    /// Returns the time of the test clock as script arguments. Empty without a test clock.
    fn clock_args(&self) -> Vec<Vec<u8>> {
        #[cfg(feature = "testing")]
        if let Some(test_clock) = &self.settings.test_clock {
            let now = test_clock.load(Relaxed);
            return vec![(now / 1_000).to_string().into(), (now % 1_000).to_string().into()];
        }
        Vec::new()
    }

    pub(crate) async fn send(&self, command: &Cmd) -> redis::RedisResult<Value> {
        link::runtime()?;
        self.connection.clone().req_packed_command(command).await.and_then(Value::extract_error)
    }

    pub(crate) async fn execute(
        &self,
        request: &Request,
        op: ScriptOp<'_>,
    ) -> Result<Reply, RedisError> {
        let kind = request.script_kind(op);
        let slots = &self.settings.slots;
        let takers = u32::from(matches!(op, ScriptOp::Take));
        let call = if op.counts_slots() { slots.begin(request, takers) } else { slots.without() };
        if !call.takes.is_empty() {
            self.start_renewing()?;
        }
        let (keys, args) = request.encode(op, &call);
        let script = self.script(kind, request.letters());
        let reply = self.run(script, &keys, args).await.and_then(|value| match value {
            Value::BulkString(bytes) => self.checked(Reply::read(&bytes, request, kind)),
            _ => self.checked(Err(RedisError::invalid_reply("not a bulk string"))),
        });
        let mut reply = reply.inspect_err(|error| store_failed(error.kind().as_str()))?;
        let writes = !matches!(op, ScriptOp::Peek);
        self.note_healed(reply.accounts.iter().filter(|account| account.healed && writes).count());
        let charged = |account: usize| usize::from(reply.accounts[account].charged);
        reply.holds = call.answered(charged).pop().unwrap_or_default();
        Ok(reply)
    }

    /// Calls a script by its hash. Sends the text if the server does not know the hash.
    pub(crate) async fn run<K: redis::ToRedisArgs>(
        &self,
        script: &Script,
        keys: &[K],
        mut args: Vec<Vec<u8>>,
    ) -> Result<Value, RedisError> {
        args.extend(self.clock_args());
        let command = |name: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(name).arg(script).arg(keys.len()).arg(keys).arg(&args);
            command
        };
        let reply = match self.send(&command("EVALSHA", &script.sha)).await {
            Err(error) if error.kind() == Raw::Server(Server::NoScript) => {
                self.send(&command("EVAL", &script.text)).await
            }
            reply => reply,
        };
        Ok(reply?)
    }

    /// Returns `read` unchanged. Discards the connection if the reply was invalid.
    pub(crate) fn checked<T>(&self, read: Result<T, RedisError>) -> Result<T, RedisError> {
        // Later replies may belong to other requests, too.
        read.inspect_err(|_| Link::discard_current(&self.connection))
    }

    pub(crate) fn note_healed(&self, accounts: usize) {
        self.shared.healed.fetch_add(accounts as u64, Relaxed);
    }
}
