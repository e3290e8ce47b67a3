use redis::cmd;

use super::{Cluster, PATIENCE, Server, eventually};

/// A hash slot that moves from one node to another. Until it has arrived, the old node answers for the
/// keys that it still has, and redirects others to the new node (`ASK`).
#[derive(Debug)]
pub(crate) struct Migration<'a> {
    cluster: &'a Cluster,
    hash_slot: u16,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Cluster {
    /// Moves a hash slot to the master with index `to`, with its keys, and waits until all nodes know
    /// it.
    pub(crate) async fn migrate_hash_slot(&self, hash_slot: u16, to: usize) {
        let migration = self.begin_migration(hash_slot, to).await;
        migration.move_keys().await;
        migration.finish().await;
    }

    /// Marks a hash slot as moving to the master with index `to`, without moving keys.
    pub(crate) async fn begin_migration(&self, hash_slot: u16, to: usize) -> Migration<'_> {
        let from = self.master_of_hash_slot(hash_slot).await;
        let migration = Migration { cluster: self, hash_slot, from, to };
        let (from, to) = (migration.source(), migration.target());
        let (source, target) = (Self::id(from).await, Self::id(to).await);
        let () = to.command(&format!("CLUSTER SETSLOT {hash_slot} IMPORTING {source}")).await;
        let () = from.command(&format!("CLUSTER SETSLOT {hash_slot} MIGRATING {target}")).await;
        migration
    }

    async fn id(node: &Server) -> String {
        node.command("CLUSTER MYID").await
    }
}

impl Migration<'_> {
    fn source(&self) -> &Server {
        &self.cluster.nodes()[self.from]
    }

    fn target(&self) -> &Server {
        &self.cluster.nodes()[self.to]
    }

    /// Moves the present keys. Returns their number.
    pub(crate) async fn move_keys(&self) -> usize {
        let words = format!("CLUSTER GETKEYSINSLOT {} 100000", self.hash_slot);
        let keys: Vec<Vec<u8>> = self.source().command(&words).await;
        if keys.is_empty() {
            return 0;
        }
        let mut migrate = cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.target().port()).arg("").arg(0);
        migrate.arg(u64::try_from(PATIENCE.as_millis()).expect("fits")).arg("KEYS").arg(&keys);
        let () = self.source().run(&migrate).await.expect("the keys move");
        keys.len()
    }

    /// Makes the new node the master of the hash slot, and waits until all nodes know it. The old node must
    /// have no keys left.
    pub(crate) async fn finish(self) {
        let id = Cluster::id(self.target()).await;
        for node in [self.target(), self.source()] {
            let () = node.command(&format!("CLUSTER SETSLOT {} NODE {id}", self.hash_slot)).await;
        }
        let moved = async || {
            let view = self.source().view().await?;
            let there = view.owners[usize::from(self.hash_slot)] == self.target().port();
            there.then_some(())
        };
        eventually("the hash slot arrives", moved).await;
        self.cluster.healthy().await;
    }
}
