//! One run: processes, network and node, with faults, from one seed.

mod blocks;
mod capability;
mod exact;
mod faults;
mod network;
mod oracle;
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

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tower_sluice::{Quota, decision::Source};

use self::{
    capability::Capability,
    faults::Fault,
    network::Wire,
    oracle::{Cause, Entry, Log, Loss},
    process::{Process, Wrappers},
    server::Server,
    story::Story,
};
use crate::{
    node::Mutant,
    quotas,
    random::{Random, seed_thread},
};

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

/// Runs a seed in a thread of its own, whose random source is the seed.
pub fn run(seed: u64, recorded: bool, mutant: Option<&'static Mutant>) -> Report {
    let run = move || {
        seed_thread(seed);
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

    /// Plays all phases. Returns the number of faults.
    async fn play(self: Arc<Self>, random: &mut Random) -> u64 {
        self.compare(random, "before the faults").await;
        let mut clients = JoinSet::new();
        for place in 0..self.places.len() {
            let late = if random.percent(20) { random.within(0..3_000) } else { 0 };
            let until = Instant::now() + Duration::from_secs(random.within(3..15));
            let client = self.clone().client(place, random.fork(), until + RECOVERY);
            clients.spawn(async move {
                sleep(Duration::from_millis(late)).await;
                client.await;
            });
        }
        let count = random.within(1..6);
        let mut faults = JoinSet::new();
        for _ in 0..count {
            faults.spawn(self.clone().fault(random.fork()));
        }
        while faults.join_next().await.is_some() {}
        let healed = self.story.now();
        self.story.record("world", || "the last fault is over");
        sleep(Duration::from_millis(50)).await;
        let until = Instant::now() + 3 * RECOVERY;
        for place in 0..self.places.len() {
            clients.spawn(self.clone().client(place, random.fork(), until));
        }
        while clients.join_next().await.is_some() {}
        self.check_recovery(healed);
        sleep(self.refill()).await;
        self.compare(random, "after the faults").await;
        count
    }

    /// The time after which every account is full, also after late charges, which may put it into
    /// debt by as much as its limit.
    fn refill(&self) -> Duration {
        let of = |quota: &Quota| 2 * quota.interval() * quota.limit() + 3 * quota.period();
        self.rules.iter().flatten().map(of).max().unwrap_or_default() + LEASE
    }

    /// Sends requests at random times until `until`, and drops some before their answer.
    async fn client(self: Arc<Self>, place: usize, mut random: Random, until: Instant) {
        let pause = *random.pick(&[20, 100, 300]);
        let mut requests = JoinSet::new();
        while Instant::now() < until {
            sleep(Duration::from_micros(random.within(0..2_000 * pause))).await;
            let burst = if random.percent(5) { random.within(2..40) } else { 1 };
            for _ in 0..burst {
                let (world, random) = (self.clone(), random.fork());
                requests.spawn(async move { world.operate(place, random).await });
            }
            while requests.try_join_next().is_some() {}
        }
        while requests.join_next().await.is_some() {}
    }

    /// Fails if the node did not decide every request from a second after the last fault. A call that
    /// began in the fault fails after its budget, and only then a breaker opens for up to a second.
    fn check_recovery(&self, healed: Duration) {
        let log = lock(&self.log);
        for entry in &log.entries {
            let of_failure = matches!(
                entry.source,
                Source::Fallback | Source::FailedOpen | Source::FailedClosed
            );
            let recovery = RECOVERY + self.places[entry.process].wrappers.budget + MARGIN;
            // Only a request probes a breaker, and others do not wait for its answer.
            let later = |it: &&Entry| it.process == entry.process && it.start > healed + recovery;
            let probe = log.entries.iter().filter(later).min_by_key(|it| it.start);
            let probed = probe.map(|it| it.end).unwrap_or_default();
            if of_failure && entry.start > probed.max(healed + recovery) {
                let (process, source, after) = (entry.process, entry.source, entry.start - healed);
                self.story.violate("recovery", format!("p{process} by {source} {after:?} later"));
                return;
            }
        }
    }

    /// Waits, and runs one fault from its begin to its end.
    async fn fault(self: Arc<Self>, mut random: Random) {
        let fault = Fault::random(&mut random, self.places.len());
        sleep(Duration::from_millis(random.within(0..8_000))).await;
        self.story.record("fault", || format!("begins: {fault}"));
        let from = self.story.now();
        self.begin(fault, &mut random);
        if !fault.is_instant() {
            let end = Instant::now() + Duration::from_millis(random.within(20..3_000));
            sleep_until(end).await;
            self.end(fault);
            self.story.record("fault", || format!("ends: {fault}"));
        }
        if let Some(cause) = fault.loss() {
            lock(&self.log).losses.push(Loss { from, to: from + LEASE, cause });
        }
    }

    fn begin(&self, fault: Fault, random: &mut Random) {
        match fault {
            Fault::Kill { loses } => self.server.kill(loses),
            Fault::Freeze => self.server.pause(true),
            Fault::Slow(work) => self.server.set_work(work),
            Fault::Flush => self.server.change(|node| node.lose()),
            Fault::Evict => {
                let keys = self.server.change(|node| node.keys());
                if !keys.is_empty() {
                    self.server.change(|node| node.evict(random.pick::<Vec<u8>>(&keys)));
                }
            }
            Fault::ScriptFlush => self.server.change(|node| node.forget_scripts()),
            Fault::Clock(micros) => self.server.step_clock(micros),
            Fault::Full => self.server.change(|node| node.set_full(true)),
            Fault::Partition { process, up, down } => {
                self.places[process].wire.change(|path| {
                    path.up &= !up;
                    path.down &= !down;
                });
            }
            Fault::Delay { process, most } => {
                self.places[process].wire.change(|path| path.delay = (DELAY.0, most));
            }
            Fault::Reset { process } => self.places[process].wire.cut(),
            Fault::Pause { process } => {
                *lock(&self.places[process].disturbed) = LONGEST;
                self.places[process].process().pause(true);
            }
            Fault::Restart { process } => {
                *lock(&self.places[process].disturbed) = LONGEST;
                self.places[process].process().kill();
                self.places[process].wire.cut();
            }
        }
    }

    fn end(&self, fault: Fault) {
        match fault {
            Fault::Kill { .. } => self.server.start(),
            Fault::Freeze => self.server.pause(false),
            Fault::Slow(_) => self.server.set_work(Duration::ZERO),
            Fault::Full => self.server.change(|node| node.set_full(false)),
            Fault::Partition { process, .. } => {
                self.places[process].wire.change(|path| (path.up, path.down) = (true, true));
            }
            Fault::Delay { process, .. } => {
                self.places[process].wire.change(|path| path.delay = DELAY);
            }
            Fault::Pause { process } => {
                let (place, now) = (&self.places[process], self.story.now());
                *lock(&place.disturbed) = now;
                place.process().pause(false);
                // The process does not know how old its leases are.
                if place.wrappers.leases.is_some() {
                    lock(&self.log).losses.push(Loss {
                        from: now,
                        to: now + LEASE,
                        cause: Cause::State,
                    });
                }
            }
            Fault::Restart { process } => {
                let place = &self.places[process];
                let count = u32::try_from(self.places.len()).expect("few");
                let new =
                    Process::new(&place.wrappers, count, &self.rules, &place.wire, &self.server);
                *lock(&place.process) = Arc::new(new);
                let now = self.story.now();
                *lock(&place.disturbed) = now;
                lock(&self.log)
                    .restarts
                    .push((process, Loss { from: now, to: now, cause: Cause::State }));
            }
            _ => {}
        }
    }
}
