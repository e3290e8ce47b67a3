//! The network between processes and the servers: streams with delay, partitions and resets.
//!
//! A stream is reliable, as TCP is: a lost packet is a delay, and a partition holds all bytes back
//! until it ends.

use std::{
    future::pending,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{
        AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf,
        WriteHalf, duplex, split,
    },
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{hash_slots, lock, server::Server, story::Story};
use crate::{
    node::{Reply, Request, Session, parse},
    random::Random,
};

/// The state of the path between one process and the node.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// `false` if requests are held back.
    pub up: bool,
    /// `false` if replies are held back.
    pub down: bool,
    /// `true` if each request arrives twice. The client receives the second reply.
    pub repeats: bool,
    /// Connections that were opened before deliver nothing more.
    pub silent_before: Option<Instant>,
    /// The least and the most delay in each direction, in microseconds.
    pub delay: (u64, u64),
}

/// Bytes that have arrived at a process on one connection, which its task has not read.
#[derive(Default)]
pub struct Inbox {
    bytes: AtomicUsize,
    has_ended: AtomicBool,
    /// The last reply to a script.
    replied: Mutex<Option<Instant>>,
}

impl Inbox {
    /// Returns `true` if bytes wait, or if the connection has ended.
    pub fn has_unread(&self) -> bool {
        self.bytes.load(Relaxed) > 0 || self.has_ended.load(Relaxed)
    }
}

/// Marks a connection as ended when it is dropped.
struct End(Arc<Inbox>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Relaxed);
    }
}

/// The end of a connection in a process.
pub struct Near {
    stream: DuplexStream,
    pub inbox: Arc<Inbox>,
}

impl AsyncRead for Near {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.inbox.bytes.fetch_sub(buffer.filled().len() - before, Relaxed);
        read
    }
}

impl AsyncWrite for Near {
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

/// A path and its open connections.
pub struct Wire {
    path: watch::Sender<Path>,
    connections: Mutex<Vec<AbortHandle>>,
    /// The inbox of the newest connection.
    newest: Mutex<Arc<Inbox>>,
    /// The last instant at which bytes arrived on any connection.
    arrived: Mutex<Option<Instant>>,
    random: Mutex<Random>,
    story: Arc<Story>,
    /// The process.
    name: String,
    /// `true` if all connections are to one server.
    one_server: bool,
}

impl Wire {
    pub fn new(
        story: Arc<Story>,
        name: String,
        delay: (u64, u64),
        random: Random,
        one_server: bool,
    ) -> Arc<Self> {
        let path = watch::Sender::new(Path {
            up: true,
            down: true,
            repeats: false,
            silent_before: None,
            delay,
        });
        let (connections, random) = (Mutex::default(), Mutex::new(random));
        let (newest, arrived) = (Mutex::default(), Mutex::default());
        Arc::new(Self { path, connections, newest, arrived, random, story, name, one_server })
    }

    /// Returns `true` if bytes have arrived at the process since an instant of the story.
    pub fn has_arrived_since(&self, start: Duration) -> bool {
        lock(&self.arrived).is_some_and(|at| self.story.at(at) > start)
    }

    /// Returns `true` if the server is certainly not silent: it answered a script on the newest
    /// connection less than `time` ago, or the answer waits unread.
    pub fn has_answer(&self, time: Duration) -> bool {
        let inbox = lock(&self.newest).clone();
        let is_fresh = lock(&inbox.replied).is_some_and(|at| at.elapsed() < time);
        self.one_server && !inbox.has_ended.load(Relaxed) && (is_fresh || inbox.has_unread())
    }

    /// Returns the story, and the name of the process in it.
    pub fn story(&self) -> (Arc<Story>, String) {
        (self.story.clone(), self.name.clone())
    }

    /// Changes the path.
    pub fn change(&self, change: impl FnOnce(&mut Path)) {
        self.path.send_modify(change);
    }

    /// Ends all connections, with the bytes that are on their way.
    pub fn cut(&self) {
        lock(&self.connections).drain(..).for_each(|task| task.abort());
    }

    fn delay(&self) -> Duration {
        let (least, most) = self.path.borrow().delay;
        Duration::from_micros(lock(&self.random).within(least..most + 1))
    }

    /// Waits until the path is open in one direction, or without end on a silent connection.
    async fn open(&self, opened: Instant, is_open: impl Fn(&Path) -> bool) {
        drop(self.path.subscribe().wait_for(|path| is_open(path)).await);
        if self.path.borrow().silent_before.is_some_and(|before| opened < before) {
            pending::<()>().await;
        }
    }

    /// Opens a connection, which takes a round trip.
    ///
    /// # Errors
    ///
    /// Fails if the node does not run.
    pub async fn connect(self: &Arc<Self>, server: &Arc<Server>) -> io::Result<Near> {
        sleep_until(Instant::now() + self.delay()).await;
        self.open(Instant::now(), |path| path.up).await;
        let runs = server.runs();
        sleep_until(Instant::now() + self.delay()).await;
        self.open(Instant::now(), |path| path.down).await;
        // A server that died during the second half of the round trip has reset the connection.
        let runs = runs && server.runs();
        let result = if runs { "connects to" } else { "fails to connect to" };
        self.story.record(&self.name, || format!("{result} server {}", server.index));
        if !runs {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = duplex(1 << 20);
        let inbox = Arc::<Inbox>::default();
        *lock(&self.newest) = inbox.clone();
        let end = End(inbox.clone());
        let task = tokio::spawn(serve(self.clone(), server.clone(), far, end));
        lock(&self.connections).retain(|task| !task.is_finished());
        lock(&self.connections).push(task.abort_handle());
        server.connected(task.abort_handle());
        Ok(Near { stream: near, inbox })
    }
}

/// Serves a connection until one side ends it.
async fn serve(wire: Arc<Wire>, server: Arc<Server>, stream: DuplexStream, end: End) {
    let (reader, writer) = split(stream);
    let (to_node, requests) = mpsc::unbounded_channel();
    let (to_client, replies) = mpsc::unbounded_channel();
    // A dropped set aborts its tasks, so that nothing outlives the connection.
    let mut tasks = JoinSet::new();
    tasks.spawn(read(wire.clone(), reader, to_node));
    tasks.spawn(run(wire.clone(), server, requests, to_client));
    tasks.spawn(write(wire, writer, end.0.clone(), replies));
    drop(tasks.join_next().await);
}

type Sent<T> = (Instant, T);

/// A reply.
struct Answer {
    bytes: Vec<u8>,
    of_script: bool,
}

async fn read(
    wire: Arc<Wire>,
    mut reader: ReadHalf<DuplexStream>,
    requests: mpsc::UnboundedSender<Sent<Request>>,
) {
    let (mut buffer, mut last) = (Vec::new(), Instant::now());
    while let Ok(1..) = reader.read_buf(&mut buffer).await {
        while let Ok(Some(request)) = parse(&mut buffer) {
            last = last.max(Instant::now() + wire.delay());
            if requests.send((last, request)).is_err() {
                return;
            }
        }
    }
}

async fn run(
    wire: Arc<Wire>,
    server: Arc<Server>,
    mut requests: mpsc::UnboundedReceiver<Sent<Request>>,
    replies: mpsc::UnboundedSender<Sent<Answer>>,
) {
    let (mut session, mut last, opened) = (Session::default(), Instant::now(), Instant::now());
    while let Some((arrives, request)) = requests.recv().await {
        sleep_until(arrives).await;
        wire.open(opened, |path| path.up).await;
        if wire.path.borrow().repeats {
            server.run(&mut session, &request).await;
        }
        let reply = server.run(&mut session, &request).await;
        if request[0].starts_with(b"EVAL") {
            wire.story.record(&wire.name, || {
                let keys = hash_slots::keys(&request).len();
                let all = request.len().saturating_sub(3);
                let (at, values) = (server.clock(), all - keys.min(all));
                let index = server.index;
                format!("server {index} ran a script at {at:?}: {keys} keys, {values} values")
            });
        }
        if let Reply::Error(text) = &reply {
            wire.story.record(&wire.name, || format!("server {} replies {text}", server.index));
        }
        let mut bytes = Vec::new();
        reply.encode(session.resp3, &mut bytes);
        last = last.max(Instant::now() + wire.delay());
        let of_script = request[0].starts_with(b"EVAL");
        if replies.send((last, Answer { bytes, of_script })).is_err() {
            return;
        }
    }
}

async fn write(
    wire: Arc<Wire>,
    mut writer: WriteHalf<DuplexStream>,
    inbox: Arc<Inbox>,
    mut replies: mpsc::UnboundedReceiver<Sent<Answer>>,
) {
    let opened = Instant::now();
    while let Some((arrives, answer)) = replies.recv().await {
        sleep_until(arrives).await;
        wire.open(opened, |path| path.down).await;
        let now = Some(Instant::now());
        inbox.bytes.fetch_add(answer.bytes.len(), Relaxed);
        if writer.write_all(&answer.bytes).await.is_err() {
            return;
        }
        *lock(&wire.arrived) = now;
        if answer.of_script {
            *lock(&inbox.replied) = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{join, time::sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_dies_while_a_connection_opens_fails_it() {
        let story = Arc::new(Story::new(false));
        let wire = Wire::new(story, "p0".into(), (2_000, 2_000), Random::new(0), true);
        let server = Server::new(0, 0, None);
        assert!(wire.connect(&server).await.is_ok());
        for dies_after in [1, 3] {
            let dies = async {
                sleep(Duration::from_millis(dies_after)).await;
                server.kill(false);
            };
            let (opened, ()) = join!(wire.connect(&server), dies);
            let error = opened.err().map(|error| error.kind());
            assert_eq!(error, Some(io::ErrorKind::ConnectionRefused), "{dies_after} ms");
            server.start();
        }
    }
}
