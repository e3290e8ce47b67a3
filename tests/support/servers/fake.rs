use std::{
    collections::VecDeque,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use super::words::{Words, name, next_command};

/// The reaction of a [`FakeServer`] to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Sends these bytes, valid or not.
    Bytes(Vec<u8>),
    /// Sends these bytes as half a reply, and closes the connection.
    Close(Vec<u8>),
    /// Sends nothing.
    Silence,
}

impl<B: AsRef<[u8]>> From<B> for Reply {
    fn from(bytes: B) -> Self {
        Self::Bytes(bytes.as_ref().to_vec())
    }
}

type Script = Box<dyn FnMut(&[Vec<u8>]) -> Reply + Send>;

/// Returns the valid reply to a command by which clients set up a connection.
pub(crate) fn handshake(words: &[Vec<u8>]) -> Option<Reply> {
    let reply = match name(words).as_str() {
        "HELLO" if words.get(1).is_some_and(|version| version == b"3") => {
            "%3\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:3\r\n"
        }
        "HELLO" => "*6\r\n+server\r\n+redis\r\n+version\r\n+7.0.15\r\n+proto\r\n:2\r\n",
        "AUTH" | "CLIENT" | "READONLY" | "SELECT" => "+OK\r\n",
        "PING" => "+PONG\r\n",
        _ => return None,
    };
    Some(reply.into())
}

/// A server that sends given bytes, in the protocol of Redis or not.
#[derive(Debug)]
pub(crate) struct FakeServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    accepting: JoinHandle<()>,
}

struct State {
    script: Script,
    asked: Vec<Words>,
    accepted: usize,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl FakeServer {
    /// Starts a server that lets clients connect and gives this reply to every other command.
    pub(crate) async fn answering(reply: impl Into<Reply>) -> Self {
        let reply = reply.into();
        Self::start(move |_| reply.clone()).await
    }

    /// Starts a server that lets clients connect and calls `script` for every other command.
    pub(crate) async fn start(
        mut script: impl FnMut(&[Vec<u8>]) -> Reply + Send + 'static,
    ) -> Self {
        Self::raw(move |words| handshake(words).unwrap_or_else(|| script(words))).await
    }

    /// Starts a server that calls `script` for all commands.
    pub(crate) async fn raw(script: impl FnMut(&[Vec<u8>]) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State { script: Box::new(script), asked: Vec::new(), accepted: 0 };
        let state = Arc::new(Mutex::new(state));
        let accepting = tokio::spawn(accept(listener, state.clone()));
        Self { address, state, accepting }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in a script")
    }

    /// Sets the reply to every command that does not belong to the connection setup.
    pub(crate) fn answer(&self, reply: impl Into<Reply>) {
        let reply = reply.into();
        self.state().script =
            Box::new(move |words| handshake(words).unwrap_or_else(|| reply.clone()));
    }

    /// Returns all commands received, including those of the connection setup.
    pub(crate) fn asked(&self) -> Vec<Words> {
        self.state().asked.clone()
    }

    /// Returns the number of connections so far.
    pub(crate) fn accepted(&self) -> usize {
        self.state().accepted
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Ends the connections.
async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut links = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        state.lock().expect("no panic in a script").accepted += 1;
        links.spawn(serve(client, state.clone()));
        while links.try_join_next().is_some() {}
    }
}

async fn serve(mut client: TcpStream, state: Arc<Mutex<State>>) -> io::Result<()> {
    let mut bytes = VecDeque::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        while let Some(words) = next_command(&mut bytes) {
            let reply = {
                let mut state = state.lock().expect("no panic in a script");
                let reply = (state.script)(&words);
                state.asked.push(words);
                reply
            };
            match reply {
                Reply::Bytes(bytes) => client.write_all(&bytes).await?,
                Reply::Close(bytes) => {
                    client.write_all(&bytes).await?;
                    return client.shutdown().await;
                }
                Reply::Silence => {}
            }
        }
        let count = client.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        bytes.extend(&chunk[..count]);
    }
}
