//! Repeated denials, which cost the server one script call.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{Quota, RateLimitLayer, Rule, StoreExt, decision::Source, key::Everyone};

use crate::{
    accounts::{Account, connect},
    servers::{PATIENCE, Server, eventually},
};

#[tokio::test]
async fn repeated_requests_of_a_denied_key_cost_the_server_nothing() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await.timeout(PATIENCE).breaker();
    let cache = store.deny_cache().max_age(Duration::from_secs(60));
    let rules = (
        Rule::new("site", Everyone, Quota::per_day(100)),
        Rule::new("user", Everyone, [Quota::per_day(3), Quota::per_hour(50)]),
    );
    let echo = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let layer = RateLimitLayer::rules(rules, cache.fail_closed());
    let service = layer.layer(echo);
    let ask = async || {
        let request = Request::new(());
        let (head, _) = service.clone().oneshot(request).await.expect("an answer").into_parts();
        let header = |name: &str| {
            head.headers.get(name).map_or("", |value| value.to_str().expect("text")).to_owned()
        };
        let wait = header("retry-after").parse::<u64>().unwrap_or(0);
        (head.status.as_u16(), wait, header("ratelimit"))
    };
    for _ in 0..3 {
        assert_eq!(ask().await.0, 200);
    }
    let start = Instant::now();
    let (status, wait, fields) = ask().await;
    assert_eq!((status, wait), (429, 28_800));
    assert!(fields.starts_with("\"site\";r=97, "), "{fields}");
    let before = server.script_calls().await;
    let known = join_all((0..500).map(|_| ask())).await;
    let took = start.elapsed().as_secs() + 1;
    for (status, later, fields) in known {
        assert!(status == 429 && later <= wait && later + took >= wait, "{status}, {later} s");
        assert!(fields.starts_with("\"user-1day\";r=0;t="), "{fields}");
    }
    assert_eq!(server.script_calls().await - before, 0);
}

#[tokio::test]
async fn resets_are_seen_in_time_from_another_process_and_at_once_from_the_own() {
    const AT_MOST: Duration = Duration::from_millis(300);
    let server = Server::redis().await;
    let cache = connect(&server.url()).await.deny_cache().max_age(AT_MOST);
    let (account, there) = (Account::new("a", Quota::per_day(3)), connect(&server.url()).await);
    for round in 0..3 {
        assert_eq!(account.passed(&there, 3).await, 3);
        assert!(!account.passes(&cache).await);
        let known = async || {
            let denied = account.take(&cache, 1).await.expect("a decision");
            assert!(!denied.is_allowed());
            (denied.source() == Source::DenyCache).then_some(())
        };
        eventually("the denial is known", known).await;
        if round % 2 == 0 {
            drop(there.reset(&account.charge(1)).await.expect("a reset"));
            let passes = async || account.passes(&cache).await.then_some(());
            eventually("the reset takes effect", passes).await;
        } else {
            drop(cache.reset(&account.charge(1)).await.expect("a reset"));
            assert!(account.passes(&cache).await);
        }
        drop(there.reset(&account.charge(1)).await.expect("a reset"));
    }
}

#[tokio::test]
async fn denied_keys_stay_denied_while_the_server_is_down() {
    let mut server = Server::redis().await;
    let cache = connect(&server.url()).await.timeout(PATIENCE).breaker();
    let cache = cache.deny_cache().max_age(Duration::from_secs(60));
    let quota = Quota::per_day(3);
    let (alice, bob) = (Account::new("alice", quota), Account::new("bob", quota));
    let limited = cache.clone().fail_open();
    let asked = |account: &Account| {
        let answer = limited.take(&[account.charge(1)]);
        async move { answer.await.expect("infallible") }
    };
    for _ in 0..4 {
        drop(asked(&alice).await);
    }
    server.kill();
    assert_eq!(asked(&bob).await.source(), Source::FailedOpen);
    let known = asked(&alice).await;
    assert_eq!((known.source(), known.is_allowed()), (Source::DenyCache, false));
}
