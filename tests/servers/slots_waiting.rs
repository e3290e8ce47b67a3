//! Requests that wait for a slot on Redis (`max_wait`).

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{Request, Response, StatusCode};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Decision, Limiter, LocalStore, Quota, RateLimitLayer, RedisStore, Rule, Store, StoreExt,
    decision::Source, key::Everyone, middleware::HoldUntil, rule::RequestDeadline,
    store::CannotFail,
};

use crate::{
    accounts::{Account, Dice, connect, rule},
    servers::{Flavour, Server, eventually},
    slots::{held, until_held},
};

const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const ONE: Quota = Quota::concurrent(1);
const TIMEOUT: Duration = Duration::from_millis(50);

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
struct App<S> {
    service: S,
    ran: Ran,
}

fn app<S>(
    quotas: &[Quota],
    store: S,
    max_wait: Duration,
    time: Duration,
) -> App<
    impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static,
>
where
    S: Store<Error: CannotFail, Future: Send> + Send + Sync + 'static,
{
    let rule = Rule::new("api", Everyone, quotas.to_vec()).max_wait(max_wait);
    let layer = RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head);
    let ran = Ran::default();
    let log = ran.clone();
    let handler = service_fn(move |request: Request<()>| {
        log.0.lock().expect("no panic").push(request.uri().path().to_owned());
        async move {
            sleep(time).await;
            Ok(Response::new(String::new()))
        }
    });
    App { service: layer.max_waiters_per_key(100).layer(handler), ran }
}

impl<S> App<S>
where
    S: Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
{
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
}

fn to(path: &str) -> Request<()> {
    Request::get(path).body(()).expect("a request")
}

async fn all(sent: Vec<Answer>) -> Vec<(StatusCode, Duration)> {
    join_all(sent).await.into_iter().map(|it| it.expect("no panic")).collect()
}

async fn hold(store: &RedisStore, quota: Quota) -> Decision {
    until_free(store, quota).await;
    let running = account(quota).take(store, 1).await.expect("a decision");
    assert!(running.is_allowed());
    running
}

async fn until_free(store: &RedisStore, quota: Quota) {
    let account = account(quota);
    let limit = u64::from(quota.burst());
    eventually("a slot is free", async || (held(store, &account).await < limit).then_some(()))
        .await;
}

/// A freed slot is taken at once, long before the first request asks by itself.
#[tokio::test]
async fn a_freed_slot_goes_to_the_requests_of_its_process_in_their_order() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let store = connect(&server.url()).await;
        let app = app(&[ONE], store.clone().fail_closed(), millis(5_000), Duration::ZERO);
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
        assert!(answers.iter().all(|(status, _)| *status == OK), "{answers:?}");
        assert!(freed.elapsed() < millis(400), "{flavour:?}: {:?}", freed.elapsed());
        assert_eq!(app.ran(), (0..8).map(|n| format!("/{n}")).collect::<Vec<_>>());
        // One call for each request, one for the look at the statistics, and some that free slots.
        let calls = server.script_calls().await - before;
        assert!((8..=20).contains(&calls), "{calls} calls");
        until_held(&store, &account(ONE), 0).await;
    }
}

#[tokio::test]
async fn many_freed_slots_are_taken_by_many_requests_at_once() {
    let server = Server::redis().await;
    let (quota, store) = (Quota::concurrent(40), connect(&server.url()).await);
    let app = app(&[quota], store.clone().fail_closed(), millis(5_000), millis(100));
    let running: Vec<_> = join_all((0..40).map(|_| hold(&store, quota))).await;
    let sent = app.send_all(40).await;
    let freed = Instant::now();
    drop(running);
    let answers = all(sent).await;
    assert!(answers.iter().all(|(status, _)| *status == OK), "{answers:?}");
    assert!(freed.elapsed() < millis(100 + 150), "{:?}", freed.elapsed());
    until_held(&store, &account(quota), 0).await;
}

#[tokio::test]
async fn requests_that_wait_for_other_processes_make_few_calls() {
    let server = Server::redis().await;
    let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let app = app(&[ONE], store.clone().fail_closed(), millis(3_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    let sent = app.send_all(30).await;
    let before = server.script_calls().await;
    sleep(millis(1_000)).await;
    let calls = server.script_calls().await - before;
    // Every 100 ms, until this process has held a slot.
    assert!((5..=11).contains(&calls), "{calls} calls in a second for 30 requests");
    let freed = Instant::now();
    drop(running);
    let answers = all(sent).await;
    assert!(answers.iter().all(|(status, _)| *status == OK), "{answers:?}");
    assert!(freed.elapsed() < millis(1_000), "{:?}", freed.elapsed());
    until_held(&store, &account(ONE), 0).await;
}

#[tokio::test]
async fn a_wait_ends_at_max_wait_or_at_the_deadline_of_the_request() {
    let server = Server::redis().await;
    let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let quotas = [ONE, Quota::per_hour(10)];
    let app = app(&quotas, store.clone().fail_closed(), millis(400), Duration::ZERO);
    let account = Account { quotas: quotas.into(), ..account(ONE) };
    let running = account.take(&other, 1).await.expect("a decision");
    let mut short = to("/");
    short.extensions_mut().insert(RequestDeadline(millis(150)));
    let sent = vec![app.send(to("/")), app.send(short), app.send(to("/"))];
    let answers = all(sent).await;
    for ((status, took), due) in answers.into_iter().zip([400, 150, 400].map(millis)) {
        assert_eq!(status, DENIED);
        assert!(took >= due && took < due + millis(100), "{took:?}, not {due:?}");
    }
    drop(running);
    until_held(&store, &account, 0).await;
    let look = account.take(&store, 0).await.expect("a look");
    assert_eq!(look.outcomes()[1].remaining(), 9, "a wait charges no rate");
}

#[tokio::test]
async fn requests_that_leave_cost_nothing_and_give_their_positions_to_the_next() {
    let server = Server::redis().await;
    let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let app = app(&[ONE], store.clone().fail_closed(), millis(9_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    let mut sent = app.send_all(20).await;
    let last = sent.pop().expect("twenty");
    sent.iter().for_each(JoinHandle::abort);
    assert!(join_all(sent).await.iter().all(|it| it.as_ref().is_err_and(|it| it.is_cancelled())));
    drop(running);
    let (status, took) = last.await.expect("no panic");
    assert_eq!(status, OK, "{took:?}");
    assert_eq!(app.ran(), ["/19"]);
    let running = hold(&other, ONE).await;
    let sent = app.send_all(20).await;
    sent.iter().for_each(JoinHandle::abort);
    drop(join_all(sent).await);
    sleep(millis(20)).await;
    let before = server.script_calls().await;
    sleep(millis(500)).await;
    assert_eq!(server.script_calls().await - before, 0, "nobody waits");
    drop(running);
    until_held(&store, &account(ONE), 0).await;
}

/// A new request is denied or waits without a call.
#[tokio::test]
async fn a_new_request_does_not_overtake_those_that_wait() {
    let server = Server::redis().await;
    let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let app = app(&[ONE], store.clone().fail_closed(), millis(9_000), millis(50));
    let running = hold(&other, ONE).await;
    let sent = app.send_all(1).await;
    drop(running);
    until_held(&other, &account(ONE), 0).await;
    let denied = account(ONE).take(&store, 1).await.expect("a decision");
    assert!(!denied.is_allowed() && denied.outcomes()[0].is_wait_unknown(), "{denied:?}");
    assert_eq!(denied.source(), Source::DenyCache);
    assert_eq!(all(sent).await[0].0, OK);
    assert!(account(ONE).take(&store, 1).await.expect("a decision").is_allowed());
}

#[tokio::test]
async fn a_denial_reports_the_mean_hold_time_divided_by_the_limit() {
    let server = Server::redis().await;
    let (two, store) = (Quota::concurrent(2), connect(&server.url()).await);
    let wait = async || {
        let denied = account(two).take(&store, 1).await.expect("a decision");
        assert!(!denied.is_allowed());
        denied.expected_wait().expect("an expectation")
    };
    let running = [hold(&store, two).await, hold(&store, two).await];
    assert_eq!(wait().await, Duration::from_secs(1), "nothing is known");
    sleep(millis(2_600)).await;
    drop(running);
    until_held(&store, &account(two), 0).await;
    let running = [hold(&store, two).await, hold(&store, two).await];
    let wait = wait().await;
    assert!(wait > millis(1_250) && wait < millis(1_600), "{wait:?}");
    drop(running);
}

/// Requests that wait for longer than the timeout of the store are neither failures nor decided by
/// the policy for them.
async fn waits<S>(what: &str, other: &RedisStore, store: S)
where
    S: Store<Error: CannotFail, Future: Send> + Send + Sync + 'static,
{
    let sources: Arc<Mutex<Vec<Source>>> = Arc::default();
    let seen = sources.clone();
    let quotas = [Quota::concurrent(2), Quota::per_hour(10_000)];
    let account = Account { quotas: quotas.into(), ..account(ONE) };
    let rule = Rule::new("api", Everyone, quotas.to_vec()).max_wait(millis(4_000));
    let layer = RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head).expose_decision();
    let service = layer.max_waiters_per_key(100).layer(service_fn(move |request: Request<()>| {
        let decision = request.extensions().get::<Decision>().expect("it is exposed");
        seen.lock().expect("no panic").push(decision.source());
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    }));
    let running = [account.take(other, 1).await, account.take(other, 1).await];
    let start = Instant::now();
    let sent = join_all((0..20).map(|_| service.clone().oneshot(to("/"))));
    let sent = tokio::spawn(sent);
    sleep(TIMEOUT * 6).await;
    drop(running);
    for response in sent.await.expect("no panic") {
        assert_eq!(response.expect("infallible").status(), OK, "{what}");
    }
    assert!(start.elapsed() > TIMEOUT * 5, "{what}");
    let sources = sources.lock().expect("no panic");
    assert_eq!(*sources, vec![Source::Redis; 20], "{what}");
    until_held(other, &account, 0).await;
}

#[tokio::test]
async fn waiting_is_no_outage_under_any_policy() {
    let server = Server::redis().await;
    let (store, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let local = || LocalStore::with_capacity(1_000);
    let inner = || store.clone().timeout(TIMEOUT);
    waits("open", &other, inner().fail_open()).await;
    waits("closed", &other, inner().fail_closed()).await;
    waits("fallback", &other, inner().fallback(local()).instances(4)).await;
    waits("breaker, fallback", &other, inner().breaker().fallback(local()).instances(4)).await;
    waits("breaker, open", &other, inner().breaker().fail_open()).await;
    waits("breaker inside", &other, store.clone().breaker().timeout(TIMEOUT).fail_closed()).await;
    waits("cache, leases", &other, inner().breaker().deny_cache().leases(5).fail_closed()).await;
    waits("leases, cache", &other, inner().breaker().leases(5).deny_cache().fail_open()).await;
    let all = inner().breaker().deny_cache().leases(5).fallback(local()).instances(4);
    waits("all", &other, all).await;
}

async fn outage<S>(what: &str, store: impl Fn(RedisStore) -> S, expected: StatusCode)
where
    S: Store<Error: CannotFail, Future: Send> + Send + Sync + 'static,
{
    let mut server = Server::redis().await;
    let (inner, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let app = app(&[ONE], store(inner), millis(5_000), Duration::ZERO);
    let running = hold(&other, ONE).await;
    let sent = app.send_all(6).await;
    server.kill();
    let start = Instant::now();
    for (status, took) in all(sent).await {
        assert_eq!(status, expected, "{what}: {took:?}");
    }
    assert!(start.elapsed() < millis(2_000), "{what}: {:?}", start.elapsed());
    drop(running);
}

#[tokio::test]
async fn an_outage_ends_the_wait_by_the_policy_for_outages() {
    let local = || LocalStore::with_capacity(1_000);
    outage("open", |it| it.timeout(TIMEOUT).fail_open(), OK).await;
    outage("closed", |it| it.timeout(TIMEOUT).fail_closed(), StatusCode::SERVICE_UNAVAILABLE).await;
    outage("fallback", |it| it.timeout(TIMEOUT).breaker().fallback(local()), OK).await;
}

/// Three processes always have requests that wait. One of them was the first, and held all slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_get_similar_numbers_of_slots() {
    let server = Server::redis().await;
    for (limit, time) in [(1, millis(10)), (5, millis(20)), (20, millis(50))] {
        let quota = Quota::concurrent(limit);
        let store = async || connect(&server.url()).await;
        let stores = [store().await, store().await, store().await];
        let counts = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
        let mut tasks = Vec::new();
        let key = Account::new(format!("fair {limit}"), quota);
        for (store, count) in stores.iter().zip(&counts) {
            for _ in 0..limit * 2 {
                let limiter = Limiter::new(store.clone());
                let (count, key) = (count.clone(), key.clone());
                tasks.push(tokio::spawn(async move {
                    loop {
                        let work = async {
                            count.fetch_add(1, SeqCst);
                            sleep(time).await;
                        };
                        limiter.throttle(key.key.clone(), &key.quotas, work).await.expect("a slot");
                    }
                }));
            }
            sleep(millis(200)).await;
        }
        let all = || counts.each_ref().map(|count| count.load(SeqCst));
        let until = async |what: &str, done: &dyn Fn([u32; 3]) -> bool| {
            eventually(what, async || done(all()).then_some(())).await;
        };
        // The shares settle.
        until("all get slots", &|got| got.iter().all(|got| *got > 5 * limit)).await;
        let (before, start) = (all(), Instant::now());
        let wanted = before.iter().sum::<u32>() + 100 + 100 * limit;
        until("they get more", &|got| got.iter().sum::<u32>() > wanted).await;
        let (after, took) = (all(), start.elapsed());
        let got: Vec<_> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        tasks.iter().for_each(JoinHandle::abort);
        let sum: u32 = got.iter().sum();
        let most = f64::from(limit) * took.as_secs_f64() / time.as_secs_f64();
        let used = f64::from(sum) / most;
        println!("limit {limit}: {got:?}, {:.0} % of the slots used", used * 100.0);
        for got in &got {
            let share = f64::from(*got) / f64::from(sum);
            assert!((0.1..0.7).contains(&share), "limit {limit}: {share:.2}");
        }
        drop(join_all(tasks).await);
        until_held(&stores[0], &key, 0).await;
        assert_eq!(held(&stores[1], &key).await, 0);
    }
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
        let limiter = Limiter::new(stores[usize::from(n % 2 == 0)].clone());
        let (key, mut random) = (key.clone(), Dice(n));
        let (running, ran) = (running.clone(), ran.clone());
        tokio::spawn(async move {
            for _ in 0..100 {
                let cost = 1 + random.below(2);
                let waits = limiter.until_ready(key.key.clone(), &key.quotas, cost);
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
    sleep(millis(100)).await;
    let before = server.script_calls().await;
    sleep(millis(1_500)).await;
    assert_eq!(server.script_calls().await - before, 0, "nobody waits, and nothing is held");
}
