//! The real client of a process, which connects to the simulated servers.

use std::{io, sync::Arc};

use redis::{ProtocolVersion, RedisConnectionInfo};
use tower_sluice::{
    RedisStore,
    store::{BoxFuture, RedisStream},
};

use super::{
    deployment::{Deployment, Kind},
    network::Wire,
    process::Life,
    server::Server,
    wrappers::{Shared, Wrappers, wrap},
};

/// The path of a process to all servers.
#[derive(Clone)]
pub struct Client {
    pub wire: Arc<Wire>,
    pub nodes: Arc<Deployment>,
    pub life: Arc<Life>,
    pub resp3: bool,
}

impl Client {
    /// Opens a stream. The task of its connection pauses and ends with the process.
    async fn open(&self, server: &Arc<Server>) -> io::Result<RedisStream> {
        let dead = || Err(io::Error::other("the process is dead"));
        let stream = self.life.run(self.wire.connect(server)).await.unwrap_or_else(dead)?;
        let login = RedisConnectionInfo::default();
        let login = if self.resp3 { login.set_protocol(ProtocolVersion::RESP3) } else { login };
        let inbox = stream.inbox.clone();
        let life = self.life.clone();
        let spawn = move |task: BoxFuture<()>| {
            tokio::spawn(async move { life.run(task).await });
        };
        let stream = RedisStream::new(stream).with_login(login).with_spawn(spawn);
        Ok(stream.with_unread(move || inbox.has_unread()))
    }

    /// Returns the store of the process with its wrappers.
    pub fn store(self, wrappers: &Wrappers, processes: u32) -> Shared {
        let (wire, clock) = (self.wire.clone(), self.nodes.process_clock.clone());
        if self.nodes.kind == Kind::Cluster {
            let connect = move |_, port: u16| {
                let client = self.clone();
                async move { client.open(client.nodes.server(port.into())).await }
            };
            // The seeds: a primary, and a replica of another.
            let seeds = [("node0", 0), ("node3", 3)];
            let store = RedisStore::cluster_from_stream(&seeds, connect);
            let store = if wrappers.hash_tag { store.hash_tag_by_key() } else { store };
            let store = store.coalesce(wrappers.coalesce).lazy().expect("seeds");
            return wrap(store.with_process_clock(clock), wrappers, processes, &wire);
        }
        // A sentinel reports the primary when a connection is opened. As the library does by `ROLE`,
        // the client rejects a server that knows of another primary.
        let store = RedisStore::from_stream(move || {
            let client = self.clone();
            async move {
                let server = client.nodes.reported();
                let opened = client.open(server).await?;
                let is_replica = server.change(|node| node.is_read_only());
                if is_replica { Err(io::Error::other("a replica")) } else { Ok(opened) }
            }
        });
        let store = store.coalesce(wrappers.coalesce).lazy().expect("a store");
        wrap(store.with_process_clock(clock), wrappers, processes, &wire)
    }
}
