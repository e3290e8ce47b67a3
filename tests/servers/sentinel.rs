//! The store follows the master that sentinels name.

use std::time::Duration;

use tokio::time::timeout;
use tower_sluice::{Quota, RedisStore, store::RedisErrorKind as Kind};

use crate::{
    accounts::{Account, on_sentinels},
    servers::{Flavour, Sentinels, eventually},
};

/// Ten times the limit of a call.
const AMPLE: Duration = Duration::from_secs(10);

async fn store(sentinels: &Sentinels) -> RedisStore {
    let store = on_sentinels(sentinels).await;
    store.unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn the_store_follows_a_failover() {
    let cases = [(Flavour::Redis, false), (Flavour::Valkey, false), (Flavour::Redis, true)];
    for (flavour, is_silent) in cases {
        let mut sentinels = Sentinels::start(flavour).await;
        let store = store(&sentinels).await;
        let account = Account::new("a", Quota::per_day(9));
        assert_eq!(account.passed(&store, 3).await, 3);
        let first = sentinels.master().await;
        let _ = sentinels.kill_master().await;
        if is_silent {
            // The first sentinel was on the machine of the master.
            sentinels.sentinels()[0].stop();
        }
        let well =
            async || timeout(AMPLE, account.take(&store, 0)).await.expect("no decision hangs").ok();
        let look = eventually("the new master", well).await;
        sentinels.sentinels()[0].cont();
        let second = sentinels.master().await;
        assert_ne!(first, second);
        // The charges have been replicated.
        assert_eq!(look.remaining(), Some(6));
        assert_eq!(account.passed(&store, 9).await, 6);

        // The old master returns as a replica, and the store does not use it.
        sentinels.server_mut(first).restart().await;
        assert_eq!(account.left(&store).await, 0);
    }
}

#[tokio::test]
async fn the_user_in_the_first_address_applies_to_the_master() {
    let sentinels = Sentinels::start(Flavour::Redis).await;
    let mut urls = sentinels.urls();
    urls[0] = urls[0].replace("redis://", "redis://app:hunter2@") + "/3";
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let everywhere = async |command: &str| {
        for server in sentinels.servers() {
            let () = server.command(command).await;
        }
    };
    everywhere("ACL SETUSER app on >hunter2").await;
    for urls in [&urls[..1], &urls] {
        let error = RedisStore::sentinel(urls, Sentinels::NAME).await.expect_err("no rights");
        let text = error.to_string();
        let start = text.find("ACL SETUSER <user> ").unwrap_or_else(|| panic!("{text}"));
        everywhere(&text[start..].replace("<user>", "app")).await;
        let store = RedisStore::sentinel(urls, Sentinels::NAME).await;
        let store = store.unwrap_or_else(|error| panic!("{error}"));
        assert!(Account::new("a", Quota::per_day(9)).passes(&store).await);
        everywhere("ACL SETUSER app -@all").await;
    }
    let master = &sentinels.servers()[sentinels.master().await];
    assert!(master.info("keyspace", "db3").await.is_some_and(|keys| keys.starts_with("keys=1")));
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_an_error() {
    let sentinels = Sentinels::start(Flavour::Redis).await;
    let urls = sentinels.urls();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let error = RedisStore::sentinel(&urls, "nobody").await.expect_err("no such master");
    assert_eq!(error.kind(), Kind::Disconnected, "{error}");
    println!("{error}");
}
