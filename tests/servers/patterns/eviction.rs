//! Memory that is bounded by evicting the least recently used key.
//!
//! A client that can create keys can then evict any account, including its own.

use redis::{Script, pipe};
use tower_sluice::{Limiter, LocalStore, Quota, store::RedisErrorKind};

use super::{Account, Client, LIMIT, LONG, Server, connect, ten_per};

/// Memory for some thousand keys.
const ROOM: u64 = 1 << 20;

/// Starts a server with [`ROOM`] bytes more than it needs by itself.
async fn small(policy: &str) -> Server {
    let server = Server::redis().await;
    let used = server.info("memory", "used_memory").await.expect("a size");
    let most = used.trim().parse::<u64>().expect("a number") + ROOM;
    for (name, value) in [
        ("maxmemory-policy", policy),
        ("maxmemory-samples", "10"),
        ("maxmemory", &most.to_string()),
    ] {
        let () = server.command(&format!("CONFIG SET {name} {value}")).await;
    }
    server
}

/// The counter of `counter.rs`, corrected by the published script.
async fn limit(client: &mut Client, key: &str) -> bool {
    let script = Script::new(
        "local current = redis.call('INCR', KEYS[1])
         if current == 1 then redis.call('EXPIRE', KEYS[1], 10000) end
         return current",
    );
    script.key(key).invoke_async::<u32>(&mut client.0).await.expect("a count") <= LIMIT
}

/// Counts a thousand other names once each.
async fn flood(client: &mut Client, round: u32) {
    let mut names = pipe();
    for name in 0..1_000 {
        names.cmd("SET").arg(format!("login:{round}-{name}")).arg(1).arg("EX").arg(10_000).ignore();
    }
    names.query_async::<()>(&mut client.0).await.expect("they are counted");
}

#[tokio::test]
async fn a_flood_evicts_the_least_recently_used_account() {
    let server = small("allkeys-lru").await;
    let mut client = Client::new(&server).await;
    let (mut guesses, mut rounds) = (0, 0);
    for _ in 0..3 {
        while limit(&mut client, "login:alice").await {
            guesses += 1;
        }
        // `EXISTS` does not count as a use of the key.
        while client.say::<bool>("EXISTS login:alice").await {
            flood(&mut client, rounds).await;
            rounds += 1;
            assert!(rounds < 1_000, "a million names, and alice is still stored");
        }
    }
    assert_eq!(guesses, 3 * LIMIT, "ten for each flood");
}

#[tokio::test]
async fn our_embedded_store_evicts_no_debt() {
    let limiter = Limiter::named("default", LocalStore::with_capacity(1_024));
    let quota = Quota::new(LIMIT, LONG).expect("a quota");
    for _ in 0..LIMIT {
        assert!(limiter.take("alice", &quota, 1).now().is_allowed());
    }
    for key in 0..200_000_u32 {
        drop(limiter.take(key, &quota, 1).now());
    }
    assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
}

#[tokio::test]
async fn our_redis_store_without_eviction_keeps_every_account() {
    let server = small("noeviction").await;
    let store = connect(&server.url()).await;
    let alice = Account::new("alice", ten_per(LONG));
    assert_eq!(alice.passed(&store, LIMIT + 1).await, LIMIT);
    let mut full = None;
    for key in 0..200_000_u32 {
        if let Err(error) = Account::new(key, ten_per(LONG)).take(&store, 1).await {
            full = Some(error.kind());
            break;
        }
    }
    // The store returns an error, and the wrapper around it decides about new keys.
    assert_eq!(full, Some(RedisErrorKind::Memory));
    assert!(!alice.passes(&store).await);
}
