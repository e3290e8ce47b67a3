//! Metrics of held slots and of requests that wait.

use std::{cell::RefCell, collections::BTreeMap, convert::Infallible, time::Duration};

use axum::body::Body;
use http::Response;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::{runtime::Builder, time::sleep};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::{HoldUntil, Slot},
    rule::Adaptive,
    store::CannotFail,
    testing::FakeClock,
};

use crate::support::{
    driven::{Time, millis, secs},
    get,
    shaky::{Mood, Shaky},
    with,
};

/// The value of each gauge, and the samples of each histogram, by name and rule.
type Values = BTreeMap<String, Vec<f64>>;

/// The metrics of slots and queues.
struct Watch {
    snapshotter: Snapshotter,
    /// The sums of the changes that the recorder reports.
    gauges: RefCell<BTreeMap<String, f64>>,
}

impl Watch {
    /// Returns the gauges, and the samples since the last call.
    fn values(&self) -> Values {
        let (mut values, mut gauges) = (Values::new(), self.gauges.borrow_mut());
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let (name, label) = (key.key().name(), key.key().labels().next());
            let is_meant = ["slot", "queue"].iter().any(|part| name.contains(part));
            let Some(label) = label.filter(|_| is_meant) else { continue };
            assert_eq!((label.key(), key.key().labels().count()), ("policy", 1));
            let name = format!("{} {}", label.value(), name.replace("ratelimit.", ""));
            match value {
                DebugValue::Gauge(change) => *gauges.entry(name).or_default() += *change,
                DebugValue::Histogram(samples) => {
                    values.insert(name, samples.into_iter().map(f64::from).collect());
                }
                DebugValue::Counter(_) => panic!("{name} is a counter"),
            }
        }
        values.retain(|_, samples| !samples.is_empty());
        values.extend(gauges.iter().map(|(name, value)| (name.clone(), vec![*value])));
        values
    }
}

fn expected<const N: usize>(values: [(&str, f64); N]) -> Values {
    values.map(|(name, value)| (name.to_owned(), vec![value])).into()
}

/// Runs `work` with a recorder and a paused clock.
fn observe(work: impl AsyncFnOnce(&Watch)) {
    let recorder = DebuggingRecorder::new();
    let watch = Watch { snapshotter: recorder.snapshotter(), gauges: RefCell::default() };
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(work(&watch)));
}

/// Runs one request of two seconds, and checks the gauge while it runs and the time afterwards.
fn check_hold<S: Store<Error: CannotFail>>(store: S) {
    let rule = Rule::new("api", Everyone, [Quota::concurrent(4), Quota::per_hour(100)]).cost(2);
    let layer = RateLimitLayer::rules(rule, store).hold_until(HoldUntil::Head);
    observe(async |metrics| {
        let inner = service_fn(async |_| {
            sleep(secs(2)).await;
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let mut running = task::spawn(layer.layer(inner).oneshot(get("/")));
        assert_pending!(running.poll());
        assert_eq!(metrics.values(), expected([("api active_slots", 2.0)]));
        running.await.expect("infallible");
        let done = expected([("api active_slots", 0.0), ("api slot.duration", 2.0)]);
        assert_eq!(metrics.values(), done);
    });
}

#[test]
fn held_slots_are_a_gauge_and_their_time_a_histogram_under_each_wrapper() {
    let store = || LocalStore::with_capacity(64);
    check_hold(store());
    check_hold(store().deny_cache());
    check_hold(store().leases(10));
    check_hold(store().timeout(millis(100)).breaker().fail_closed());
    check_hold(store().boxed());
    let down = Shaky::new(store());
    down.is(Mood::Failing);
    check_hold(down.fallback(store(), 1));
}

#[test]
fn slots_count_until_the_body_ends_or_the_last_clone_is_dropped() {
    let rule = Rule::new("streams", Everyone, Quota::concurrent(9));
    let layer = RateLimitLayer::rules(rule, LocalStore::with_capacity(64)).expose_slot();
    let inner = service_fn(async |_| {
        let never = futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
        Ok::<_, Infallible>(Response::new(Body::from_stream(never)))
    });
    let service = layer.layer(inner);
    observe(async |metrics| {
        let mut response = service.oneshot(get("/")).await.expect("infallible");
        let slot = response.extensions_mut().remove::<Slot>().expect("it is exposed");
        drop(response);
        tokio::time::advance(secs(3)).await;
        assert_eq!(metrics.values(), expected([("streams active_slots", 1.0)]));
        drop(slot);
        let done = expected([("streams active_slots", 0.0), ("streams slot.duration", 3.0)]);
        assert_eq!(metrics.values(), done);
    });
}

#[test]
fn an_adaptive_slot_counts_until_the_head_and_its_limit_is_a_gauge() {
    let clock = FakeClock::new();
    let limit = clock.adaptive(Adaptive::aimd(secs(1)).initial(30));
    let rule = Rule::new("overload", Everyone, limit.plan());
    let layer = RateLimitLayer::rules(rule, clock.store(64));
    let inner = service_fn(async |_| {
        sleep(millis(1_200)).await;
        let never = futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
        Ok::<_, Infallible>(Response::new(Body::from_stream(never)))
    });
    let service = layer.layer(inner);
    observe(async |metrics| {
        let mut streams = Vec::new();
        for _ in 0..2 {
            let calls: Vec<_> = (0..10).map(|_| service.clone().oneshot(get("/"))).collect();
            let mut calls = task::spawn(futures::future::join_all(calls));
            assert_pending!(calls.poll());
            clock.advance(millis(1_200));
            streams.extend(calls.await);
        }
        assert_eq!(streams.len(), 20, "the streams go on");
        let limits = |(key, .., value): (metrics_util::CompositeKey, _, _, _)| {
            (key.key().name() == "ratelimit.limit").then_some(value)
        };
        let entries = metrics.snapshotter.snapshot().into_vec();
        let held = |name| entries.iter().find(|(key, ..)| key.key().name() == name);
        let gauge = held("ratelimit.active_slots").map(|(.., value)| value);
        assert_eq!(gauge, Some(&DebugValue::Gauge(0.0.into())));
        let shown: Vec<_> = entries.into_iter().filter_map(limits).collect();
        assert!(limit.limit() < 30, "all were slower than the timeout");
        // The gauge has the limit of the latest decision.
        assert_eq!(shown, [DebugValue::Gauge(27.0.into())]);
    });
}

/// A layer whose requests wait for at most two seconds.
fn queueing(quotas: &[Quota], time: &Time) -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    let rule = Rule::new("api", Everyone, quotas.to_vec()).max_wait(secs(2));
    RateLimitLayer::rules(rule, time.store()).hold_until(HoldUntil::Head)
}

#[test]
fn requests_that_wait_for_a_slot_or_a_rate_are_a_gauge_and_their_time_a_histogram() {
    observe(async |metrics| {
        let time = Time::default();
        let layer = queueing(&[Quota::concurrent(1)], &time);
        let inner = service_fn(async |_| {
            sleep(secs(1)).await;
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let service = layer.layer(inner);
        let call = || task::spawn(service.clone().oneshot(get("/")));
        let (mut first, mut second, mut third) = (call(), call(), call());
        assert_pending!(first.poll());
        assert!(!metrics.values().contains_key("api queued_requests"), "it did not wait");
        assert_pending!(second.poll());
        assert_pending!(third.poll());
        assert_eq!(metrics.values()["api queued_requests"], [2.0]);
        // A request that is dropped waits no more.
        tokio::time::advance(millis(500)).await;
        drop(third);
        let left = metrics.values();
        assert_eq!(left["api queued_requests"], [1.0]);
        assert_eq!(left["api time_in_queue"], [0.5]);
        first.await.expect("infallible");
        second.await.expect("infallible");
        let end = metrics.values();
        assert_eq!(end["api queued_requests"], [0.0]);
        assert_eq!(end["api time_in_queue"], [1.0]);
    });
    observe(async |metrics| {
        let time = Time::default();
        let layer = queueing(&[Quota::per_second(1)], &time);
        let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
        let service = layer.layer(inner);
        service.clone().oneshot(get("/")).await.expect("infallible");
        assert!(metrics.values().is_empty(), "no slot, and no wait");
        let mut waiting = task::spawn(service.clone().oneshot(get("/")));
        assert_pending!(waiting.poll());
        assert_eq!(metrics.values(), expected([("api queued_requests", 1.0)]));
        time.pass(Duration::from_secs(1)).await;
        waiting.await.expect("infallible");
        let queued = metrics.values()["api time_in_queue"][0];
        assert!((1.0..1.01).contains(&queued), "{queued}");
    });
}

/// Another rule has fewer units left, but it does not make the request wait. The inner service may
/// not be ready at the request's turn, which is no wait in the queue either.
#[test]
fn a_wait_counts_under_the_rule_whose_turn_the_request_waits_for() {
    observe(async |metrics| {
        let time = Time::default();
        let user = Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(1));
        let site = Rule::new("site", Everyone, Quota::per_second(1)).max_wait(secs(2));
        let layer = RateLimitLayer::rules((user, site), time.store());
        let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
        let inner = tower::limit::ConcurrencyLimit::new(inner, 1);
        let service = layer.layer(inner.clone());
        service.clone().oneshot(with(&[("x-user", "alice")])).await.expect("infallible");
        let mut waiting = task::spawn(service.clone().oneshot(with(&[("x-user", "bob")])));
        assert_pending!(waiting.poll());
        assert_eq!(metrics.values(), expected([("site queued_requests", 1.0)]));
        let mut busy = inner.clone();
        busy.ready().await.expect("infallible");
        time.pass(Duration::from_secs(1)).await;
        assert_pending!(waiting.poll());
        assert_eq!(metrics.values()["site queued_requests"], [0.0]);
        drop(busy);
        waiting.await.expect("infallible");
    });
}

#[test]
fn a_denial_at_the_end_of_its_wait_is_counted_and_one_at_once_is_not() {
    observe(async |metrics| {
        let layer = queueing(&[Quota::concurrent(1)], &Time::default());
        let inner = service_fn(async |_| {
            sleep(secs(60)).await;
            Ok::<_, Infallible>(Response::new(String::new()))
        });
        let service = layer.max_waiters_per_key(1).layer(inner);
        let call = || task::spawn(service.clone().oneshot(get("/")));
        let (mut first, mut second) = (call(), call());
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        assert_eq!(call().await.expect("infallible").status(), 429, "the queue is full");
        assert_eq!(metrics.values()["api queued_requests"], [1.0]);
        assert_eq!(second.await.expect("infallible").status(), 429);
        let end = metrics.values();
        assert_eq!(
            (&end["api queued_requests"], &end["api time_in_queue"]),
            (&vec![0.0], &vec![2.0])
        );
    });
}
