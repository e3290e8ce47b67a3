use std::{fs, time::Duration};

use tokio::time::timeout;

use super::{
    Flavour, Server, eventually, identity, insist,
    port::BUS,
    view::{HASH_SLOTS, View},
};

const MASTERS: usize = 3;
/// The time after which a silent node counts as frozen.
const MOMENT: Duration = Duration::from_secs(1);

/// Three masters, nodes 0 to 2, with a third of the hash slots each, and a replica of each, nodes 3 to
/// 5.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster that accepts writes to all hash slots and whose replicas are in sync.
    pub(crate) async fn start(flavour: Flavour) -> Self {
        Self::start_with(flavour, &[]).await
    }

    /// Starts a cluster whose nodes have more arguments.
    pub(crate) async fn start_with(flavour: Flavour, args: &[&str]) -> Self {
        insist(async || {
            let mut cluster = Self::new(flavour, args);
            cluster.nodes.iter_mut().for_each(Server::launch);
            for node in &mut cluster.nodes {
                node.ready().await?;
            }
            cluster.healthy().await;
            Ok(cluster)
        })
        .await
    }

    fn new(flavour: Flavour, args: &[&str]) -> Self {
        let ours = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let gaps = ["--cluster-require-full-coverage", "no"];
        let args = [&ours[..], &gaps, args].concat();
        let nodes: Vec<_> = (0..2 * MASTERS).map(|_| Server::new(flavour, &args)).collect();
        let ids: Vec<_> = nodes.iter().map(|_| identity()).collect();
        for (at, node) in nodes.iter().enumerate() {
            let text = Self::table(at, &nodes, &ids);
            fs::write(node.file("nodes.conf"), text).expect("a file");
        }
        Self { nodes }
    }

    /// Returns the file in which the node `me` keeps its view of the others. Without it the nodes
    /// would need seconds to meet.
    fn table(me: usize, nodes: &[Server], ids: &[String]) -> String {
        let line = |(at, node): (usize, &Server)| {
            let (id, port, epoch) = (&ids[at], node.port(), at % MASTERS + 1);
            let myself = if at == me { "myself," } else { "" };
            let (role, master, hash_slots) = if at < MASTERS {
                let share = |n: usize| usize::from(HASH_SLOTS) * n / MASTERS;
                ("master", "-", format!(" {}-{}", share(at), share(at + 1) - 1))
            } else {
                ("slave", ids[at - MASTERS].as_str(), String::new())
            };
            let address = format!("127.0.0.1:{port}@{}", port + BUS);
            format!("{id} {address} {myself}{role} {master} 0 0 {epoch} connected{hash_slots}\n")
        };
        let lines: String = nodes.iter().enumerate().map(line).collect();
        format!("{lines}vars currentEpoch {MASTERS} lastVoteEpoch 0\n")
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    pub(crate) fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    pub(crate) fn node_mut(&mut self, at: usize) -> &mut Server {
        &mut self.nodes[at]
    }

    /// Returns the index of the node on `port`.
    fn place(&self, port: u16) -> usize {
        self.nodes.iter().position(|node| node.port() == port).expect("a node of this cluster")
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.runs())
    }

    /// Returns the views of all nodes that run and are not frozen.
    async fn views(&self) -> Vec<View> {
        let mut views = Vec::new();
        for node in self.running() {
            views.extend(timeout(MOMENT, node.view()).await.ok().flatten());
        }
        views
    }

    /// Returns the hash slot of a key.
    pub(crate) async fn hash_slot_of(&self, key: &str) -> u16 {
        let words = format!("CLUSTER KEYSLOT {key}");
        let look = async || {
            for node in self.running() {
                if let Ok(Ok(hash_slot)) = timeout(MOMENT, node.attempt(&words)).await {
                    return Some(hash_slot);
                }
            }
            None
        };
        eventually("a node that answers", look).await
    }

    /// Returns the index of the node that reports to serve this hash slot, once there is one.
    pub(crate) async fn master_of_hash_slot(&self, hash_slot: u16) -> usize {
        let look = async || {
            let views = self.views().await.into_iter().filter(|view| view.serves(hash_slot));
            views.max_by_key(|view| view.epoch).map(|view| self.place(view.port))
        };
        eventually("a master of the hash slot", look).await
    }

    /// Returns the index of the master of this key, once there is one.
    pub(crate) async fn master_of(&self, key: &str) -> usize {
        self.master_of_hash_slot(self.hash_slot_of(key).await).await
    }

    /// Returns the index of a replica of this key, once there is one.
    pub(crate) async fn replica_of(&self, key: &str) -> usize {
        let master = self.nodes[self.master_of(key).await].port();
        let look = async || {
            let views = self.views().await;
            let replica = views.iter().find(|view| view.master == Some(master))?;
            Some(self.place(replica.port))
        };
        eventually("a replica of the key", look).await
    }

    /// Kills the master of this key. Returns its index.
    pub(crate) async fn kill_master_of(&mut self, key: &str) -> usize {
        let at = self.master_of(key).await;
        self.nodes[at].kill();
        at
    }

    /// Promotes a replica of this key without a loss, and waits until all nodes know it. Returns
    /// its index.
    pub(crate) async fn failover(&self, key: &str) -> usize {
        let hash_slot = self.hash_slot_of(key).await;
        let replica = self.replica_of(key).await;
        let node = &self.nodes[replica];
        let promoted = async || {
            // A replica gives up a failover that takes more than 5 s.
            let () = node.attempt("CLUSTER FAILOVER").await.ok()?;
            let look = async || node.view().await?.serves(hash_slot).then_some(());
            timeout(Duration::from_secs(6), eventually("a promotion", look)).await.ok()
        };
        eventually("a failover", promoted).await;
        self.healthy().await;
        replica
    }

    /// Waits until all running nodes agree on the owners of hash slots, all hash slots are served by running
    /// nodes, and their replicas are in sync.
    pub(crate) async fn healthy(&self) {
        let look = async || self.is_healthy().await.then_some(());
        eventually("a healthy cluster", look).await;
    }

    async fn is_healthy(&self) -> bool {
        let views = self.views().await;
        let Some(first) = views.first() else { return false };
        let agreed = views.iter().all(|view| view.owners == first.owners);
        let served = |port: &u16| views.iter().any(|v| v.port == *port && v.master.is_none());
        if views.len() != self.running().count() || !agreed || !first.owners.iter().all(served) {
            return false;
        }
        for (node, view) in self.running().zip(&views) {
            let info = node.attempt::<String>("CLUSTER INFO").await.unwrap_or_default();
            let in_step = view.master.is_none() || node.follows().await;
            if !info.contains("cluster_state:ok") || !in_step {
                return false;
            }
        }
        true
    }
}

impl Drop for Cluster {
    /// Kills all nodes together, because the port of one may soon belong to a new cluster.
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(Server::kill);
    }
}
