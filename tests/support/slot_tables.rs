//! Players of the published tables of cases for waiting and for adaptive limits.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_test::task::Spawn;
use tower::{Layer, service_fn};
use tower_sluice::{
    Cost, LocalStore, Quota, RateLimitLayer, RequestHead, Rule, Store,
    key::Everyone,
    middleware::HoldUntil,
    rule::{Adaptive, RequestDeadline},
    testing::FakeClock,
};

use super::{
    driven::{Time, begin, secs},
    with,
};

#[derive(Deserialize)]
pub(crate) struct WaitingCase {
    name: String,
    limit: u32,
    /// In steps, as all times.
    max_wait: u64,
    /// The maximum number of requests that wait.
    queue: Option<usize>,
    /// The units of a quota per day.
    rate: Option<u32>,
    steps: Vec<WaitingStep>,
}

#[derive(Deserialize)]
struct WaitingStep {
    op: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    steps: u64,
    #[serde(default = "one")]
    units: u32,
    #[serde(default)]
    headroom: u32,
    deadline: Option<u64>,
    /// The requests that this step starts and denies, in their order.
    runs: Vec<String>,
    denied: Vec<String>,
}

fn one() -> u32 {
    1
}

/// Returns the number in a header field of a request.
fn number(name: &'static str) -> Cost {
    Cost::from_fn(move |head: &RequestHead<'_>| {
        head.headers[name].to_str().ok().and_then(|text| text.parse().ok()).expect("a number")
    })
}

/// A store under driven time.
pub(crate) trait Driven {
    type Store: Store<Error = Infallible, Future: Send> + Send + Sync + 'static;

    fn store(&self) -> Self::Store;

    async fn pass(&mut self, time: Duration);

    /// Returns `true` if no call of the store is in flight.
    fn is_settled(&self) -> bool;
}

impl Driven for Time {
    type Store = LocalStore;

    fn store(&self) -> LocalStore {
        self.store()
    }

    async fn pass(&mut self, time: Duration) {
        Self::pass(self, time).await;
    }

    fn is_settled(&self) -> bool {
        true
    }
}

/// Plays a case. Requests that run by one step may start in any order if the store is `shared`.
pub(crate) async fn play_waiting(case: &WaitingCase, driven: &mut impl Driven, shared: bool) {
    type Asking = Spawn<BoxFuture<'static, Result<Response<String>, Infallible>>>;
    let started = Arc::new(Mutex::new(Vec::new()));
    let mut quotas = vec![Quota::concurrent(case.limit)];
    quotas.extend(case.rate.map(Quota::per_day));
    let rule = Rule::new("api", Everyone, quotas).cost(number("x-units"));
    let rule = rule.headroom(number("x-headroom")).max_wait(secs(case.max_wait));
    let layer = RateLimitLayer::rules(rule, driven.store()).hold_until(HoldUntil::Head);
    let layer = layer.max_waiters(case.queue.unwrap_or(9));
    let (running, mut doors) = (started.clone(), HashMap::new());
    let inner = service_fn(move |request: Request<()>| {
        let name = request.headers()["x-name"].to_str().expect("a name").to_owned();
        running.lock().expect("no panic").push(name);
        let door = request.extensions().get::<Arc<Semaphore>>().expect("a door").clone();
        async move {
            door.acquire().await.expect("never closed").forget();
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let mut service = tower::util::BoxCloneService::new(layer.layer(inner));
    let mut asking: Vec<(String, Asking)> = Vec::new();
    for (at, step) in case.steps.iter().enumerate() {
        match step.op.as_str() {
            "ask" => {
                let (units, headroom) = (step.units.to_string(), step.headroom.to_string());
                let fields =
                    [("x-name", &*step.name), ("x-units", &units), ("x-headroom", &headroom)];
                let (mut request, door) = (with(&fields), Arc::new(Semaphore::new(0)));
                request.extensions_mut().insert(door.clone());
                if let Some(steps) = step.deadline {
                    request.extensions_mut().insert(RequestDeadline(secs(steps)));
                }
                doors.insert(&step.name, door);
                asking.push((step.name.clone(), begin(&mut service, request).await));
            }
            "free" => doors[&step.name].add_permits(1),
            "leave" => asking.retain(|(name, _)| *name != step.name),
            // A timer ends up to a millisecond late.
            "pass" => driven.pass(secs(step.steps) + Duration::from_millis(1)).await,
            op => panic!("{op} is not a step"),
        }
        let (mut denied, mut is_new) = (Vec::new(), step.op == "ask");
        // The order is that of the queue: the latest is polled first.
        loop {
            let Some(index) = asking.iter().rposition(|(_, it)| it.is_woken() || is_new) else {
                if driven.is_settled() {
                    break;
                }
                tokio::task::yield_now().await;
                continue;
            };
            is_new = false;
            if let std::task::Poll::Ready(answer) = asking[index].1.poll() {
                let (name, status) = (asking.remove(index).0, answer.expect("infallible").status());
                if status == StatusCode::TOO_MANY_REQUESTS {
                    denied.push(name);
                }
            }
        }
        let mut runs = std::mem::take(&mut *started.lock().expect("no panic"));
        if shared {
            runs.sort();
        }
        let what = format!("{}, step {at}", case.name);
        assert_eq!((runs, denied), (step.runs.clone(), step.denied.clone()), "{what}");
    }
}

/// Returns the cases for waiting.
pub(crate) fn waiting() -> Vec<WaitingCase> {
    let text = include_str!("../it/slots/cases/waiting.json");
    let cases: Vec<_> = serde_json::from_str(text).expect("a list of cases");
    assert_eq!(cases.len(), 19);
    cases
}

#[derive(Deserialize)]
pub(crate) struct AdaptiveCase {
    name: String,
    algorithm: String,
    initial: u32,
    max: u32,
    steps: Vec<Window>,
}

/// Ten requests that begin and end together.
#[derive(Deserialize)]
struct Window {
    /// The slots of each request.
    slots: u32,
    millis: u64,
    /// The responses that show an overload.
    #[serde(default)]
    overloaded: u32,
    /// `true` if the clients cancel the requests.
    #[serde(default)]
    unanswered: bool,
    /// The limit after the window.
    limit: u32,
}

/// Returns the cases for adaptive limits.
pub(crate) fn adaptive() -> Vec<AdaptiveCase> {
    let text = include_str!("../it/slots/cases/adaptive.json");
    let cases: Vec<_> = serde_json::from_str(text).expect("a list of cases");
    assert_eq!(cases.len(), 18);
    cases
}

/// Plays a case. Calls `limited` with the quota of the limit and with the expected limit after each
/// window.
pub(crate) async fn play_adaptive(case: &AdaptiveCase, limited: impl AsyncFn(Quota, u32)) {
    let clock = FakeClock::new();
    let limit = match case.algorithm.as_str() {
        "aimd" => Adaptive::aimd(secs(1)),
        _ => Adaptive::gradient(),
    };
    let limit = clock.adaptive(limit.max(case.max).initial(case.initial));
    for (at, window) in case.steps.iter().enumerate() {
        let running: Vec<_> = (0..10).map(|_| limit.start(window.slots)).collect();
        clock.advance(Duration::from_millis(window.millis));
        for (number, one) in (0..).zip(running) {
            if !window.unanswered {
                one.complete(number < window.overloaded);
            }
        }
        assert_eq!(limit.limit(), window.limit, "{}, window {at}", case.name);
        limited(limit.plan().quotas().as_ref()[0], window.limit).await;
    }
}
