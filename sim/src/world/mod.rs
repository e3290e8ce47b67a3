//! One run: processes, network and node, with faults, from one seed.

mod blocks;
mod capability;
mod effects;
mod exact;
mod faults;
mod network;
mod oracle;
mod phases;
mod process;
mod rates;
mod server;
mod story;

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
use tower_sluice::Quota;

use self::{
    capability::Capability,
    network::Wire,
    oracle::Log,
    process::{Process, Wrappers},
    server::Server,
    story::Story,
};
use crate::{node::Mutant, quotas, random::Random, source::seed_process};

/// The margin of a decision above its budget.
const MARGIN: Duration = Duration::from_millis(5);
/// The time after the last fault in which the node decides again.
const RECOVERY: Duration = Duration::from_secs(1);
/// The time for which leased units may outlive a loss of state.
const LEASE: Duration = Duration::from_millis(1_500);
/// The most that a run may take, in virtual time.
const LONGEST: Duration = Duration::from_secs(3_600);
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

/// Counts the panics of each thread, also those that the runtime catches.
pub fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.set(PANICS.get() + 1);
        before(info);
    }));
}

/// Runs a seed in a thread of its own, which alone draws from the random source until it ends.
pub fn run(seed: u64, recorded: bool, mutant: Option<&'static Mutant>) -> Report {
    let run = move || {
        seed_process(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let mut report = runtime.block_on(World::run(seed, recorded, mutant));
        drop(runtime);
        if PANICS.get() > 0 {
            report.violations.push(format!("{} panics", PANICS.get()));
        }
        report
    };
    let report = thread::spawn(run).join();
    report.unwrap_or_else(|_| Report { violations: vec!["a panic".into()], ..Report::default() })
}

/// A running system.
struct World {
    story: Story,
    server: Arc<Server>,
    places: Vec<Place>,
    rules: [Vec<Quota>; 2],
    keys: usize,
    log: Mutex<Log>,
    decisions: AtomicU64,
    capabilities: Vec<Box<dyn Capability>>,
}

/// A process, and the wire and the wrappers that outlive its restarts.
struct Place {
    name: String,
    wrappers: Wrappers,
    wire: Arc<Wire>,
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
    async fn run(seed: u64, recorded: bool, mutant: Option<&'static Mutant>) -> Report {
        let mut random = Random::new(seed);
        let world = Arc::new(Self::new(&mut random, recorded, mutant));
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
            commands: world.server.commands(),
            faults: faults.unwrap_or(0),
        }
    }

    fn new(random: &mut Random, recorded: bool, mutant: Option<&'static Mutant>) -> Self {
        let seconds = random.within(1_000_000_000..2_000_000_000).cast_signed();
        let server = Server::new(seconds * 1_000_000, mutant);
        let some = |random: &mut Random| {
            let (one, two) = (quotas::plain(random), quotas::plain(random));
            // Two quotas of a rule need different periods.
            let both = random.percent(33) && one.period() != two.period();
            if both { vec![one, two] } else { vec![one] }
        };
        // One account per request is a case of its own in the scripts.
        let rules = [some(random), if random.percent(50) { some(random) } else { Vec::new() }];
        let (count, leases) = (random.within(2..7), random.percent(30));
        let places = (0..count).map(|index| {
            let wrappers = Wrappers::random(random, leases);
            let wire = Wire::new(DELAY, random.fork());
            let instances = u32::try_from(count).expect("few");
            let process = Process::new(&wrappers, instances, &rules, &wire, &server);
            let process = Mutex::new(Arc::new(process));
            let (name, disturbed) = (format!("p{index}"), Mutex::default());
            Place { name, wrappers, wire, process, disturbed }
        });
        let places = places.collect();
        let keys = random.below(2) + 1;
        let (story, log) = (Story::new(recorded), Mutex::default());
        Self {
            story,
            server,
            places,
            rules,
            keys,
            log,
            decisions: AtomicU64::new(0),
            capabilities: capability::all(),
        }
    }

    fn introduce(&self, seed: u64) {
        self.story.record("world", || format!("seed {seed}, {} keys", self.keys));
        for (rule, quotas) in self.rules.iter().enumerate() {
            let quotas = quotas.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(", ");
            self.story.record("world", || format!("rule {rule}: {quotas}"));
        }
        for place in &self.places {
            self.story.record(&place.name, || place.wrappers.to_string());
        }
    }

    /// Returns `true` if no wrapper changes the numbers of the node.
    fn is_exact(&self) -> bool {
        self.places.iter().all(|place| place.wrappers.leases.is_none())
    }

    fn count_decision(&self) {
        self.decisions.fetch_add(1, Relaxed);
    }

    /// Runs an operation of a random capability.
    async fn operate(&self, place: usize, mut random: Random) {
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
