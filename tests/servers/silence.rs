//! An outage is a silent server. A busy process is not an outage.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use futures::poll;
use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Decision, LocalStore, Quota, RateLimitLayer, RedisStore, Rule, Store, StoreExt,
    decision::Source,
    key::HeaderKey,
    middleware::HoldUntil,
    store::{ClusterLink, DynStore, RedisError, RedisErrorKind as Kind, TimeoutError},
};

use crate::{
    accounts::{Account, LONG, connect, lazy, on_cluster, on_sentinels, rule},
    rule_kinds::{POLICIES, Policy},
    servers::{Cluster, Flavour, Mode, Proxy, Sentinels, Server, eventually},
    streams::{Gate, to},
};

const LIMIT: Duration = Duration::from_millis(100);
/// A machine with other work adds less.
const SLACK: Duration = Duration::from_secs(4);

fn account() -> Account {
    Account::new("a", Quota::per_hour(1_000_000))
}

/// Checks that the next call fails, after the limit and not before.
async fn is_found<S>(kind: &str, store: S)
where
    S: Store<Error = RedisError> + 'static,
{
    let limited = store.timeout(LIMIT);
    let start = Instant::now();
    let account = account();
    let answer: Result<Decision, TimeoutError<RedisError>> =
        limited.take(&[account.charge(1)]).await;
    let took = start.elapsed();
    let TimeoutError::Store(error) = answer.expect_err("the server is silent") else {
        panic!("{kind}: the store judges by itself");
    };
    assert_eq!(error.kind(), Kind::Timeout, "{kind}: {error}");
    assert!(error.to_string().contains("silent"), "{kind}: {error}");
    assert!(took >= LIMIT && took < SLACK, "{kind}: {took:?}");
}

#[tokio::test]
async fn a_frozen_server_is_found_on_every_kind_of_connection() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    server.stop();
    is_found("TCP", store).await;
    server.cont();

    for knows in [true, false] {
        let open = to(&server.url(), knows, &Gate::default());
        let store = RedisStore::from_stream(open).await.expect("connects");
        server.stop();
        is_found("a stream", store).await;
        server.cont();
    }

    let path = server.path().join("s");
    let socket = path.display().to_string();
    let local = Server::start(Flavour::Redis, &["--unixsocket", &socket]).await;
    let store = connect(&format!("unix://{socket}")).await;
    local.stop();
    is_found("a Unix socket", store).await;
    local.cont();

    let sentinels = Sentinels::start(Flavour::Redis).await;
    let store = on_sentinels(&sentinels).await.expect("connects");
    let master = &sentinels.servers()[sentinels.master().await];
    master.stop();
    is_found("Sentinel", store).await;
    master.cont();

    let cluster = Cluster::start(Flavour::Redis).await;
    let store: RedisStore<ClusterLink> = on_cluster(&cluster).await.expect("connects");
    // Opens the connection of the key.
    assert!(account().take(&store, 1).await.expect("a decision").is_allowed());
    cluster.nodes().iter().for_each(Server::stop);
    is_found("a cluster", store).await;
    cluster.nodes().iter().for_each(Server::cont);

    let seed = cluster.nodes()[0].address();
    let open = |host, port| async move {
        to(&format!("redis://{host}:{port}"), true, &Gate::default())().await
    };
    let store = RedisStore::cluster_from_stream(&[(&seed.ip().to_string(), seed.port())], open);
    let store = store.await.expect("connects");
    assert!(account().take(&store, 1).await.expect("a decision").is_allowed());
    cluster.nodes().iter().for_each(Server::stop);
    is_found("a cluster of streams", store).await;
    cluster.nodes().iter().for_each(Server::cont);
}

/// A process that is busy for three times the limit, whose answer waits unread.
#[tokio::test]
async fn an_answer_that_waits_unread_is_no_silence_if_the_stream_knows() {
    let server = Server::redis().await;
    for knows in [true, false] {
        let gate = Gate::default();
        let store = RedisStore::from_stream(to(&server.url(), knows, &gate)).await;
        let (store, account) = (store.expect("connects"), account());
        assert!(account.passes(&store).await);
        let limited = store.timeout(LIMIT);
        gate.set_closed(true);
        let opens = async {
            tokio::time::sleep(3 * LIMIT).await;
            gate.set_closed(false);
        };
        let charges = [account.charge(1)];
        let answer = limited.take(&charges).into_future();
        match futures::join!(answer, opens).0 {
            Ok(decision) => assert!(knows && decision.is_allowed(), "{decision:?}"),
            Err(error) => assert!(!knows && error.to_string().contains("silent"), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_ends_or_accepts_no_connection_fails_its_calls() {
    let mut server = Server::redis().await;
    let killed = connect(&server.url()).await.timeout(LIMIT);
    let mut proxy = Proxy::start(server.address()).await;
    proxy.set(Mode::BlackHole).await;
    let connecting = lazy(&server.url_at(proxy.addr())).timeout(LIMIT);
    server.kill();
    let account = account();
    for store in [killed, connecting] {
        let start = Instant::now();
        assert!(store.take(&[account.charge(1)]).await.is_err());
        assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    }
}

fn guarded<S>(policy: Policy, store: S) -> Arc<DynStore<Infallible>>
where
    S: Store + Send + Sync + 'static,
{
    match policy {
        Policy::FailOpen => store.fail_open().boxed(),
        Policy::FailClosed => store.fail_closed().boxed(),
        Policy::Fallback => store.fallback(LocalStore::new(), 1).boxed(),
    }
}

/// Returns a store that notes silence, on a connection of its own or on a stream of the test.
async fn open(server: &Server, is_stream: bool) -> RedisStore {
    if !is_stream {
        return connect(&server.url()).await;
    }
    let stream = to(&server.url(), true, &Gate::default());
    RedisStore::from_stream(stream).await.expect("connects")
}

/// The thread of the runtime is blocked for more than ten times the limit, and the server answers
/// afterwards.
#[tokio::test]
async fn a_busy_process_rejects_under_every_policy_and_its_late_charge_is_undone() {
    let server = Server::redis().await;
    let beside = connect(&server.url()).await;
    let quotas = [Quota::new(10, LONG).expect("a quota"), Quota::concurrent(10)];
    for (number, policy) in POLICIES.into_iter().enumerate() {
        for is_stream in [false, true] {
            for (at, quota) in quotas.into_iter().enumerate() {
                let breaker = open(&server, is_stream).await.timeout(LIMIT).breaker();
                let handlers = Arc::new(AtomicU32::new(0));
                let counted = handlers.clone();
                let handler = service_fn(move |_: Request<()>| {
                    counted.fetch_add(1, Relaxed);
                    async { Ok::<_, Infallible>(Response::new(String::new())) }
                });
                let rules = Rule::new("api", HeaderKey::new("x-api-key"), quota);
                let layer = RateLimitLayer::rules(rules, guarded(policy, breaker.clone()))
                    .hold_until(HoldUntil::Head);
                let key = format!("busy {number} {is_stream} {at}");
                let request = || Request::get("/").header("x-api-key", &key).body(());
                let ask = || layer.layer(handler.clone()).oneshot(request().expect("a request"));
                let look = Account { rule: rule("api"), ..Account::new(key.as_str(), quota) };
                let left = async || look.left(&beside).await;
                // The server has the script, and the breaker is closed.
                let warm = async || {
                    handlers.store(0, Relaxed);
                    let status = ask().await.expect("infallible").status();
                    (status == StatusCode::OK && handlers.load(Relaxed) == 1).then_some(())
                };
                eventually("a decision", warm).await;
                let before = left().await;
                let full = async || {
                    let expected = if at == 0 { before } else { 10 };
                    (left().await == expected).then_some(())
                };
                eventually("all slots are free", full).await;

                let calls = server.script_calls().await;
                server.stop();
                let mut asked = Box::pin(ask());
                assert!(poll!(asked.as_mut()).is_pending());
                thread::sleep(11 * LIMIT);
                let response = asked.await.expect("infallible");
                server.cont();
                assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{policy:?}");
                assert_eq!(response.headers()["retry-after"], "1", "{policy:?}");
                assert!(!breaker.is_open(), "{policy:?}");
                assert_eq!(handlers.load(Relaxed), 1, "{policy:?}");
                let arrived = async || (server.script_calls().await > calls).then_some(());
                eventually("the call arrives", arrived).await;
                eventually("its charge is undone", full).await;
            }
        }
    }
}

#[tokio::test]
async fn a_connector_counts_the_time_plainly() {
    let server = Server::redis().await;
    let client = redis::Client::open(server.url()).expect("a URL");
    let store = RedisStore::from_connector(move || {
        let client = client.clone();
        async move { client.get_multiplexed_async_connection().await }
    });
    let limited = store.await.expect("connects").timeout(LIMIT);
    let account = account();
    let mut late = Box::pin(limited.take(&[account.charge(1)]).into_future());
    assert!(poll!(late.as_mut()).is_pending());
    server.stop();
    let error = late.await.expect_err("it is late");
    assert!(matches!(error, TimeoutError::Elapsed(LIMIT)), "{error}");
    server.cont();
}

/// The thread of the runtime is blocked for more than ten times the limit.
#[tokio::test]
async fn the_late_answer_to_a_peek_undoes_no_charge() {
    let server = Server::redis().await;
    let beside = connect(&server.url()).await;
    let store = open(&server, false).await;
    let account = Account::new("peeked", Quota::new(10, LONG).expect("a quota"));
    let charges = [account.charge(1)];
    assert!(account.passes(&store).await);
    // The server has the script.
    assert!(store.peek(&charges).await.expect("a decision").is_allowed());
    let limited = store.timeout(LIMIT);

    let calls = server.script_calls().await;
    server.stop();
    let mut peeked = Box::pin(limited.peek(&charges).into_future());
    assert!(poll!(peeked.as_mut()).is_pending());
    thread::sleep(11 * LIMIT);
    let decision = peeked.await.expect("a decision");
    server.cont();
    assert_eq!(decision.source(), Source::Busy);
    let arrived = async || (server.script_calls().await > calls).then_some(());
    eventually("the call arrives", arrived).await;
    tokio::time::sleep(LIMIT).await;
    assert_eq!(account.left(&beside).await, 9);
}
