use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use super::{link::link, port::Port};

/// The effect of a [`Proxy`] on its current and new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes everything.
    Pass,
    /// Delays each reply separately.
    Delay(Duration),
    /// Accepts connections and forwards nothing. Held bytes are forwarded afterwards, as TCP does
    /// when a network returns.
    BlackHole,
    /// Accepts and resets all connections.
    Drop,
    /// Passes a number of bytes of the next reply, closes its connection, and continues as
    /// [`Mode::Pass`].
    Truncate(usize),
    /// Changes one in `one_in` bytes of the replies, the same bytes for equal seeds and
    /// connections.
    Flip { seed: u64, one_in: u64 },
    /// Closes all connections and stops listening, like a server that has ended.
    Refuse,
}

/// A proxy between clients and a server, which fails on request.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: Port,
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `target` that passes everything.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let (mode, accepted) = (watch::Sender::new(Mode::Pass), Arc::default());
        let mut proxy = Self { port: Port::reserve(), target, mode, accepted, accepting: None };
        proxy.set(Mode::Pass).await;
        proxy
    }

    /// Returns the address for clients.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.port.address()
    }

    /// Returns the number of connections that were accepted, in any mode but [`Mode::Refuse`].
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Relaxed)
    }

    /// Sets the mode. When this returns, it applies to new connections.
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

/// Ends the connections.
async fn accept(
    listener: TcpListener,
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicUsize>,
) {
    let mut links = JoinSet::new();
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else { return };
        accepted.fetch_add(1, Relaxed);
        links.spawn(link(client, target, mode.clone(), number));
        while links.try_join_next().is_some() {}
    }
}
