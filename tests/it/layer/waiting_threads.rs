//! Queued requests on many threads, some of them cancelled.
//!
//! Every remaining request gets its position. The account holds the charges of all allowed
//! requests, and never more than all charges. A cancelled request is undone if no other request
//! waits behind it.
//!
//! The store's clock stands still, so no unit refills. Waits take real time.

use std::time::Duration;

use http::StatusCode;
use tokio::{task::JoinHandle, time::timeout};
use tower::{Layer, ServiceExt};
use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, key::Everyone, limiter::NotReady,
    testing::FakeClock,
};

use crate::support::{Strict, driven::secs, get};

/// One position every 20 µs.
const QUOTA: Quota = Quota::per_second(50_000).with_burst(1);
const TASKS: u64 = 400;
const ROUNDS: u64 = 10;
/// Time limit for a stuck request.
const TOO_LONG: Duration = secs(30);

fn owed(store: &LocalStore) -> u128 {
    let look = Limiter::named("default", store.clone()).peek(Key::everyone(), &QUOTA).now();
    look.outcomes()[0].reset_after().as_nanos() / QUOTA.interval().as_nanos()
}

/// Cancels every other task at a moment of its own. Returns the results of the other tasks and of
/// cancelled tasks that were already done.
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
        match timeout(TOO_LONG, task).await.expect("no task is stuck") {
            Ok(answer) => said.push(answer),
            Err(error) => assert!(error.is_cancelled() && at % 2 == 0, "{error}"),
        }
    }
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_that_leave_the_queue_are_undone() {
    let mut left = 0;
    for round in 0..ROUNDS {
        let store = FakeClock::new().store(64);
        let layer = RateLimitLayer::rules(
            Rule::new("default", Everyone, QUOTA).max_wait(secs(60)),
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
    assert!(left > 0, "no request was cancelled in time");
}

/// Some find the queue full before their store call, some after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_queue_denies_and_leaks_no_position() {
    const MOST: usize = 16;
    for round in 0..ROUNDS {
        let store = FakeClock::new().store(64);
        let rule = Rule::new("default", Everyone, QUOTA).max_wait(secs(3_600));
        let layer = RateLimitLayer::rules(rule, store.clone()).max_waiters(MOST);
        let service = layer.layer(Strict::default());
        let request = |_| {
            let service = service.clone();
            tokio::spawn(async move { service.oneshot(get("/")).await.expect("infallible") })
        };
        let said = ends_half((0..TASKS).map(request).collect(), round).await;
        let passed = said.iter().filter(|response| response.status() == StatusCode::OK).count();
        assert!((passed as u128..=TASKS.into()).contains(&owed(&store)));

        // the wait is far away, so this number of requests queue and no more
        drop(
            Limiter::named("default", store.clone())
                .charge(Key::everyone(), &QUOTA.with_burst(u32::MAX), 50_000 * 60)
                .now(),
        );
        let mut waiting: Vec<_> =
            (0..MOST).map(|_| tokio_test::task::spawn(service.clone().oneshot(get("/")))).collect();
        assert!(waiting.iter_mut().all(|request| request.poll().is_pending()));
        let denied = service.clone().oneshot(get("/")).await.expect("infallible");
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_stop_waiting_return_their_units() {
    for round in 0..ROUNDS {
        let store = FakeClock::new().store(64);
        let limiter = Limiter::named("default", store.clone());
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
