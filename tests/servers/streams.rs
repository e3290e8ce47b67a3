//! Streams that a test opens.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use redis::{Client, ConnectionAddr::Tcp};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tower_sluice::store::RedisStream;

/// Returns a function that opens a stream to the server of a URL, with its login. The stream knows
/// its unread bytes if `knows`.
pub(crate) fn to(
    url: &str,
    knows: bool,
    gate: &Gate,
) -> impl Fn() -> Opening + Send + Sync + 'static {
    let client = Client::open(url).expect("a URL");
    let gate = gate.clone();
    move || Box::pin(open(client.clone(), knows, gate.clone()))
}

type Opening = Pin<Box<dyn Future<Output = io::Result<RedisStream>> + Send>>;

async fn open(client: Client, knows: bool, gate: Gate) -> io::Result<RedisStream> {
    let info = client.get_connection_info();
    let Tcp(host, port) = info.addr() else { panic!("an address of TCP") };
    let socket = TcpStream::connect((host.as_str(), *port)).await?.into_std()?;
    let second = socket.try_clone()?;
    let stream = RedisStream::new(Gated { stream: TcpStream::from_std(socket)?, gate })
        .with_login(info.redis_settings().clone());
    if !knows {
        return Ok(stream);
    }
    let is_empty = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
    Ok(stream.with_unread(move || !second.peek(&mut [0]).as_ref().is_err_and(is_empty)))
}

/// Keeps streams from reading while it is closed, as a busy process does.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<Closed>>);

#[derive(Default)]
struct Closed {
    is_closed: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    pub(crate) fn set_closed(&self, is_closed: bool) {
        let mut gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gate.is_closed = is_closed;
        gate.waiting.drain(..).for_each(Waker::wake);
    }
}

struct Gated {
    stream: TcpStream,
    gate: Gate,
}

impl AsyncRead for Gated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut gate = self.gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gate.is_closed {
            gate.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(gate);
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
