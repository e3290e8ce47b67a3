//! A sorted set with an entry per request. It is published in two orders: check then add, and add
//! then check.

use std::time::Duration;

use tower_sluice::{Algorithm, testing::Subject};

use super::{
    Account, CLIENTS, Client, LIMIT, LONG, START, Server, connect, denials_leave_no_trace, driven,
    kept, rush, rush_ours, ten_per,
};

const PERIOD: Duration = Duration::from_secs(60);

/// `clock` is the time of the caller, in milliseconds as published.
async fn check(client: &mut Client, clock: Duration) -> bool {
    let old = (clock - PERIOD).as_millis();
    let _: u32 = client.say(&format!("ZREMRANGEBYSCORE log 0 {old}")).await;
    client.say::<u32>("ZCARD log").await < LIMIT
}

async fn add(client: &mut Client, clock: Duration, member: u32) {
    let now = clock.as_millis();
    let _: u32 = client.say(&format!("ZADD log {now} {member}")).await;
    let _: u32 = client.say("EXPIRE log 60").await;
}

async fn look_then_add(client: &mut Client, clock: Duration, member: u32) -> bool {
    let passes = check(client, clock).await;
    if passes {
        add(client, clock, member).await;
    }
    passes
}

/// Runs one transaction. The instant is both score and member.
async fn add_then_look(client: &mut Client, clock: Duration) -> bool {
    let (now, old) = (clock.as_millis(), (clock - PERIOD).as_millis());
    let add = format!("ZADD log {now} {now}");
    let remove = format!("ZREMRANGEBYSCORE log 0 {old}");
    let (_, _, count, _): (u32, u32, u32, u32) =
        client.multi(&[&add, &remove, "ZCARD log", "EXPIRE log 61"]).await;
    count <= LIMIT
}

#[tokio::test]
async fn two_clients_that_check_before_either_adds_both_pass() {
    let server = Server::redis().await;
    let (mut a, mut b) = (Client::new(&server).await, Client::new(&server).await);
    for member in 1..LIMIT {
        assert!(look_then_add(&mut a, START, member).await);
    }
    assert!(check(&mut a, START).await);
    assert!(check(&mut b, START).await);
    add(&mut a, START, 100).await;
    add(&mut b, START, 101).await;
    assert_eq!(a.say::<u32>("ZCARD log").await, LIMIT + 1);
}

#[tokio::test]
async fn concurrent_requests_all_pass_and_ours_keep_the_limit() {
    let server = Server::redis().await;
    let clients = Client::many(&server, CLIENTS).await.into_iter().zip(0..);
    let asking =
        clients.map(async |(mut client, member)| look_then_add(&mut client, START, member).await);
    assert_eq!(rush(&server, asking).await, CLIENTS);

    assert_eq!(rush_ours(&server, Algorithm::SlidingLog).await, LIMIT);
}

#[tokio::test]
async fn a_denied_client_that_retries_never_passes() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    for milli in 0..LIMIT {
        assert!(add_then_look(&mut client, START + Duration::from_millis(milli.into())).await);
    }
    // A retry every five seconds, for an hour.
    for at in 1..=720 {
        assert!(!add_then_look(&mut client, START + at * Duration::from_secs(5)).await);
    }
    assert!(client.say::<u32>("ZCARD log").await > LIMIT, "denials only");
}

#[tokio::test]
async fn a_denied_client_of_ours_passes_at_the_reported_instant() {
    let server = Server::redis().await;
    let (mut subject, store) = driven(&server).await;
    let account = Account::new("a", ten_per(PERIOD).with_algorithm(Algorithm::SlidingLog));
    assert_eq!(account.passed(&store, CLIENTS).await, LIMIT);
    let mut first = None;
    for at in 1..=20 {
        let time = at * Duration::from_secs(5);
        subject.set(START + time);
        let reported = account.take(&store, 0).await.expect("a look").outcomes()[0].reset_after();
        assert_eq!(reported, PERIOD.saturating_sub(time));
        if account.passed(&store, CLIENTS).await > 0 {
            first = Some(time);
            break;
        }
    }
    assert_eq!(first, Some(PERIOD));
}

#[tokio::test]
async fn denials_are_stored_and_ours_are_not() {
    let server = Server::redis().await;
    let mut client = Client::new(&server).await;
    for milli in 0..10_000 {
        add_then_look(&mut client, START + Duration::from_millis(milli)).await;
    }
    assert_eq!(client.say::<u32>("ZCARD log").await, 10_000);
    let theirs: u64 = client.say("MEMORY USAGE log SAMPLES 0").await;

    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let account = Account::new("a", ten_per(LONG).with_algorithm(Algorithm::SlidingLog));
    assert_eq!(account.passed(&store, LIMIT).await, LIMIT);
    denials_leave_no_trace(&server, &store, &account).await;
    let (mut client, mut ours) = (Client::new(&server).await, 0);
    for (name, ..) in kept(&server).await {
        ours += client.say::<u64>(&format!("MEMORY USAGE {name} SAMPLES 0")).await;
    }
    assert!(theirs > 1_000_000 && ours < 1_000, "{theirs} and {ours} bytes");
}

#[tokio::test]
async fn requests_of_one_millisecond_are_one_entry_and_ours_all_count() {
    let server = Server::redis().await;
    let clients = Client::many(&server, CLIENTS).await;
    let asking =
        clients.into_iter().map(async |mut client| add_then_look(&mut client, START).await);
    assert_eq!(rush(&server, asking).await, CLIENTS);

    let (_, store) = driven(&server).await;
    let account = Account::new("a", ten_per(PERIOD).with_algorithm(Algorithm::SlidingLog));
    assert_eq!(account.passed(&store, CLIENTS).await, LIMIT, "at one instant");
}

#[tokio::test]
async fn a_clock_ahead_drops_the_entries_of_others() {
    let server = Server::redis().await;
    let (mut right, mut ahead) = (Client::new(&server).await, Client::new(&server).await);
    let mut passed = 0;
    for member in 0..CLIENTS {
        passed += u32::from(look_then_add(&mut right, START, member).await);
    }
    for member in CLIENTS..2 * CLIENTS {
        passed += u32::from(look_then_add(&mut ahead, START + PERIOD, member).await);
    }
    assert_eq!(passed, 2 * LIMIT, "at one moment");
    // A client with the right time is denied for as long as the other clock is ahead.
    let late = START + PERIOD + PERIOD - Duration::from_millis(1);
    assert!(!look_then_add(&mut right, late, 1_000).await);
}
