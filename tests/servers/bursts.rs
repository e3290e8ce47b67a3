//! Bursts of one key on a healthy server: they share a few calls, and no caller gets an error.

use std::{fmt::Debug, time::Duration};

use futures::future::join_all;
use tokio::task::{JoinSet, yield_now};
use tower_sluice::{Algorithm, Decision, LocalStore, Quota, Store, StoreExt, decision::Source};

use crate::{
    accounts::{Account, connect},
    servers::{Mode, Proxy, Server, eventually},
};

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

#[tokio::test]
async fn on_a_slow_link_no_request_waits_for_the_calls_of_equal_ones() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let (store, beside) =
        (connect(&server.url_at(proxy.addr())).await, connect(&server.url()).await);
    burst(&store, &Account::new("first", Quota::per_day(LIMIT)), 3).await;
    proxy.set(Mode::Delay(Duration::from_millis(400))).await;
    let mut names = 0_u32..;
    // A busy machine delays some requests.
    eventually("the server has all requests before the first answer", async || {
        let account = Account::new(names.next().expect("a name"), Quota::per_day(LIMIT));
        let mut takes = JoinSet::new();
        for _ in 0..20 {
            let (store, account) = (store.clone(), account.clone());
            takes.spawn(async move { account.passes(&store).await });
            // The call of the requests so far is sent.
            for _ in 0..9 {
                yield_now().await;
            }
        }
        let all = async || (account.left(&beside).await == LIMIT - 20).then_some(());
        tokio::select! {
            _ = takes.join_next() => None,
            () = eventually("all requests", all) => Some(()),
        }
    })
    .await;
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
        let mut least = Duration::MAX;
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
            least = least.min(time / batches);
        }
        assert!(least < Duration::from_millis(10), "{least:?} for a batch of {quotas:?}");
    }
}

/// A policy for outages would decide otherwise: it admits all, none, or another limit.
#[tokio::test]
async fn a_burst_of_one_key_is_no_outage_under_any_policy() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    proxy.set(Mode::Delay(Duration::from_millis(3))).await;
    let store = store.timeout(Duration::from_secs(1)).breaker();
    let stores = [
        store.clone().fail_open().boxed(),
        store.clone().fail_closed().boxed(),
        store.fallback(LocalStore::new(), 1).boxed(),
    ];
    for (at, store) in stores.iter().enumerate() {
        for (nth, quota) in quotas().into_iter().enumerate() {
            let account = Account::new(format!("{at} {nth}"), quota);
            let decisions = burst(store, &account, 300).await;
            let other = decisions.iter().find(|decision| decision.source() != Source::Redis);
            assert_eq!(other.map(Decision::source), None, "{at}, {quota:?}");
            let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
            assert_eq!(allowed, LIMIT as usize, "{at}, {quota:?}");
        }
    }
}
