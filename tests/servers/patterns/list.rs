//! A list instead of a counter: Redis, `INCR`, the last variant of "Pattern: Rate limiter 2".

use tower_sluice::Algorithm;

use super::{CLIENTS, Client, LIMIT, Server, rush, rush_ours};

const PERIOD: u32 = 100;
const IP: &str = "192.0.2.1";

/// The published limiter begins with this check, and its `>`.
async fn check(client: &mut Client) -> bool {
    client.say::<u32>(&format!("LLEN {IP}")).await <= LIMIT
}

async fn exists(client: &mut Client) -> bool {
    client.say(&format!("EXISTS {IP}")).await
}

async fn create(client: &mut Client) -> u32 {
    let (push, expire) = (format!("RPUSH {IP} {IP}"), format!("EXPIRE {IP} {PERIOD}"));
    let (length, _): (u32, u32) = client.multi(&[&push, &expire]).await;
    length
}

/// Returns the length of the list afterwards: 0 if the list no longer exists, and the request was
/// not counted.
async fn push(client: &mut Client) -> u32 {
    client.say(&format!("RPUSHX {IP} {IP}")).await
}

async fn limit(client: &mut Client) -> bool {
    let passes = check(client).await;
    if passes && exists(client).await {
        push(client).await;
    } else if passes {
        create(client).await;
    }
    passes
}

#[tokio::test]
async fn sequential_requests_pass_eleven_times_at_a_limit_of_ten() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    let mut passed = 0;
    for _ in 0..CLIENTS {
        passed += u32::from(limit(&mut client).await);
    }
    assert_eq!(passed, LIMIT + 1);
}

#[tokio::test]
async fn requests_on_an_expiring_list_are_not_counted() {
    let server = Server::redis().await;
    let mut clients = Client::many(&server, CLIENTS).await;
    assert_eq!(create(&mut clients[0]).await, 1);
    for client in &mut clients {
        assert!(check(client).await && exists(client).await);
    }
    // The list expires.
    let _: u32 = clients[0].say(&format!("PEXPIRE {IP} 0")).await;
    for client in &mut clients {
        assert_eq!(push(client).await, 0);
    }
    // All requests have passed uncounted.
    assert!(!exists(&mut clients[0]).await);
    assert!(check(&mut clients[0]).await);
}

/// The race that the documentation mentions: no request is lost, but the period starts over.
#[tokio::test]
async fn creating_the_list_twice_extends_its_expiry() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    assert!(!exists(&mut a).await && !exists(&mut b).await);
    assert_eq!(create(&mut a).await, 1);
    // All but a second of the period passes.
    let _: u32 = a.say(&format!("EXPIRE {IP} 1")).await;
    assert_eq!(create(&mut b).await, 2, "counted");
    assert!(b.say::<i64>(&format!("TTL {IP}")).await > 1);
}

#[tokio::test]
async fn concurrent_requests_all_pass_and_ours_keep_the_limit() {
    let server = Server::redis().await;
    let clients = Client::many(&server, CLIENTS).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client).await);
    assert_eq!(rush(&server, asking).await, CLIENTS);

    assert_eq!(rush_ours(&server, Algorithm::AnchoredWindow).await, LIMIT);
}
