//! `WATCH`, read, `MULTI`, write, `EXEC`, and again if somebody else was faster: exact, and slow.

use crate::{Account, CROWD, Client, LONG, Server, connect, join_all, rush};
use tower_sluice::Quota;

/// All watch and read, then all write: whether each was the one whose transaction held.
async fn round(clients: &mut [Client]) -> Vec<bool> {
    let mut seen = Vec::new();
    for client in &mut *clients {
        let () = client.say("WATCH count").await;
        seen.push(client.say::<Option<u32>>("GET count").await.unwrap_or(0));
    }
    let mut held = Vec::new();
    for (client, seen) in clients.iter_mut().zip(seen) {
        let set = format!("SET count {}", seen + 1);
        held.push(client.multi::<Option<(String,)>>(&[&set]).await.is_some());
    }
    held
}

#[tokio::test]
async fn a_round_lets_one_pass_and_the_crowd_asks_again() {
    let server = Server::redis().await;
    // there is room for all
    let mut clients = Client::crowd(&server, CROWD).await;
    let mut tries = 0;
    while !clients.is_empty() {
        tries += u32::try_from(clients.len()).expect("few");
        let held = round(&mut clients).await;
        assert_eq!(held.iter().filter(|held| **held).count(), 1);
        let mut held = held.into_iter();
        clients.retain(|_| !held.next().expect("as many"));
    }
    assert_eq!(tries, CROWD * (CROWD + 1) / 2);
    let mut look = Client::new(&server).await;
    assert_eq!(look.say::<u32>("GET count").await, CROWD, "none is lost");
}

#[tokio::test]
async fn of_ours_each_asks_once() {
    let server = Server::redis().await;
    let stores = join_all((0..CROWD).map(async |_| connect(&server.url()).await)).await;
    let account = Account::new("a", Quota::new(CROWD, LONG).expect("a quota"));
    let calls = async || -> u32 {
        let line = server.info("commandstats", "cmdstat_evalsha").await.expect("it was called");
        let calls = line.trim_start_matches("calls=").split(',').next().expect("a number");
        calls.parse().expect("a number")
    };
    let before = calls().await;
    let passed = rush(&server, stores.iter().map(|store| account.passes(store))).await;
    assert_eq!((passed, calls().await - before), (CROWD, CROWD));
}
