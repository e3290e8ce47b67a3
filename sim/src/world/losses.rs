//! Slots that a server lost, or that ended because no renewal arrived: they never come back, and the
//! requests that hold them learn it.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::{
    select,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{Layer, service_fn};
use tower_sluice::{
    Decision, Quota, RateLimitLayer, Rule,
    key::HeaderKey,
    middleware::{HoldUntil, Slot},
};

use super::{
    MARGIN, World,
    asks::{self, Handler},
    capability::Capability,
    holds::LIFE,
    lock,
    oracle::{Cause, Loss},
    process::Process,
};
use crate::random::Random;

/// The time after which a slot has ended, if its process is paused or cut off.
const AWAY: Duration = Duration::from_secs(12);
/// The time in which a process learns of a loss: renewals are sent in each third of the time to live.
/// A call that began before the end of a fault may fail first.
const TOLD: Duration = Duration::from_millis(10_000 / 3 + 1_500);

/// Slots that are lost.
pub struct Losses;

/// The work of a request, and the instant at which it learned that its slot is lost.
#[derive(Clone)]
struct Call {
    works: Duration,
    lost: Arc<Mutex<Option<Instant>>>,
}

/// The end of a request: its decision, and the instant at which its slot was lost.
type Answer = (Decision, Option<Instant>);

fn service(name: &str, process: &Process, limit: u32) -> Handler {
    let rule = Rule::new(name, HeaderKey::new("x-key"), Quota::concurrent(limit));
    let layer = RateLimitLayer::rules(rule, process.store.clone()).expose_decision().expose_slot();
    let inner = service_fn(async |request: Request<()>| {
        let extensions = request.extensions();
        let call = extensions.get::<Call>().expect("a call");
        let slot = extensions.get::<Slot>().expect("an exposed slot").clone();
        let told = async {
            slot.lost().await;
            *lock(&call.lost) = Some(Instant::now());
            sleep(Duration::MAX).await;
        };
        select! { () = told => {} () = sleep(call.works) => {} }
        Ok::<_, Infallible>(Response::new(()))
    });
    Handler::new(layer.hold_until(HoldUntil::Head).layer(inner))
}

async fn call(service: Handler, works: Duration) -> Answer {
    let call = Call { works, lost: Arc::default() };
    let lost = call.lost.clone();
    let decision = asks::send(&service, "one", call).await;
    let lost = lock(&lost).take();
    (decision, lost)
}

/// A process that takes all slots.
struct Holder {
    process: Arc<Process>,
    service: Handler,
    limit: u32,
    requests: JoinSet<Option<Answer>>,
}

impl Holder {
    fn new(name: &str, process: Arc<Process>, limit: u32) -> Self {
        let service = service(name, &process, limit);
        Self { process, service, limit, requests: JoinSet::new() }
    }

    /// Starts requests on all slots.
    async fn start(&mut self, works: Duration) {
        for _ in 0..self.limit {
            let (process, call) = (self.process.clone(), call(self.service.clone(), works));
            self.requests.spawn(async move { process.run(call).await });
            sleep(4 * MARGIN).await;
        }
    }

    /// Returns the answers, of which `None` is lost with the process.
    async fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        while let Some(Ok(answer)) = self.requests.join_next().await {
            answers.extend(answer);
        }
        answers
    }

    /// Sends a request on no free slot. Returns `true` if it is denied.
    async fn denies_one_more(&self) -> bool {
        !call(self.service.clone(), Duration::ZERO).await.0.is_allowed()
    }
}

async fn check(world: &World, mut random: Random, when: &str) {
    let violate = |text: &str| world.story.violate("losses", format!("{when}: {text}"));
    let count = world.places.len();
    let one = random.below(count);
    let two = (one + 1 + random.below(count - 1)) % count;
    let (limit, how) = (u32::try_from(random.within(1..4)).expect("few"), random.below(3));
    let name = format!("losses_{}", &when[..when.find(' ').unwrap_or(0)]);
    let holder = |place: usize| Holder::new(&name, world.places[place].process(), limit);
    let (mut first, mut second) = (holder(one), holder(two));
    let before: Vec<_> = keys(world);
    first.start(AWAY + 2 * LIFE).await;
    let (from, place) = (world.story.now(), &world.places[one]);
    match how {
        0 => place.process().pause(true),
        1 => place.client.wire.change(|path| (path.up, path.down) = (false, false)),
        _ => evict(world, &before),
    }
    world.story.record(&place.name, || {
        let what = ["pauses", "is cut off", "loses its slots on the servers"][how];
        format!("{what}, and holds {limit} slots")
    });
    sleep(if how < 2 { AWAY } else { MARGIN }).await;
    // Until the first requests have ended, and some time more.
    second.start(AWAY + 3 * LIFE).await;
    place.process().pause(false);
    place.client.wire.change(|path| (path.up, path.down) = (true, true));
    let (back, since) = (world.story.now(), Instant::now());
    if how < 2 {
        *lock(&place.disturbed) = back;
    }
    lock(&world.log).losses.push(Loss { from, to: back, cause: Cause::State });
    for (_, lost) in first.answers().await {
        let told = lost.map(|at| at.saturating_duration_since(since));
        world.story.record(&place.name, || format!("a request learns of its loss: {told:?}"));
        if told.is_none_or(|told| told > TOLD) {
            violate(&format!("{} learned of its loss after {told:?}", place.name));
        }
    }
    if !second.denies_one_more().await {
        violate("the end of a request without a slot freed that of another");
    }
    second.requests.abort_all();
    while second.requests.join_next().await.is_some() {}
    sleep(Duration::from_secs(1)).await;
    second.start(Duration::from_secs(1)).await;
    let denied = second.answers().await.iter().filter(|(it, _)| !it.is_allowed()).count();
    if denied > 0 {
        violate(&format!("{denied} of {limit} slots are not free afterwards"));
    }
}

/// Returns the keys of all servers.
fn keys(world: &World) -> Vec<Vec<u8>> {
    let shards = 0..world.nodes.shards();
    shards.flat_map(|shard| world.nodes.primary(shard).change(|node| node.keys())).collect()
}

/// Evicts the keys that were not there `before`.
fn evict(world: &World, before: &[Vec<u8>]) {
    for shard in 0..world.nodes.shards() {
        let server = world.nodes.primary(shard);
        let keys = server.change(|node| node.keys());
        for key in keys.iter().filter(|key| !before.contains(*key)) {
            server.change(|node| node.evict(key));
        }
    }
}

// Not during faults, because the slots that a server still counts are unknown there.
impl Capability for Losses {
    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        check(world, random, when).await;
    }
}
