//! Bursts of one key on a healthy server: they share a few calls, and no caller gets an error.
#![allow(clippy::print_stdout)]

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::join_all;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, Value, aio::ConnectionLike};
use tokio::time::{Instant, sleep_until};
use tower_sluice::{
    Algorithm, Decision, LocalStore, Quota, RedisStore, Store, StoreExt, decision::Source,
};

use crate::{
    accounts::{Account, DAY, connect, quota_address, stored_micros},
    servers::{Mode, Proxy, Server},
};

const BURSTS: [u32; 3] = [200, 500, 2_048];
const LIMIT: u32 = 100;

fn quotas() -> [Quota; 8] {
    let [sliding, bucket] = [Algorithm::SlidingWindow { buckets: 6 }, Algorithm::TokenBucket];
    let fixed = Algorithm::fixed_window();
    let day = Quota::per_day(LIMIT);
    [
        day,
        day.with_initial(LIMIT),
        day.with_algorithm(bucket),
        day.with_algorithm(fixed),
        day.with_algorithm(Algorithm::FixedWindow { carry_over: 9, paced: false }),
        day.with_algorithm(Algorithm::AnchoredWindow),
        day.with_algorithm(sliding),
        day.with_algorithm(Algorithm::SlidingLog),
    ]
}

/// Takes a unit by each of the callers at once.
async fn burst<S: Store<Error: Debug>>(store: &S, account: &Account, of: u32) -> Vec<Decision> {
    let charges = [account.charge(1)];
    let takes = (0..of).map(|_| store.take(&charges).into_future());
    let decisions = join_all(takes).await;
    decisions.into_iter().map(|decision| decision.expect("a decision")).collect()
}

fn most_calls(callers: u32) -> u32 {
    2 + callers.div_ceil(1_024)
}

#[tokio::test]
async fn on_a_slow_link_no_request_waits_for_the_calls_of_equal_ones() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    let account = Account::new("a", Quota::per_day(LIMIT));
    burst(&store, &account, 3).await;
    let delay = Duration::from_millis(400);
    proxy.set(Mode::Delay(delay)).await;
    let takes = (0..20).map(async |n| {
        tokio::time::sleep(Duration::from_millis(n)).await;
        let start = Instant::now();
        assert!(account.passes(&store).await);
        start.elapsed()
    });
    let slowest = join_all(takes).await.into_iter().max().expect("calls");
    assert!((delay..delay * 3 / 2).contains(&slowest), "{slowest:?}");
}

#[tokio::test]
async fn a_burst_of_one_key_shares_a_few_calls() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    for quota in quotas() {
        // The server learns the scripts of single requests, and that of batches.
        assert!(Account::new("warm", quota).passes(&store).await);
    }
    burst(&store, &Account::new("warm", quotas()[1]), 3).await;
    proxy.set(Mode::Delay(Duration::from_millis(3))).await;
    for (quota, callers) in quotas().into_iter().flat_map(|it| BURSTS.map(|of| (it, of))) {
        let key = format!("{quota:?} {callers}");
        let account = Account::new(key.clone(), quota);
        let (before, start) = (server.script_calls().await, Instant::now());
        let decisions = burst(&store, &account, callers).await;
        let (took, calls) = (start.elapsed(), server.script_calls().await - before);
        println!("{key}: {calls} calls, {took:?}");
        let mut left: Vec<_> = decisions.iter().filter_map(Decision::remaining).collect();
        left.sort_unstable();
        let expected = (LIMIT..callers).map(|_| 0).chain(0..LIMIT);
        assert!(left.into_iter().eq(expected), "{key}");
        let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
        assert_eq!(allowed, LIMIT as usize, "{key}");
        assert!(calls <= most_calls(callers), "{key}: {calls} calls");
    }
}

/// Returns the CPU time of the server so far.
async fn cpu(server: &Server) -> Duration {
    let text: String = server.command("INFO cpu").await;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.expect("a time").trim().parse::<f64>().expect("seconds")
    };
    Duration::from_secs_f64(of("used_cpu_user_main_thread") + of("used_cpu_sys_main_thread"))
}

#[tokio::test]
async fn a_batch_occupies_the_server_briefly() {
    const KEYS: u32 = 1_024;
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let single = quotas().map(|quota| vec![quota]);
    let several = quotas()[1..5].to_vec();
    for quotas in single.into_iter().chain([several]) {
        let rule = tower_sluice::rule::RuleName::default();
        let keys: Vec<_> = (0..KEYS).map(|n| format!("{quotas:?} {n}").into()).collect();
        let keys: Vec<tower_sluice::Key> = keys;
        let charges: Vec<_> =
            keys.iter().map(|key| [tower_sluice::store::Charge::new(rule, key, &quotas)]).collect();
        for round in 0..3 {
            let (before, spent) = (server.script_calls().await, cpu(&server).await);
            let takes = charges.iter().map(|charge| store.take(charge).into_future());
            let decisions = join_all(takes).await;
            assert!(decisions.iter().all(|one| one.as_ref().is_ok_and(Decision::is_allowed)));
            let time = cpu(&server).await - spent;
            // One is alone.
            let batches = server.script_calls().await - before - 1;
            println!("{quotas:?} {round}: {batches} batches, {:?} each", time / batches);
            let full = KEYS / 64 * u32::try_from(quotas.len()).expect("few");
            // In the first round, the server learns the scripts.
            assert!(round == 0 || batches <= 2 * full, "{batches} batches");
            assert!(time / batches < Duration::from_millis(10), "{time:?} for {batches} batches");
        }
    }
}

/// A server that answers requests for one account of one fixed window, one after another, as fast
/// as a real server.
#[derive(Clone, Default)]
struct Window(Arc<WindowState>);

#[derive(Default)]
struct WindowState {
    calls: AtomicU32,
    used: AtomicU32,
    free_at: Mutex<Option<Instant>>,
}

impl Window {
    const LATENCY: Duration = Duration::from_millis(3);
    const SERVICE: Duration = Duration::from_micros(50);

    fn answer(&self, command: &Cmd) -> Vec<u8> {
        let args: Vec<_> = command.args_iter().collect();
        let bytes = |at: usize| match &args[at] {
            redis::Arg::Simple(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        };
        // The layout of a batch of one group follows its plan.
        let batched = (args.len() == 6).then(|| bytes(5));
        let count = batched.map_or(1, |it| u16::from_le_bytes([it[0], it[1]]).into());
        let used = self.0.used.load(Relaxed);
        let passed = count.min(LIMIT - used);
        self.0.used.store(used + passed, Relaxed);
        let now = 1_700_000_000_000_000_u64;
        let instant = [&now.to_le_bytes()[..7], &[0, 0]].concat();
        let start = now - now % 86_400_000_000;
        let window = [&start.to_le_bytes()[..7], &[0, 0]].concat();
        let used = u64::from(used + passed).to_le_bytes();
        let state = [&window[..], &used[..5], &[0; 5]].concat();
        let address = quota_address(b'f', Some(DAY)).to_le_bytes();
        let end = stored_micros(start + 86_400_000_000);
        let account = [&stored_micros(now), &[b'f', 30, 0][..], &address, &end, &state].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        let passed = u16::try_from(passed).expect("few").to_le_bytes();
        [&instant[..], &passed, &passed, &[0], &length, &account].concat()
    }
}

impl ConnectionLike for Window {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let window = self.clone();
        Box::pin(async move {
            window.0.calls.fetch_add(1, Relaxed);
            let arrives = Instant::now() + Self::LATENCY / 2;
            let done = {
                let mut free_at = window.0.free_at.lock().unwrap_or_else(PoisonError::into_inner);
                let done = free_at.map_or(arrives, |free| free.max(arrives)) + Self::SERVICE;
                *free_at = Some(done);
                done
            };
            let answer = window.answer(command);
            sleep_until(done + Self::LATENCY / 2).await;
            Ok(Value::BulkString(answer))
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let error = RedisError::from((ErrorKind::Client, "no pipelines"));
        Box::pin(async move { Err(error) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// The callers wait for their own key, and not for the server.
#[tokio::test(start_paused = true)]
async fn no_caller_of_a_burst_gets_an_error_under_any_wrapper() {
    async fn check<S: Store<Error: Debug>>(wrappers: &str, wrap: impl Fn(RedisStore<Window>) -> S) {
        for callers in BURSTS {
            let server = Window::default();
            let store = wrap(RedisStore::with_connection(server.clone()).lazy().expect("a store"));
            let quota = Quota::per_day(LIMIT).with_algorithm(Algorithm::fixed_window());
            let decisions = burst(&store, &Account::new("hot", quota), callers).await;
            let by_redis = |decision: &Decision| decision.source() == Source::Redis;
            assert!(decisions.iter().all(by_redis), "{wrappers}, {callers} callers");
            let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
            assert_eq!(allowed, LIMIT as usize, "{wrappers}, {callers} callers");
            let calls = server.0.calls.load(Relaxed);
            assert!(calls <= most_calls(callers), "{wrappers}, {callers} callers: {calls} calls");
            // An open breaker would not ask the server.
            let other = Account::new("hot", quota);
            assert_eq!(burst(&store, &other, 1).await[0].source(), Source::Redis, "{wrappers}");
        }
    }
    const BUDGET: Duration = Duration::from_millis(50);
    let local = || LocalStore::with_capacity(1_000);
    check("timeout", |store| store.timeout(BUDGET)).await;
    check("timeout, breaker", |store| store.timeout(BUDGET).breaker()).await;
    check("breaker, timeout", |store| store.breaker().timeout(BUDGET)).await;
    check("fail open", |store| store.timeout(BUDGET).fail_open()).await;
    check("breaker, fail open", |store| store.timeout(BUDGET).breaker().fail_open()).await;
    check("fail closed", |store| store.timeout(BUDGET).fail_closed()).await;
    check("breaker, fail closed", |store| store.timeout(BUDGET).breaker().fail_closed()).await;
    check("fallback", |store| store.timeout(BUDGET).fallback(local(), 4)).await;
    check("breaker, fallback", |store| store.timeout(BUDGET).breaker().fallback(local(), 4)).await;
}
