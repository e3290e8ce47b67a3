//! One run: processes, network and servers, with faults, from one seed.

mod adjustments;
mod alternatives;
mod asks;
mod batches;
mod blocks;
mod bursts;
mod calls;
mod capability;
mod client;
mod deployment;
mod effects;
mod exact;
mod faults;
mod hash_slots;
mod holds;
mod instances;
mod leases;
mod losses;
mod network;
mod oracle;
mod outages;
mod penalties;
mod periods;
mod phases;
mod process;
mod queues;
mod rates;
mod retries;
mod rules;
mod server;
mod shares;
mod story;
mod virtual_local;
mod waits;
mod wrappers;

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::time::timeout;
use tower_sluice::decision::Source;

use self::{
    capability::AnyCapability,
    client::Client,
    deployment::{Deployment, Kind},
    network::Wire,
    oracle::Log,
    process::{HandlerPanic, Process},
    rules::Rules,
    story::Story,
    wrappers::Wrappers,
};
use crate::{random::Random, source::seed_process};

/// The margin of a decision above its budget.
const MARGIN: Duration = Duration::from_millis(5);
/// Answers are taken for this many times the timeout, unless the servers are silent.
const PATIENCE: u32 = 10;
/// The time after the last fault in which the node decides again.
const RECOVERY: Duration = Duration::from_secs(1);
/// The time for which leased units may outlive a loss of state.
const LEASE: Duration = Duration::from_millis(1_500);
/// The most that a run may take, in virtual time.
const LONGEST: Duration = Duration::from_secs(4 * 3_600);
/// The delay of a healthy path, in microseconds.
const DELAY: (u64, u64) = (100, 2_000);

/// The result of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub violations: Vec<String>,
    pub events: Vec<String>,
    pub simulated: Duration,
    pub decisions: u64,
    pub commands: u64,
    pub faults: u64,
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Counts the panics of each thread, also those that the runtime catches, but not those of handlers.
pub fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().is::<HandlerPanic>() {
            return;
        }
        PANICS.set(PANICS.get() + 1);
        before(info);
    }));
}

/// Runs a seed in a thread of its own, which alone draws from the random source until it ends.
pub fn run(seed: u64, recorded: bool, topic: Topic) -> Report {
    let run = move || {
        seed_process(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let mut report = runtime.block_on(World::run(seed, recorded, topic));
        drop(runtime);
        if PANICS.get() > 0 {
            report.violations.push(format!("{} panics", PANICS.get()));
        }
        report
    };
    let report = thread::spawn(run).join();
    report.unwrap_or_else(|_| Report { violations: vec!["a panic".into()], ..Report::default() })
}

/// The topic of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Topic {
    Requests,
    /// The capabilities that share a limit, with seeds of their own.
    Sharing,
}

/// A running system.
struct World {
    story: Arc<Story>,
    nodes: Arc<Deployment>,
    places: Vec<Place>,
    rules: Rules,
    keys: usize,
    log: Mutex<Log>,
    decisions: AtomicU64,
    capabilities: Vec<Box<dyn AnyCapability>>,
}

/// A process, and the wire and the wrappers that outlive its restarts.
struct Place {
    name: String,
    wrappers: Wrappers,
    client: Client,
    process: Mutex<Arc<Process>>,
    /// The last instant at which the process was paused or dead.
    disturbed: Mutex<Duration>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    fn process(&self) -> Arc<Process> {
        lock(&self.process).clone()
    }
}

impl World {
    async fn run(seed: u64, recorded: bool, topic: Topic) -> Report {
        let mut random = Random::new(seed);
        let world = Arc::new(Self::new(&mut random, recorded, topic));
        world.introduce(seed);
        let faults = timeout(LONGEST, world.clone().play(&mut random)).await;
        if faults.is_err() {
            world.story.violate("liveness", "the run does not end");
        }
        world.capabilities.iter().for_each(|capability| capability.check(&world));
        Report {
            violations: world.story.violations(),
            events: world.story.events(),
            simulated: world.story.now(),
            decisions: world.decisions.load(Relaxed),
            commands: world.nodes.commands(),
            faults: faults.unwrap_or(0),
        }
    }

    fn new(random: &mut Random, recorded: bool, topic: Topic) -> Self {
        let story = Arc::new(Story::new(recorded));
        let kind = match random.within(0..100) {
            0..50 => Kind::Single,
            50..75 => Kind::Sentinel,
            _ => Kind::Cluster,
        };
        let nodes = Deployment::new(random, kind);
        // Two accounts on two servers of a cluster have two clocks, and no exact model.
        let one_account = kind == Kind::Cluster && random.percent(50);
        let rules = Rules::random(random, one_account);
        let count = u32::try_from(random.within(2..7)).expect("few");
        let (leases, hash_tag) = (random.percent(30), random.percent(30));
        // With counted processes, an outage needs the fallback of each.
        let fall_back = topic == Topic::Sharing && random.percent(70);
        let places = (0..count).map(|index| {
            let wrappers = Wrappers::random(random, leases, hash_tag);
            let wrappers =
                if topic == Topic::Sharing { wrappers.counted(fall_back) } else { wrappers };
            let name = format!("p{index}");
            let one_server = kind == Kind::Single;
            let wire = Wire::new(story.clone(), name.clone(), DELAY, random.fork(), one_server);
            let life = Arc::default();
            let client = Client { wire, nodes: nodes.clone(), life, resp3: wrappers.resp3 };
            let process = Process::new(&wrappers, count, &rules, client.clone());
            Place {
                name,
                wrappers,
                client,
                process: Mutex::new(Arc::new(process)),
                disturbed: Mutex::default(),
            }
        });
        let places = places.collect();
        let keys = random.below(2) + 1;
        Self {
            story,
            nodes,
            places,
            rules,
            keys,
            log: Mutex::default(),
            decisions: AtomicU64::new(0),
            capabilities: match topic {
                Topic::Requests => capability::all(),
                Topic::Sharing => capability::sharing(random),
            },
        }
    }

    fn introduce(&self, seed: u64) {
        self.story
            .record("world", || format!("seed {seed}: {}, {} keys", self.nodes.kind, self.keys));
        for rule in 0..2 {
            for [base, other] in self.rules.bounds(rule) {
                self.story.record("world", || match base == other {
                    true => format!("rule {rule}: {base:?}"),
                    false => format!("rule {rule}: {base:?}, at times {other:?}"),
                });
            }
        }
        let [few, many] = self.rules.queued;
        self.story.record("world", || format!("keys q, which queue: {few:?}, at times {many:?}"));
        self.story.record("world", || format!("keys a, adjusted: {:?}", self.rules.adjusted));
        self.story
            .record("world", || format!("keys h, with {} slots on a server", self.rules.held));
        for place in &self.places {
            self.story.record(&place.name, || place.wrappers.to_string());
        }
    }

    /// Returns the number of processes.
    fn count(&self) -> u32 {
        u32::try_from(self.places.len()).expect("few")
    }

    /// Returns `true` if no wrapper changes the numbers of the node, and each decision has one clock.
    fn is_exact(&self) -> bool {
        let one_clock = self.rules.count() == 1 || self.nodes.kind != Kind::Cluster;
        one_clock && self.places.iter().all(|place| place.wrappers.leases.is_none())
    }

    /// Returns the number of timeouts that a call may take since `start`: more than one if the servers
    /// answered anything meanwhile.
    fn patience(at: &Place, start: Duration) -> u32 {
        if at.client.wire.has_arrived_since(start) { PATIENCE } else { 1 }
    }

    /// Checks the time of an answer after `calls` calls, unless its process was paused.
    fn check_time(&self, at: &Place, start: Duration, source: Source, calls: u32) {
        if *lock(&at.disturbed) >= start {
            return;
        }
        let took = self.story.now() - start;
        let patience = Self::patience(at, start);
        let most = calls * at.wrappers.longest(patience);
        if took > most + MARGIN {
            let text = format!("{} answered by {source} after {took:?} of {most:?}", at.name);
            self.story.violate("budget", text);
        }
        let is_late = at.wrappers.leases.is_some() || took >= PATIENCE * at.wrappers.budget;
        if source == Source::Busy && !(patience == PATIENCE && is_late) {
            let text = format!("{} by {source} after {took:?} of {most:?}", at.name);
            self.story.violate("busy", text);
        }
    }

    fn count_decision(&self) {
        self.decisions.fetch_add(1, Relaxed);
    }

    /// Runs an operation of a random capability.
    async fn operate(&self, place: usize, mut random: Random) {
        lock(&self.log).operations.push((place, self.story.now()));
        let mut chosen = random.within(0..100);
        for capability in &self.capabilities {
            if chosen < capability.share() {
                return capability.operate(self, place, random).await;
            }
            chosen -= capability.share();
        }
    }

    async fn compare(&self, random: &mut Random, when: &'static str) {
        self.story.record("world", || format!("comparison with the models {when}"));
        for capability in &self.capabilities {
            capability.compare(self, random.fork(), when).await;
        }
    }
}
