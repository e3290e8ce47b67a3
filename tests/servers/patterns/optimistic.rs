//! `WATCH`, read, `MULTI`, write, `EXEC`, and a retry if another client was faster: exact, and
//! slow.

use super::{Account, CLIENTS, Client, LONG, Server, connect, join_all, rush};
use tower_sluice::Quota;

/// Lets all clients watch and read, then write. Returns for each whether its transaction succeeded.
async fn round(clients: &mut [Client]) -> Vec<bool> {
    let mut seen = Vec::new();
    for client in &mut *clients {
        let () = client.say("WATCH count").await;
        seen.push(client.say::<Option<u32>>("GET count").await.unwrap_or(0));
    }
    let mut succeeded = Vec::new();
    for (client, seen) in clients.iter_mut().zip(seen) {
        let set = format!("SET count {}", seen + 1);
        succeeded.push(client.multi::<Option<(String,)>>(&[&set]).await.is_some());
    }
    succeeded
}

#[tokio::test]
async fn one_client_passes_per_round_and_the_others_retry() {
    let server = Server::redis().await;
    // The limit admits all clients.
    let mut clients = Client::many(&server, CLIENTS).await;
    let mut tries = 0;
    while !clients.is_empty() {
        tries += u32::try_from(clients.len()).expect("few");
        let succeeded = round(&mut clients).await;
        assert_eq!(succeeded.iter().filter(|succeeded| **succeeded).count(), 1);
        let mut succeeded = succeeded.into_iter();
        clients.retain(|_| !succeeded.next().expect("as many"));
    }
    assert_eq!(tries, CLIENTS * (CLIENTS + 1) / 2);
    let mut look = Client::new(&server).await;
    assert_eq!(look.say::<u32>("GET count").await, CLIENTS, "no update is lost");
}

#[tokio::test]
async fn our_store_makes_one_call_per_request() {
    let server = Server::redis().await;
    let stores = join_all((0..CLIENTS).map(async |_| connect(&server.url()).await)).await;
    let account = Account::new("a", Quota::new(CLIENTS, LONG).expect("a quota"));
    let calls = async || -> u32 {
        let line = server.info("commandstats", "cmdstat_evalsha").await.expect("it was called");
        let calls = line.trim_start_matches("calls=").split(',').next().expect("a number");
        calls.parse().expect("a number")
    };
    let before = calls().await;
    let passed = rush(&server, stores.iter().map(|store| account.passes(store))).await;
    assert_eq!((passed, calls().await - before), (CLIENTS, CLIENTS));
}
