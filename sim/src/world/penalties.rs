//! Penalties: keys with too many denials are blocked, for longer each time.

use std::{collections::HashMap, convert::Infallible, sync::Mutex, time::Duration};

use http::{Request, Response};
use tokio::{join, time::sleep};
use tower::{Layer, service_fn};
use tower_sluice::{
    Decision, Key, Quota, RateLimitLayer, Rule, StoreExt, decision::Source, key::HeaderKey,
    middleware::Penalty, rule::RuleName, store::Charge,
};

use super::{
    RECOVERY, World,
    asks::{self, Handler},
    capability::Capability,
    lock,
    wrappers::Wrapped,
};
use crate::random::Random;

const KEYS: usize = 2;
/// The time in which a block reaches the servers, without a fault.
const SETTLED: Duration = Duration::from_millis(50);
/// The time for which later strikes of a blocked key are ignored.
const CROSSING: Duration = Duration::from_secs(1);

/// The settings of a penalty.
#[derive(Clone, Debug)]
struct Settings {
    /// The strikes of a key without a block, and the time after which one is forgotten.
    strikes: u32,
    each: Duration,
    blocks: Vec<Duration>,
    forgive: Duration,
    /// The keys whose strikes are counted.
    capacity: usize,
}

/// The layer of a process.
pub struct Service {
    layer: Handler,
    /// The start of its table.
    created: Duration,
}

/// The strikes of a key in a process.
#[derive(Clone, Copy, Debug, Default)]
struct Strikes {
    /// The instant at which the last strike is forgotten.
    until: Duration,
    forgiven: Duration,
    ignored: Duration,
}

impl Strikes {
    /// Counts a strike. Returns the index of the time of a block.
    fn strike(&mut self, now: Duration, settings: &Settings) -> Option<usize> {
        if self.ignored > now {
            return None;
        }
        let until = self.until.max(now) + settings.each;
        if until <= now + settings.each * settings.strikes {
            self.until = until;
            return None;
        }
        let left = self.forgiven.saturating_sub(now);
        let recent = left.as_nanos().div_ceil(settings.forgive.as_nanos());
        let level = usize::try_from(recent).unwrap_or(0).min(settings.blocks.len() - 1);
        let blocks = u32::try_from(level + 1).expect("few");
        let (forgiven, ignored) = (now + settings.forgive * blocks, now + CROSSING);
        *self = Self { until: Duration::ZERO, forgiven, ignored };
        Some(level)
    }
}

/// An answer, and the table of strikes that saw it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    process: usize,
    created: Duration,
    key: usize,
    end: Duration,
    strikes: bool,
    blocked: bool,
}

/// Keys that are blocked after too many denials.
pub struct Penalties {
    settings: Settings,
    quota: Quota,
    seen: Mutex<Vec<Seen>>,
}

/// Returns the latest end of a block of this length, which is longer at random.
fn longest(time: Duration) -> Duration {
    time + time / 10
}

/// Returns `true` if a denial is a strike.
fn is_strike(decision: &Decision) -> bool {
    let limited = matches!(decision.source(), Source::Redis | Source::DenyCache | Source::Leased);
    limited && !decision.is_allowed() && !decision.is_blocked()
}

impl Penalties {
    pub fn new(random: &mut Random) -> Self {
        let millis = |random: &mut Random, range| Duration::from_millis(random.within(range));
        let blocks = [1_000..2_000, 2_000..5_000, 5_000..9_000];
        let settings = Settings {
            strikes: u32::try_from(random.within(1..6)).expect("few"),
            each: millis(random, 200..3_000),
            blocks: blocks.map(|range| millis(random, range)).into(),
            forgive: millis(random, 5_000..60_000),
            capacity: *random.pick(&[16_384, 16_384, 16_384, 1]),
        };
        // All but the first requests of a run are denied.
        let units = u32::try_from(random.within(1..3)).expect("few");
        let quota = Quota::new(units, Duration::from_secs(10_000)).expect("a quota");
        Self { settings, quota, seen: Mutex::default() }
    }

    fn service(&self, store: Wrapped, created: Duration) -> Service {
        let Settings { strikes, each, blocks, forgive, capacity } = &self.settings;
        let quota = Quota::new(1, *each).and_then(|it| it.try_with_burst(*strikes));
        let penalty = Penalty::after(quota.expect("a quota")).block(blocks.clone());
        let penalty = penalty.forgive(*forgive).capacity(*capacity);
        let rule = Rule::new("struck", HeaderKey::new("x-key"), self.quota);
        let layer = RateLimitLayer::rules(rule, store).expose_decision().penalty("struck", penalty);
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        Service { layer: Handler::new(layer.layer(inner)), created }
    }

    /// Sends a request. Returns its decision, and the start of the table of strikes.
    async fn call(&self, world: &World, place: usize, key: &str) -> Option<(Decision, Duration)> {
        let (at, process) = (&world.places[place], world.places[place].process());
        let service = process
            .penalties
            .get_or_init(|| self.service(process.store.clone(), world.story.now()));
        let decision = process.run(asks::send(&service.layer, key, ())).await?;
        world.story.record(&at.name, || {
            let (allowed, source) = (decision.is_allowed(), decision.source());
            format!(
                "strikes of {key}: allowed {allowed} by {source}, blocked {}",
                decision.is_blocked()
            )
        });
        Some((decision, service.created))
    }

    /// Compares the blocks with a count of the strikes of each process.
    async fn exact(&self, world: &World, mut random: Random, when: &str) {
        let mut strikes: HashMap<usize, Strikes> = HashMap::new();
        // The key is blocked for sure until the first instant, and perhaps until the second.
        let (mut from, mut sure, mut perhaps) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (key, places) = (format!("struck {when}"), world.places.len());
        let own = Key::from(key.as_str());
        let few = 1 + random.below(2);
        for _ in 0..random.within(20..60) {
            let each = u64::try_from(self.settings.each.as_micros()).expect("few");
            let gap = *random.pick(&[each / 3 + 1, each / 3 + 1, 3 * each, 3_000_000]);
            sleep(Duration::from_micros(random.within(0..gap))).await;
            let now = world.story.now();
            // A block by hand, while none is in force: later strikes do not shorten it.
            if random.percent(5) && now > perhaps {
                let (time, place) = (Duration::from_secs(10), random.below(places));
                let process = world.places[place].process();
                let rule = RuleName::new("struck").expect("a name");
                let charge = Charge::new(rule, &own, &[]);
                let (answer, other) = (process.store.block(&charge, time), random.below(few));
                // A request is on its way.
                let (blocked, seen) =
                    join!(process.run(async { answer.await }), self.call(world, other, &key));
                let end = world.story.now();
                world.story.record("world", || format!("{key} is blocked for {time:?}"));
                let strike = seen
                    .filter(|(decision, _)| is_strike(decision))
                    .and_then(|_| strikes.entry(other).or_default().strike(end, &self.settings));
                // The call that blocks may overtake the block by hand, and then both are in force
                // one after the other.
                let by_hand = blocked.is_some() && strike.is_none();
                (from, sure) = (end + SETTLED, if by_hand { now + time } else { end });
                perhaps = end + time.max(longest(self.settings.blocks[2])) + SETTLED;
                sleep(SETTLED).await;
                continue;
            }
            let place = random.below(few);
            let start = world.story.now();
            let Some((decision, _)) = self.call(world, place, &key).await else { return };
            let end = world.story.now();
            let wrong = match decision.is_blocked() {
                true => start > perhaps + RECOVERY || from.is_zero(),
                // A cached denial may be older than the block.
                false => {
                    let now = decision.source() != Source::DenyCache && start >= from && end < sure;
                    now && self.settings.capacity > 1
                }
            };
            if wrong {
                let text = format!("{when}: blocked {} at {end:?}", decision.is_blocked());
                let text = format!("{text}, blocked from {from:?} to {sure:?} or {perhaps:?}");
                return world.story.violate("penalties", format!("{text}: {:?}", self.settings));
            }
            if is_strike(&decision) {
                let level = strikes.entry(place).or_default().strike(end, &self.settings);
                if let Some(time) = level.map(|level| self.settings.blocks[level]) {
                    // A key that is blocked already, which a cached denial does not show, is not blocked
                    // once more.
                    if end > perhaps {
                        (from, sure) = (end + SETTLED, end + time);
                    }
                    perhaps = perhaps.max(end + longest(time) + SETTLED);
                    world.story.record(&world.places[place].name, || format!("blocks {key}"));
                }
            }
        }
    }
}

impl Capability for Penalties {
    fn share(&self) -> u64 {
        20
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let key = random.below(KEYS);
        let start = world.story.now();
        let Some((decision, created)) = self.call(world, place, &key.to_string()).await else {
            return;
        };
        let (end, at) = (world.story.now(), &world.places[place]);
        world.count_decision();
        let (strikes, blocked) = (is_strike(&decision), decision.is_blocked());
        lock(&self.seen).push(Seen { process: place, created, key, end, strikes, blocked });
        world.check_time(at, start, decision.source(), 1);
    }

    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        self.exact(world, random, when).await;
    }

    /// Each block has a reason: too many strikes in one process, not longer ago than its block.
    fn check(&self, world: &World) {
        let (log, seen) = (lock(&world.log), lock(&self.seen));
        let mut tables: HashMap<(usize, Duration, usize), Strikes> = HashMap::new();
        let mut blocks = [const { Vec::new() }; KEYS];
        for it in seen.iter() {
            if it.strikes {
                let table = tables.entry((it.process, it.created, it.key)).or_default();
                if let Some(level) = table.strike(it.end, &self.settings) {
                    // A call that a fault holds back may take effect when the fault ends.
                    let latest = it.end.max(log.healed) + 2 * RECOVERY;
                    blocks[it.key].push((it.end, latest + longest(self.settings.blocks[level])));
                }
            }
            let explains = |(from, to): &&(Duration, Duration)| *from <= it.end && it.end <= *to;
            if it.blocked && !blocks[it.key].iter().any(|block| explains(&block)) {
                let text = format!("{it:?} without strikes, after {:?}", blocks[it.key].last());
                return world.story.violate("penalties", text);
            }
        }
    }
}
