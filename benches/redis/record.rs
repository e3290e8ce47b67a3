//! A connection without a server that records the store's commands.

use std::{
    future::ready,
    sync::{Arc, Mutex},
};

use redis::{
    Arg, Cmd, ErrorKind, Pipeline, RedisFuture, ServerErrorKind, Value, aio::ConnectionLike,
};

/// A script call of the store.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) script: String,
    /// The arguments, starting with the number of keys.
    pub(crate) args: Vec<Vec<u8>>,
}

/// A connection that knows no script, so that the store sends the whole one. Keeps the latest
/// command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Arc<Mutex<Option<Call>>>);

impl Recorder {
    /// Takes the recorded command.
    pub(crate) fn take(&self) -> Call {
        self.0.lock().expect("nobody panics").take().expect("a script was called")
    }

    fn note(&self, command: &Cmd) {
        let mut args = command.args_iter().map(|arg| match arg {
            Arg::Simple(bytes) => bytes.to_vec(),
            _ => panic!("no such argument in a script call"),
        });
        if args.next().is_some_and(|name| name == b"EVAL") {
            let script = args.next().and_then(|bytes| String::from_utf8(bytes).ok());
            let call = Call { script: script.expect("a script"), args: args.collect() };
            *self.0.lock().expect("nobody panics") = Some(call);
        }
    }
}

impl ConnectionLike for Recorder {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.note(command);
        let error = (ErrorKind::Server(ServerErrorKind::NoScript), "it knows none");
        Box::pin(ready(Err(error.into())))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("the store sends none")
    }

    fn get_db(&self) -> i64 {
        0
    }
}
