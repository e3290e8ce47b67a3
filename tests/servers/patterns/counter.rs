//! One counter that expires by itself: Redis, `INCR`, "Pattern: Rate limiter 2".

use std::time::Duration;

use tokio::time::timeout;
use tower_sluice::Algorithm;

use super::{
    Account, CLIENTS, Client, LIMIT, LONG, Server, connect, denials_leave_no_trace, kept, rush,
    rush_ours, ten_per,
};
use crate::servers::eventually;

/// The period in seconds. The published period of one second might end while a test runs.
const PERIOD: u32 = 100;

/// The first half of the published limiter, which denies above the limit.
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
async fn two_clients_that_read_before_either_counts_both_pass() {
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
async fn concurrent_requests_all_pass_and_ours_keep_the_limit() {
    let server = Server::redis().await;
    let clients = Client::many(&server, CLIENTS).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client).await);
    assert_eq!(rush(&server, asking).await, CLIENTS);

    assert_eq!(rush_ours(&server, Algorithm::AnchoredWindow).await, LIMIT);
}

#[tokio::test]
async fn a_crash_before_expire_denies_forever() {
    let server = Server::redis().await;
    let mut crashes = Client::new(&server).await;
    assert!(check(&mut crashes).await);
    assert_eq!(increment(&mut crashes).await, 1);
    drop(crashes);

    let mut client = Client::new(&server).await;
    while limit(&mut client).await {}
    // No other client sets an expiry: only the one that makes the counter 1 does.
    assert!(!limit(&mut client).await);
    assert_eq!(left(&mut client).await, -1, "no expiry");
}

#[tokio::test]
async fn our_key_expires_even_if_its_caller_leaves() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let account = Account::new("a", ten_per(LONG).with_algorithm(Algorithm::AnchoredWindow));
    drop(account.take(&store, 0).await.expect("a look, after which the server knows the script"));
    assert!(kept(&server).await.is_empty());
    server.stop();
    let gone = timeout(Duration::from_millis(100), account.take(&store, 1)).await;
    assert!(gone.is_err(), "the caller leaves before the answer");
    server.cont();
    let found = eventually("the charge is made", async || {
        let found = kept(&server).await;
        (!found.is_empty()).then_some(found)
    });
    // The server keeps whole milliseconds, and an account for as long as it is needed.
    let longest = i64::try_from(LONG.as_millis()).expect("fits") + 1;
    let found = found.await;
    assert!(found.iter().all(|(_, _, left)| (1..=longest).contains(left)), "{found:?}");
    assert_eq!(account.left(&store).await, LIMIT - 1);
}

/// The variant that renews the expiry each time: `MULTI`, `INCR`, `EXPIRE`, `EXEC`.
#[tokio::test]
async fn denials_that_renew_the_expiry_never_end() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    let expire = format!("EXPIRE 192.0.2.1 {PERIOD}");
    let mut current = 0;
    for _ in 0..CLIENTS {
        // All but a second of the period passes.
        let _: u32 = client.say("EXPIRE 192.0.2.1 1").await;
        (current, _) = client.multi::<(u32, u32)>(&["INCR 192.0.2.1", &expire]).await;
        assert!(left(&mut client).await > 1, "another period to wait");
    }
    // One request passes per period, of ten that are allowed.
    assert!(current > LIMIT);
}

#[tokio::test]
async fn our_denials_extend_no_expiry() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let account = Account::new("a", ten_per(LONG).with_algorithm(Algorithm::AnchoredWindow));
    assert_eq!(account.passed(&store, CLIENTS).await, LIMIT);
    denials_leave_no_trace(&server, &store, &account).await;
}
