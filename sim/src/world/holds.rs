//! Slots on the servers: all processes together run no more requests of a key than the limit, and no
//! slot outlives its request for longer than its time to live.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, service_fn};
use tower_sluice::{
    Decision, Quota, RateLimitLayer, Rule, decision::Source, key::HeaderKey, middleware::HoldUntil,
};

use super::{
    MARGIN, PATIENCE, World,
    asks::{self, Handler},
    capability::Capability,
    lock,
    oracle::{Cause, Log, Loss},
    process::HandlerPanic,
    wrappers::Wrapped,
};
use crate::random::Random;

const KEYS: usize = 2;
/// The time to live of a slot without a renewal, which is the default.
pub const LIFE: Duration = Duration::from_secs(10);
/// The time for which a slot is held even if no renewal arrives: renewals are sent each third of
/// the time to live.
const SURE: Duration = Duration::from_secs(6);
/// The longest time for which some requests wait for a slot.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// The time in which a freed slot is taken by a request that waits.
const TAKEN: Duration = Duration::from_millis(200);

/// A request that runs, or has run, on a slot of a server.
#[derive(Clone, Copy, Debug)]
struct Hold {
    key: usize,
    start: Instant,
    end: Option<Instant>,
}

/// All requests that held a slot of a server, also those that run.
type All = Arc<Mutex<Vec<Hold>>>;

/// The work of a request.
#[derive(Clone)]
struct Call {
    process: usize,
    key: usize,
    works: Duration,
    panics: bool,
    /// `true` if the request waits for a slot.
    waits: bool,
    all: All,
}

/// The end of a request, also by a panic or by the end of its process.
struct Running(All, usize);

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.0)[self.1].end = Some(Instant::now());
    }
}

/// The layers of a process whose requests hold slots of the servers: one that denies at once, and one
/// whose requests wait.
pub struct Service([Handler; 2]);

impl Service {
    pub fn new(limit: u32, store: Wrapped) -> Self {
        let layer = |rule| {
            RateLimitLayer::rules(rule, store.clone())
                .expose_decision()
                .hold_until(HoldUntil::Head)
                .max_waiters_per_key(1_000)
        };
        let rule = || Rule::new("held", HeaderKey::new("x-key"), Quota::concurrent(limit));
        let inner = service_fn(async |request: Request<()>| {
            let extensions = request.extensions();
            let call = extensions.get::<Call>().expect("a call").clone();
            let source = extensions.get::<Decision>().expect("an exposed decision").source();
            // A process without a server decides by itself.
            let _running = (source == Source::Redis).then(|| {
                let (start, mut all) = (Instant::now(), lock(&call.all));
                all.push(Hold { key: call.key, start, end: None });
                Running(call.all.clone(), all.len() - 1)
            });
            sleep(call.works).await;
            if call.panics {
                std::panic::panic_any(HandlerPanic);
            }
            Ok::<_, Infallible>(Response::new(()))
        });
        Self([
            Handler::new(layer(rule()).layer(inner)),
            Handler::new(layer(rule().max_wait(MAX_WAIT)).layer(inner)),
        ])
    }

    async fn call(&self, call: Call) -> Decision {
        let waits = usize::from(call.waits);
        asks::send(&self.0[waits], &call.key.to_string(), call).await
    }
}

/// Requests that hold slots of the servers.
#[derive(Default)]
pub struct Holds(All);

impl Holds {
    fn call(&self, process: usize, key: usize, works: Duration, panics: bool) -> Call {
        Call { process, key, works, panics, waits: false, all: self.0.clone() }
    }
}

/// Sends a request, whose client leaves after `patience`.
async fn send(world: &World, call: Call, patience: Duration) {
    let (at, begin) = (&world.places[call.process], world.story.now());
    let (process, key, waits) = (at.process(), call.key, call.waits);
    let sent = process.run(timeout(patience, process.holds.call(call))).await;
    let decision = sent.and_then(Result::ok);
    world.story.record(&at.name, || {
        let end = decision.as_ref().map_or("ends without an answer".into(), |decision| {
            format!("allowed {} by {}", decision.is_allowed(), decision.source())
        });
        format!("slots h{key}, sent at {begin:?}, waits {waits}: {end}")
    });
    let least = if waits { MAX_WAIT } else { Duration::ZERO };
    // A call may be in flight at the end of the wait.
    let last = World::patience(at, begin) * at.wrappers.budget;
    let (most, took) = (least + last + MARGIN, world.story.now() - begin);
    let Some(denial) = decision.filter(|it| !it.is_allowed()) else { return };
    let may_be_early = match denial.source() {
        // A process without servers has nothing to wait for.
        Source::FailedClosed => true,
        // An answer that is late ends a wait.
        Source::Busy => took >= PATIENCE * at.wrappers.budget,
        _ => false,
    };
    let early = took < least && !may_be_early;
    if early || took > most && *lock(&at.disturbed) < begin {
        let text = format!("{} denied by {} after {took:?}", at.name, denial.source());
        world.story.violate("holds", format!("{text} instead of {least:?} to {most:?}"));
    }
}

impl Capability for Holds {
    fn share(&self) -> u64 {
        10
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let mut millis = |most| Duration::from_millis(random.within(0..most));
        let (short, long, leaves) = (millis(2_000), millis(15_000), millis(2_000));
        let works = if random.percent(10) { long } else { short };
        let patience = if random.percent(30) { leaves } else { 2 * LIFE };
        let call = self.call(place, random.below(KEYS), works, random.percent(10));
        let call = Call { waits: random.percent(40), ..call };
        send(world, call, patience).await;
    }

    /// All slots are free. The limit is admitted, and one request more is not. A request that waits
    /// runs as soon as the first slot is freed.
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        let place = random.below(world.places.len());
        let works = Duration::from_secs(1);
        // The first request connects and sends the text of the script, so a later one may overtake it.
        let first = self.call(place, 0, Duration::ZERO, false);
        let _ = world.places[place].process().holds.call(first).await;
        sleep(works).await;
        let (most, begin) = (world.rules.held, Instant::now());
        let mut requests = JoinSet::new();
        for at in 0..=most {
            let process = world.places[place].process();
            let call = self.call(place, 0, works, false);
            requests.spawn(async move { (at, process.holds.call(call).await) });
            sleep(Duration::from_millis(20)).await;
        }
        let waiting = Call { waits: true, ..self.call(place, 0, Duration::ZERO, false) };
        let decision = world.places[place].process().holds.call(waiting).await;
        let took = begin.elapsed();
        if !decision.is_allowed() || took < works || took > works + TAKEN {
            let text = format!("{when}: a request waits for {took:?}: {decision:?}");
            world.story.violate("holds", text);
        }
        while let Some(Ok((at, decision))) = requests.join_next().await {
            if decision.is_allowed() != (at < most) {
                let text = format!("{when}: request {at} on {most} slots: {decision:?}");
                world.story.violate("holds", text);
            }
        }
        sleep(works).await;
    }

    /// Slots of processes that died, and of requests without an answer, end by themselves.
    fn refill(&self, _: &World) -> Duration {
        LIFE + Duration::from_secs(1)
    }

    fn check(&self, world: &World) {
        let (all, log, limit) = (lock(&self.0), lock(&world.log), world.rules.held as usize);
        for last in all.iter() {
            let at = last.start;
            let runs = |hold: &&Hold| {
                hold.key == last.key && hold.start <= at && hold.end.is_none_or(|end| end > at)
            };
            let running: Vec<_> =
                all.iter().filter(runs).filter(|hold| is_sure(world, &log, hold, at)).collect();
            let first = running.iter().map(|hold| world.story.at(hold.start)).min();
            let since = first.unwrap_or_default();
            let now = world.story.at(at);
            // A loss adds one limit, until the requests from before have ended.
            let adds = |loss: &&Loss| {
                let lost = !matches!(loss.cause, Cause::Back | Cause::Returned(_));
                lost && loss.from <= now && loss.to >= since
            };
            let losses = log.losses.iter().filter(adds).count();
            if running.len() > limit * (losses + 1) {
                let text =
                    format!("{} run on {limit} slots at {now:?}: {running:?}", running.len());
                world.story.violate("holds", format!("{text}, {losses} losses"));
                return;
            }
        }
    }
}

/// Returns `true` if a slot cannot have ended before its request: it is young, or no fault kept a
/// renewal from the server.
fn is_sure(world: &World, log: &Log, hold: &Hold, at: Instant) -> bool {
    at - hold.start < SURE || world.story.at(hold.start) > log.healed
}
