use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::Instant,
};

use super::{link::link, port::Port};

/// What a [`Proxy`] does to the connections that it has and to new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    Pass,
    /// Replies come so much later, each for itself.
    Delay(Duration),
    /// Accepts and forwards nothing. What was held back is forwarded afterwards, as TCP does when a
    /// network is back.
    BlackHole,
    /// Accepts, and resets all connections.
    Drop,
    /// Passes so many bytes of the next reply, closes its connection, and goes on as [`Mode::Pass`].
    Truncate(usize),
    /// Changes one byte in `one_in` of the replies, the same ones for the same seed and connection.
    Flip { seed: u64, one_in: u64 },
    /// Closes all connections and listens no more, as a server that has ended.
    Refuse,
}

/// A hop between clients and a server that fails as it is told.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: Port,
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<Mutex<Vec<Instant>>>,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy in front of `target` that passes everything.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let (mode, accepted) = (watch::Sender::new(Mode::Pass), Arc::default());
        let mut proxy = Self { port: Port::reserve(), target, mode, accepted, accepting: None };
        proxy.set(Mode::Pass).await;
        proxy
    }

    /// Where clients connect to.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.port.address()
    }

    /// When connections were accepted, in order: by any mode but [`Mode::Refuse`].
    pub(crate) fn accepted(&self) -> Vec<Instant> {
        self.accepted.lock().expect("no panic").clone()
    }

    /// From now on, this mode. New connections are refused, or accepted, when this returns.
    pub(crate) async fn set(&mut self, mode: Mode) {
        self.mode.send_replace(mode);
        match self.accepting.take() {
            Some(task) if mode == Mode::Refuse => {
                task.abort();
                let _ = task.await;
            }
            None if mode != Mode::Refuse => {
                let listener = TcpListener::bind(self.addr()).await.expect("our port");
                let (mode, accepted) = (self.mode.clone(), self.accepted.clone());
                self.accepting = Some(tokio::spawn(accept(listener, self.target, mode, accepted)));
            }
            unchanged => self.accepting = unchanged,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.iter().for_each(JoinHandle::abort);
    }
}

/// Its connections end with it.
async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<Mutex<Vec<Instant>>>,
) {
    let mut links = JoinSet::new();
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else { return };
        accepted.lock().expect("no panic").push(Instant::now());
        links.spawn(link(client, target, mode.clone(), number));
        while links.try_join_next().is_some() {}
    }
}
