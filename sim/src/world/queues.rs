//! Requests that queue (`max_wait`), of which some leave the queue: handlers start no closer together
//! than the quota permits.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, service_fn};
use tower_sluice::{
    Algorithm, Decision, LivePlan, Quota, RateLimitLayer, Rule, decision::Source, key::HeaderKey,
};

use super::{
    MARGIN, World,
    asks::{self, Handler},
    capability::Capability,
    lock,
    oracle::{Cause, Entry, Loss, excess},
    rules::loosest,
    wrappers::Wrapped,
};
use crate::random::Random;

const MAX_WAIT: Duration = Duration::from_secs(3);
const KEYS: usize = 2;

/// The start of a handler, which it records itself.
type Start = Arc<Mutex<Option<(Instant, Source)>>>;

/// The layer of a process whose requests queue.
pub struct Service {
    service: Handler,
    plan: LivePlan,
    quotas: [Quota; 2],
}

impl Service {
    pub fn new(quotas: &[Quota; 2], store: Wrapped) -> Self {
        let plan = LivePlan::new(quotas[0]);
        let rule = Rule::new("queued", HeaderKey::new("x-key"), &plan).max_wait(MAX_WAIT);
        let inner = service_fn(async |request: Request<()>| {
            let extensions = request.extensions();
            let source = extensions.get::<Decision>().expect("an exposed decision").source();
            *lock(extensions.get::<Start>().expect("a start")) = Some((Instant::now(), source));
            Ok::<_, Infallible>(Response::new(()))
        });
        let layer = RateLimitLayer::rules(rule, store).expose_decision();
        Self { service: Handler::new(layer.layer(inner)), plan, quotas: *quotas }
    }

    /// Sets the first or the second quota of the plan.
    pub fn set_plan(&self, index: usize) {
        self.plan.replace(self.quotas[index]);
    }
}

/// The handlers that started.
#[derive(Debug, Default)]
pub struct Queues {
    started: Mutex<Vec<Entry>>,
}

impl Queues {
    /// Sends a request, whose client leaves after `patience`. Returns the start of its handler.
    async fn call(
        &self,
        world: &World,
        place: usize,
        key: usize,
        patience: Duration,
    ) -> Option<Instant> {
        let (at, begin) = (&world.places[place], world.story.now());
        let (process, start) = (at.process(), Start::default());
        let name = key.to_string();
        let call = asks::send(&process.queues.service, &name, start.clone());
        let answer = process.run(timeout(patience, call)).await;
        let started = lock(&start).take();
        world.story.record(&at.name, || {
            let end = match (&answer, &started) {
                (_, Some((at, source))) => format!("runs at {:?} by {source}", world.story.at(*at)),
                (Some(Err(_)), None) => "leaves the queue".into(),
                (Some(Ok(decision)), None) => format!("denied by {}", decision.source()),
                (None, None) => "lost with its process".into(),
            };
            format!("queue q{key}, sent at {begin:?}: {end}")
        });
        let (instant, source) = started?;
        // A process that was paused starts its handlers late and together.
        if *lock(&at.disturbed) < begin && matches!(source, Source::Redis | Source::Leased) {
            let (now, keys) = (world.story.at(instant), [key, 0]);
            let entry = Entry { keys, source, ..Entry::allowed(place, 1, now, now) };
            lock(&self.started).push(entry);
        }
        Some(instant)
    }
}

impl Capability for Queues {
    fn share(&self) -> u64 {
        10
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let (key, leaves) = (random.below(KEYS), random.percent(30));
        let patience = if leaves { random.within(0..3_000) } else { 10_000 };
        if random.percent(10) {
            let index = random.below(2);
            world.places[place].process().queues.set_plan(index);
            world.story.record(&world.places[place].name, || {
                format!("the queue's plan is {}", world.rules.queued[index])
            });
        }
        self.call(world, place, key, Duration::from_millis(patience)).await;
    }

    /// Requests beyond the burst wait for one interval each, and no longer.
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        let quota = world.rules.queued[0];
        world.places.iter().for_each(|place| place.process().queues.set_plan(0));
        if !world.is_exact() || quota.algorithm() != Algorithm::Gcra {
            return;
        }
        let (place, begin) = (random.below(world.places.len()), Instant::now());
        let count = quota.limit() + 2;
        let mut last = begin;
        for _ in 0..count {
            // One after another: each starts before the next is sent, or waits for its turn.
            let started = self.call(world, place, KEYS, MAX_WAIT).await;
            let Some(started) = started else {
                world.story.violate("queue", format!("{when}: a request was denied"));
                return;
            };
            last = started;
        }
        let (took, due) = (last - begin, 2 * quota.interval());
        if took + MARGIN < due || took > due + Duration::from_millis(200) {
            let text = format!("{when}: {count} requests took {took:?} instead of {due:?}");
            world.story.violate("queue", text);
        }
        sleep(self.refill(world)).await;
    }

    fn refill(&self, world: &World) -> Duration {
        let quota = world.rules.queued[0];
        2 * quota.interval() * quota.limit() + 2 * quota.period() + MAX_WAIT
    }

    fn check(&self, world: &World) {
        let (log, started, quota) =
            (lock(&world.log), lock(&self.started), loosest(&world.rules.queued));
        let budget = world.places.iter().map(|place| place.wrappers.budget).max();
        let slack = budget.unwrap_or_default() + MARGIN;
        // Requests that were queued before a loss start beside those after it.
        let queued = |loss: &Loss| {
            let to = loss.to + MAX_WAIT;
            [*loss, Loss { to, cause: Cause::Split, ..*loss }]
        };
        let losses: Vec<_> = log.losses.iter().flat_map(queued).collect();
        for key in 0..=KEYS {
            let of_key: Vec<_> = started.iter().filter(|it| it.keys[0] == key).copied().collect();
            if let Some((over, from, to)) = excess(&of_key, &quota, &losses, slack) {
                let details = format!("key q{key} {quota}: {over} handlers too many");
                world.story.violate("queue", format!("{details} from {from:?} to {to:?}"));
            }
        }
    }
}
