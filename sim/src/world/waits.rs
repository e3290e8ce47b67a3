//! Requests that wait for slots, on the servers and on an embedded store: no more run than the limit,
//! those of a process run in their order, no slot is free for long while one waits, and nothing is
//! left once all ended.

use std::{
    convert::Infallible,
    future::poll_fn,
    ops::Range,
    pin::pin,
    sync::{Arc, Mutex, OnceLock},
    task::Poll,
    time::Duration,
};

use http::{Request, Response};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{Layer, service_fn};
use tower_sluice::{
    Key, Quota, RateLimitLayer, Rule, StoreExt, decision::Source, key::HeaderKey,
    middleware::HoldUntil, rule::RuleName, store::Charge,
};

use super::{
    MARGIN, World,
    asks::{self, Handler},
    capability::Capability,
    lock,
    story::Story,
    virtual_local::VirtualLocal,
    wrappers::{OnFailure, Wrapped},
};
use crate::random::Random;

const MAX_WAIT: Duration = Duration::from_secs(2);
/// The longest work of a request, in milliseconds. The first request of a queue asks at least as often.
const WORK: u64 = 300;
/// The work of a request, in milliseconds, after which the first request asks by itself once a second.
/// Requests that start together end within a round trip.
const LONG_WORK: Range<u64> = 1_000..1_004;
/// The time for which a slot of the servers may be free while a request of the only process waits:
/// some round trips, of requests that leave during their call.
const ROUND_TRIPS: Duration = Duration::from_millis(100);
/// The time in which a process frees the slots of a call without an answer, and its breaker closes.
const SETTLED: Duration = Duration::from_secs(5);
/// The time for which all processes compete for slots, and what it takes until their shares have
/// settled.
const COMPETITION: Duration = Duration::from_secs(6);
const SETTLING: Duration = Duration::from_secs(2);
/// The least part of their time, in percent, for which slots are used that processes compete for. A
/// round trip passes between two requests, for work of 10 to 40 ms.
const LEAST_USED: f64 = 66.0;
/// The time for which a slot of the servers may be free while a request waits: it may be left to
/// another process, whose request does not come, and the first request then asks again.
const FREE: Duration = Duration::from_secs(1);
/// The time after which a request has its place in the queue of its process.
const QUEUED: Duration = Duration::from_millis(30);

/// Requests that wait for slots. Their waits during faults are a part of `holds.rs`.
pub struct Waits;

/// The work of a request, and the start of its handler.
#[derive(Clone)]
struct Call {
    works: Duration,
    started: Arc<Mutex<Option<Instant>>>,
}

/// A request that has ended. The instants are those of the story.
#[derive(Debug)]
struct Visit {
    process: usize,
    waits: bool,
    sent: Duration,
    started: Option<Duration>,
    ended: Duration,
    denied: bool,
}

/// A client of a process, whose requests of one key wait or do not.
#[derive(Clone)]
struct Client {
    service: Handler,
    process: usize,
    waits: bool,
    story: Arc<Story>,
}

/// The end of the patience of a client: after a number of times that its request is woken, and a time. A
/// request is woken for a free slot, and then makes a call.
#[derive(Clone, Copy)]
struct Patience {
    wakes: u64,
    time: Duration,
}

impl Patience {
    const ENDLESS: Self = Self { wakes: 0, time: Duration::from_secs(20) };

    fn random(random: &mut Random) -> Self {
        let mut millis = |most: u64| Duration::from_micros(random.within(0..1_000 * most));
        let (long, call) = (millis(1_500), millis(4));
        match random.within(0..100) {
            0..25 => Self { wakes: 0, time: long },
            25..35 => Self { wakes: random.within(1..5), time: Duration::ZERO },
            35..45 => Self { wakes: random.within(1..5), time: call },
            _ => Self::ENDLESS,
        }
    }

    /// Returns the answer, unless the client leaves before.
    async fn wait_for<F: Future>(self, answer: F) -> Option<F::Output> {
        let (mut answer, mut leaving) = (pin!(answer), pin!(sleep(Duration::MAX)));
        let mut left = self.wakes + 1;
        let answer = poll_fn(move |cx| {
            left = left.saturating_sub(1);
            if left == 0 && leaving.deadline() > Instant::now() + self.time {
                leaving.as_mut().reset(Instant::now() + self.time);
            }
            if leaving.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            answer.as_mut().poll(cx).map(Some)
        });
        answer.await
    }
}

impl Client {
    fn new(
        world: &World,
        process: usize,
        store: &Wrapped,
        name: &str,
        limit: u32,
        max_wait: Duration,
    ) -> Self {
        let rule = Rule::new(name, HeaderKey::new("x-key"), Quota::concurrent(limit));
        let layer = RateLimitLayer::rules(rule.max_wait(max_wait), store.clone()).expose_decision();
        let inner = service_fn(async |request: Request<()>| {
            let call = request.extensions().get::<Call>().expect("a call");
            *lock(&call.started) = Some(Instant::now());
            sleep(call.works).await;
            Ok::<_, Infallible>(Response::new(()))
        });
        let layer = layer.hold_until(HoldUntil::Head).max_waiters_per_key(1_000);
        let service = Handler::new(layer.layer(inner));
        Self { service, process, waits: !max_wait.is_zero(), story: world.story.clone() }
    }

    /// Returns a client whose requests wait and one whose do not, of the same slots.
    fn both(world: &World, process: usize, store: &Wrapped, name: &str, limit: u32) -> [Self; 2] {
        [MAX_WAIT, Duration::ZERO]
            .map(|max_wait| Self::new(world, process, store, name, limit, max_wait))
    }

    async fn send(self, works: Duration, patience: Patience) -> Visit {
        let Self { service, process, waits, story } = self;
        let (sent, started) = (story.now(), Arc::default());
        let call = Call { works, started: Arc::clone(&started) };
        let answer = patience.wait_for(asks::send(&service, "one", call)).await;
        let denied = answer.is_some_and(|decision| !decision.is_allowed());
        let started = lock(&started).map(|at| story.at(at));
        story.record(format!("p{process}"), || {
            let what = match (started, denied) {
                (Some(at), _) => format!("ran from {at:?}"),
                (None, true) => "denied".into(),
                (None, false) => "left".into(),
            };
            format!("waits: {waits}, sent at {sent:?}: {what}")
        });
        Visit { process, waits, sent, started, ended: story.now(), denied }
    }

    /// Sends a first request. On a cluster, the breaker of the key's server may be open since the faults,
    /// and only one request probes it.
    async fn probe(&self) {
        self.clone().send(Duration::ZERO, Patience::ENDLESS).await;
    }
}

/// Returns the name of a rule that no other check has.
fn name(of: &str, when: &str) -> String {
    format!("{of}_{}", when.split(' ').next().unwrap_or_default())
}

/// Sends requests with work of some milliseconds from all processes for a while.
async fn run(clients: &[[Client; 2]], works: Range<u64>, random: &mut Random) -> Vec<Visit> {
    let mut processes = JoinSet::new();
    for [waiting, hasty] in clients {
        let waiting = waiting.clone();
        let hasty = hasty.clone();
        let (mut random, works) = (random.fork(), works.clone());
        processes.spawn(async move {
            let gap = *random.pick(&[20, 100, 400]);
            let mut sent = JoinSet::new();
            for _ in 0..random.within(10..30) {
                let mut millis = |range| Duration::from_millis(random.within(range));
                let (works, pause) = (millis(works.clone()), millis(0..gap));
                let client = if random.percent(80) { &waiting } else { &hasty };
                sent.spawn(client.clone().send(works, Patience::random(&mut random)));
                sleep(pause).await;
            }
            sent.join_all().await
        });
    }
    processes.join_all().await.into_iter().flatten().collect()
}

/// Bounds for requests that wait.
#[derive(Clone, Copy)]
struct Bounds {
    /// The time for which a slot may be free while one waits.
    free: Duration,
    /// The time by which a wait may end late.
    late: Duration,
    /// The time after which a request has its place in a queue.
    queued: Duration,
    /// The later requests that may run before one.
    overtaking: usize,
}

/// Returns what is wrong with these requests, if anything.
fn wrong(visits: &[Visit], limit: u32, bounds: &Bounds) -> Option<String> {
    let (limit, Bounds { free, late, queued, overtaking }) = (limit as usize, *bounds);
    let mut changes: Vec<_> = visits.iter().flat_map(|it| [it.started, Some(it.ended)]).collect();
    changes.sort_unstable();
    changes.dedup();
    // The requests that run from each change on.
    let runs = |at: Duration| {
        let runs = |it: &&Visit| it.started.is_some_and(|start| start <= at) && it.ended > at;
        (at, visits.iter().filter(runs).count())
    };
    let running: Vec<_> = changes.into_iter().flatten().map(runs).collect();
    if let Some((at, count)) = running.iter().find(|(_, count)| *count > limit) {
        return Some(format!("{count} run on {limit} slots at {at:?}"));
    }
    for visit in visits.iter().filter(|it| it.waits) {
        let (sent, took) = (visit.sent, visit.ended - visit.sent);
        if visit.denied && (took < MAX_WAIT || took > MAX_WAIT + late) {
            return Some(format!("{visit:?} is denied after {took:?} of {MAX_WAIT:?}"));
        }
        let until = visit.started.unwrap_or(visit.ended);
        let overtakes = |it: &&Visit| {
            let later = it.process == visit.process && it.sent > sent + queued;
            later && it.started.is_some_and(|start| start < until)
        };
        let others: Vec<_> = visits.iter().filter(overtakes).collect();
        if others.len() > overtaking {
            return Some(format!("{others:?} overtake {visit:?}"));
        }
        // The instant from which a slot is free.
        let mut since = None;
        for (at, count) in running.iter().copied().filter(|(at, _)| *at <= until) {
            if since.is_some_and(|since| at > sent && at - sent.max(since) > free) {
                return Some(format!("{visit:?} waits, with a free slot since {since:?}"));
            }
            since = (count < limit).then(|| since.unwrap_or(at));
        }
    }
    None
}

/// Freezes the servers while requests run and others wait. The policy for failures decides.
async fn freeze(world: &World, mut random: Random, when: &str) {
    let at = random.pick(&world.places);
    let (limit, story) = (random.within(1..5), &world.story);
    let most = u32::try_from(limit).expect("few");
    let store = &at.process().store;
    let client = Client::new(world, 0, store, &name("frozen", when), most, MAX_WAIT);
    client.probe().await;
    let mut sent = JoinSet::new();
    for index in 0..limit + random.within(1..5) {
        let works = if index < limit { 3 * MAX_WAIT } else { Duration::ZERO };
        sent.spawn(client.clone().send(works, Patience::ENDLESS));
        sleep(Duration::from_millis(random.within(5..40))).await;
    }
    sleep(Duration::from_millis(random.within(0..200))).await;
    story.record("fault", || "all servers freeze");
    world.nodes.all().iter().for_each(|server| server.pause(true));
    sleep(MAX_WAIT + FREE).await;
    world.nodes.all().iter().for_each(|server| server.pause(false));
    story.record("fault", || "all servers go on");
    for visit in sent.join_all().await {
        let took = visit.ended - visit.sent;
        let late = at.wrappers.budget + MARGIN;
        let well = match at.wrappers.on_failure {
            OnFailure::Fallback => !visit.denied || took >= MAX_WAIT && took <= MAX_WAIT + late,
            _ => visit.denied == (at.wrappers.on_failure == OnFailure::Closed),
        };
        if !well && visit.started.is_none_or(|at| at > visit.sent + 2 * MARGIN) {
            let text = format!("{when}, frozen servers, {}: {visit:?}", at.wrappers);
            story.violate("waits", text);
        }
    }
}

/// Loses the answers to requests of one process that share calls. The slots that the servers gave to all
/// of them are free soon after.
async fn lose_answers(world: &World, mut random: Random, when: &str) {
    let at = random.pick(&world.places);
    let limit = u32::try_from(random.within(3..12)).expect("few");
    let (name, store) = (name("unanswered", when), &at.process().store);
    let client = Client::new(world, 0, store, &name, limit, Duration::ZERO);
    client.probe().await;
    sleep(FREE).await;
    at.client.wire.change(|path| path.down = false);
    let mut sent = JoinSet::new();
    for _ in 0..limit {
        sent.spawn(client.clone().send(Duration::ZERO, Patience::ENDLESS));
    }
    sleep(2 * MARGIN).await;
    at.client.wire.cut();
    at.client.wire.change(|path| path.down = true);
    sent.join_all().await;
    client.probe().await;
    sleep(SETTLED).await;
    let (key, quotas) = (Key::from("one"), [Quota::concurrent(limit)]);
    let charge = Charge::new(RuleName::new(&name).expect("a name"), &key, &quotas).with_cost(0);
    let store = &random.pick(&world.places).process().store;
    // The first look may be the probe of a breaker.
    drop(store.peek(&[charge]).await);
    sleep(FREE).await;
    let Ok(look) = store.peek(&[charge]).await;
    let held = look.outcomes().first().and_then(|outcome| outcome.held());
    if look.source() != Source::Redis || held != Some(0) {
        let text = format!("{held:?} of {limit} slots are held by {}", look.source());
        world.story.violate("waits", format!("{when}: {text} after lost answers"));
    }
}

/// Sends requests of all processes for few slots, one after another by many clients of each. Each process
/// gets a part of them.
async fn compete(world: &World, mut random: Random, when: &str) {
    let (limit, story) = (u32::try_from(random.within(1..4)).expect("few"), &world.story);
    let name = name("competition", when);
    let works = Duration::from_millis(random.within(10..40));
    // A process that came first would otherwise end first, and leave its part to the others.
    let all_since = Arc::new(OnceLock::<Instant>::new());
    let mut clients = JoinSet::new();
    for (process, place) in world.places.iter().enumerate() {
        let store = &place.process().store;
        let client = Client::new(world, process, store, &name, limit, 10 * MAX_WAIT);
        client.probe().await;
        for _ in 0..2 * limit {
            let client = client.clone();
            let all_since = all_since.clone();
            clients.spawn(async move {
                let mut runs = 0_u64;
                while all_since.get().is_none_or(|since| since.elapsed() < COMPETITION) {
                    let visit = client.clone().send(works, Patience::ENDLESS).await;
                    let settled = all_since.get().is_some_and(|since| since.elapsed() > SETTLING);
                    runs += u64::from(visit.started.is_some() && settled);
                }
                (process, runs)
            });
        }
    }
    all_since.set(Instant::now()).expect("once");
    let mut runs = vec![0; world.places.len()];
    for (process, own) in clients.join_all().await {
        runs[process] += own;
    }
    let all = runs.iter().sum::<u64>();
    let fair = all / runs.len() as u64;
    let used = works.as_secs_f64() * all as f64 / f64::from(limit);
    let used = 100.0 * used / (COMPETITION - SETTLING).as_secs_f64();
    story.record("world", || {
        format!("competition {when} for {limit} slots of {works:?}: {runs:?} ran, {used:.0} % used")
    });
    if runs.iter().any(|own| own * 4 < fair) {
        story.violate("waits", format!("{when}: {runs:?} requests on {limit} slots"));
    }
    if used < LEAST_USED {
        let text = format!("{when}: {limit} slots of {works:?} are used {used:.0} % of the time");
        story.violate("waits", text);
    }
    sleep(FREE).await;
}

/// Sends requests of one process only, for slots that are held long. Each freed slot is taken at once,
/// also if a request leaves when it is woken or during its call.
async fn check_alone(world: &World, mut random: Random, when: &str) {
    let (limit, story) = (u32::try_from(random.within(1..4)).expect("few"), &world.story);
    let at = random.pick(&world.places);
    let clients = Client::both(world, 0, &at.process().store, &name("alone", when), limit);
    clients[1].probe().await;
    // The mean time for which a slot is held decides when the first request asks by itself.
    for _ in 0..10 {
        let works = Duration::from_millis(LONG_WORK.start);
        clients[1].clone().send(works, Patience::ENDLESS).await;
    }
    let visits = run(&[clients], LONG_WORK, &mut random).await;
    let late = at.wrappers.budget + MARGIN;
    let bounds = Bounds { free: ROUND_TRIPS, late, queued: QUEUED, overtaking: limit as usize - 1 };
    if let Some(text) = wrong(&visits, limit, &bounds) {
        story.violate("waits", format!("{when}, one process: {text}"));
    }
    sleep(FREE).await;
}

async fn check(world: &World, mut random: Random, when: &str) {
    let (limit, story) = (u32::try_from(random.within(1..5)).expect("few"), &world.story);
    let name = name("waits", when);
    let violate = |text: String| world.story.violate("waits", format!("{when}: {text}"));
    let local = VirtualLocal::new(story.start()).boxed();
    let local = Client::both(world, 0, &local, &name, limit);
    let visits = run(&[local], 0..WORK, &mut random).await;
    let exact = Bounds { free: MARGIN, late: MARGIN, queued: Duration::ZERO, overtaking: 0 };
    if let Some(text) = wrong(&visits, limit, &exact) {
        violate(format!("embedded store: {text}"));
    }
    let places = world.places.iter().enumerate();
    let clients = places
        .map(|(process, place)| Client::both(world, process, &place.process().store, &name, limit));
    let clients: Vec<_> = clients.collect();
    for [_, hasty] in &clients {
        hasty.probe().await;
    }
    let visits = run(&clients, 0..WORK, &mut random).await;
    world.story.record("world", || {
        let ran = visits.iter().filter(|it| it.started.is_some()).count();
        format!("waits {when}: {ran} of {} ran on {limit} slots", visits.len())
    });
    let late = world.places.iter().map(|place| place.wrappers.budget).max().unwrap_or_default();
    // Requests that ask at the same time do so in their order, but may be decided in another.
    let (late, overtaking) = (late + MARGIN, limit as usize - 1);
    if let Some(text) =
        wrong(&visits, limit, &Bounds { free: FREE, late, queued: QUEUED, overtaking })
    {
        violate(text);
    }
    sleep(FREE).await;
    let before = world.nodes.scripts();
    sleep(2 * FREE).await;
    let calls = world.nodes.scripts() - before;
    if calls > 0 {
        violate(format!("{calls} calls after all requests ended"));
    }
    let [_, hasty] = random.pick(&clients);
    let mut last = JoinSet::new();
    for _ in 0..limit {
        last.spawn(hasty.clone().send(Duration::ZERO, Patience::ENDLESS));
    }
    let denied = last.join_all().await.iter().filter(|it| it.denied).count();
    if denied > 0 {
        violate(format!("{denied} of {limit} slots are not free afterwards"));
    }
}

// Not during faults, because the slots that a server still counts are unknown there.
impl Capability for Waits {
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        check(world, random.fork(), when).await;
        check_alone(world, random.fork(), when).await;
        if random.percent(25) {
            compete(world, random.fork(), when).await;
        }
        lose_answers(world, random.fork(), when).await;
        freeze(world, random, when).await;
    }
}
