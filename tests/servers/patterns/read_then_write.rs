//! A token bucket that is computed in the application, with and without a lock.

use tower_sluice::Algorithm;

use super::{CLIENTS, Client, LIMIT, Server, rush, rush_ours};

/// The current time in seconds. One token returns each second.
const NOW: u64 = 1_700_000_000;

/// Returns the tokens at `NOW`.
async fn read(client: &mut Client) -> u64 {
    let (tokens, last): (Option<u64>, Option<u64>) = client.say("HMGET bucket tokens last").await;
    let full = u64::from(LIMIT);
    tokens.zip(last).map_or(full, |(tokens, last)| full.min(tokens + (NOW - last)))
}

async fn write(client: &mut Client, tokens: u64) {
    let _: u32 = client.say(&format!("HSET bucket tokens {tokens} last {NOW}")).await;
}

async fn limit(client: &mut Client) -> bool {
    let tokens = read(client).await;
    if tokens > 0 {
        write(client, tokens - 1).await;
    }
    tokens > 0
}

#[tokio::test]
async fn one_of_two_writes_is_lost() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    let (seen_by_a, seen_by_b) = (read(&mut a).await, read(&mut b).await);
    write(&mut a, seen_by_a - 1).await;
    write(&mut b, seen_by_b - 1).await;
    // Two requests have passed.
    assert_eq!(read(&mut a).await, u64::from(LIMIT) - 1);
}

#[tokio::test]
async fn concurrent_requests_cost_one_token_and_ours_one_unit_each() {
    let server = Server::redis().await;
    for round in 1..=3 {
        let clients = Client::many(&server, CLIENTS).await;
        let asking = clients.into_iter().map(async |mut client| limit(&mut client).await);
        assert_eq!(rush(&server, asking).await, CLIENTS);
        let mut look = Client::new(&server).await;
        assert_eq!(read(&mut look).await, u64::from(LIMIT) - round);
    }

    assert_eq!(rush_ours(&server, Algorithm::Gcra).await, LIMIT);
    let other = Server::redis().await;
    assert_eq!(rush_ours(&other, Algorithm::TokenBucket).await, LIMIT);
}

/// `SET lock <name> NX PX <time>`, with a holder that is paused for longer than that time.
#[tokio::test]
async fn a_lock_that_expires_early_loses_a_write() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    let lock = async |client: &mut Client, name: &str| -> Option<String> {
        client.say(&format!("SET lock {name} NX PX 60000")).await
    };
    assert!(lock(&mut a, "a").await.is_some());
    assert!(lock(&mut b, "b").await.is_none(), "a lock holds until it expires");
    let seen_by_a = read(&mut a).await;
    // The lock expires while `a` is paused.
    let _: u32 = b.say("PEXPIRE lock 0").await;
    assert!(lock(&mut b, "b").await.is_some());
    let seen_by_b = read(&mut b).await;
    write(&mut b, seen_by_b - 1).await;
    write(&mut a, seen_by_a - 1).await;
    assert_eq!(read(&mut a).await, u64::from(LIMIT) - 1, "two have passed");
}
