//! The number of script calls per decision: one, or two if the server lost the script.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use futures::future::join_all;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Algorithm, Key, Limiter, Quota, RateLimitLayer, RedisStore, Rule, Store, StoreExt,
    key::Everyone,
    middleware::{Adjustment, ChargeHandle},
    store::Charge,
    testing::Subject,
};

use crate::{
    accounts::{Account, connect, raw, rule},
    servers::{Server, eventually},
};

const FIRST: [Quota; 2] = [Quota::per_second(100), Quota::per_hour(1_000)];
const SECOND: [Quota; 2] = [
    Quota::per_hour(100).with_algorithm(Algorithm::TokenBucket),
    Quota::per_day(100).with_algorithm(Algorithm::SlidingLog),
];
const THIRD: [Quota; 1] =
    [Quota::per_day(10).with_algorithm(Algorithm::SlidingWindow { buckets: 4 })];

/// Runs `$what` twice and counts the second time, when the server knows the script.
macro_rules! costs_one_call {
    ($server:ident, $what:expr) => {
        let _ = $what.await.expect("a decision");
        let before = $server.script_calls().await;
        let _ = $what.await.expect("a decision");
        assert_eq!($server.script_calls().await - before, 1, stringify!($what));
    };
}

#[tokio::test]
async fn every_operation_is_one_call() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (key, other) = (Key::from("a"), Key::from("b"));
    let first = Charge::new(rule("first"), &key, &FIRST);
    let second = Charge::new(rule("second"), &other, &SECOND);
    let third = Charge::new(rule("third"), &key, &THIRD);

    costs_one_call!(server, store.take(&[first, second, third]));
    costs_one_call!(
        server,
        store.take(&[first.with_cost(0), second.with_cost(0), third.with_cost(0)])
    );
    costs_one_call!(server, store.take(&[first, second, third.with_cost(11)]));
    costs_one_call!(server, store.take(&[first, first, second]));
    let wait = Duration::from_millis(1);
    costs_one_call!(
        server,
        store.take(&[first.with_max_wait(wait), second.with_report_only(true)])
    );
    costs_one_call!(server, store.adjust(&second, 1));
    costs_one_call!(server, store.adjust(&second, -1));
    costs_one_call!(server, store.block(&second, Duration::from_secs(1)));
    costs_one_call!(server, store.take(&[first, second]));
    costs_one_call!(server, store.unblock(&second));
    costs_one_call!(server, store.reset(&second));

    let looks = AtomicU32::new(0);
    let left = async || {
        looks.fetch_add(1, Relaxed);
        store.take(&[second.with_cost(0)]).await.expect("a look").remaining()
    };
    let taken = store.take(&[first, second, third]).await.expect("a decision");
    assert!(taken.is_allowed() && left().await == Some(99));
    let before = server.script_calls().await;
    looks.store(0, Relaxed);
    store.undo(&[first, second, third], &taken, None);
    eventually("the unit is back", async || (left().await == Some(100)).then_some(())).await;
    // The server does not know the script the first time.
    assert_eq!(server.script_calls().await - before, 2 + looks.into_inner());

    let before = server.script_calls().await;
    let nothing = store.take(&[]).await.expect("a decision");
    assert!(nothing.is_allowed() && server.script_calls().await == before);
}

#[tokio::test]
async fn a_request_through_the_layer_is_one_call() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await.fail_open();
    let rules = (
        Rule::new("first", Everyone, FIRST),
        Rule::new("second", Everyone, SECOND),
        Rule::new("third", Everyone, THIRD),
    );
    let echo = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let service = RateLimitLayer::rules(rules, store).layer(echo);
    let ask = async || {
        let request = Request::new(());
        service.clone().oneshot(request).await.expect("an answer").status().as_u16()
    };
    assert_eq!(ask().await, 200);
    let before = server.script_calls().await;
    let mut said = Vec::new();
    for _ in 0..12 {
        said.push(ask().await);
    }
    assert_eq!(said, [[200; 9].as_slice(), &[429; 3]].concat());
    assert_eq!(server.script_calls().await - before, 12);
}

#[tokio::test]
async fn a_server_that_loses_the_script_before_each_call_loses_no_decision() {
    const LIMIT: u32 = 600;
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let mut connection = raw(&server.url()).await;
    let account = Account::new("a", Quota::per_day(LIMIT));
    let before = server.script_calls().await;
    let mut passed = 0;
    for _ in 0..1_000 {
        let mut flush = redis::cmd("SCRIPT");
        let () = flush.arg("FLUSH").query_async(&mut connection).await.expect("flushed");
        passed += u32::from(account.passes(&store).await);
    }
    assert_eq!(passed, LIMIT);
    assert_eq!(server.script_calls().await - before, 2_000);
}

#[tokio::test]
async fn scripts_flushed_at_any_moment_charge_nothing_twice() {
    const LIMIT: u32 = 2_500;
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let mut connection = raw(&server.url()).await;
    let (done, flushes, passed) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let accounts = ["a", "b"].map(|key| Account::new(key, Quota::per_day(LIMIT)));
    let hammer = async {
        while !done.load(Relaxed) {
            let mut flush = redis::cmd("SCRIPT");
            let () = flush.arg("FLUSH").query_async(&mut connection).await.expect("flushed");
            flushes.fetch_add(1, Relaxed);
        }
    };
    let work = async {
        let takes = (0..16).map(async |n| {
            for _ in 0..400 {
                let taken = accounts[n % 2].passes(&store).await;
                passed.fetch_add(taken.into(), Relaxed);
            }
        });
        join_all(takes).await;
        done.store(true, Relaxed);
    };
    tokio::join!(hammer, work);
    assert_eq!(passed.into_inner(), 2 * LIMIT);
    assert!(flushes.into_inner() > 100);
}

/// Returns the number of commands on lists since the server started.
async fn list_commands(server: &Server) -> u64 {
    let stats: String = server.command("INFO commandstats").await;
    let lists = ["lindex", "linsert", "llen", "lpop", "lrange", "lrem", "lset", "rpop"];
    let calls = stats.lines().filter_map(|line| {
        let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        lists.contains(&name).then(|| numbers.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}

#[tokio::test]
async fn an_undo_of_an_old_charge_does_not_read_a_whole_log() {
    let server = Server::redis().await;
    let mut subject = RedisStore::connect(server.url()).await.expect("a store");
    let store = subject.open();
    let quota = Quota::per_day(2_000).with_algorithm(Algorithm::SlidingLog);
    let (account, day) = (Account::new("a", quota), Duration::from_secs(20_000 * 86_400));
    let mut taken = Vec::new();
    for at in 0..1_500_u32 {
        subject.set(day + Duration::from_millis(at.into()));
        taken.push(account.take(&store, 1).await.expect("a decision"));
    }
    for (undone, at) in [0, 700, 1_499].into_iter().enumerate() {
        let before = list_commands(&server).await;
        store.undo(&[account.charge(1)], &taken[at], None);
        subject.finish(&store).await;
        let commands = list_commands(&server).await - before;
        assert!(commands <= 40, "{commands} commands for the charge {at}");
        assert_eq!(account.left(&store).await, 501 + u32::try_from(undone).expect("small"));
    }
    // A second undo finds nothing.
    store.undo(&[account.charge(1)], &taken[700], None);
    subject.finish(&store).await;
    assert_eq!(account.left(&store).await, 503);
}

/// Returns the total time of all script calls, in microseconds of the server.
async fn script_micros(server: &Server) -> u64 {
    let stats: String = server.command("INFO commandstats").await;
    let calls = stats.lines().filter_map(|line| {
        let numbers = line.strip_prefix("cmdstat_eval")?.split_once("usec=")?.1;
        numbers.split(',').next()?.parse::<u64>().ok()
    });
    calls.sum()
}

/// The number of entries of a log that a call reads at most.
const READ: u32 = 250;

#[tokio::test]
async fn a_denied_call_reads_a_bounded_part_of_a_long_log() {
    const UNITS: u32 = 10_000;
    let server = Server::redis().await;
    let mut subject = RedisStore::connect(server.url()).await.expect("a store");
    let store = subject.open();
    let quota = Quota::per_day(UNITS).with_algorithm(Algorithm::SlidingLog);
    let (account, day) = (Account::new("a", quota), Duration::from_secs(20_000 * 86_400));
    for at in 0..UNITS {
        subject.set(day + Duration::from_millis(at.into()));
        drop(account.take(&store, 1).await.expect("a decision"));
    }
    for cost in [1, 2, READ, READ + 1, UNITS / 2, UNITS - 1, UNITS] {
        let (commands, micros) = (list_commands(&server).await, script_micros(&server).await);
        let denial = account.take(&store, cost).await.expect("a decision");
        let commands = list_commands(&server).await - commands;
        println!("cost {cost}: {commands} commands, {} µs", script_micros(&server).await - micros);
        assert!(!denial.is_allowed());
        assert!(commands <= 2, "{commands} commands for {cost}");
        let wait = denial.retry_after().expect("a wait");
        let exact = quota.period() - Duration::from_millis((UNITS - cost).into());
        let wanted = if cost <= READ { exact } else { quota.period() };
        assert_eq!(wait, wanted, "cost {cost}");
    }
}

/// A task of the runtime undoes a charge, so the runtime is that of the request.
#[tokio::test]
async fn a_thread_without_a_runtime_refunds_a_charge() {
    const TEN: Quota = Quota::per_hour(10);
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let limiter = Limiter::named(rule("api").as_str(), store.clone());
    let api = Rule::new("api", Everyone, TEN).cost(4);
    let layer = RateLimitLayer::rules(api, store.fail_closed()).expose_charge(Adjustment::Keep);
    let handler = service_fn(|request: Request<()>| {
        let charge: ChargeHandle = request.extensions().get().cloned().expect("a handle");
        thread::spawn(move || charge.adjust_to(1)).join().expect("no panic");
        async { Ok::<_, Infallible>(Response::new(String::new())) }
    });
    layer.layer(handler).oneshot(Request::new(())).await.expect("infallible");
    let left = async || {
        let look = limiter.try_peek(Key::everyone(), &TEN).await.expect("a decision");
        (look.remaining() == Some(9)).then_some(())
    };
    eventually("three units are back", left).await;
}
