//! Faults during batched decisions: every caller gets its own answer.

use std::{pin::pin, sync::mpsc, thread, time::Duration};

use futures::{future::join_all, poll};
use redis::cmd;
use tokio::{
    runtime::Builder,
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::timeout,
};
use tower_sluice::{
    Decision, Quota, RedisStore,
    decision::Source,
    store::{RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, DAY, connect, gcra_account, lazy, raw, stored_micros},
    servers::{FakeServer, PATIENCE, Reply, Server, eventually},
};

const SECOND: Duration = Duration::from_secs(1);

fn ample() -> Quota {
    Quota::new(1_000_000, 86_400 * SECOND).expect("a quota")
}

type Taken = Vec<Option<Result<Decision, RedisError>>>;

/// Takes a unit of each of `keys` accounts of `name` at once. Returns the answers that arrive in time:
/// a call ends after ten seconds, if the server answers and a runtime of this process does not read.
async fn takes_of(store: &RedisStore, name: &str, keys: u32) -> Taken {
    let accounts: Vec<_> =
        (0..keys).map(|n| Account::new(format!("{name} {n}"), ample())).collect();
    let takes = accounts.iter().map(|account| timeout(PATIENCE, account.take(store, 1)));
    join_all(takes).await.into_iter().map(Result::ok).collect()
}

async fn takes(store: &RedisStore, keys: u32) -> Taken {
    takes_of(store, "anybody", keys).await
}

/// Returns `Some` if all requests are allowed.
async fn well(store: &RedisStore, keys: u32) -> Option<()> {
    let answers = takes(store, keys).await;
    let is_allowed =
        |answer| matches!(answer, Some(Ok(decision)) if Decision::is_allowed(&decision));
    answers.into_iter().all(is_allowed).then_some(())
}

/// Runs callers on their own runtime in a thread while the server is stopped. The runtime then
/// ends, or blocks until the test lets it go. `asked` receives a message when the callers wait for
/// answers, and another when they have left.
fn elsewhere(
    store: &RedisStore,
    ends: bool,
    asked: UnboundedSender<()>,
) -> (mpsc::Sender<()>, thread::JoinHandle<()>) {
    let (store, (let_go, go)) = (store.clone(), mpsc::channel::<()>());
    let thread = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut takes = pin!(takes(&store, 100));
            assert!(poll!(takes.as_mut()).is_pending(), "the server is stopped");
            asked.send(()).expect("the test listens");
            drop(timeout(SECOND / 5, takes).await);
        });
        asked.send(()).expect("the test listens");
        if !ends {
            let _ = go.recv();
        }
    });
    (let_go, thread)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runtimes_that_end_or_stall_delay_no_other_runtime() {
    for ends in [true, false] {
        let server = Server::redis().await;
        let store = connect(&server.url()).await;
        assert!(well(&store, 100).await.is_some());
        server.stop();
        let (asked, mut heard) = unbounded_channel();
        let others: Vec<_> = (0..3).map(|_| elsewhere(&store, ends, asked.clone())).collect();
        for _ in &others {
            heard.recv().await.expect("they wait");
        }
        // These requests wait behind batches of the others.
        let mut waiting = pin!(takes_of(&store, "remaining", 200));
        assert!(poll!(waiting.as_mut()).is_pending());
        for _ in &others {
            heard.recv().await.expect("they leave");
        }
        server.cont();
        let answers = waiting.await;
        assert!(answers.iter().all(Option::is_some), "a caller hangs");
        for answer in answers.into_iter().flatten() {
            match answer {
                Ok(decision) if decision.is_allowed() => {}
                // Its batch is one of a runtime that blocks, so the answer is not read.
                Ok(decision) => assert_eq!(decision.source(), Source::Busy),
                // Its batch is one of a runtime that ended, or its connection was replaced, because a
                // runtime that blocks has opened it.
                Err(error) => {
                    assert!(matches!(error.kind(), Kind::Other | Kind::Timeout), "{error}");
                }
            }
        }
        eventually("decisions", async || well(&store, 300).await).await;
        for (let_go, thread) in others {
            drop(let_go);
            thread.join().expect("no panic");
        }
    }
}

#[tokio::test]
async fn a_full_server_still_denies_exhausted_accounts() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let spent = Account::new("spent", Quota::per_day(1));
    assert!(spent.passes(&store).await);
    let () = server.command("CONFIG SET maxmemory 1").await;
    let fresh: Vec<_> = (0..40).map(|n| Account::new(format!("{n}"), ample())).collect();
    let (denied, failed) = tokio::join!(
        join_all((0..40).map(|_| spent.take(&store, 1))),
        join_all(fresh.iter().map(|account| account.take(&store, 1))),
    );
    for answer in denied {
        assert!(!answer.expect("a decision").is_allowed());
    }
    for answer in failed {
        assert_eq!(answer.expect_err("no memory").kind(), Kind::Memory);
    }
    let () = server.command("CONFIG SET maxmemory 0").await;
    for account in &fresh {
        assert_eq!(account.left(&store).await, 1_000_000, "nothing was charged");
    }
}

#[tokio::test]
async fn a_foreign_value_at_our_key_is_replaced_once() {
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).readable_keys().await.expect("a store");
    let mut connection = raw(&server.url()).await;
    let key = crate::accounts::address("default", "odd");
    let odd = Account::new("odd", Quota::per_day(30));
    // The last string has our form, is full again in a century, and its key expires earlier.
    let far = &gcra_account(DAY, [0, 0, 0, 0, 0, 0, 16], 0);
    let set = |value: &[u8]| cmd("SET").arg(&key).arg(value).arg("PX").arg(60_000).to_owned();
    for put in [
        set(b"noise"),
        set(b"g"),
        set(b"noise of twenty-three b"),
        set(far),
        cmd("SADD").arg(&key).arg("a").to_owned(),
    ] {
        let () = cmd("DEL").arg(&key).query_async(&mut connection).await.expect("deleted");
        let () = put.query_async(&mut connection).await.expect("written");
        let value = put.args_iter().nth(2).map(|arg| format!("{arg:?}"));
        let first = Account::new("first", ample());
        let before = store.healed();
        let (_, taken) = tokio::join!(biased;
            first.passes(&store),
            join_all((0..40).map(|_| odd.take(&store, 1))),
        );
        let left: Vec<_> =
            taken.into_iter().map(|one| one.expect("a decision").remaining()).collect();
        let expected: Vec<_> = (0..30).rev().chain([0; 10]).map(Some).collect();
        assert_eq!(left, expected, "{value:?}");
        assert_eq!(store.healed() - before, 1, "{value:?}");
    }
}

/// The answer of a server that invents replies to batches.
fn made_up(words: &[Vec<u8>], batch: &[u8]) -> Reply {
    let now = 1_700_000_000_000_000_u64;
    let account = gcra_account(DAY, stored_micros(now), 0);
    let lone = [&now.to_le_bytes()[..7], &[0, 0, 1, 0, 1, 0, 0, 23, 0, 0, 0], &account].concat();
    let bulk = |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let keys = words.get(2).map(Vec::as_slice);
    if keys == Some(b"1") { bulk(&lone).into() } else { bulk(batch).into() }
}

#[tokio::test]
async fn an_invalid_answer_is_an_error_for_all_and_ends_the_connection() {
    let now = 1_700_000_000_000_000_u64;
    let head = [&now.to_le_bytes()[..7], &[0, 0]].concat();
    for batch in [Vec::new(), head.clone(), [&head[..], &[1, 0, 2, 0, 0, 1, 0, 0, 0, 0]].concat()] {
        let said = batch.clone();
        let server = FakeServer::start(move |words| made_up(words, &said)).await;
        let store = lazy(&server.url());
        assert!(well(&store, 1).await.is_some(), "alone");
        // The first is alone as well.
        for answer in takes(&store, 60).await.into_iter().skip(1) {
            let error = answer.expect("in time").expect_err("an invalid reply");
            assert_eq!(error.kind(), Kind::Reply, "{error}");
        }
        eventually("another connection", async || {
            let _ = takes(&store, 1).await;
            (server.accepted() > 1).then_some(())
        })
        .await;
    }
}
