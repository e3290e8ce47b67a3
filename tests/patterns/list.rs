//! A list instead of a counter: Redis, `INCR`, the last variant of "Pattern: Rate limiter 2".

use tower_sluice::Algorithm;

use crate::{CROWD, Client, LIMIT, Server, rush, rush_ours};

const PERIOD: u32 = 100;
const IP: &str = "192.0.2.1";

/// What is published begins so, with its `>`.
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

/// How long the list is then: 0 where there is none any more, and nothing was counted.
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
async fn one_by_one_eleven_of_ten_pass() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    let mut passed = 0;
    for _ in 0..CROWD {
        passed += u32::from(limit(&mut client).await);
    }
    assert_eq!(passed, LIMIT + 1);
}

#[tokio::test]
async fn who_finds_a_list_that_ends_before_the_push_is_not_counted() {
    let server = Server::redis().await;
    let mut clients = Client::crowd(&server, CROWD).await;
    assert_eq!(create(&mut clients[0]).await, 1);
    for client in &mut clients {
        assert!(check(client).await && exists(client).await);
    }
    // its time is over
    let _: u32 = clients[0].say(&format!("PEXPIRE {IP} 0")).await;
    for client in &mut clients {
        assert_eq!(push(client).await, 0);
    }
    // all of them have passed, and nobody knows
    assert!(!exists(&mut clients[0]).await);
    assert!(check(&mut clients[0]).await);
}

/// The race that the documentation tells: nothing is lost in it, but the period begins anew.
#[tokio::test]
async fn who_makes_the_list_a_second_time_puts_its_end_off() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    assert!(!exists(&mut a).await && !exists(&mut b).await);
    assert_eq!(create(&mut a).await, 1);
    // all but a second of the period goes by
    let _: u32 = a.say(&format!("EXPIRE {IP} 1")).await;
    assert_eq!(create(&mut b).await, 2, "counted");
    assert!(b.say::<i64>(&format!("TTL {IP}")).await > 1);
}

#[tokio::test]
async fn a_crowd_passes_and_of_ours_the_limit() {
    let server = Server::redis().await;
    let clients = Client::crowd(&server, CROWD).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client).await);
    assert_eq!(rush(&server, asking).await, CROWD);

    assert_eq!(rush_ours(&server, Algorithm::AnchoredWindow).await, LIMIT);
}
