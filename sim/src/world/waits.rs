//! Requests that wait for slots, on the servers and on an embedded store: no more run than the limit,
//! those of a process run in their order, no slot is free for long while one waits, and nothing is
//! left once all ended.

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
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{
    Decision, Quota, RateLimitLayer, Rule, StoreExt, key::HeaderKey, middleware::HoldUntil,
};

use super::{
    MARGIN, World,
    capability::{BoxFuture, Capability},
    lock,
    story::Story,
    virtual_local::VirtualLocal,
    wrappers::{OnFailure, Wrapped},
};
use crate::random::Random;

const MAX_WAIT: Duration = Duration::from_secs(2);
/// The longest work of a request, in milliseconds. The first request of a queue asks at least as often.
const WORK: u64 = 300;
/// The time for which a slot of the servers may be free while a request waits: it may be left to
/// another process, whose request does not come, and the first request then asks again.
const FREE: Duration = Duration::from_secs(1);
/// The time after which a request has its place in the queue of its process.
const QUEUED: Duration = Duration::from_millis(30);

/// Requests that wait for slots. Their waits during faults are a part of `holds.rs`.
pub struct Waits;

type Service = BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

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

/// Returns a layer of a process, for requests that wait or that do not.
fn service(name: &str, store: &Wrapped, limit: u32, max_wait: Duration) -> Service {
    let rule = Rule::new(name, HeaderKey::new("x-key"), Quota::concurrent(limit));
    let layer = RateLimitLayer::rules(rule.max_wait(max_wait), store.clone()).expose_decision();
    let inner = service_fn(async |request: Request<()>| {
        let call = request.extensions().get::<Call>().expect("a call");
        *lock(&call.started) = Some(Instant::now());
        sleep(call.works).await;
        Ok::<_, Infallible>(Response::new(()))
    });
    let layer = layer.hold_until(HoldUntil::Head).max_waiters_per_key(1_000);
    BoxCloneSyncService::new(layer.layer(inner))
}

/// The process of a request, and whether it waits.
type Sender = (usize, bool);

/// Sends a request, whose client leaves after `patience`.
async fn send(
    service: Service,
    (process, waits): Sender,
    works: Duration,
    patience: Duration,
    story: Arc<Story>,
) -> Visit {
    let (sent, started) = (story.now(), Arc::default());
    let call = Call { works, started: Arc::clone(&started) };
    let request = Request::builder().uri("/").header("x-key", "one").extension(call).body(());
    let answer = timeout(patience, service.oneshot(request.expect("a request"))).await;
    let denied = answer.is_ok_and(|response| {
        let Ok(response) = response;
        let decision = response.extensions().get::<Decision>();
        !decision.expect("an exposed decision").is_allowed()
    });
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

/// Sends a first request. On a cluster, the breaker of the key's server may be open since the faults, and
/// only one request probes it.
async fn probe(service: &Service, process: usize, story: &Arc<Story>) {
    send(service.clone(), (process, false), Duration::ZERO, MAX_WAIT, story.clone()).await;
}

/// Sends requests of one key from all processes for a while.
async fn run(services: &[[Service; 2]], random: &mut Random, story: &Arc<Story>) -> Vec<Visit> {
    let mut clients = JoinSet::new();
    for (process, services) in services.iter().enumerate() {
        let (mut random, services, story) = (random.fork(), services.clone(), story.clone());
        clients.spawn(async move {
            let gap = *random.pick(&[20, 100, 400]);
            let mut sent = JoinSet::new();
            for _ in 0..random.within(10..30) {
                let mut millis = |most| Duration::from_millis(random.within(0..most));
                let (works, leaves, pause) = (millis(WORK), millis(1_500), millis(gap));
                let waits = random.percent(80);
                let patience = if random.percent(25) { leaves } else { 10 * MAX_WAIT };
                let service = services[usize::from(waits)].clone();
                sent.spawn(send(service, (process, waits), works, patience, story.clone()));
                sleep(pause).await;
            }
            sent.join_all().await
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
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
    let name = format!("frozen_{}", &when[..when.find(' ').unwrap_or(0)]);
    let most = u32::try_from(limit).expect("few");
    let service = service(&name, &at.process().store, most, MAX_WAIT);
    probe(&service, 0, story).await;
    let mut sent = JoinSet::new();
    for index in 0..limit + random.within(1..5) {
        let works = if index < limit { 3 * MAX_WAIT } else { Duration::ZERO };
        sent.spawn(send(service.clone(), (0, true), works, 10 * MAX_WAIT, story.clone()));
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

async fn check(world: &World, mut random: Random, when: &str) {
    let (limit, story) = (u32::try_from(random.within(1..5)).expect("few"), &world.story);
    let name = format!("waits_{}", &when[..when.find(' ').unwrap_or(0)]);
    let of_process = |store: &Wrapped| {
        [Duration::ZERO, MAX_WAIT].map(|max_wait| service(&name, store, limit, max_wait))
    };
    let violate = |text: String| world.story.violate("waits", format!("{when}: {text}"));
    let local = of_process(&VirtualLocal::new(story.start()).boxed());
    let visits = run(&[local], &mut random, story).await;
    let exact = Bounds { free: MARGIN, late: MARGIN, queued: Duration::ZERO, overtaking: 0 };
    if let Some(text) = wrong(&visits, limit, &exact) {
        violate(format!("embedded store: {text}"));
    }
    let services: Vec<_> =
        world.places.iter().map(|place| of_process(&place.process().store)).collect();
    for (process, [service, _]) in services.iter().enumerate() {
        probe(service, process, story).await;
    }
    let visits = run(&services, &mut random, story).await;
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
    let [service, _] = random.pick(&services);
    let mut last = JoinSet::new();
    for _ in 0..limit {
        last.spawn(send(service.clone(), (0, false), Duration::ZERO, MAX_WAIT, story.clone()));
    }
    let denied = last.join_all().await.iter().filter(|it| it.denied).count();
    if denied > 0 {
        violate(format!("{denied} of {limit} slots are not free afterwards"));
    }
}

// Not during faults, because the slots that a server still counts are unknown there.
impl Capability for Waits {
    fn compare<'a>(
        &'a self,
        world: &'a World,
        mut random: Random,
        when: &'static str,
    ) -> BoxFuture<'a> {
        Box::pin(async move {
            check(world, random.fork(), when).await;
            freeze(world, random, when).await;
        })
    }
}
