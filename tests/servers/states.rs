//! Servers that cannot decide.
//!
//! The store returns an error of the right kind, and charges no account.

use tower_sluice::{
    Decision, Key, RedisStore, StoreExt,
    store::{Charge, RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{LONG, connect, lazy, quotas, rule},
    servers::{Flavour, Server, eventually},
};

/// Takes from an account of each algorithm at once.
async fn take(store: &RedisStore, cost: u32) -> Result<Decision, RedisError> {
    let (key, all) = (Key::from("a"), quotas(9, LONG).map(|(name, quota)| (rule(name), [quota])));
    let charges = all.iter().map(|(name, quota)| Charge::new(*name, &key, quota).with_cost(cost));
    let charges: Vec<_> = charges.collect();
    store.take(&charges).await
}

async fn left(store: &RedisStore) -> Vec<u32> {
    let look = async || take(store, 0).await.ok();
    let look = eventually("the server decides again", look).await;
    look.outcomes().iter().map(|outcome| outcome.remaining()).collect()
}

/// Brings a server into a state in which a take must fail with `kind`, and out of it.
async fn fails(flavour: Flavour, commands: [&[&str]; 2], kind: Kind) {
    let server = Server::start(flavour, &[]).await;
    let store = connect(&server.url()).await;
    assert!(take(&store, 2).await.expect("a decision").is_allowed());
    for command in commands[0] {
        let () = server.command(command).await;
    }
    for _ in 0..2 {
        let error = take(&store, 1).await.expect_err("the server cannot decide");
        assert_eq!(error.kind(), kind, "{flavour:?} {commands:?}: {error}");
    }
    for command in commands[1] {
        let () = server.command(command).await;
    }
    assert_eq!(left(&store).await, [7; 6], "{flavour:?} {commands:?}");
    assert!(take(&store, 7).await.expect("a decision").is_allowed());
}

#[tokio::test]
async fn out_of_memory() {
    for flavour in Flavour::ALL {
        let (full, free) = (["CONFIG SET maxmemory 1"], ["CONFIG SET maxmemory 0"]);
        fails(flavour, [&full, &free], Kind::Memory).await;
    }
}

#[tokio::test]
async fn too_few_replicas() {
    for flavour in Flavour::ALL {
        let (many, none) =
            (["CONFIG SET min-replicas-to-write 5"], ["CONFIG SET min-replicas-to-write 0"]);
        fails(flavour, [&many, &none], Kind::Replica).await;
    }
}

#[tokio::test]
async fn a_replica_with_and_without_its_master() {
    for flavour in Flavour::ALL {
        let (replica, master) = (["REPLICAOF 127.0.0.1 1"], ["REPLICAOF NO ONE"]);
        fails(flavour, [&replica, &master], Kind::Replica).await;
        let silent = ["CONFIG SET replica-serve-stale-data no", replica[0]];
        fails(flavour, [&silent, &master], Kind::Replica).await;
    }
}

#[tokio::test]
async fn busy_with_a_script() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &["--busy-reply-threshold", "1"]).await;
        let store = connect(&server.url()).await;
        assert!(take(&store, 2).await.expect("a decision").is_allowed());
        let mut forever = redis::cmd("EVAL");
        forever.arg("while true do end").arg(0);
        let busy = async {
            let busy = async || {
                let said = server.attempt::<String>("PING").await.err()?;
                (said.code() == Some("BUSY")).then_some(())
            };
            eventually("the server is busy", busy).await;
            let error = take(&store, 1).await.expect_err("the server is busy");
            assert_eq!(error.kind(), Kind::Busy, "{flavour:?}: {error}");
            let () = server.command("SCRIPT KILL").await;
        };
        let (killed, ()) = tokio::join!(server.run::<()>(&forever), busy);
        assert!(killed.is_err());
        assert_eq!(left(&store).await, [7; 6], "{flavour:?}");
    }
}

#[tokio::test]
async fn loading_its_data() {
    let slow = ["--key-load-delay", "2000", "--loading-process-events-interval-bytes", "1024"];
    let mut server = Server::start(Flavour::Redis, &slow).await;
    let store = connect(&server.url()).await;
    assert!(take(&store, 2).await.expect("a decision").is_allowed());
    let () = server.command("DEBUG POPULATE 500").await;
    let () = server.command("SAVE").await;
    server.kill();
    server.launch();
    let loading = async || {
        let error = take(&lazy(&server.url()), 1).await.err()?;
        (error.kind() == Kind::Busy).then_some(())
    };
    eventually("the server is loading", loading).await;
    server.ready().await.expect("it starts");
    assert_eq!(left(&store).await, [7; 6]);
}
