//! The store follows the master that sentinels name.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tower_sluice::{Quota, RedisStore, store::RedisErrorKind as Kind};

use crate::{
    accounts::{Account, on_sentinels},
    servers::{Flavour, PATIENCE, Sentinels, eventually},
};

const SECOND: Duration = Duration::from_secs(1);
/// The delay that a machine with other work may add. It is small enough to detect a missing bound.
const SLACK: Duration = Duration::from_secs(4);

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
        let (killed, mut longest) = (Instant::now(), Duration::ZERO);
        let well = async || {
            let asked = Instant::now();
            let answer = timeout(PATIENCE, account.take(&store, 0)).await.expect("in time");
            longest = longest.max(asked.elapsed());
            answer.ok()
        };
        let look = eventually("the new master", well).await;
        println!("{flavour:?}: back {:?} after the death of the master", killed.elapsed());
        sentinels.sentinels()[0].cont();
        let second = sentinels.master().await;
        assert_ne!(first, second);
        assert!(longest < SECOND + SLACK, "no decision hangs: {longest:?}");
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
