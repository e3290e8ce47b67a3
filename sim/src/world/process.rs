//! An application process: the real layers around the real client, with random wrappers.

use std::{
    convert::Infallible,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Poll, Waker},
};

use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Decision, LivePlan, Plan, Quota, RateLimitLayer, Rule, key::HeaderKey, rule::OnMissingKey,
    store::Instances,
};

use super::{
    Rules,
    asks::{Handler, Layered, number},
    client::Client,
    holds, lock, penalties, queues, shares,
    wrappers::{Wrapped, Wrappers},
};

/// The panic of a handler, which is part of the simulation.
pub struct HandlerPanic;

/// A process that runs.
pub struct Process {
    service: Handler,
    /// The store of the layers, for operations outside of requests.
    pub store: Wrapped,
    plans: [LivePlan; 2],
    /// The number of rules that charge a request.
    count: usize,
    pub queues: queues::Service,
    pub holds: holds::Service,
    /// The layers that share a limit.
    pub alternatives: OnceLock<Layered>,
    pub penalties: OnceLock<penalties::Service>,
    pub shares: OnceLock<shares::Service>,
    /// The number of processes that this one knows.
    pub instances: Instances,
    life: Arc<Life>,
}

/// The state of a process, which stops its requests and the tasks of its connections.
#[derive(Default)]
pub struct Life {
    dead: AtomicBool,
    paused: Mutex<(bool, Vec<Waker>)>,
}

/// A request for the layer with two rules.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub keys: [usize; 2],
    pub cost: u32,
    pub panics: bool,
}

impl Process {
    pub fn new(wrappers: &Wrappers, processes: u32, rules: &Rules, mut client: Client) -> Self {
        let life = Arc::<Life>::default();
        client.life = life.clone();
        let (store, instances) = client.store(wrappers, processes);
        let plans = [0, 1].map(|rule| LivePlan::new(rules.base[rule].clone()));
        let plan = |rule: usize| match rules.live {
            true => Plan::from(&plans[rule]),
            false => Plan::from(rules.base[rule].clone()),
        };
        let cost = || number("x-cost");
        let layer = RateLimitLayer::rules(
            (
                Rule::new("one", HeaderKey::new("x-one"), plan(0)).cost(cost()),
                Rule::new("two", HeaderKey::new("x-two"), plan(1))
                    .on_missing_key(OnMissingKey::Skip)
                    .cost(cost()),
            ),
            store.clone(),
        );
        let inner = service_fn(async |request: Request<()>| {
            if request.headers().contains_key("x-panic") {
                panic_any(HandlerPanic);
            }
            Ok::<_, Infallible>(Response::new(()))
        });
        let service = Handler::new(layer.expose_decision().layer(inner));
        let queues = queues::Service::new(&rules.queued, store.clone());
        let holds = holds::Service::new(rules.held, store.clone());
        let (alternatives, penalties, shares) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self {
            service,
            store,
            plans,
            count: rules.count(),
            queues,
            holds,
            alternatives,
            penalties,
            shares,
            instances,
            life,
        }
    }

    /// Sends a request. Returns its decision, or `None` if the handler panics or the process dies.
    pub async fn call(&self, call: Call) -> Option<Decision> {
        let request = Request::builder().uri("/").header("x-cost", call.cost);
        let request = request.header("x-one", call.keys[0].to_string());
        let request = match self.count {
            1 => request,
            _ => request.header("x-two", call.keys[1].to_string()),
        };
        let request = if call.panics { request.header("x-panic", "") } else { request };
        let request = request.body(()).expect("a request");
        let Ok(response) = self.run(self.service.clone().oneshot(request)).await?;
        let decision = response.extensions().get::<Decision>().expect("an exposed decision");
        let rejected = response.status() == StatusCode::TOO_MANY_REQUESTS
            || response.status() == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(rejected, !decision.is_allowed(), "{} {decision:?}", response.status());
        Some(decision.clone())
    }

    /// Replaces the quotas of a rule, if they can be replaced.
    pub fn set_plan(&self, rule: usize, quotas: Vec<Quota>) {
        self.plans[rule].replace(quotas);
    }

    /// Runs a future of the process, as [`Life::run`] does.
    pub async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        self.life.run(future).await
    }

    /// Stops or continues the process.
    pub fn pause(&self, is_paused: bool) {
        self.life.pause(is_paused);
    }

    pub fn kill(&self) {
        self.life.dead.store(true, Relaxed);
        self.pause(false);
    }
}

impl Life {
    /// Runs a future, which stops while the process is paused. Returns `None` if the process dies
    /// before, or if a handler panics.
    pub async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let running = poll_fn(|cx| {
            if self.dead.load(Relaxed) {
                return Poll::Ready(None);
            }
            let mut paused = lock(&self.paused);
            if paused.0 {
                paused.1.push(cx.waker().clone());
                return Poll::Pending;
            }
            drop(paused);
            // Any other panic fails the run (`count_panics`).
            match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                Ok(poll) => poll.map(Some),
                Err(_) => Poll::Ready(None),
            }
        });
        running.await
    }

    fn pause(&self, is_paused: bool) {
        let mut paused = lock(&self.paused);
        paused.0 = is_paused;
        paused.1.drain(..).for_each(Waker::wake);
    }
}
