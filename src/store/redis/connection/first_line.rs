//! The first line of a server that ends connections at the start, which explains a failed attempt.

use std::{collections::HashMap, io, pin::pin, sync::Arc, time::Duration};

use futures_util::future::{Either, pending, select};
use parking_lot::Mutex;
#[cfg(unix)]
use redis::ConnectionAddr::Unix;
use redis::{
    ConnectionAddr::{self, Tcp, TcpTls},
    RedisError, RedisResult,
};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::stream::RedisStream;

/// The time for which the first line of a server is not read again.
const FRESH: Duration = Duration::from_secs(1);
/// The time in which a server that ends connections says so by itself.
const UNASKED: Duration = Duration::from_millis(100);
/// The time in which a server says its first line.
const SPEAKS: Duration = Duration::from_millis(300);
/// The time after which a TLS handshake may be with a server without TLS, which waits for a line.
const HANDSHAKE: Duration = Duration::from_millis(300);
const MAX_LINE: usize = 200;

/// Problems of servers by address, found by a connection that shows no password.
#[derive(Clone, Default)]
pub(crate) struct FirstLines(Arc<Mutex<HashMap<String, Look>>>);

/// A connection that read the first line of a server.
struct Look {
    at: Instant,
    problem: Option<String>,
}

struct FirstLine {
    /// Empty if the server ended the connection without a word.
    bytes: Vec<u8>,
    /// `true` if the server first said nothing, and was then asked.
    asked: bool,
}

impl FirstLines {
    /// Waits for a connection to one of the servers. An error contains the words of the server, if
    /// they explain it.
    pub(crate) async fn explain<T>(
        &self,
        servers: &[ConnectionAddr],
        opening: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        match select(pin!(opening), pin!(self.no_tls(servers))).await {
            Either::Left((Err(error), _)) => Err(self.problem(servers).await.unwrap_or(error)),
            Either::Left((opened, _)) => opened,
            Either::Right((error, _)) => Err(error),
        }
    }

    /// Completes if a server that should use TLS does not, and waits for the rest of a handshake.
    async fn no_tls(&self, servers: &[ConnectionAddr]) -> RedisError {
        sleep(HANDSHAKE).await;
        if servers.iter().any(|server| matches!(server, TcpTls { .. }))
            && let Some(problem) = self.problem(servers).await
        {
            return problem;
        }
        pending().await
    }

    async fn problem(&self, servers: &[ConnectionAddr]) -> Option<RedisError> {
        for server in servers {
            if let Some(problem) = self.look(server).await {
                return Some(ended(problem));
            }
        }
        None
    }

    async fn look(&self, server: &ConnectionAddr) -> Option<String> {
        let address = server.to_string();
        if let Some(look) = self.0.lock().get(&address)
            && look.at.elapsed() < FRESH
        {
            return look.problem.clone();
        }
        let line = timeout(SPEAKS, listen(server))
            .await
            .ok()
            .and_then(Result::ok);
        let is_tls = matches!(server, TcpTls { .. });
        let problem = line.and_then(|line| line.problem((!is_tls).then_some("give rediss://")));
        let mut looks = self.0.lock();
        looks.retain(|_, look| look.at.elapsed() < FRESH);
        looks.insert(
            address,
            Look {
                at: Instant::now(),
                problem: problem.clone(),
            },
        );
        problem
    }
}

impl FirstLine {
    /// Returns the problem of the server, unless it is well. `start_tls` is the fix for a connection
    /// that does not use TLS.
    fn problem(&self, start_tls: Option<&str>) -> Option<String> {
        let is_tls = start_tls.is_none();
        let fix = start_tls.unwrap_or_default();
        let text = String::from_utf8_lossy(&self.bytes);
        let words = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches(['-', '+']);
        let problem = match self.bytes.first() {
            // A server with TLS answers no question in plain text.
            None if is_tls && self.asked => return None,
            None if is_tls => "the server ended the connection without a word".to_owned(),
            None => format!(
                "the server ended the connection without a word; if this port uses TLS, {fix}"
            ),
            // An alert or a handshake of TLS.
            Some(21 | 22) if is_tls => return None,
            Some(21 | 22) => format!("the port uses TLS; {fix}"),
            Some(b'+' | b'-') if is_tls => {
                format!("the port uses no TLS, and the server said {words:?}; give redis://")
            }
            Some(b'+' | b'-') if self.asked => return None,
            Some(b'+' | b'-') => format!("the server ended the connection and said {words:?}"),
            Some(_) => format!("the server is not Redis, and said {words:?}; check the port"),
        };
        Some(problem)
    }
}

/// Returns the words of a server that ends streams at the start, if they explain it.
pub(crate) async fn of_stream<S: Into<RedisStream>>(
    opening: impl Future<Output = io::Result<S>>,
) -> Option<RedisError> {
    let listen = async {
        let stream: RedisStream = opening.await?.into();
        first_line(stream.stream).await
    };
    let line = timeout(SPEAKS, listen).await.ok()?.ok()?;
    line.problem(Some("open the stream with TLS")).map(ended)
}

fn ended(problem: String) -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionAborted, problem).into()
}

async fn listen(server: &ConnectionAddr) -> io::Result<FirstLine> {
    match server {
        Tcp(host, port) | TcpTls { host, port, .. } => {
            first_line(TcpStream::connect((host.as_str(), *port)).await?).await
        }
        #[cfg(unix)]
        Unix(path) => first_line(UnixStream::connect(path).await?).await,
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn first_line(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<FirstLine> {
    let mut bytes = [0; MAX_LINE];
    let unasked = timeout(UNASKED, stream.read(&mut bytes)).await;
    let asked = unasked.is_err();
    let read = match unasked {
        Ok(read) => read,
        Err(_) => {
            stream.write_all(b"PING\r\n").await?;
            stream.read(&mut bytes).await
        }
    };
    // A reset is an end without a word.
    let bytes = bytes[..read.unwrap_or(0)].to_vec();
    Ok(FirstLine { bytes, asked })
}
