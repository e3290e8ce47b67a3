//! The real client of a process, which connects to the simulated servers.

use std::{io, sync::Arc, time::Duration};

use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult, aio::MultiplexedConnection};
use tower_sluice::RedisStore;

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
    /// Opens a connection, whose task pauses and ends with the process.
    async fn connect(&self, server: &Arc<Server>) -> RedisResult<MultiplexedConnection> {
        let opened = async {
            let stream = self.wire.connect(server).await?;
            let info = RedisConnectionInfo::default();
            let protocol = redis::ProtocolVersion::RESP3;
            let info = if self.resp3 { info.set_protocol(protocol) } else { info };
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(Duration::from_secs(1)))
                .set_response_timeout(Some(Duration::from_secs(1)));
            let opened = MultiplexedConnection::new_with_config(&info, stream, config).await?;
            let life = self.life.clone();
            tokio::spawn(async move { life.run(opened.1).await });
            Ok(opened.0)
        };
        let dead = || Err(io::Error::other("the process is dead").into());
        self.life.run(opened).await.unwrap_or_else(dead)
    }

    /// Returns the store of the process with its wrappers.
    pub fn store(self, wrappers: &Wrappers, processes: u32) -> Shared {
        let (wire, clock) = (self.wire.clone(), self.nodes.process_clock.clone());
        if self.nodes.kind == Kind::Cluster {
            let connect = move |_, port: u16| {
                let client = self.clone();
                async move { client.connect(client.nodes.server(port.into())).await }
            };
            // The seeds: a primary, and a replica of another.
            let seeds = [("node0", 0), ("node3", 3)];
            let store = RedisStore::cluster_from_connector(&seeds, connect);
            let store = if wrappers.hash_tag { store.hash_tag_by_key() } else { store };
            let store = store.coalesce(wrappers.coalesce).lazy().expect("seeds");
            return wrap(store.with_process_clock(clock), wrappers, processes, &wire);
        }
        // A sentinel reports the primary when a connection is opened. As the library does by `ROLE`,
        // the client rejects a server that knows of another primary.
        let store = RedisStore::from_connector(move || {
            let client = self.clone();
            async move {
                let server = client.nodes.reported();
                let opened = client.connect(server).await?;
                let is_replica = server.change(|node| node.is_read_only());
                if is_replica { Err(io::Error::other("a replica").into()) } else { Ok(opened) }
            }
        });
        let store = store.coalesce(wrappers.coalesce).lazy().expect("a store");
        wrap(store.with_process_clock(clock), wrappers, processes, &wire)
    }
}
