//! The clusters and sentinels that other tests use: replicas take over, and slots move.

use redis::{RedisResult, cluster::ClusterClient, sentinel};

use crate::servers::{Cluster, Flavour, Sentinels};

const KEY: &str = "a";

#[tokio::test]
async fn a_cluster_takes_keys_and_replaces_a_killed_master() {
    for flavour in Flavour::ALL {
        let mut cluster = Cluster::start(flavour).await;
        let client = ClusterClient::new(cluster.urls()).expect("URLs");
        let mut connection = client.get_async_connection().await.expect("connects");
        for key in ["a", "b", "c", "d"] {
            let set: RedisResult<String> =
                redis::cmd("SET").arg(key).arg(1).query_async(&mut connection).await;
            assert_eq!(set.expect("every slot takes writes"), "OK");
        }
        let replica = cluster.replica_of(KEY).await;
        let killed = cluster.kill_master_of(KEY).await;
        assert_eq!(killed + 3, replica);
        assert_eq!(cluster.master_of(KEY).await, replica, "{flavour:?}");
        cluster.healthy().await;
        assert_eq!(cluster.nodes()[replica].command::<u32>("GET a").await, 1);

        cluster.node_mut(killed).restart().await;
        cluster.healthy().await;
        assert_eq!(cluster.replica_of(KEY).await, killed, "the master returns as a replica");
    }
}

#[tokio::test]
async fn a_master_steps_down_on_request_and_when_frozen() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let before = cluster.master_of(KEY).await;
    let () = cluster.nodes()[before].command("SET a 1").await;
    let after = cluster.failover(KEY).await;
    assert_ne!(before, after);
    assert_eq!(cluster.master_of(KEY).await, after);
    assert_eq!(cluster.nodes()[after].command::<u32>("INCR a").await, 2);
    assert_eq!(cluster.replica_of(KEY).await, before);

    cluster.nodes()[after].stop();
    assert_eq!(cluster.master_of(KEY).await, before);
    cluster.nodes()[after].cont();
    cluster.healthy().await;
    assert_eq!(cluster.replica_of(KEY).await, after);
}

#[tokio::test]
async fn a_slot_moves_and_can_be_held_halfway() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour).await;
        let slot = cluster.slot_of(KEY).await;
        let from = cluster.master_of(KEY).await;
        let to = (from + 1) % 3;
        let [source, target] = [from, to].map(|at| &cluster.nodes()[at]);
        let () = source.command("SET a 1").await;

        let migration = cluster.begin_migration(slot, to).await;
        assert_eq!(source.command::<u32>("GET a").await, 1, "the key is still here");
        assert_eq!(migration.move_keys().await, 1);
        let code =
            |answer: RedisResult<u32>| answer.expect_err("elsewhere").code().map(str::to_owned);
        assert_eq!(code(source.attempt("GET a").await).as_deref(), Some("ASK"));
        assert_eq!(code(target.attempt("GET a").await).as_deref(), Some("MOVED"));
        migration.finish().await;
        assert_eq!(code(source.attempt("GET a").await).as_deref(), Some("MOVED"), "{flavour:?}");
        assert_eq!(target.command::<u32>("GET a").await, 1);

        cluster.migrate_slot(slot, from).await;
        assert_eq!(cluster.master_of(KEY).await, from);
        assert_eq!(source.command::<u32>("GET a").await, 1);
    }
}

#[tokio::test]
async fn sentinels_promote_the_replica_of_a_killed_master() {
    for flavour in Flavour::ALL {
        let mut sentinels = Sentinels::start(flavour).await;
        let () = sentinels.servers()[0].command("SET a 1").await;
        assert_eq!(sentinels.kill_master().await, 0);
        assert_eq!(sentinels.master().await, 1, "{flavour:?}");
        assert_eq!(sentinels.servers()[1].command::<u32>("INCR a").await, 2);

        let name: String = Sentinels::NAME.into();
        let mut client = sentinel::SentinelClient::build(
            sentinels.urls(),
            name,
            None,
            sentinel::SentinelServerType::Master,
        )
        .expect("URLs");
        let mut connection = client.get_async_connection().await.expect("a master");
        let value: RedisResult<u32> = redis::cmd("GET").arg("a").query_async(&mut connection).await;
        assert_eq!(value.expect("an answer"), 2);
    }
}
