//! A connection some of whose commands fail.

use std::{future::pending, sync::Arc, time::Duration};

use redis::{
    Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::time::sleep;

/// What happens to a command.
pub(crate) enum Fate {
    Works,
    LosesReply,
    HasNoReply,
    FailsAfter(Duration),
}

/// A connection, or none if no command works.
#[derive(Clone)]
pub(crate) struct Fated {
    inner: Option<MultiplexedConnection>,
    fate: Arc<dyn Fn(&Cmd) -> Fate + Send + Sync>,
}

impl Fated {
    pub(crate) fn new(
        inner: MultiplexedConnection,
        fate: impl Fn(&Cmd) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self { inner: Some(inner), fate: Arc::new(fate) }
    }

    /// A connection to a server that is down. Each command fails after a time.
    pub(crate) fn down(time: Duration) -> Self {
        Self { inner: None, fate: Arc::new(move |_| Fate::FailsAfter(time)) }
    }
}

fn down() -> redis::RedisError {
    std::io::Error::other("down").into()
}

impl ConnectionLike for Fated {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let fate = (self.fate)(command);
            if let Fate::FailsAfter(time) = fate {
                if !time.is_zero() {
                    sleep(time).await;
                }
                return Err(down());
            }
            if let Fate::HasNoReply = fate {
                return pending().await;
            }
            let inner = self.inner.as_mut().ok_or_else(down)?;
            let reply = inner.req_packed_command(command).await;
            match fate {
                Fate::LosesReply => Err(down()),
                _ => reply,
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match &mut self.inner {
            Some(inner) => inner.req_packed_commands(pipeline, offset, count),
            None => Box::pin(async { Err(down()) }),
        }
    }

    fn get_db(&self) -> i64 {
        0
    }
}
