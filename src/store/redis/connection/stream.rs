//! Streams that a function of the user opens.

use std::fmt;

use redis::{RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    dial::{OpenConnection, log_in, on_runtime},
    silence::{Noted, Silence, Unread},
};
use crate::store::BoxFuture;

/// Stream of bytes to a server, for [`RedisStore::from_stream`](crate::RedisStore::from_stream).
///
/// Any stream converts to it. Without further settings, the store logs in as the default user, to
/// database 0, and knows of unread bytes only what its own reads show.
pub struct RedisStream {
    pub(crate) stream: Box<dyn Stream>,
    login: RedisConnectionInfo,
    unread: Unread,
    spawn: Box<dyn FnOnce(BoxFuture<()>) + Send>,
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl RedisStream {
    /// Creates a stream.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            login: RedisConnectionInfo::default(),
            unread: Box::new(|| false),
            spawn: Box::new(on_runtime),
        }
    }

    /// Sets the user, the password, the database and the protocol.
    #[must_use]
    pub fn with_login(mut self, login: RedisConnectionInfo) -> Self {
        self.login = login;
        self
    }

    /// Sets a function that returns `true` while bytes have arrived that the stream has not returned
    /// yet, and after the end of the stream.
    ///
    /// If an answer is late, the function distinguishes a silent server from a process that is too busy
    /// to read. It is called by any thread, and must not block.
    ///
    /// # Limitations
    ///
    /// Without such a function, a server is silent if no read has returned a byte since a write. On a
    /// process that is too busy to read, late answers of a working server are then failures, and the
    /// policy for outages decides.
    #[must_use]
    pub fn with_unread(mut self, unread: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.unread = Box::new(unread);
        self
    }

    /// Sets the function that starts the task of the connection. For simulations, whose processes
    /// pause.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_spawn(mut self, spawn: impl FnOnce(BoxFuture<()>) + Send + 'static) -> Self {
        self.spawn = Box::new(spawn);
        self
    }

    pub(crate) async fn log_in(self) -> RedisResult<OpenConnection> {
        let silence = Silence::new(self.unread);
        let stream = Noted::new(self.stream, silence.clone());
        log_in(&self.login, stream, silence, self.spawn).await
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> From<S> for RedisStream {
    fn from(stream: S) -> Self {
        Self::new(stream)
    }
}

impl fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStream").finish_non_exhaustive()
    }
}
