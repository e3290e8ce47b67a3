//! A hash with a counter per bucket of time.
//!
//! This is redback's `RateLimit` (2011) and, with buckets named by their instants, Figma's limiter
//! (2017).

use std::time::Duration;

use tower_sluice::{Algorithm, testing::Subject};

use super::{Account, CLIENTS, Client, LIMIT, START, Server, driven, rush, rush_ours, ten_per};

/// redback's defaults: buckets of five seconds, a ring of ten minutes, a key that expires after
/// twenty.
const WIDTH: u64 = 5;
const RING: u64 = 600 / WIDTH;
/// The period that is summed up.
const PERIOD: Duration = Duration::from_secs(60);

fn bucket(clock: Duration) -> u64 {
    clock.as_secs() / WIDTH % RING
}

async fn count(client: &mut Client, clock: Duration) -> u32 {
    let buckets = PERIOD.as_secs() / WIDTH;
    let back = |n| (bucket(clock) + RING - n) % RING;
    let gets: Vec<_> = (0..=buckets).map(|n| format!("HGET hash {}", back(n))).collect();
    let gets: Vec<_> = gets.iter().map(String::as_str).collect();
    let counts: Vec<Option<u32>> = client.multi(&gets).await;
    counts.into_iter().flatten().sum()
}

/// Counts a request and clears the next two buckets.
async fn add(client: &mut Client, clock: Duration) {
    let at = bucket(clock);
    let lines = [
        format!("HINCRBY hash {at} 1"),
        format!("HDEL hash {}", (at + 1) % RING),
        format!("HDEL hash {}", (at + 2) % RING),
        "EXPIRE hash 1200".to_owned(),
    ];
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let _: (u32, u32, u32, u32) = client.multi(&lines).await;
}

async fn limit(client: &mut Client, clock: Duration) -> bool {
    let passes = count(client, clock).await < LIMIT;
    if passes {
        add(client, clock).await;
    }
    passes
}

#[tokio::test]
async fn two_clients_that_sum_before_either_adds_both_pass() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    for _ in 1..LIMIT {
        assert!(limit(&mut a, START).await);
    }
    assert_eq!(count(&mut a, START).await, LIMIT - 1);
    assert_eq!(count(&mut b, START).await, LIMIT - 1);
    add(&mut a, START).await;
    add(&mut b, START).await;
    assert_eq!(count(&mut a, START).await, LIMIT + 1);
}

#[tokio::test]
async fn concurrent_requests_all_pass_and_ours_keep_the_limit() {
    let server = Server::redis().await;
    let clients = Client::many(&server, CLIENTS).await;
    let asking = clients.into_iter().map(async |mut client| limit(&mut client, START).await);
    assert_eq!(rush(&server, asking).await, CLIENTS);

    assert_eq!(rush_ours(&server, Algorithm::SlidingWindow { buckets: 12 }).await, LIMIT);
}

const LATER: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_bucket_of_the_previous_round_is_counted_again() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    while limit(&mut client, START).await {}
    assert_eq!(count(&mut client, START + PERIOD + PERIOD).await, 0, "over by then");
    // Ten minutes later it is the same bucket of the ring, which nobody has cleared.
    assert_eq!(count(&mut client, START + LATER).await, LIMIT);
    assert!(!limit(&mut client, START + LATER).await);
}

#[tokio::test]
async fn our_window_counts_only_the_period() {
    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    let window = Algorithm::SlidingWindow { buckets: 12 };
    let account = Account::new("a", ten_per(PERIOD).with_algorithm(window));
    for round in 0..3 {
        subject.set(START + round * LATER);
        assert_eq!(account.passed(&store, CLIENTS).await, LIMIT);
    }
    // Our window counts a share of the expiring bucket; redback counts all of it or nothing.
    subject.set(START + 2 * LATER + PERIOD + Duration::from_millis(2_500));
    assert_eq!(account.passed(&store, CLIENTS).await, LIMIT / 2);
}

#[tokio::test]
async fn the_expiring_bucket_is_counted_in_full() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    while limit(&mut client, START).await {}
    // 64.9 seconds later.
    assert!(!limit(&mut client, START + PERIOD + Duration::from_millis(4_900)).await);
    assert!(limit(&mut client, START + PERIOD + Duration::from_secs(WIDTH)).await);
}
