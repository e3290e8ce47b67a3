use std::{collections::HashMap, fs, net::SocketAddr, time::Duration};

use tokio::time::timeout;

use super::{Flavour, Server, eventually, identity, insist};

/// A master, its replica, and three sentinels, which promote the replica when two of them have had
/// no answer from the master for a second.
#[derive(Debug)]
pub(crate) struct Sentinels {
    sentinels: Vec<Server>,
    servers: Vec<Server>,
}

impl Sentinels {
    /// The name of the master for the sentinels.
    pub(crate) const NAME: &str = "mymaster";

    /// Starts sentinels that know each other and the servers, so that they can promote the replica.
    pub(crate) async fn start(flavour: Flavour) -> Self {
        insist(async || {
            let mut all = Self::new(flavour);
            for server in &mut all.servers {
                server.launch();
                server.ready().await?;
            }
            all.servers[1].replica_of(all.servers[0].address()).await;
            for sentinel in &mut all.sentinels {
                sentinel.launch();
                sentinel.ready().await?;
            }
            all.watchful().await;
            Ok(all)
        })
        .await
    }

    fn new(flavour: Flavour) -> Self {
        let servers: Vec<_> = (0..2).map(|_| Server::new(flavour, &[])).collect();
        let sentinels: Vec<_> = (0..3).map(|_| Server::sentinel(flavour)).collect();
        let ids: Vec<_> = sentinels.iter().map(|_| identity()).collect();
        let (name, at) = (Self::NAME, |s: &Server| format!("127.0.0.1 {}", s.port()));
        for (me, sentinel) in sentinels.iter().enumerate() {
            let mut text = format!("port {}\nbind 127.0.0.1\n", sentinel.port());
            text += &format!("sentinel monitor {name} {} 2\n", at(&servers[0]));
            text += &format!("sentinel down-after-milliseconds {name} 1000\n");
            // After a split vote, candidates retry after twice this time.
            text += &format!("sentinel failover-timeout {name} 3000\n");
            text += &format!("sentinel known-replica {name} {}\n", at(&servers[1]));
            text += &format!("sentinel myid {}\n", ids[me]);
            for other in (0..ids.len()).filter(|other| *other != me) {
                let (at, id) = (at(&sentinels[other]), &ids[other]);
                text += &format!("sentinel known-sentinel {name} {at} {id}\n");
            }
            fs::write(sentinel.file("sentinel.conf"), text).expect("a file");
        }
        Self { sentinels, servers }
    }

    /// Waits until each sentinel has reached the others and knows that the replica is in sync.
    async fn watchful(&self) {
        for sentinel in &self.sentinels {
            let look = async || {
                let quorum: String = sentinel.ask("CKQUORUM").await?;
                let replicas: Vec<HashMap<String, String>> = sentinel.ask("REPLICAS").await?;
                let link = replicas.first()?.get("master-link-status")?;
                (quorum.starts_with("OK 3 usable") && link == "ok").then_some(())
            };
            eventually("a sentinel knows all", look).await;
        }
    }

    /// Returns the URLs of the sentinels.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    pub(crate) fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    pub(crate) fn server_mut(&mut self, at: usize) -> &mut Server {
        &mut self.servers[at]
    }

    /// Returns the index of the running server that all sentinels name and that reports to be the
    /// master.
    pub(crate) async fn master(&self) -> usize {
        let look = async || timeout(Duration::from_secs(2), self.named()).await.ok()?;
        eventually("a master that all agree on", look).await
    }

    async fn named(&self) -> Option<usize> {
        let mut names = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.runs()) {
            names.push(sentinel.ask::<(String, u16)>("GET-MASTER-ADDR-BY-NAME").await?);
        }
        let (ip, port) = names.first()?;
        let address = SocketAddr::new(ip.parse().ok()?, *port);
        let at = self.servers.iter().position(|server| server.address() == address)?;
        let server = &self.servers[at];
        let agreed = names.windows(2).all(|pair| pair[0] == pair[1]) && server.runs();
        (agreed && server.info("replication", "role").await? == "master").then_some(at)
    }

    /// Kills the master. Returns its index.
    pub(crate) async fn kill_master(&mut self) -> usize {
        let at = self.master().await;
        self.servers[at].kill();
        at
    }
}

impl Server {
    /// Returns the answer of a sentinel about the master.
    async fn ask<T: redis::FromRedisValue>(&self, what: &str) -> Option<T> {
        self.attempt(&format!("SENTINEL {what} {}", Sentinels::NAME)).await.ok()
    }
}

impl Drop for Sentinels {
    /// Ends the sentinels with the servers, whose ports may soon belong to another test.
    fn drop(&mut self) {
        self.sentinels.iter_mut().for_each(Server::kill);
    }
}
