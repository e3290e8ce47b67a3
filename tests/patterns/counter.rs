//! One counter that ends by itself: Redis, `INCR`, "Pattern: Rate limiter 2".

use std::time::Duration;

use tokio::time::timeout;
use tower_sluice::Algorithm;

use crate::{
    Account, CROWD, Client, LIMIT, LONG, Server, connect, kept, refusals_leave_no_trace, rush,
    rush_ours, servers::eventually, ten_per,
};

/// Seconds; as published it is one, which might end while a test runs.
const PERIOD: u32 = 100;

/// The first half of what is published, which refuses at more than the limit.
async fn check(client: &mut Client) -> bool {
    let current: Option<u32> = client.say("GET 192.0.2.1").await;
    current.is_none_or(|current| current <= LIMIT)
}

async fn increment(client: &mut Client) -> u32 {
    client.say("INCR 192.0.2.1").await
}

/// The second half.
async fn count(client: &mut Client) {
    if increment(client).await == 1 {
        let _: u32 = client.say(&format!("EXPIRE 192.0.2.1 {PERIOD}")).await;
    }
}

async fn limit(client: &mut Client) -> bool {
    let passes = check(client).await;
    if passes {
        count(client).await;
    }
    passes
}

async fn left(client: &mut Client) -> i64 {
    client.say("TTL 192.0.2.1").await
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
async fn two_who_read_before_either_counts_both_pass() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    for _ in 0..LIMIT {
        assert!(limit(&mut a).await);
    }
    assert!(check(&mut a).await);
    assert!(check(&mut b).await);
    count(&mut a).await;
    count(&mut b).await;
    let passed: u32 = a.say("GET 192.0.2.1").await;
    assert_eq!(passed, LIMIT + 2);
}

#[tokio::test]
async fn a_crowd_passes_and_of_ours_the_limit() {
    let server = Server::redis().await;
    let clients = Client::crowd(&server, CROWD).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client).await);
    assert_eq!(rush(&server, asking).await, CROWD);

    assert_eq!(rush_ours(&server, Algorithm::AnchoredWindow).await, LIMIT);
}

#[tokio::test]
async fn a_crash_before_expire_refuses_for_good() {
    let server = Server::redis().await;
    let mut crashes = Client::new(&server).await;
    assert!(check(&mut crashes).await);
    assert_eq!(increment(&mut crashes).await, 1);
    drop(crashes);

    let mut client = Client::new(&server).await;
    while limit(&mut client).await {}
    // no one else will set an end: only who makes it 1 does
    assert!(!limit(&mut client).await);
    assert_eq!(left(&mut client).await, -1, "no end");
}

#[tokio::test]
async fn ours_ends_though_who_asked_is_gone() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let account = Account::new("a", ten_per(LONG).algorithm(Algorithm::AnchoredWindow));
    account.take(&store, 0).await.expect("a look, after which the server knows the script");
    assert!(kept(&server).await.is_empty());
    server.stop();
    let gone = timeout(Duration::from_millis(100), account.take(&store, 1)).await;
    assert!(gone.is_err(), "it left before it was answered");
    server.cont();
    let found = eventually("the charge is made", async || {
        let found = kept(&server).await;
        (!found.is_empty()).then_some(found)
    });
    // the server keeps whole milliseconds, and an account as long as it must be kept
    let longest = i64::try_from(LONG.as_millis()).expect("fits") + 1;
    let found = found.await;
    assert!(found.iter().all(|(_, _, left)| (1..=longest).contains(left)), "{found:?}");
    assert_eq!(account.left(&store).await, LIMIT - 1);
}

/// The variant that renews the end each time: `MULTI`, `INCR`, `EXPIRE`, `EXEC`.
#[tokio::test]
async fn an_end_renewed_by_refusals_never_comes() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    let expire = format!("EXPIRE 192.0.2.1 {PERIOD}");
    let mut current = 0;
    for _ in 0..CROWD {
        // all but a second of the period goes by
        let _: u32 = client.say("EXPIRE 192.0.2.1 1").await;
        (current, _) = client.multi::<(u32, u32)>(&["INCR 192.0.2.1", &expire]).await;
        assert!(left(&mut client).await > 1, "another period to wait");
    }
    // one request a period, of ten that are allowed
    assert!(current > LIMIT);
}

#[tokio::test]
async fn refusals_of_ours_put_no_end_off() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let account = Account::new("a", ten_per(LONG).algorithm(Algorithm::AnchoredWindow));
    assert_eq!(account.passed(&store, CROWD).await, LIMIT);
    refusals_leave_no_trace(&server, &store, &account).await;
}
