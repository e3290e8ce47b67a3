//! A counter for each second: Redis, `INCR`, "Pattern: Rate limiter 1".

use std::time::Duration;

use tower_sluice::{Algorithm, testing::Subject};

use crate::{
    Account, CROWD, Client, LIMIT, START, Server, driven, join_all, kept, rush, rush_ours, ten_per,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// As published; `clock` is the time of who asks.
async fn limit(client: &mut Client, clock: Duration) -> bool {
    let key = format!("192.0.2.1:{}", clock.as_secs());
    let (incr, expire) = (format!("INCR {key}"), format!("EXPIRE {key} 10"));
    let (current, _): (u32, u32) = client.multi(&[&incr, &expire]).await;
    current <= LIMIT
}

async fn passed(client: &mut Client, clock: Duration, of: u32) -> u32 {
    let mut passed = 0;
    for _ in 0..of {
        passed += u32::from(limit(client, clock).await);
    }
    passed
}

#[tokio::test]
async fn twice_the_limit_passes_around_the_turn_of_a_second() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    assert_eq!(passed(&mut client, START - MILLI, CROWD).await, LIMIT);
    assert_eq!(passed(&mut client, START + MILLI, CROWD).await, LIMIT, "two milliseconds later");
}

#[tokio::test]
async fn any_second_of_ours_has_no_more_than_the_limit() {
    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    for (name, algorithm, at_the_turn) in [
        ("log", Algorithm::SlidingLog, 0),
        ("window", Algorithm::SlidingWindow { buckets: 10 }, 0),
        ("gcra", Algorithm::Gcra, 0),
        // the meaning of the pattern, where it is wanted
        ("fixed", Algorithm::fixed_window(), LIMIT),
    ] {
        let account = Account::new(name, ten_per(SECOND).algorithm(algorithm));
        subject.set(START - MILLI);
        assert_eq!(account.passed(&store, CROWD).await, LIMIT, "{name}");
        subject.set(START + MILLI);
        assert_eq!(account.passed(&store, CROWD).await, at_the_turn, "{name}");
        subject.set(START + SECOND);
        assert_eq!(account.passed(&store, CROWD).await, LIMIT, "{name}");
    }
}

/// GCRA lets units come back one by one: after its burst, so many more within the second.
#[tokio::test]
async fn a_burst_and_what_comes_back_are_nineteen_in_a_second() {
    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    for (name, quota, within) in
        [("gcra", ten_per(SECOND), 19), ("even", ten_per(SECOND).burst(1), LIMIT)]
    {
        let (account, mut passed) = (Account::new(name, quota), 0);
        for milli in 0..1_000 {
            subject.set(START + milli * MILLI);
            passed += u32::from(account.passes(&store).await);
        }
        assert_eq!(passed, within, "{name}");
    }
}

#[tokio::test]
async fn each_clock_is_a_limit_of_its_own() {
    let server = Server::redis().await;
    let mut clients = Client::crowd(&server, 3).await;
    let mut total = 0;
    for (client, ahead) in clients.iter_mut().zip([0, 1, 2]) {
        total += passed(client, START + ahead * SECOND, CROWD).await;
    }
    assert_eq!(total, 3 * LIMIT, "at one moment");
}

#[tokio::test]
async fn ours_has_one_clock() {
    let server = Server::redis().await;
    assert_eq!(rush_ours(&server, Algorithm::fixed_window()).await, LIMIT);
}

#[tokio::test]
async fn a_client_is_ten_keys_and_one_of_ours() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    for second in 0..10 {
        assert!(limit(&mut client, START + second * SECOND).await);
    }
    assert_eq!(kept(&server).await.len(), 10);

    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    let account = Account::new("one", ten_per(SECOND).algorithm(Algorithm::fixed_window()));
    for second in 0..10 {
        subject.set(START + second * SECOND);
        assert!(account.passes(&store).await);
    }
    assert_eq!(kept(&server).await.len(), 1);
}

/// The counter itself is exact: what is wrong with the pattern is what it counts.
#[tokio::test]
async fn within_a_second_of_one_clock_it_is_exact() {
    let server = Server::redis().await;
    let clients = Client::crowd(&server, CROWD).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client, START).await);
    assert_eq!(rush(&server, asking).await, LIMIT);
    let looks = Client::crowd(&server, 2).await.into_iter();
    let looks = looks.map(async |mut client| limit(&mut client, START).await);
    assert_eq!(join_all(looks).await, [false; 2]);
}
