//! Slots of concurrent requests, on the embedded store of each process: a process never runs more
//! requests of a key than the limit, a denial holds no slot, and every end of a request frees its own.

use std::{
    convert::Infallible,
    panic::panic_any,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{
    Cost, Decision, Key, LivePlan, Quota, RateLimitLayer, Rule, StoreExt,
    key::HeaderKey,
    middleware::{HoldUntil, Slot},
    rule::RuleName,
    store::Charge,
};

use super::{
    World, capability::Capability, lock, process::HandlerPanic, virtual_local::VirtualLocal,
};
use crate::{
    quotas::{plain, queueing},
    random::Random,
};

const MAX_WAIT: Duration = Duration::from_secs(2);
const KEYS: usize = 2;

/// A quota of slots, and the rate beside it.
#[derive(Clone, Debug)]
pub struct Quotas {
    /// The slots, and the number that replaces them at times.
    limits: [u32; 2],
    rate: Quota,
    /// `true` if requests hold their slots while they queue for the rate.
    queues: bool,
    until: HoldUntil,
}

impl Quotas {
    pub fn random(random: &mut Random) -> Self {
        let limits = [(); 2].map(|()| u32::try_from(random.within(1..5)).expect("few"));
        let queues = random.percent(30);
        let rate = if queues { queueing(random)[0] } else { plain(random) };
        let until = *random.pick(&[HoldUntil::Body, HoldUntil::Body, HoldUntil::Head]);
        Self { limits, rate, queues, until }
    }
}

/// The layer of a process whose requests hold slots.
pub struct Service {
    service: BoxCloneSyncService<Request<()>, Response<Body>, Infallible>,
    store: Arc<VirtualLocal>,
    plan: LivePlan,
    model: Arc<Model>,
}

/// The model: the requests that run, counted without the store, and a store that has the rate alone.
struct Model {
    quotas: Quotas,
    rate: VirtualLocal,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// The current limit.
    limit: u32,
    running: [u32; KEYS],
    differences: Vec<String>,
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Call {
    key: usize,
    cost: u32,
    works: Duration,
    panics: bool,
}

/// A request that runs, until this value is dropped.
struct Running {
    model: Arc<Model>,
    key: usize,
    cost: u32,
}

/// A response body. The request runs no longer than the slot is held.
#[derive(Default)]
struct Body {
    _running: Option<Running>,
    _slot: Option<Slot>,
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.model.counts).running[self.key] -= self.cost;
    }
}

impl Model {
    fn new(quotas: &Quotas) -> Arc<Self> {
        let counts = Mutex::new(Counts { limit: quotas.limits[0], ..Counts::default() });
        Arc::new(Self {
            quotas: quotas.clone(),
            rate: VirtualLocal::new(tokio::time::Instant::now()),
            counts,
        })
    }

    /// Compares a decision that was made at this instant, and counts the request if it runs.
    fn decided(self: &Arc<Self>, call: Call, decision: &Decision) -> Option<Running> {
        let Call { key, cost, .. } = call;
        let (own, quotas) = (Key::from(key.to_string()), [self.quotas.rate]);
        let charge = Charge::new(RuleName::default(), &own, &quotas);
        let look = |cost| self.rate.take(&[charge.with_cost(cost)]).now().outcomes()[0].remaining();
        let (allowed, mut counts) = (decision.is_allowed(), lock(&self.counts));
        let (limit, before, left) = (counts.limit, counts.running[key], look(0));
        let fits = before + cost <= limit;
        let after = if allowed { before + cost } else { before };
        counts.running[key] = after;
        let [slots, rate] = decision.outcomes() else { unreachable!("two quotas") };
        let unknown = !fits && cost <= limit;
        // A request that queued was decided on earlier, perhaps under the other limit.
        let equal = match self.quotas.queues {
            true => !allowed || after <= self.quotas.limits[0].max(self.quotas.limits[1]),
            false => {
                allowed == (fits && left >= cost)
                    && slots.held() == Some(after.into())
                    && slots.is_estimated() == unknown
                    && rate.remaining() == if allowed { look(cost) } else { left }
            }
        };
        if !equal {
            let text = format!("with {before} of {limit} slots and {left} units of the rate left");
            counts.differences.push(format!("{call:?} {text}: {decision:?}"));
        }
        allowed.then(|| Running { model: self.clone(), key, cost })
    }
}

impl Service {
    pub fn new(quotas: &Quotas) -> Self {
        let (store, model) =
            (Arc::new(VirtualLocal::new(tokio::time::Instant::now())), Model::new(quotas));
        let plan = LivePlan::new(Quota::concurrent(quotas.limits[0]));
        let cost = || Cost::from_fn(|head| head.extensions.get::<Call>().map_or(1, |it| it.cost));
        let max_wait = if quotas.queues { MAX_WAIT } else { Duration::ZERO };
        let rules = (
            Rule::new("slots", HeaderKey::new("x-key"), &plan).cost(cost()),
            Rule::new("beside", HeaderKey::new("x-key"), quotas.rate)
                .cost(cost())
                .max_wait(max_wait),
        );
        let layer = RateLimitLayer::rules(rules, store.clone()).expose_decision();
        let layer = match quotas.until {
            HoldUntil::Head => layer.hold_until(HoldUntil::Head),
            _ => layer.hold_with(|body: Body, slot| Body { _slot: Some(slot), ..body }),
        };
        let (handler, until) = (model.clone(), quotas.until);
        let inner = service_fn(move |request: Request<()>| {
            let extensions = request.extensions();
            let call = *extensions.get::<Call>().expect("a call");
            let decision = extensions.get::<Decision>().expect("an exposed decision");
            let running = handler.decided(call, decision);
            async move {
                sleep(call.works).await;
                if call.panics {
                    panic_any(HandlerPanic);
                }
                let running = running.filter(|_| until == HoldUntil::Body);
                Ok::<_, Infallible>(Response::new(Body { _running: running, _slot: None }))
            }
        });
        Self { service: BoxCloneSyncService::new(layer.layer(inner)), store, plan, model }
    }

    /// Sends a request. Returns its body, or `None` if it is denied.
    async fn send(&self, call: Call) -> Option<Body> {
        let request = Request::builder().uri("/").header("x-key", call.key.to_string());
        let request = request.extension(call).body(()).expect("a request");
        let Ok(response) = self.service.clone().oneshot(request).await;
        let decision = response.extensions().get::<Decision>().expect("an exposed decision");
        if decision.is_allowed() {
            return Some(response.into_body());
        }
        drop(self.model.decided(call, decision));
        None
    }

    /// Sets the first or the second limit.
    fn set_limit(&self, index: usize) {
        let limit = self.model.quotas.limits[index];
        self.plan.replace(Quota::concurrent(limit));
        lock(&self.model.counts).limit = limit;
    }

    /// Fails if a decision differed from the model, or if slots outlive their request.
    fn check(&self, world: &World, name: &str, nothing_runs: bool) {
        let (counts, stats) = (&mut *lock(&self.model.counts), self.store.stats());
        for difference in counts.differences.drain(..) {
            world.story.violate("slots", format!("{name}: {difference}"));
        }
        let (held, running) = (stats.held, u64::from(counts.running.iter().sum::<u32>()));
        // Queued requests hold their slots, too.
        let more = self.model.quotas.queues && !nothing_runs && held > running;
        if held != running && !more {
            world.story.violate("slots", format!("{name}: {held} held, but {running} run"));
        }
    }
}

/// Requests that hold slots.
pub struct Concurrency;

impl Capability for Concurrency {
    fn share(&self) -> u64 {
        5
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let mut millis = |most| Duration::from_millis(random.within(0..most));
        let (works, reads, leaves) = (millis(2_000), millis(1_000), millis(2_000));
        let patience = if random.percent(30) { leaves } else { Duration::from_secs(10) };
        let cost = *random.pick(&[1, 1, 1, 2]);
        let call = Call { key: random.below(KEYS), cost, works, panics: random.percent(10) };
        let index = random.percent(10).then(|| random.below(2));
        let (at, begin) = (&world.places[place], world.story.now());
        let process = at.process();
        let service = &process.slots;
        if let Some(index) = index {
            service.set_limit(index);
        }
        let request = async {
            let body = service.send(call).await;
            if body.is_some() {
                sleep(reads).await;
            }
            body.is_some()
        };
        let answer = process.run(timeout(patience, request)).await;
        world.story.record(&at.name, || {
            let end = match answer {
                Some(Ok(true)) => "ends",
                Some(Ok(false)) => "is denied",
                Some(Err(_)) => "ends, because its client leaves",
                None => "ends by a panic or with its process",
            };
            let counts = lock(&service.model.counts);
            let (key, limit, running) = (call.key, counts.limit, counts.running[call.key]);
            format!("slots s{key} cost {cost}, sent at {begin:?}: {end}, {running} of {limit} held")
        });
        service.check(world, &at.name, false);
    }

    /// Bodies that are read at random times. Each decision equals the model, as in the whole run.
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        let at = random.pick(&world.places);
        let process = at.process();
        let service = &process.slots;
        service.check(world, &at.name, true);
        if world.rules.slots.queues || world.rules.slots.until == HoldUntil::Head {
            return;
        }
        let (mut bodies, mut allowed) = (Vec::new(), 0);
        for _ in 0..random.within(10..30) {
            if !bodies.is_empty() && random.percent(40) {
                drop(bodies.swap_remove(random.below(bodies.len())));
            }
            let cost = *random.pick(&[1, 1, 2]);
            let call = Call { key: 0, cost, works: Duration::ZERO, panics: false };
            let body = process.run(service.send(call)).await.flatten();
            allowed += usize::from(body.is_some());
            bodies.extend(body);
            sleep(Duration::from_millis(random.within(0..200))).await;
        }
        world.story.record(&at.name, || format!("slots s0 {when}: {allowed} allowed"));
        drop(bodies);
        service.check(world, &at.name, true);
    }

    /// Nothing is held at the end.
    fn check(&self, world: &World) {
        for place in &world.places {
            place.process().slots.check(world, &place.name, true);
        }
    }
}
