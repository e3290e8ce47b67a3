//! Batched decisions. `parity` checks that they equal sequential ones.

use std::{pin::pin, time::Duration};

use futures::{future::join_all, poll};
use tokio::{
    task::{JoinSet, yield_now},
    time::Instant,
};
use tower_sluice::{Quota, RedisStore};

use crate::{
    accounts::{Account, connect},
    fated::Fated,
    servers::Server,
};

const DAY: Duration = Duration::from_secs(86_400);

fn slow(units: u32) -> Quota {
    Quota::new(units, DAY).expect("a quota")
}

/// A caller whose call makes later callers wait.
fn first_caller() -> Account {
    Account::new("first", slow(1_000_000))
}

#[tokio::test]
async fn a_lone_decision_is_one_call_and_others_share_the_next() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let accounts: Vec<_> = (0..16).map(|n| Account::new(format!("{n}"), slow(1_000))).collect();
    // The server then has the script.
    assert!(accounts[0].passes(&store).await);
    let before = server.script_calls().await;
    for _ in 0..50 {
        assert!(accounts[0].passes(&store).await);
    }
    assert_eq!(server.script_calls().await - before, 50);
    let before = server.script_calls().await;
    for _ in 0..10 {
        join_all(accounts.iter().map(|account| account.passes(&store))).await;
    }
    // The first is alone at first. Callers that share a call and ask again at once share the next one,
    // too, unless the machine stops for longer than the interval between them.
    let made = server.script_calls().await - before;
    assert!((2 + 9..20).contains(&made), "{made} calls");
}

#[tokio::test]
async fn a_caller_that_leaves_while_waiting_is_not_charged() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (first_caller, one) = (first_caller(), Account::new("one", slow(100)));
    let mut first = pin!(first_caller.passes(&store));
    assert!(poll!(&mut first).is_pending());
    let mut waiting: Vec<_> = (0..50).map(|_| Some(Box::pin(one.take(&store, 1)))).collect();
    for caller in waiting.iter_mut().flatten() {
        assert!(poll!(caller).is_pending());
    }
    for (caller, n) in waiting.iter_mut().zip(0..) {
        if n == 0 || n == 49 || n % 3 == 0 {
            *caller = None;
        }
    }
    let (_, taken) = tokio::join!(first, join_all(waiting.into_iter().flatten()));
    let left: Vec<_> =
        taken.iter().map(|one| one.as_ref().expect("a decision").remaining()).collect();
    let staid = u32::try_from(left.len()).expect("few");
    assert_eq!(left, (0..staid).map(|n| Some(99 - n)).collect::<Vec<_>>());
    assert_eq!(one.left(&store).await, 100 - staid);
}

/// Otherwise, those that wait would look for a call only after 5 ms.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_call_starts_the_next_one() {
    const CALL: Duration = Duration::from_millis(1);
    let store = RedisStore::with_connection(Fated::down(CALL)).lazy().expect("a store");
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let (store, account) = (store.clone(), Account::new("a", slow(10)));
        calls.spawn(async move { account.take(&store, 1).await.is_err() });
        for _ in 0..9 {
            yield_now().await;
        }
    }
    // Two calls of equal requests are in flight at the same time.
    assert_eq!(calls.join_all().await, [true; 3]);
    assert!(start.elapsed() <= 3 * CALL, "{:?}", start.elapsed());
}
