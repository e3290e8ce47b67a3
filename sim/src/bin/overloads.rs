//! An adaptive limit before a service with a few workers, through usual load, overload and a hang: it
//! keeps its bounds, changes step by step, follows the service, and recovers.
//!
//! A program of its own, because [`Adaptive`] needs the clock of the machine when it is created.
//!
//! ```console
//! $ cargo run --release --bin overloads -- --seeds 1000
//! $ cargo run --release --bin overloads -- --seed 42
//! ```

use std::{
    convert::Infallible,
    process::ExitCode,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{
    RateLimitLayer, key::Everyone, middleware::HoldUntil, rule::Adaptive, testing::FakeClock,
};

use sim::{option, random::Random};

/// The shortest time and the fewest responses between two changes.
const WINDOW: (Duration, u32) = (Duration::from_millis(100), 10);

/// The requests of a part of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    served: u32,
    shed: u32,
}

/// The limit, and what was seen of it.
struct Seen {
    limit: u32,
    changed: Instant,
    /// The responses and the requests without a response since the limit changed.
    ended: u32,
    running: u32,
    part: Part,
    wrong: Option<String>,
}

/// A service behind an adaptive limit.
struct Overload {
    limit: Adaptive,
    clock: FakeClock,
    start: Instant,
    /// The highest limit.
    max: u32,
    /// The time of a request.
    work: Duration,
    workers: Semaphore,
    /// `true` while every third response shows an overload.
    fails: AtomicBool,
    seen: Mutex<Seen>,
}

/// A request that runs, until this value is dropped.
struct Running(Arc<Overload>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set_clock();
        let mut seen = lock(&self.0.seen);
        seen.running -= 1;
        seen.ended += 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Service = BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

impl Overload {
    fn set_clock(&self) {
        self.clock.advance(self.start.elapsed().saturating_sub(self.clock.now()));
    }

    /// Returns a layer around the workers.
    fn service(self: &Arc<Self>) -> Service {
        let layer = RateLimitLayer::new(Everyone, self.limit.plan(), self.clock.store(64))
            .hold_until(HoldUntil::Head);
        let overload = self.clone();
        let inner = service_fn(move |_: Request<()>| {
            let running = overload.begin();
            async move {
                let worker = running.0.workers.acquire().await;
                sleep(running.0.work).await;
                drop(worker);
                let mut response = Response::new(());
                if running.0.fails.load(Relaxed) && lock(&running.0.seen).ended.is_multiple_of(3) {
                    *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
                }
                Ok::<_, Infallible>(response)
            }
        });
        BoxCloneSyncService::new(layer.layer(inner))
    }

    /// Counts a request that is admitted.
    fn begin(self: &Arc<Self>) -> Running {
        let mut seen = lock(&self.seen);
        if seen.running >= seen.limit {
            seen.wrong = Some(format!("{} run on {} slots", seen.running + 1, seen.limit));
        }
        seen.running += 1;
        Running(self.clone())
    }

    /// Checks the limit after each event.
    fn look(&self) {
        let (limit, now) = (self.limit.limit(), Instant::now());
        let mut seen = lock(&self.seen);
        let (before, took) = (seen.limit, now - seen.changed);
        if limit == before {
            return;
        }
        // A window lowers the limit by at most a tenth, and raises it by at most one.
        let in_steps = limit <= before + 1 && limit >= (before * 9 / 10).max(1);
        let in_time = took >= WINDOW.0 && seen.ended >= WINDOW.1;
        let quotas = self.limit.plan().quotas();
        let is_planned = quotas.as_ref().iter().all(|it| it.limit() == limit);
        if limit > self.max || !in_steps || !in_time || !is_planned {
            let text = format!("the limit is {limit}, and was {before}, {took:?} and");
            seen.wrong = Some(format!("{text} {} requests before: {quotas:?}", seen.ended));
        }
        (seen.limit, seen.changed, seen.ended) = (limit, now, 0);
    }

    /// Sends requests for a time, in parts of the capacity of `workers`. Some clients leave.
    async fn load(
        self: &Arc<Self>,
        service: &Service,
        sent: &mut JoinSet<()>,
        (workers, percent, seconds): (u32, u32, u64),
        random: &mut Random,
    ) -> Part {
        lock(&self.seen).part = Part::default();
        let mean = u64::try_from(self.work.as_micros()).unwrap_or(0) * 100;
        let mean = mean / u64::from(workers * percent);
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until {
            let leaves = random.percent(3).then(|| self.work / 2);
            let (overload, service) = (self.clone(), service.clone());
            sent.spawn(async move {
                let request = Request::builder().uri("/").body(()).expect("a request");
                overload.set_clock();
                let mut call = Box::pin(service.oneshot(request));
                let answer = timeout(leaves.unwrap_or(Duration::MAX), &mut call).await;
                overload.set_clock();
                drop(call);
                if let Ok(Ok(response)) = answer {
                    let mut seen = lock(&overload.seen);
                    match response.status() {
                        StatusCode::SERVICE_UNAVAILABLE => seen.part.shed += 1,
                        _ => seen.part.served += 1,
                    }
                }
                overload.look();
            });
            while sent.try_join_next().is_some() {}
            sleep(Duration::from_micros(random.within(0..2 * mean + 1))).await;
        }
        lock(&self.seen).part
    }
}

/// Runs a seed. Returns its story, and what was wrong.
async fn run(seed: u64) -> (Vec<String>, Option<String>) {
    let (mut random, mut story) = (Random::new(seed), Vec::new());
    let workers = u32::try_from(random.within(1..6)).expect("few");
    let (millis, clock) = (random.within(20..100), FakeClock::new());
    let work = Duration::from_millis(millis);
    let max = *random.pick(&[10, 100, 1_000]);
    let initial = u32::try_from(random.within(u64::from(workers)..31)).expect("few").min(max);
    let is_gradient = random.percent(50);
    let limit = if is_gradient { Adaptive::gradient() } else { Adaptive::aimd(3 * work) };
    let limit = clock.adaptive(limit.max(max).initial(initial));
    let (start, changed) = (Instant::now(), Instant::now());
    let (ended, running, part) = (0, 0, Part::default());
    let seen = Seen { limit: initial, changed, ended, running, part, wrong: None }.into();
    let permits = Semaphore::new(workers as usize);
    let fails = AtomicBool::new(false);
    let overload = Overload { limit, clock, start, max, work, workers: permits, fails, seen };
    let (overload, mut sent) = (Arc::new(overload), JoinSet::new());
    let service = overload.service();
    story.push(format!("{workers} workers of {work:?}, at most {max}, gradient {is_gradient}"));
    let mut wrong = None;
    // Ten windows define the usual latency.
    for (name, load, permits) in [
        ("usual load", (workers, 50, 25), true),
        ("overload", (workers, 400, 5), true),
        ("overload for longer", (workers, 400, 20), true),
        ("a hang", (workers, 50, 2), false),
        ("failures", (workers, 50, 10), true),
        ("recovery", (workers, 50, 15), true),
        ("usual load again", (workers, 50, 5), true),
    ] {
        let before = overload.limit.limit();
        overload.fails.store(name == "failures", Relaxed);
        let hang = if permits { None } else { Some(overload.workers.acquire_many(workers).await) };
        let part = overload.load(&service, &mut sent, load, &mut random).await;
        drop(hang);
        let limit = overload.limit.limit();
        story.push(format!("{name}: {part:?}, limit {limit}"));
        let capacity = u64::from(workers) * 1_000 / millis * load.2;
        let well = match name {
            "overload for longer" => {
                limit <= 4 * workers + 10 && u64::from(part.served) * 10 >= capacity * 7
            }
            "failures" => limit < before || limit == 1,
            "usual load again" => part.shed * 20 <= part.served,
            _ => true,
        };
        if !well {
            wrong.get_or_insert(format!("{name}: {part:?}, limit {limit}"));
        }
    }
    while sent.join_next().await.is_some() {}
    let mut seen = lock(&overload.seen);
    let held = (seen.running > 0).then(|| "requests run after all have ended".into());
    (story, seen.wrong.take().or(wrong).or(held))
}

fn main() -> ExitCode {
    let one: Option<u64> = option("--seed");
    let seeds = one.map_or(0..option("--seeds").unwrap_or(100), |seed| seed..seed + 1);
    let (count, mut bad) = (seeds.end - seeds.start, 0);
    for seed in seeds {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        let (story, wrong) = runtime.block_on(run(seed));
        if one.is_some() || wrong.is_some() {
            story.iter().chain(&wrong).for_each(|line| println!("seed {seed}: {line}"));
        }
        bad += u64::from(wrong.is_some());
    }
    println!("{count} overloads: {bad} with violations");
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
