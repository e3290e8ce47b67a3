//! A proxy that counts connections and can be switched to another server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::{log::now, stack::Door};

#[derive(Debug)]
pub(crate) struct Turnstile {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    counts: Arc<Mutex<Counts>>,
    accepting: JoinHandle<()>,
}

/// The connections through a turnstile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: Vec<Duration>,
    open: usize,
    /// The most connections at the same time.
    pub(crate) peak: usize,
}

impl Turnstile {
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (target, counts) = (watch::Sender::new(target), Arc::default());
        let accepting = tokio::spawn(accept(listener, target.clone(), Arc::clone(&counts)));
        Self { address, target, counts, accepting }
    }

    pub(crate) fn door(&self) -> Door {
        Door::Server(self.url())
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Ends the current connections. New ones lead to `target`.
    pub(crate) fn turn(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().expect("no panic here").clone()
    }
}

impl Drop for Turnstile {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Ends the connections.
async fn accept(
    listener: TcpListener,
    target: watch::Sender<SocketAddr>,
    counts: Arc<Mutex<Counts>>,
) {
    let mut links = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let mut target = target.subscribe();
        {
            let mut counts = counts.lock().expect("no panic here");
            counts.accepted.push(now());
            counts.open += 1;
            counts.peak = counts.peak.max(counts.open);
        }
        let counts = counts.clone();
        links.spawn(async move {
            let address = *target.borrow_and_update();
            tokio::select! {
                _ = target.changed() => {}
                () = forward(client, address) => {}
            }
            counts.lock().expect("no panic here").open -= 1;
        });
        while links.try_join_next().is_some() {}
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(target).await {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
