//! Requests that wait for a slot on Redis (`max_wait`).

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{future::join_all, poll};
use http::{Request, Response, StatusCode};
use redis::cmd;
use tokio::{
    runtime::Builder,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};
use tower_sluice::{
    Cost, Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, RedisStore, Rule, Store,
    StoreExt,
    decision::Source,
    key::Everyone,
    limiter::NotReady,
    middleware::{Adjustment, HoldUntil},
    store::Charge,
};

use crate::{
    accounts::{Account, Dice, connect, on_cluster, raw, rule},
    servers::{Cluster, Flavour, Mode, PATIENCE, Proxy, Server, eventually},
    slots::{held, until_held},
    support::several_slots::never_wait,
};

const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const ONE: Quota = Quota::concurrent(1);
const TWO: Quota = Quota::concurrent(2);
const TIMEOUT: Duration = Duration::from_millis(200);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The account that the layers charge.
fn account(quota: Quota) -> Account {
    Account { rule: rule("api"), ..Account::new(tower_sluice::Key::everyone(), quota) }
}

/// The instants at which requests ran, by their paths.
#[derive(Clone, Default)]
struct Ran(Arc<Mutex<Vec<String>>>);

type Answer = JoinHandle<(StatusCode, Duration)>;

/// Sends requests to a layer whose handler takes `time`.
struct App {
    service: BoxCloneService<Request<()>, Response<String>, Infallible>,
    ran: Ran,
}

fn app<S>(store: S, max_wait: Duration, time: Duration) -> App
where
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    app_of(Rule::new("api", Everyone, ONE).max_wait(max_wait), store, time)
}

fn app_of<S>(rule: Rule<Everyone>, store: S, time: Duration) -> App
where
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    let layer = RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head);
    let layer = layer.expose_charge(Adjustment::Keep);
    let ran = Ran::default();
    let log = ran.clone();
    let handler = service_fn(move |request: Request<()>| {
        log.0.lock().expect("no panic").push(request.uri().path().to_owned());
        async move {
            sleep(time).await;
            Ok(Response::new(String::new()))
        }
    });
    let service = BoxCloneService::new(layer.max_waiters_per_key(100).layer(handler));
    App { service, ran }
}

impl App {
    /// Sends a request, with the time that it took.
    fn send(&self, request: Request<()>) -> Answer {
        let service = self.service.clone();
        tokio::spawn(async move {
            let start = Instant::now();
            let response = service.oneshot(request).await.expect("infallible");
            (response.status(), start.elapsed())
        })
    }

    /// Sends requests one after another, until each waits.
    async fn send_all(&self, requests: u32) -> Vec<Answer> {
        let mut sent = Vec::new();
        for n in 0..requests {
            sent.push(self.send(to(&format!("/{n}"))));
            sleep(millis(if n == 0 { 30 } else { 2 })).await;
        }
        sent
    }

    fn ran(&self) -> Vec<String> {
        self.ran.0.lock().expect("no panic").clone()
    }

    fn take_ran(&self) -> Vec<String> {
        std::mem::take(&mut self.ran.0.lock().expect("no panic"))
    }
}

fn to(path: &str) -> Request<()> {
    Request::get(path).body(()).expect("a request")
}

async fn all(sent: Vec<Answer>) -> Vec<(StatusCode, Duration)> {
    join_all(sent).await.into_iter().map(|it| it.expect("no panic")).collect()
}

/// Two processes that share a server.
struct Processes {
    server: Server,
    store: RedisStore,
    other: RedisStore,
}

impl Processes {
    async fn start() -> Self {
        let server = Server::redis().await;
        let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
        Self { server, store, other }
    }
}

async fn hold(store: &RedisStore, quota: Quota) -> Decision {
    until_free(store, quota).await;
    let running = account(quota).take(store, 1).await.expect("a decision");
    assert!(running.is_allowed());
    running
}

async fn until_free(store: &RedisStore, quota: Quota) {
    let account = account(quota);
    let limit = u64::from(quota.limit());
    eventually("a slot is free", async || (held(store, &account).await < limit).then_some(()))
        .await;
}

/// A freed slot is taken at once, long before the first request asks by itself. A busy machine prolongs
/// some attempts.
#[tokio::test]
async fn a_freed_slot_goes_to_the_requests_of_its_process_in_their_order() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let store = connect(&server.url()).await;
        let app = app(store.clone().fail_closed(), millis(5_000), Duration::ZERO);
        eventually(&format!("{flavour:?}: all run at once"), async || {
            let running = hold(&store, ONE).await;
            sleep(millis(700)).await;
            drop(running);
            until_held(&store, &account(ONE), 0).await;
            // The mean hold time is now 0.7 s.
            let running = hold(&store, ONE).await;
            let sent = app.send_all(8).await;
            assert_eq!(app.ran(), [""; 0]);
            let (freed, before) = (Instant::now(), server.script_calls().await);
            drop(running);
            let answers = all(sent).await;
            let took = freed.elapsed();
            assert!(answers.iter().all(|(status, _)| *status == OK), "{answers:?}");
            assert_eq!(app.take_ran(), (0..8).map(|n| format!("/{n}")).collect::<Vec<_>>());
            // One call for each request, one for the look at the statistics, and some that free slots.
            let calls = server.script_calls().await - before;
            assert!((8..=20).contains(&calls), "{calls} calls");
            until_held(&store, &account(ONE), 0).await;
            (took < millis(400)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn requests_that_wait_for_other_processes_make_few_calls() {
    let Processes { server, store, other } = Processes::start().await;
    let app = app(store.clone().fail_closed(), millis(3_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    let sent = app.send_all(30).await;
    let (before, start) = (server.script_calls().await, Instant::now());
    sleep(millis(1_000)).await;
    let calls = server.script_calls().await - before;
    let took = start.elapsed().as_secs_f64();
    // Eight times in 100 ms, until this process has held a slot, and then less often.
    assert!(f64::from(calls) <= 28.0 * took, "{calls} calls in {took} s for 30 requests");
    drop(running);
    let answers = all(sent).await;
    assert!(answers.iter().all(|(status, _)| *status == OK), "{answers:?}");
    until_held(&store, &account(ONE), 0).await;
}

/// The server denied the request before the slot was free, and its answer is read afterwards.
#[tokio::test]
async fn a_slot_that_is_freed_during_the_call_of_a_request_goes_to_it() {
    let Processes { server, store, other } = Processes::start().await;
    let app = app(store.clone().fail_closed(), millis(5_000), Duration::ZERO);
    // A busy machine prolongs some attempts.
    eventually("it runs at once", async || {
        // The mean hold time is then long, so that a request that waits seldom asks by itself.
        let before = hold(&store, ONE).await;
        sleep(millis(2_600)).await;
        drop(before);
        let running = hold(&store, ONE).await;
        let mut request = pin!(app.service.clone().oneshot(to("/")));
        let (before, start) = (server.script_calls().await, Instant::now());
        assert!(poll!(request.as_mut()).is_pending());
        let decided = async || (server.script_calls().await > before).then_some(());
        eventually("it is decided", decided).await;
        drop(running);
        until_held(&other, &account(ONE), 0).await;
        // The process learns that the slot is free.
        sleep(millis(20)).await;
        assert_eq!(request.await.expect("infallible").status(), OK);
        (start.elapsed() < millis(120)).then_some(())
    })
    .await;
}

/// A request that leaves during its call is no failure, after which all would ask at once.
#[tokio::test]
async fn only_the_next_request_asks_when_one_leaves_during_its_call() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store =
        RedisStore::connect(server.url_at(proxy.addr())).coalesce(false).await.expect("a store");
    let other = connect(&server.url()).await;
    let app = app(store.fail_closed(), millis(9_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    let mut sent = app.send_all(30).await;
    proxy.set(Mode::Delay(millis(200))).await;
    // The first one is answered late.
    sleep(millis(700)).await;
    // On a busy machine, some requests ask again.
    eventually("only the first and the next request ask", async || {
        let before = server.script_calls().await;
        let asks = async || (server.script_calls().await > before).then_some(());
        eventually("the first one asks", asks).await;
        sent.remove(0).abort();
        sleep(millis(100)).await;
        // One is left for a renewal.
        (2..=3).contains(&(server.script_calls().await - before)).then_some(())
    })
    .await;
    proxy.set(Mode::Pass).await;
    drop(running);
    let first = 30 - sent.len();
    assert!(all(sent).await.iter().all(|(status, _)| *status == OK));
    assert_eq!(app.ran(), (first..30).map(|n| format!("/{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_first_request_asks_eight_times_in_the_mean_hold_time_and_then_less_often() {
    let cases = [(300, 15..=28), (2_600, 10..=18)];
    let cases = cases.map(async |(hold_time, expected)| {
        let server = Server::redis().await;
        let other = connect(&server.url()).await;
        // On a busy machine, the time is another one.
        eventually(&format!("{expected:?} calls in 3 s, held for {hold_time} ms"), async || {
            let store = connect(&server.url()).await;
            let before = hold(&store, ONE).await;
            sleep(millis(hold_time)).await;
            drop(before);
            let app = app(store.fail_closed(), millis(9_000), Duration::ZERO);
            let running = hold(&other, ONE).await;
            let sent = app.send_all(10).await;
            let before = server.script_calls().await;
            sleep(millis(3_000)).await;
            let calls = server.script_calls().await - before;
            drop(running);
            assert!(all(sent).await.iter().all(|(status, _)| *status == OK));
            expected.contains(&calls).then_some(())
        })
        .await;
    });
    join_all(cases).await;
}

/// `tests/it/slots/metrics.rs` checks the embedded store.
#[cfg(feature = "metrics")]
#[test]
fn held_slots_and_waiting_requests_are_gauges() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let (recorder, mut gauges) = (DebuggingRecorder::new(), [0.0; 2]);
    let snapshotter = recorder.snapshotter();
    // Returns the held slots and the waiting requests. A snapshot has the changes since the last.
    let mut look = || {
        let names = ["ratelimit.active_slots", "ratelimit.queued_requests"];
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let at = names.iter().position(|name| key.key().name() == *name);
            if let (Some(at), DebugValue::Gauge(change)) = (at, value) {
                let label = key.key().labels().next().expect("a label");
                assert_eq!((label.key(), label.value()), ("policy", "api"));
                gauges[at] += *change;
            }
        }
        gauges
    };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let work = async {
        let server = Server::redis().await;
        let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
        let app = app(store.fail_closed(), millis(9_000), millis(700));
        let running = hold(&other, ONE).await;
        let first = app.send(to("/first"));
        eventually("one waits", async || (look() == [0.0, 1.0]).then_some(())).await;
        drop(running);
        eventually("it runs", async || (look() == [1.0, 0.0]).then_some(())).await;
        let second = app.send(to("/second"));
        eventually("another one waits", async || (look() == [1.0, 1.0]).then_some(())).await;
        assert!(all(vec![first, second]).await.iter().all(|(status, _)| *status == OK));
        assert_eq!(look(), [0.0, 0.0]);
    };
    metrics::with_local_recorder(&recorder, || runtime.block_on(work));
}

#[tokio::test]
async fn a_distant_server_prolongs_no_wait() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let (store, other) =
        (connect(&server.url_at(proxy.addr())).await, connect(&server.url()).await);
    let app = app(store.clone().fail_closed(), millis(2_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    // The script is loaded, and the store knows that nothing is free.
    assert!(!account(ONE).take(&store, 1).await.expect("a decision").is_allowed());
    proxy.set(Mode::Delay(millis(300))).await;
    // A busy machine prolongs some of them.
    eventually("a wait of two seconds", async || {
        let (status, took) = app.send(to("/")).await.expect("no panic");
        assert!(status == DENIED && took >= millis(2_000), "{status}, {took:?}");
        (took < millis(2_290)).then_some(())
    })
    .await;
    drop(running);
}

#[tokio::test]
async fn a_denial_reports_the_mean_hold_time_divided_by_the_limit() {
    let server = Server::redis().await;
    let (two, store) = (Quota::concurrent(2), connect(&server.url()).await);
    let wait = async || {
        let denied = account(two).take(&store, 1).await.expect("a decision");
        assert!(!denied.is_allowed());
        denied.retry_after().expect("an expectation")
    };
    let start = Instant::now();
    let running = [hold(&store, two).await, hold(&store, two).await];
    assert_eq!(wait().await, Duration::from_secs(1), "nothing is known");
    sleep(millis(2_600)).await;
    drop(running);
    until_held(&store, &account(two), 0).await;
    let most = start.elapsed() * 5 / 8;
    let running = [hold(&store, two).await, hold(&store, two).await];
    let wait = wait().await;
    assert!(wait > millis(1_250) && wait < most, "{wait:?}, {most:?}");
    drop(running);
}

async fn outage<S>(what: &str, store: impl Fn(RedisStore) -> S, expected: StatusCode)
where
    S: Store<Error = Infallible, Future: Send> + Send + Sync + 'static,
{
    for is_silent in [false, true] {
        let mut server = Server::redis().await;
        let (inner, other) = (connect(&server.url()).await, connect(&server.url()).await);
        let app = app(store(inner), millis(5_000), Duration::ZERO);
        let running = hold(&other, ONE).await;
        let sent = app.send_all(100).await;
        if is_silent {
            server.stop();
        } else {
            server.kill();
        }
        let start = Instant::now();
        for (status, took) in all(sent).await {
            assert_eq!(status, expected, "{what}: {took:?}");
        }
        // The first one asks within 100 ms, and the others all at once after its timeout. One after another,
        // they would wait for 20 s.
        assert!(start.elapsed() < millis(4_000), "{what}: {:?}", start.elapsed());
        drop(running);
    }
}

#[tokio::test]
async fn an_outage_ends_the_wait_by_the_policy_for_outages() {
    let local = || LocalStore::with_capacity(1_000);
    outage("open", |it| it.timeout(TIMEOUT).fail_open(), OK).await;
    outage("closed", |it| it.timeout(TIMEOUT).fail_closed(), StatusCode::SERVICE_UNAVAILABLE).await;
    outage("fallback", |it| it.timeout(TIMEOUT).breaker().fallback(local(), 1), OK).await;
}

/// The key is blocked while a call waits for its slot. In an outage, the mirrored block denies the call.
#[tokio::test]
async fn a_limiter_keeps_no_place_in_the_queue_while_it_sleeps() {
    for is_down in [false, true] {
        let server = Server::redis().await;
        let store = connect(&server.url()).await.timeout(TIMEOUT).fallback(LocalStore::new(), 1);
        let limiter = Limiter::named("default", store);
        let take = async || limiter.take("alice", &ONE, 1).await;
        let running = take().await;
        let waiting = limiter.clone();
        let waits = tokio::spawn(async move { waiting.until_ready("alice", &ONE, 1).await });
        sleep(millis(100)).await;
        drop(limiter.block("alice", Duration::from_secs(3_600)).await.expect("room"));
        if is_down {
            server.stop();
        }
        drop(running);
        sleep(millis(300)).await;
        server.cont();
        drop(limiter.unblock("alice").await);
        let takes = async || Some(take().await).filter(|it| it.source() == Source::Redis);
        let takes = async || takes().await.filter(Decision::is_allowed).map(drop);
        // The first answer after an outage starts the queue again.
        for round in 0..3 {
            eventually(&format!("down: {is_down}, {round}"), takes).await;
        }
        assert!(!waits.is_finished());
        waits.abort();
    }
}

/// `it slots::waiting::a_request_for_several_slots_waits_on_no_store` has the embedded stores.
#[tokio::test]
async fn a_request_for_several_slots_waits_on_no_store() {
    let local = || LocalStore::with_capacity(1_000);
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let name = |name| format!("{flavour:?}, {name}");
        let prefixed = |prefix: &str| RedisStore::connect(server.url()).prefix(prefix);
        let alone = prefixed("alone").await.expect("a store");
        never_wait(&name("alone"), alone.fail_closed().boxed()).await;
        let single = prefixed("single").coalesce(false).await.expect("a store");
        never_wait(&name("a call each"), single.fail_closed().boxed()).await;
        let all = prefixed("all").await.expect("a store").timeout(Duration::from_secs(5));
        let all = all.breaker().deny_cache().leases(5).fallback(local(), 1);
        never_wait(&name("wrapped"), all.boxed()).await;
    }
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).await.expect("connects");
    never_wait("cluster", store.fail_closed().boxed()).await;
}

#[tokio::test]
async fn a_request_that_never_fits_does_not_wait_behind_another_one() {
    let server = Server::redis().await;
    let limiter = Limiter::named("default", connect(&server.url()).await);
    let running = limiter.try_take("alice", &TWO, 2).await.expect("an answer");
    let waiting = limiter.clone();
    let waits = tokio::spawn(async move { waiting.try_until_ready("alice", &TWO, 1).await });
    sleep(millis(100)).await;
    for cost in [3, 257] {
        let ready = timeout(PATIENCE, limiter.try_until_ready("alice", &TWO, cost)).await;
        let refused = ready.expect("an answer at once").expect_err("it never fits");
        assert!(matches!(refused, NotReady::Never), "{refused}");
    }
    assert!(!waits.is_finished());
    drop(running);
    assert!(waits.await.expect("no panic").is_ok());
}

/// The request was in the queue of the local store when the server answered again.
#[tokio::test]
async fn a_slot_that_is_taken_after_an_outage_counts_in_the_next_one() {
    let (server, local) = (Server::redis().await, LocalStore::new());
    let store = connect(&server.url()).await.timeout(TIMEOUT).fallback(local.clone(), 1);
    let app = app(store.clone(), millis(5_000), millis(3_000));
    let api = account(ONE);
    let running = store.take(&[api.charge(1)]).await.expect("infallible");
    server.stop();
    let sent = app.send_all(1).await;
    sleep(TIMEOUT * 2).await;
    server.cont();
    eventually("an answer", async || {
        let look = store.take(&[api.charge(0)]).await.expect("infallible");
        (look.source() == Source::Redis).then_some(())
    })
    .await;
    drop(running);
    eventually("it runs", async || (app.ran() == ["/0"]).then_some(())).await;
    assert_eq!(local.stats().held, 1);
    server.stop();
    let denied = store.take(&[api.charge(1)]).await.expect("infallible");
    assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Fallback));
    server.cont();
    assert!(all(sent).await.iter().all(|(status, _)| *status == OK));
}

/// A request that ran in an outage, and still runs, is in no queue.
#[tokio::test]
async fn a_request_that_an_outage_admits_leaves_its_queue() {
    let server = Server::redis().await;
    let (inner, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let app = app(inner.timeout(TIMEOUT).fail_open(), millis(5_000), millis(3_000));
    let running = hold(&other, ONE).await;
    let first = app.send_all(1).await;
    server.stop();
    eventually("it runs", async || (app.ran() == ["/0"]).then_some(())).await;
    server.cont();
    until_held(&other, &account(ONE), 1).await;
    let next = app.send(to("/next"));
    sleep(millis(100)).await;
    drop(running);
    eventually("the next one runs", async || (app.ran().len() == 2).then_some(())).await;
    assert!(!first[0].is_finished(), "it does not wait for the first one");
    assert!(all(first).await.into_iter().chain(all(vec![next]).await).all(|(it, _)| it == OK));
}

#[tokio::test]
async fn requests_wait_beyond_the_end_of_the_runtime_that_first_took_slots() {
    let Processes { server: _server, store, other } = Processes::start().await;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (runtime, first) = (runtime.expect("a runtime"), store.clone());
    let first = runtime.spawn(async move { Account::new("first", ONE).take(&first, 1).await });
    let first = first.await.expect("no panic").expect("a decision");
    assert!(first.is_allowed());
    let running = hold(&other, ONE).await;
    let app = app(store.fail_closed(), millis(3_000), Duration::ZERO);
    let sent = app.send_all(3).await;
    runtime.shutdown_background();
    sleep(millis(50)).await;
    drop(running);
    assert!(all(sent).await.iter().all(|(status, _)| *status == OK));
    drop(first);
}

#[tokio::test]
async fn a_request_whose_headroom_changes_while_it_waits_leaves_no_place_behind() {
    let Processes { server: _server, store, other } = Processes::start().await;
    let asked = AtomicBool::new(false);
    let quota = Quota::concurrent(2);
    let headroom = Cost::from_fn(move |_| u32::from(asked.swap(true, SeqCst)));
    let rule = Rule::new("api", Everyone, quota).max_wait(millis(5_000)).headroom(headroom);
    let app = app_of(rule, store.clone().fail_closed(), Duration::ZERO);
    let running = [hold(&other, quota).await, hold(&other, quota).await];
    let sent = app.send_all(1).await;
    sleep(millis(500)).await;
    sent.iter().for_each(JoinHandle::abort);
    drop((join_all(sent).await, running));
    until_held(&other, &account(quota), 0).await;
    let taken = account(quota).take(&store, 1).await.expect("a decision");
    assert_eq!((taken.is_allowed(), taken.source()), (true, Source::Redis));
}

/// Requests with less headroom ask before the first one that waits.
#[tokio::test]
async fn denials_of_others_do_not_postpone_the_call_of_the_first_request() {
    let Processes { server: _server, store, other } = Processes::start().await;
    let quota = Quota::concurrent(5);
    let rule = Rule::new("api", Everyone, quota).max_wait(millis(4_000)).headroom(1);
    let app = app_of(rule, store.clone().fail_closed(), Duration::ZERO);
    let large = account(quota).take(&other, 3).await.expect("a decision");
    let small = account(quota).take(&other, 2).await.expect("a decision");
    let sent = app.send_all(1).await;
    let denials = Arc::new(AtomicU32::new(0));
    let count = denials.clone();
    let asks = tokio::spawn(async move {
        loop {
            assert!(!account(quota).take(&store, 5).await.expect("a decision").is_allowed());
            count.fetch_add(1, SeqCst);
            sleep(millis(20)).await;
        }
    });
    eventually("ten denials", async || (denials.load(SeqCst) >= 10).then_some(())).await;
    let before = denials.load(SeqCst);
    drop(small);
    assert!(all(sent).await.iter().all(|(status, _)| *status == OK));
    let later = denials.load(SeqCst) - before;
    assert!(later < 30, "{later} denials of others until it runs");
    assert!(!asks.is_finished());
    asks.abort();
    drop((asks.await, large));
}

#[tokio::test]
async fn the_mean_hold_time_has_no_slots_that_no_request_held() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let store = on_cluster(&cluster).await.expect("connects");
    let (two, once) = ([Quota::concurrent(2)], [Quota::per_day(1)]);
    let key = Key::from("alice");
    let slots = Charge::new(rule("slots"), &key, &two);
    let start = Instant::now();
    let running = store.take(&[slots]).await.expect("a decision");
    sleep(millis(2_600)).await;
    drop(running);
    let keys: Vec<_> = (0..30_u64).map(Key::from).collect();
    for key in &keys {
        let once = Charge::new(rule("once"), key, &once);
        assert!(store.take(&[once]).await.expect("a decision").is_allowed());
        // The rates are on all servers.
        assert!(!store.take(&[slots, once]).await.expect("a decision").is_allowed());
    }
    let look = async || store.take(&[slots.with_cost(0)]).await.ok()?.outcomes()[0].held();
    eventually("all are free", async || (look().await == Some(0)).then_some(())).await;
    let most = start.elapsed() * 5 / 8;
    let running = [store.take(&[slots]).await, store.take(&[slots]).await];
    let denied = store.take(&[slots]).await.expect("a decision");
    let wait = denied.retry_after().expect("an expectation");
    assert!(wait > millis(1_250) && wait < most, "{wait:?}, {most:?}");
    drop(running);
}

#[tokio::test]
async fn a_request_may_have_more_than_255_keys() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let names: Vec<_> = (0..150).map(|n| rule(&format!("r{n}"))).collect();
    let key = Key::everyone();
    for quota in [ONE, Quota::per_day(1).with_algorithm(tower_sluice::Algorithm::SlidingLog)] {
        let quotas = [quota];
        let charges: Vec<_> = names.iter().map(|it| Charge::new(*it, &key, &quotas)).collect();
        let running = store.take(&charges).await.expect("a decision");
        assert!(running.is_allowed());
        let denied = store.take(&charges).await.expect("a decision");
        assert!(denied.outcomes().iter().all(|it| it.is_denied() && it.remaining() == 0));
        drop(running);
        eventually("all are free", async || {
            let looks: Vec<_> = charges.iter().map(|it| it.with_cost(0)).collect();
            let look = store.take(&looks).await.expect("a look");
            let is_free = |it: &tower_sluice::decision::Outcome| it.held().is_none_or(|it| it == 0);
            look.outcomes().iter().all(is_free).then_some(())
        })
        .await;
    }
}

/// Returns `true` if the slots of the rule `api` have a mark.
async fn is_marked(server: &Server) -> bool {
    let mark = cmd("KEYS").arg("*w").query_async(&mut raw(&server.url()).await).await;
    !mark.map(|found: Vec<String>| found.is_empty()).expect("keys")
}

#[tokio::test]
async fn only_a_request_that_waits_for_slots_marks_them() {
    let Processes { server, store, other } = Processes::start().await;
    let rates = [ONE, Quota::per_hour(1)];
    let rule = || Rule::new("api", Everyone, ONE).max_wait(PATIENCE);
    let both = || Rule::new("api", Everyone, rates.to_vec()).max_wait(millis(500));
    let both_held = Account { quotas: rates.into(), ..account(ONE) };
    let running = both_held.take(&other, 1).await.expect("a decision");
    assert!(running.is_allowed());
    let report = app_of(rule().report_only(true), store.clone().fail_closed(), Duration::ZERO);
    assert_eq!(all(vec![report.send(to("/"))]).await[0].0, OK);
    assert!(!is_marked(&server).await, "a rule that is report-only");
    let third = connect(&server.url()).await;
    let denied = app_of(both(), third.fail_closed(), Duration::ZERO);
    assert_eq!(all(vec![denied.send(to("/"))]).await[0].0, DENIED);
    assert!(!is_marked(&server).await, "a rate denies as well");
    let waits = app_of(rule(), store.clone().fail_closed(), Duration::ZERO);
    let sent = waits.send(to("/"));
    eventually("a mark", async || is_marked(&server).await.then_some(())).await;
    drop(running);
    assert_eq!(all(vec![sent]).await[0].0, OK);
    assert!(!is_marked(&server).await, "its store took the slot");
}

/// A mark ends once its store has more slots than before, so slots that are only asked for do not count.
#[tokio::test]
async fn a_mark_has_the_slots_that_its_store_holds() {
    let Processes { server, store, other } = Processes::start().await;
    let (two, running) = (Quota::concurrent(2), hold(&other, ONE).await);
    let own = account(two).take(&store, 1).await.expect("a decision");
    assert!(running.is_allowed() && own.is_allowed());
    let rule = Rule::new("api", Everyone, two).max_wait(PATIENCE);
    let waits = app_of(rule, store.clone().fail_closed(), Duration::ZERO);
    let asked = account(two);
    let (denied, (sent,)) = tokio::join!(biased; asked.take(&store, 2), async {
        let sent = waits.send(to("/"));
        tokio::task::yield_now().await;
        (sent,)
    });
    assert!(!denied.expect("a decision").is_allowed());
    let marks = async || {
        let mut connection = raw(&server.url()).await;
        let names: Vec<String> = cmd("KEYS").arg("*w").query_async(&mut connection).await.ok()?;
        let mark: Vec<u8> =
            cmd("GET").arg(names.first()?).query_async(&mut connection).await.ok()?;
        mark[13..].first_chunk::<5>().copied()
    };
    assert_eq!(eventually("a mark", marks).await, [1, 0, 0, 0, 0]);
    drop(running);
    assert_eq!(all(vec![sent]).await[0].0, OK);
}

/// A mark says what later requests leave to others, and not what an allowed one sees.
#[tokio::test]
async fn an_allowed_request_sees_the_held_slots_beside_a_mark() {
    let Processes { server, store, other } = Processes::start().await;
    let (two, mut running) = (Quota::concurrent(2), Vec::new());
    for process in [&store, &other] {
        running.push(account(two).take(process, 1).await.expect("a decision"));
    }
    let rule = || Rule::new("api", Everyone, two).max_wait(PATIENCE);
    let waiting = app_of(rule(), store.clone().fail_closed(), Duration::ZERO).send(to("/"));
    eventually("a mark", async || is_marked(&server).await.then_some(())).await;
    let layer = RateLimitLayer::rules(rule(), other.fail_closed()).expose_decision();
    let layer = layer.hold_until(HoldUntil::Head);
    let service =
        layer.layer(service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new()))));
    drop(running.pop());
    let response = service.oneshot(to("/")).await.expect("infallible");
    let decision = response.extensions().get::<Decision>().expect("a decision");
    assert!(decision.is_allowed() && is_marked(&server).await, "{decision:?}");
    let [outcome] = decision.outcomes() else { panic!("one outcome") };
    assert_eq!((outcome.is_denied(), outcome.held()), (false, Some(2)));
    drop((response, running));
    assert_eq!(all(vec![waiting]).await[0].0, OK);
}

#[tokio::test]
async fn a_mark_of_another_type_is_ignored() {
    let Processes { server, store, other } = Processes::start().await;
    let app = app(store.fail_closed(), millis(2_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    let sent = app.send_all(2).await;
    let mut connection = raw(&server.url()).await;
    let marks: Vec<String> =
        cmd("KEYS").arg("*w").query_async(&mut connection).await.expect("keys");
    let mut replace = redis::pipe();
    replace.cmd("DEL").arg(&marks[0]).ignore().cmd("LPUSH").arg(&marks[0]).arg("x").ignore();
    let (): () = replace.query_async(&mut connection).await.expect("replaced");
    drop(running);
    assert!(all(sent).await.iter().all(|(status, _)| *status == OK));
}

/// Requests of two processes wait, leave at any instant, and run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_waits_never_exceed_the_limit_and_leave_nothing() {
    const LIMIT: u32 = 5;
    let server = Server::redis().await;
    let stores = [connect(&server.url()).await, connect(&server.url()).await];
    let key = Account::new("random", Quota::concurrent(LIMIT));
    let (running, ran) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks = (0..64_u64).map(|n| {
        let limiter = Limiter::named("default", stores[usize::from(n % 2 == 0)].clone());
        let (key, mut random) = (key.clone(), Dice(n));
        let (running, ran) = (running.clone(), ran.clone());
        tokio::spawn(async move {
            for _ in 0..100 {
                let cost = 1 + random.below(2);
                let waits = limiter.try_until_ready(key.key.clone(), &key.quotas, cost);
                let left = millis((1 + random.below(60)).into());
                let Ok(Ok(decision)) = timeout(left, waits).await else { continue };
                let now = running.fetch_add(cost, SeqCst) + cost;
                assert!(now <= LIMIT, "{now} slots held");
                ran.fetch_add(1, SeqCst);
                sleep(millis(random.below(4).into())).await;
                running.fetch_sub(cost, SeqCst);
                drop(decision);
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no panic");
    }
    assert!(ran.load(SeqCst) > 50, "{ran:?} ran");
    until_held(&stores[0], &key, 0).await;
    eventually("nobody waits, and nothing is held", async || {
        let before = server.script_calls().await;
        sleep(millis(1_500)).await;
        (server.script_calls().await == before).then_some(())
    })
    .await;
}
