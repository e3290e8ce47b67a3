//! The network between processes and the servers: streams with delay, partitions and resets.
//!
//! A stream is reliable, as TCP is: a lost packet is a delay, and a partition holds all bytes back
//! until it ends.

use std::{
    future::pending,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

use super::{lock, server::Server, slots, story::Story};
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

/// A path and its open connections.
pub struct Wire {
    path: watch::Sender<Path>,
    connections: Mutex<Vec<AbortHandle>>,
    random: Mutex<Random>,
    story: Arc<Story>,
    /// The process.
    name: String,
}

impl Wire {
    pub fn new(story: Arc<Story>, name: String, delay: (u64, u64), random: Random) -> Arc<Self> {
        let path = watch::Sender::new(Path {
            up: true,
            down: true,
            repeats: false,
            silent_before: None,
            delay,
        });
        let (connections, random) = (Mutex::default(), Mutex::new(random));
        Arc::new(Self { path, connections, random, story, name })
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
    pub async fn connect(self: &Arc<Self>, server: &Arc<Server>) -> io::Result<DuplexStream> {
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
        let task = tokio::spawn(serve(self.clone(), server.clone(), far));
        lock(&self.connections).retain(|task| !task.is_finished());
        lock(&self.connections).push(task.abort_handle());
        server.connected(task.abort_handle());
        Ok(near)
    }
}

/// Serves a connection until one side ends it.
async fn serve(wire: Arc<Wire>, server: Arc<Server>, stream: DuplexStream) {
    let (reader, writer) = split(stream);
    let (to_node, requests) = mpsc::unbounded_channel();
    let (to_client, replies) = mpsc::unbounded_channel();
    // A dropped set aborts its tasks, so that nothing outlives the connection.
    let mut tasks = JoinSet::new();
    tasks.spawn(read(wire.clone(), reader, to_node));
    tasks.spawn(run(wire.clone(), server, requests, to_client));
    tasks.spawn(write(wire, writer, replies));
    drop(tasks.join_next().await);
}

type Sent<T> = (Instant, T);

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
    replies: mpsc::UnboundedSender<Sent<Vec<u8>>>,
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
                let (keys, all) = (slots::keys(&request).len(), request.len().saturating_sub(3));
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
        if replies.send((last, bytes)).is_err() {
            return;
        }
    }
}

async fn write(
    wire: Arc<Wire>,
    mut writer: WriteHalf<DuplexStream>,
    mut replies: mpsc::UnboundedReceiver<Sent<Vec<u8>>>,
) {
    let opened = Instant::now();
    while let Some((arrives, bytes)) = replies.recv().await {
        sleep_until(arrives).await;
        wire.open(opened, |path| path.down).await;
        if writer.write_all(&bytes).await.is_err() {
            return;
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
        let wire = Wire::new(story, "p0".into(), (2_000, 2_000), Random::new(0));
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
