//! Clusters whose only server always redirects, asks for a repetition, or reports useless hash slots. Each
//! decision ends in an error, after few commands.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use redis::{AsyncConnectionConfig, Client};
use tokio::time::timeout;
use tower_sluice::{
    Key, Quota, RedisStore, StoreExt,
    rule::RuleName,
    store::{BreakerError, Charge, ClusterLink, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, HOUR, gcra_account, stored_micros},
    replies::{bulk, replaces_the_connection, reply_of, shifted},
    servers::{FakeServer, PATIENCE, Reply, eventually, name},
};

/// Decisions of a test.
const DECISIONS: usize = 20;

/// Returns the reply of `CLUSTER SLOTS` of a server that has all hash slots.
fn all_hash_slots(port: u16) -> String {
    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n")
}

/// Returns this reply to each command. `PORT` is replaced by the port of the server.
fn always(reply: &'static str) -> impl FnMut(u16) -> Reply {
    move |port| Reply::from(reply.replace("PORT", &port.to_string()))
}

/// Starts a server that gives these replies to `CLUSTER SLOTS` and to every other command, by its port.
async fn cluster(
    hash_slots: impl Fn(u16) -> String + Send + Sync + 'static,
    mut reply: impl FnMut(u16) -> Reply + Send + 'static,
) -> FakeServer {
    let address = Arc::new(OnceLock::<SocketAddr>::new());
    let known = address.clone();
    let server = FakeServer::start(move |words| {
        let port = known.get().expect("the server has started").port();
        match name(words).as_str() {
            "CLUSTER" => hash_slots(port).into(),
            "ASKING" => "+OK\r\n".into(),
            _ => reply(port),
        }
    });
    let server = server.await;
    address.set(server.addr()).expect("the first address");
    server
}

fn lazy(server: &FakeServer) -> RedisStore<ClusterLink> {
    RedisStore::cluster(&[&server.url()]).lazy().expect("an address")
}

fn commands(server: &FakeServer, wanted: &str) -> usize {
    server.asked().iter().filter(|words| name(words) == wanted).count()
}

/// Makes decisions, which must all fail with an error of this kind. Returns the time that they took.
async fn fail(store: &RedisStore<ClusterLink>, decisions: usize, kinds: &[Kind]) -> Duration {
    let (account, start) = (Account::new("a", Quota::per_hour(5)), Instant::now());
    for _ in 0..decisions {
        let answer = timeout(PATIENCE, account.take(store, 1)).await.expect("an answer in time");
        let error = answer.expect_err("no decision");
        assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
    }
    start.elapsed()
}

#[tokio::test]
async fn endless_redirections_end_in_an_error_after_few_commands() {
    for reply in ["-MOVED 1 127.0.0.1:PORT\r\n", "-ASK 1 127.0.0.1:PORT\r\n"] {
        let server = cluster(all_hash_slots, always(reply)).await;
        let took = fail(&lazy(&server), DECISIONS, &[Kind::Cluster]).await;
        let scripts = commands(&server, "EVALSHA") + commands(&server, "EVAL");
        assert!(scripts <= 6 * DECISIONS, "{reply}: {scripts} calls of {DECISIONS} decisions");
        let (refreshes, most) = (commands(&server, "CLUSTER"), 2 + took.as_millis() / 25);
        assert!(refreshes as u128 <= most, "{reply}: {refreshes} refreshes in {took:?}");
    }
}

#[tokio::test]
async fn endless_repetitions_end_in_an_error_in_time() {
    let server = cluster(all_hash_slots, always("-TRYAGAIN later\r\n")).await;
    let took = fail(&lazy(&server), 1, &[Kind::Cluster]).await;
    let scripts = commands(&server, "EVALSHA");
    assert!(scripts <= 12, "{scripts} calls in {took:?}");
}

#[tokio::test]
async fn useless_hash_slots_are_an_error_and_not_a_panic() {
    let hash_slots: [fn(u16) -> String; 5] = [
        |_| "*0\r\n".into(),
        |_| "$-1\r\n".into(),
        |_| "*1\r\n*3\r\n:-1\r\n:99999\r\n*0\r\n".into(),
        |_| "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$1\r\n?\r\n:0\r\n$2\r\nid\r\n".into(),
        |port| format!("*1\r\n*3\r\n:7\r\n:7\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$2\r\nid\r\n"),
    ];
    for hash_slots in hash_slots {
        let server = cluster(hash_slots, always(":1\r\n")).await;
        let kinds = [Kind::Cluster, Kind::Disconnected, Kind::Timeout, Kind::Other];
        let took = fail(&lazy(&server), 3, &kinds).await;
        assert_eq!(commands(&server, "EVALSHA"), 0, "{:?}", hash_slots(0));
        assert!(took < 3 * 10 * Duration::from_secs(1), "{took:?}");
    }
}

fn charge(key: &Key) -> Charge<'_> {
    const QUOTAS: [Quota; 1] = [Quota::per_hour(5)];
    Charge::new(RuleName::default(), key, &QUOTAS)
}

#[tokio::test]
async fn a_hash_slot_without_a_server_fails_alone_and_never_the_whole_cluster() {
    let is_known = Arc::new(AtomicBool::new(false));
    let known = is_known.clone();
    let hash_slots = move |port| match known.load(SeqCst) {
        true => all_hash_slots(port).replace("16383", "8191"),
        false => "*0\r\n".into(),
    };
    // A useless reply is an answer of the server.
    let server = cluster(hash_slots, always(":1\r\n")).await;
    let early = lazy(&server).breaker();
    for _ in 0..10 {
        early.take(&[charge(&Key::from("a"))]).await.expect_err("no hash slots are known");
    }
    assert!(!early.is_open(), "no call would close it again");

    is_known.store(true, SeqCst);
    let (store, mut keys) = (lazy(&server), (0..).map(|at| Key::from(format!("key{at}"))));
    let mut key = async |has_server: bool| loop {
        let key = keys.next().expect("a key");
        let error = store.take(&[charge(&key)]).await.expect_err("no decision");
        if (error.kind() != Kind::Disconnected) == has_server {
            return key;
        }
    };
    let (here, gone) = (key(true).await, key(false).await);
    let breaker = store.clone().breaker();
    for _ in 0..10 {
        breaker
            .take(&[charge(&here), charge(&gone)])
            .await
            .expect_err("no server of one hash slot");
    }
    let error = breaker.take(&[charge(&here)]).await.expect_err("a useless reply");
    assert!(matches!(error, BreakerError::Store(_)), "{error}");
    let error = breaker.take(&[charge(&gone)]).await.expect_err("no server");
    assert!(matches!(error, BreakerError::Open { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_to_another_request_replaces_the_connection_to_its_server() {
    let mut answer = shifted();
    let server = cluster(all_hash_slots, move |_| answer()).await;
    replaces_the_connection(lazy(&server), &server).await;
}

/// The connections of the connector wait for answers without a limit.
#[tokio::test]
async fn a_question_for_the_hash_slots_without_an_answer_ends() {
    let is_silent = Arc::new(AtomicBool::new(true));
    let silent = is_silent.clone();
    let hash_slots = move |port| match silent.load(SeqCst) {
        true => String::new(),
        false => all_hash_slots(port),
    };
    let server = cluster(hash_slots, always(":1\r\n")).await;
    let seed = ("127.0.0.1", server.addr().port());
    let store = RedisStore::cluster_from_connector(&[seed], |host, port| async move {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(format!("redis://{host}:{port}"))?;
        client.get_multiplexed_async_connection_with_config(&config).await
    });
    let store = store.lazy().expect("a store");
    fail(&store, 1, &[Kind::Disconnected]).await;
    is_silent.store(false, SeqCst);
    let account = Account::new("a", Quota::per_hour(5));
    let is_found = async || {
        account.take(&store, 1).await.expect_err("a useless reply");
        (commands(&server, "EVALSHA") > 0).then_some(())
    };
    eventually("the hash slots are known", is_found).await;
}

/// The server to which a hash slot moves answers once on each connection.
#[tokio::test]
async fn a_connection_that_ended_while_it_was_idle_fails_no_call_for_a_hash_slot_that_moves() {
    let now = 1_700_000_000_000_000_u64;
    let target = FakeServer::start(move |words| match name(words).as_str() {
        "ASKING" => "+OK\r\n".into(),
        _ => {
            let account = gcra_account(HOUR, stored_micros(now), 0);
            Reply::Close(bulk(&reply_of(1, now, 1, 0, &account)))
        }
    });
    let target = target.await;
    let asks = format!("-ASK 1 {}\r\n", target.addr());
    let source = cluster(all_hash_slots, move |_| asks.as_bytes().into()).await;
    let (store, account) = (lazy(&source), Account::new("a", Quota::per_hour(5)));
    for connections in 1..4 {
        assert!(account.passes(&store).await);
        assert_eq!(target.accepted(), connections);
        // The end arrives.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
