//! Bursts of one key on healthy servers: a caller that waits for its own key is no outage.
//!
//! Every request of a burst is decided by the servers, or by what they have reported. No request
//! fails, no breaker opens, and equal requests share calls.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::{
    join,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::{Layer, service_fn};
use tower_sluice::{
    Algorithm, Decision, Quota, RateLimitLayer, Rule,
    decision::Source,
    key::{Everyone, HeaderKey},
    middleware::HoldUntil,
    rule::Rules,
    testing::FakeClock,
};

use super::{
    World,
    asks::{self, Handler},
    capability::Capability,
    deployment::Kind,
    oracle::limit,
    process::Process,
};
use crate::random::Random;

/// The time for which a handler works, and then frees its slot.
const WORK: Duration = Duration::from_millis(300);
/// The time in which all freed slots are free on the servers.
const FREED: Duration = Duration::from_secs(1);
/// The callers that share a call at most.
const CALLERS: usize = 1_024;
/// The least limit of a pool that clients share.
const LEAST_POOL: u32 = 4;
/// The limit of the rule that admits what another one denies.
const OTHERWISE: u32 = 3;
/// The requests of another key that are sent within some bursts.
const OTHERS: usize = 3;
/// The longest time of such a request.
const OTHERS_WAIT: Duration = Duration::from_millis(50);

/// Bursts of one key, with any algorithm and with slots.
pub struct Bursts;

/// The handlers that run, and the most that ran at a time.
#[derive(Default)]
struct Running {
    now: AtomicU32,
    most: AtomicU32,
}

/// Returns slots, a rate of any algorithm, or both.
fn quotas(random: &mut Random) -> Vec<Quota> {
    let units = u32::try_from(random.within(1..30)).expect("few");
    let base = Quota::new(units, Duration::from_secs(10)).expect("a quota");
    let rate = base.with_algorithm(*random.pick(&[
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 5 },
        Algorithm::SlidingLog,
    ]));
    let slots = Quota::concurrent(u32::try_from(random.within(1..20)).expect("few"));
    match random.within(0..10) {
        0..6 => vec![rate],
        6..9 => vec![slots],
        _ => vec![slots, rate],
    }
}

/// The rules of a burst, and the number of bursts of calls that its attempts make.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    One,
    /// The quotas, or else another rule.
    Or,
    /// A client of a pool.
    Fair,
}

impl Form {
    fn random(random: &mut Random, world: &World, quotas: &[Quota]) -> Self {
        // A share and its pool are on two servers of a cluster, and one denies what the other admits.
        let can_be_pool = world.nodes.kind != Kind::Cluster
            && quotas.len() == 1
            && quotas[0].algorithm() == Algorithm::Gcra
            && quotas[0].limit() >= LEAST_POOL;
        match random.within(0..4) {
            0 => Self::Or,
            1 | 2 if can_be_pool => Self::Fair,
            _ => Self::One,
        }
    }

    fn attempts(self) -> usize {
        if self == Self::One { 1 } else { 2 }
    }

    fn rules(self, name: &str, quotas: &[Quota]) -> Arc<dyn Rules + Send + Sync> {
        let key = HeaderKey::new("x-key");
        match self {
            Self::One => Arc::new(Rule::new(name, key, quotas.to_vec())),
            Self::Or => {
                let other =
                    Rule::new(&format!("{name}_or"), key.clone(), Quota::per_day(OTHERWISE));
                Arc::new(Rule::new(name, key, quotas.to_vec()).or(other))
            }
            Self::Fair => {
                let pool = Rule::new(name, Everyone, quotas.to_vec());
                Arc::new(FakeClock::new().fair(pool.fair_by(key)))
            }
        }
    }
}

/// Returns a layer of a process whose requests hold slots while their handler works.
fn service(
    name: &str,
    form: Form,
    process: &Process,
    quotas: &[Quota],
    running: &Arc<Running>,
    work: Duration,
) -> Handler {
    let running = running.clone();
    let inner = service_fn(move |_: Request<()>| {
        let running = running.clone();
        async move {
            running.most.fetch_max(running.now.fetch_add(1, Relaxed) + 1, Relaxed);
            sleep(work).await;
            running.now.fetch_sub(1, Relaxed);
            Ok::<_, Infallible>(Response::new(()))
        }
    });
    let layer = RateLimitLayer::rules(form.rules(name, quotas), process.store.clone());
    let layer = layer.expose_decision().hold_until(HoldUntil::Head);
    Handler::new(layer.layer(inner))
}

/// Sends requests of one key at once. Returns their decisions.
async fn send(service: &Handler, key: &str, count: usize) -> Vec<Decision> {
    let mut requests = JoinSet::new();
    for _ in 0..count {
        let (service, key) = (service.clone(), key.to_owned());
        requests.spawn(async move { asks::send(&service, &key, ()).await });
    }
    requests.join_all().await
}

/// Returns the number of requests that neither the servers decided nor what they have reported.
fn failures(decisions: &[Decision]) -> usize {
    let by_servers = |source| matches!(source, Source::Redis | Source::DenyCache | Source::Leased);
    decisions.iter().filter(|decision| !by_servers(decision.source())).count()
}

/// Sends a burst from one process. Returns what was wrong.
async fn burst(world: &World, mut random: Random, when: &str) {
    let at = random.pick(&world.places);
    let (quotas, count) = (quotas(&mut random), *random.pick(&[200, 500, 2_000, 2_000]));
    let others = *random.pick(&[0, OTHERS]);
    let form = Form::random(&mut random, world, &quotas);
    // A busy machine. Requests that are not merged would keep a server busy for longer than a timeout.
    let work = Duration::from_millis(if at.wrappers.coalesce { *random.pick(&[0, 1]) } else { 0 });
    let (process, running) = (at.process(), Arc::<Running>::default());
    let service = service(&when.replace(' ', "_"), form, &process, &quotas, &running, WORK);
    let other = self::service(
        "other",
        Form::One,
        &process,
        &[Quota::per_second(1_000)],
        &Arc::default(),
        Duration::ZERO,
    );
    let (key, of_other) = (format!("burst {when}"), format!("other {when}"));
    let wrong = |what: &str| {
        let quotas = quotas.iter().map(|it| format!("{it} {:?}", it.algorithm()));
        let quotas = quotas.collect::<Vec<_>>().join(" and ");
        let text =
            format!("{when}: {count} callers of {form:?}, {quotas}, {}: {what}", at.wrappers);
        world.story.violate("burst", text);
    };
    // The connections are open and the scripts are loaded.
    drop(send(&service, &key, 1).await);
    drop(send(&other, &of_other, 1).await);
    sleep(FREED).await;
    world.nodes.all().iter().for_each(|server| server.set_work(work));
    let (start, before) = (Instant::now(), world.nodes.scripts());
    let send_others = async {
        let (mut decisions, mut longest) = (Vec::new(), Duration::ZERO);
        for _ in 0..others {
            sleep(Duration::from_millis(3)).await;
            let asked = Instant::now();
            decisions.extend(send(&other, &of_other, 1).await);
            longest = longest.max(asked.elapsed());
        }
        (failures(&decisions), longest)
    };
    let (decisions, (of_others, longest)) = join!(send(&service, &key, count), send_others);
    let time = start.elapsed();
    sleep(FREED).await;
    let calls = world.nodes.scripts() - before;
    world.nodes.all().iter().for_each(|server| server.set_work(Duration::ZERO));
    let (failed, held) = (failures(&decisions), running.most.load(Relaxed));
    let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
    world.story.record(&at.name, || {
        format!(
            "burst of {count}, {form:?}: {allowed} allowed, {failed} failed, {held} at a time, {calls} calls"
        )
    });
    if failed + of_others > 0 {
        wrong(&format!("{failed} not decided by a server, and {of_others} of another key"));
    }
    if longest > OTHERS_WAIT {
        wrong(&format!("a request of another key took {longest:?}"));
    }
    let has_slots = quotas[0].algorithm() == Algorithm::Concurrent;
    let otherwise = if form == Form::Or { OTHERWISE } else { 0 };
    if has_slots && held > quotas[0].limit() + otherwise {
        wrong(&format!("{held} held"));
    }
    let rate = quotas.iter().find(|quota| quota.algorithm() != Algorithm::Concurrent);
    if rate.is_some_and(|rate| allowed as u64 > limit(rate, time) + u64::from(otherwise)) {
        wrong(&format!("{allowed} allowed"));
    }
    // One unit is gone before the burst. With leases, other units may be set aside.
    let least = quotas.iter().map(|quota| quota.limit() - u32::from(Some(quota) == rate)).min();
    let least = least.unwrap_or(0);
    // A part of a pool is left for other clients.
    let least = if form == Form::Fair { least / 2 } else { least };
    if at.wrappers.leases.is_none() && allowed < least as usize {
        wrong(&format!("only {allowed} allowed"));
    }
    // A lease is borrowed and returned.
    let leases = if at.wrappers.leases.is_some() { 2 } else { 0 };
    let burst = 2 + count.div_ceil(CALLERS) + leases;
    let most = form.attempts() * burst + others + usize::from(has_slots);
    if at.wrappers.coalesce && calls > most as u64 {
        wrong(&format!("{calls} calls instead of {most}"));
    }
    // All slots are free again.
    if has_slots && rate.is_none() {
        let again = send(&service, &key, quotas[0].limit() as usize).await;
        let denied = again.iter().filter(|decision| !decision.is_allowed()).count();
        if denied > 0 {
            wrong(&format!("{denied} slots are not free afterwards"));
        }
        sleep(FREED).await;
    }
}

// Not during faults, because a fault may fail a request.
impl Capability for Bursts {
    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        burst(world, random, when).await;
    }
}
