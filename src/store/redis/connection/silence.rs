//! The silence of a server: the time for which bytes that were written have no answer.
//!
//! A late answer does not show that a server has failed, because the process may be too busy to send
//! the request or to read the answer. The connection therefore notes when it wrote and read, and the
//! kernel, or the stream of the user, knows whether unread bytes wait.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use redis::io::tcp::socket2::Socket;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::store::nanos;

/// Notes of a connection, from which its silence is known.
pub(crate) struct Silence {
    created: Instant,
    /// The instant of the first write after the last byte read, or of the first write that the socket
    /// would not take: in nanoseconds since `created`, plus 1. 0 without such a write.
    ///
    /// A byte read stands for the answers to all earlier writes. If the server stops between two answers, the
    /// next write finds its silence, or a call ends as busy.
    unanswered: AtomicU64,
    /// `true` while the connection's task reads.
    is_reading: AtomicBool,
    unread: Unread,
}

/// Returns `true` if bytes wait that nobody has read, or if the stream has ended.
pub(crate) type Unread = Box<dyn Fn() -> bool + Send + Sync>;

/// Returns a function that looks at the bytes that wait in the kernel. `socket` does not block.
pub(crate) fn in_kernel(socket: Socket) -> Unread {
    Box::new(move || {
        let mut byte = [MaybeUninit::uninit()];
        match socket.peek(&mut byte) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    })
}

impl Silence {
    /// Creates the notes of a connection.
    pub(crate) fn new(unread: Unread) -> Arc<Self> {
        Arc::new(Self {
            created: Instant::now(),
            unanswered: AtomicU64::new(0),
            is_reading: AtomicBool::new(false),
            unread,
        })
    }

    /// Returns the time after which the server can have been silent for `time`. It is zero if the
    /// server is silent.
    pub(crate) fn until_silent_for(&self, time: Duration) -> Duration {
        let since = self.unanswered.load(SeqCst);
        if since == 0 {
            return time;
        }
        let silent = nanos(self.created.elapsed()).saturating_sub(since - 1);
        let left = time.saturating_sub(Duration::from_nanos(silent));
        if !left.is_zero() {
            return left;
        }
        let waits = (self.unread)();
        // The task may have taken bytes before the look, and noted them after it.
        let is_read = self.is_reading.load(SeqCst) || self.unanswered.load(SeqCst) != since;
        if waits || is_read {
            time
        } else {
            Duration::ZERO
        }
    }

    fn note_write(&self) {
        if self.unanswered.load(SeqCst) == 0 {
            self.unanswered
                .store(nanos(self.created.elapsed()).saturating_add(1), SeqCst);
        }
    }
}

/// A stream of bytes whose writes and reads are noted.
pub(crate) struct Noted<S> {
    stream: S,
    silence: Arc<Silence>,
}

impl<S> Noted<S> {
    pub(crate) fn new(stream: S, silence: Arc<Silence>) -> Self {
        Self { stream, silence }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        self.silence.is_reading.store(true, SeqCst);
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.silence.unanswered.store(0, SeqCst);
        }
        self.silence.is_reading.store(false, SeqCst);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if !matches!(written, Poll::Ready(Err(_) | Ok(0))) {
            self.silence.note_write();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::net::UnixStream as Pair;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
        time::{advance, pause},
    };

    use super::*;

    const TIME: Duration = Duration::from_millis(100);

    /// Returns a noted end of a connection, the other end, and the notes.
    fn pair() -> (Noted<UnixStream>, UnixStream, Arc<Silence>) {
        let (near, far) = Pair::pair().expect("a pair");
        near.set_nonblocking(true).expect("a socket");
        far.set_nonblocking(true).expect("a socket");
        let silence = Silence::new(in_kernel(near.try_clone().expect("a handle").into()));
        let stream = UnixStream::from_std(near).expect("a socket");
        let far = UnixStream::from_std(far).expect("a socket");
        (Noted::new(stream, silence.clone()), far, silence)
    }

    #[tokio::test]
    async fn a_server_is_silent_if_a_write_has_no_answer_and_no_byte_waits() {
        let (mut near, mut far, silence) = pair();
        pause();
        advance(TIME).await;
        assert_eq!(silence.until_silent_for(TIME), TIME, "nothing was written");
        near.write_all(b"PING").await.expect("room");
        advance(TIME / 4).await;
        near.write_all(b"PING").await.expect("room");
        assert_eq!(
            silence.until_silent_for(TIME),
            TIME - TIME / 4,
            "the first write counts"
        );
        advance(TIME).await;
        assert_eq!(silence.until_silent_for(TIME), Duration::ZERO);
        far.write_all(b"+PONG").await.expect("room");
        assert_eq!(silence.until_silent_for(TIME), TIME, "a byte waits");
        near.read_exact(&mut [0; 5]).await.expect("five bytes");
        advance(TIME).await;
        assert_eq!(silence.until_silent_for(TIME), TIME, "all bytes are read");
    }

    #[tokio::test]
    async fn a_write_that_the_socket_does_not_take_counts() {
        let (mut near, _far, silence) = pair();
        // Fills the send buffer before the connection notes anything.
        near.stream.writable().await.expect("a socket");
        for length in [65_536, 1] {
            while near.stream.try_write(&vec![0; length]).is_ok() {}
        }
        let write = tokio::time::timeout(Duration::from_millis(1), near.write_all(b"PING")).await;
        assert!(write.is_err(), "the buffer is full");
        assert_ne!(silence.unanswered.load(SeqCst), 0);
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_is_not_silent() {
        let (mut near, far, silence) = pair();
        near.write_all(b"PING").await.expect("room");
        drop(far);
        pause();
        advance(2 * TIME).await;
        assert_eq!(
            silence.until_silent_for(TIME),
            TIME,
            "its task reads the end"
        );
    }
}
