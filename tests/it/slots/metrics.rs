//! Metrics of held slots and of requests that wait.

use std::{cell::RefCell, collections::BTreeMap, convert::Infallible, time::Duration};

use axum::body::Body;
use http::Response;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::{runtime::Builder, time::sleep};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
    middleware::{HoldUntil, Slot},
};

use crate::support::{
    driven::{Time, secs},
    get, with,
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

/// A layer whose requests wait for at most two seconds.
fn queueing(quotas: &[Quota], time: &Time) -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    let rule = Rule::new("api", Everyone, quotas.to_vec()).max_wait(secs(2));
    RateLimitLayer::rules(rule, time.store()).hold_until(HoldUntil::Head)
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
