//! A counter per second: Redis, `INCR`, "Pattern: Rate limiter 1".

use std::time::Duration;

use tower_sluice::{Algorithm, testing::Subject};

use super::{
    Account, CLIENTS, Client, LIMIT, START, Server, driven, join_all, kept, rush, rush_ours,
    ten_per,
};

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// The published limiter. `clock` is the time of the caller.
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
async fn twice_the_limit_passes_around_a_second_boundary() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    assert_eq!(passed(&mut client, START - MILLI, CLIENTS).await, LIMIT);
    assert_eq!(passed(&mut client, START + MILLI, CLIENTS).await, LIMIT, "two milliseconds later");
}

#[tokio::test]
async fn our_sliding_algorithms_keep_the_limit_around_a_second_boundary() {
    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    for (name, algorithm, at_the_turn) in [
        ("log", Algorithm::SlidingLog, 0),
        ("window", Algorithm::SlidingWindow { buckets: 10 }, 0),
        ("gcra", Algorithm::Gcra, 0),
        // The meaning of the pattern, where a boundary is intended.
        ("fixed", Algorithm::fixed_window(), LIMIT),
    ] {
        let account = Account::new(name, ten_per(SECOND).with_algorithm(algorithm));
        subject.set(START - MILLI);
        assert_eq!(account.passed(&store, CLIENTS).await, LIMIT, "{name}");
        subject.set(START + MILLI);
        assert_eq!(account.passed(&store, CLIENTS).await, at_the_turn, "{name}");
        subject.set(START + SECOND);
        assert_eq!(account.passed(&store, CLIENTS).await, LIMIT, "{name}");
    }
}

/// GCRA returns units one by one: nine more within the second after the burst.
#[tokio::test]
async fn our_gcra_allows_nineteen_in_the_second_after_a_pause() {
    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    for (name, quota, within) in
        [("gcra", ten_per(SECOND), 19), ("even", ten_per(SECOND).with_burst(1), LIMIT)]
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
async fn each_clock_has_its_own_limit() {
    let server = Server::redis().await;
    let mut clients = Client::many(&server, 3).await;
    let mut total = 0;
    for (client, ahead) in clients.iter_mut().zip([0, 1, 2]) {
        total += passed(client, START + ahead * SECOND, CLIENTS).await;
    }
    assert_eq!(total, 3 * LIMIT, "at one moment");
}

#[tokio::test]
async fn our_store_has_one_clock() {
    let server = Server::redis().await;
    assert_eq!(rush_ours(&server, Algorithm::fixed_window()).await, LIMIT);
}

#[tokio::test]
async fn a_client_occupies_ten_keys_and_one_of_ours() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    for second in 0..10 {
        assert!(limit(&mut client, START + second * SECOND).await);
    }
    assert_eq!(kept(&server).await.len(), 10);

    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    let account = Account::new("one", ten_per(SECOND).with_algorithm(Algorithm::fixed_window()));
    for second in 0..10 {
        subject.set(START + second * SECOND);
        assert!(account.passes(&store).await);
    }
    assert_eq!(kept(&server).await.len(), 1);
}

/// The counter itself is exact; the pattern counts the wrong quantity.
#[tokio::test]
async fn the_counter_is_exact_within_a_second_of_one_clock() {
    let server = Server::redis().await;
    let clients = Client::many(&server, CLIENTS).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client, START).await);
    assert_eq!(rush(&server, asking).await, LIMIT);
    let looks = Client::many(&server, 2).await.into_iter();
    let looks = looks.map(async |mut client| limit(&mut client, START).await);
    assert_eq!(join_all(looks).await, [false; 2]);
}
