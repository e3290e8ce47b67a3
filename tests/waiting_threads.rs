//! Waiters on many threads, some of whom leave: whoever stays gets its place, and the account owes
//! what was admitted. Whoever leaves gives its units back where nobody has queued behind it; otherwise
//! they are lost, so the account may owe more, and never more than everybody was charged.
//!
//! The store's clock stands still, so that no unit comes back by itself; waits pass in real time.

mod support;

use std::time::Duration;

use http::StatusCode;
use support::{Strict, driven::secs, get};
use tokio::{task::JoinHandle, time::timeout};
use tower::{Layer, ServiceExt};
use tower_sluice::{
    Key, Limiter, LocalStore, NotReady, Quota, RateLimitLayer, Rule, key::Everyone,
    testing::FakeClock,
};

/// A place every 20 µs.
const QUOTA: Quota = Quota::per_second(50_000).burst(1);
const TASKS: u64 = 400;
const ROUNDS: u64 = 10;
/// For whoever is stuck.
const TOO_LONG: Duration = secs(30);

fn owed(store: &LocalStore) -> u128 {
    let look = Limiter::new(store.clone()).peek(Key::everyone(), &QUOTA).now();
    look.outcomes()[0].reset_after().as_nanos() / QUOTA.interval().as_nanos()
}

/// Ends every other task at a moment of its own; what the others say, and those who were done.
async fn ends_half<T>(tasks: Vec<JoinHandle<T>>, round: u64) -> Vec<T> {
    for (at, task) in (round..).zip(&tasks) {
        if at % 5 == 0 {
            tokio::time::sleep(Duration::from_micros(at % 3)).await;
        }
        if at % 2 == 0 {
            task.abort();
        }
    }
    let mut said = Vec::new();
    for (at, task) in (round..).zip(tasks) {
        match timeout(TOO_LONG, task).await.expect("nobody is stuck") {
            Ok(answer) => said.push(answer),
            Err(error) => assert!(error.is_cancelled() && at % 2 == 0, "{error}"),
        }
    }
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_that_leave_the_queue_give_their_places_back() {
    let mut left = 0;
    for round in 0..ROUNDS {
        let store = FakeClock::new().store(64);
        let layer = RateLimitLayer::rules(
            Rule::named(Default::default(), Everyone, QUOTA).max_wait(secs(60)),
            store.clone(),
        );
        let service = layer.layer(Strict::default());
        let request = |_| {
            let service = service.clone();
            tokio::spawn(async move { service.oneshot(get("/")).await.expect("infallible") })
        };
        let said = ends_half((0..TASKS).map(request).collect(), round).await;
        assert!(said.iter().all(|response| response.status() == StatusCode::OK));
        assert!((said.len() as u128..=TASKS.into()).contains(&owed(&store)));
        left += TASKS - said.len() as u64;
    }
    assert!(left > 0, "nobody left in time");
}

/// Some find the queue full before they are asked for, some after they have a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_queue_that_is_full_refuses_and_leaks_no_place() {
    const MOST: usize = 16;
    for round in 0..ROUNDS {
        let store = FakeClock::new().store(64);
        let rule = Rule::named(Default::default(), Everyone, QUOTA).max_wait(secs(3_600));
        let layer = RateLimitLayer::rules(rule, store.clone()).max_waiters(MOST);
        let service = layer.layer(Strict::default());
        let request = |_| {
            let service = service.clone();
            tokio::spawn(async move { service.oneshot(get("/")).await.expect("infallible") })
        };
        let said = ends_half((0..TASKS).map(request).collect(), round).await;
        let passed = said.iter().filter(|response| response.status() == StatusCode::OK).count();
        assert!((passed as u128..=TASKS.into()).contains(&owed(&store)));

        // far from their places, so many wait and no more
        Limiter::new(store.clone())
            .settle(Key::everyone(), &QUOTA.burst(u32::MAX), -50_000 * 60)
            .now();
        let mut waiting: Vec<_> =
            (0..MOST).map(|_| tokio_test::task::spawn(service.clone().oneshot(get("/")))).collect();
        assert!(waiting.iter_mut().all(|request| request.poll().is_pending()));
        let refused = service.clone().oneshot(get("/")).await.expect("infallible");
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_stop_waiting_give_their_units_back() {
    for round in 0..ROUNDS {
        let store = FakeClock::new().store(64);
        let limiter = Limiter::new(store.clone());
        let ready = |_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.until_ready(Key::everyone(), &QUOTA, 1).await })
        };
        let said = ends_half((0..TASKS).map(ready).collect(), round).await;
        let ready: Result<Vec<_>, NotReady<_>> = said.into_iter().collect();
        let ready = ready.expect("every cost fits").len() as u128;
        assert!((ready..=TASKS.into()).contains(&owed(&store)));
    }
}
