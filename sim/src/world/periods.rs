//! Periods of a customer: quotas per day, week, month or year of a calendar, while the clocks of all
//! servers jump by months.
//!
//! The model is the embedded store. `src/algorithm/models` compares its calendar with a slow one.

use std::{
    sync::{Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::time::sleep;
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use super::{
    World,
    calls::wait,
    capability::Capability,
    exact::{Mirror, numbers},
    lock,
    oracle::{Cause, Loss},
};
use crate::random::Random;

const KEYS: usize = 2;
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// The first jump leads to 2010, where the anchors begin.
const FIRST: Duration = Duration::from_secs(14_610 * 86_400);
/// The time after which no process has a cached denial from before a jump.
const FORGOTTEN: Duration = Duration::from_millis(1_500);
const UNITS: [&str; 5] = ["day", "week", "month", "month", "year"];
const ZONES: [&str; 4] = ["UTC", "+05:45", "Europe/Berlin", "America/New_York"];
/// Times of day that no change of summer time skips.
const TIMES: [&str; 5] = ["00:00:00", "09:00:00", "12:30:00", "23:59:59", "00:30:00"];
const DAYS_OF_MONTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Returns a quota whose periods start on a random day, which some months may lack.
fn anchored(random: &mut Random, units: u32, unit: &str) -> Quota {
    let (year, month) = (random.within(2010..2030), random.within(1..13));
    let leap = u64::from(month == 2 && year.is_multiple_of(4));
    let last = DAYS_OF_MONTHS[month as usize - 1] + leap;
    let day = if random.percent(60) { random.within(28..32) } else { random.within(1..32) };
    let (zone, time) = (random.pick(&ZONES), random.pick(&TIMES));
    let text = format!("{units}/{unit} from {year}-{month:02}-{:02}T{time}[{zone}]", day.min(last));
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns the end of the period that contains an instant of Unix time.
fn end_of_period(quota: Quota, at: Duration) -> Duration {
    let model = Mirror::new();
    model.go_on(at);
    let (key, quotas) = (Key::from("one"), [quota]);
    let taken = model.store.take(&[Charge::new(name(), &key, &quotas)]).now();
    at + taken.outcomes()[0].reset_after()
}

/// A decision of the servers or of a cache.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    key: usize,
    cost: u32,
    start: Duration,
    end: Duration,
    /// The most of the servers' clocks after the decision.
    clock: Duration,
    /// The end of the period of all clocks before and after the decision, if it is one.
    period: Option<Duration>,
    allowed: bool,
    retry: Option<Duration>,
}

/// Quotas of calendar periods.
pub struct Periods {
    quotas: [Quota; 2],
    units: u32,
    attempts: Mutex<Vec<Attempt>>,
}

fn name() -> RuleName {
    RuleName::new("renewed").expect("a name")
}

/// Returns the least and the most of the servers' clocks.
fn clocks(world: &World) -> [Duration; 2] {
    let clocks = || world.nodes.all().iter().map(|server| server.clock());
    [clocks().min().unwrap_or_default(), clocks().max().unwrap_or_default()]
}

fn jump(world: &World, to: Duration) {
    let by = to.as_micros().cast_signed() - clocks(world)[0].as_micros().cast_signed();
    let by = i64::try_from(by).expect("few years");
    world.nodes.all().iter().for_each(|server| server.step_clock(by));
    let to = Duration::from_secs(to.as_secs());
    world.story.record("world", || format!("the servers' clocks jump by {by} us to {to:?}"));
}

impl Periods {
    pub fn new(random: &mut Random) -> Self {
        let (units, unit) = (u32::try_from(random.within(1..8)).expect("few"), random.pick(&UNITS));
        // The periods of a customer start on another day at times.
        let quotas = [(); 2].map(|()| anchored(random, units, unit));
        Self { quotas, units, attempts: Mutex::default() }
    }

    /// Sets the clock of the processes, which may be wrong by a part of a period.
    fn set_clock(&self, world: &World, random: &mut Random) {
        let most = HOUR * if self.quotas[0].period() == DAY { 10 } else { 100 };
        let wrong = Duration::from_secs(random.within(0..most.as_secs()));
        let now = clocks(world)[0];
        let now = if random.percent(50) { now + wrong } else { now - wrong };
        let now = u64::try_from(now.as_nanos()).expect("few years");
        world.nodes.process_clock.store(now, Relaxed);
    }

    async fn take(&self, world: &World, place: usize, charge: Charge<'_>) -> Option<Decision> {
        let process = world.places[place].process();
        let answer = process.store.take(&[charge]);
        process.run(async { answer.await }).await?.ok()
    }

    async fn exact(&self, world: &World, random: &mut Random, when: &str) {
        let (key, model) = (Key::from(format!("renewed {when}")), Mirror::new());
        let charge = |quotas, cost| Charge::new(name(), &key, quotas).with_cost(cost);
        // Only a request closes the breaker of a process that was alone.
        for place in 0..world.places.len() {
            self.set_clock(world, random);
            drop(self.take(world, place, charge(&self.quotas[..1], 0)).await);
        }
        let mut was_changed = false;
        let mut taken: Option<(Charge<'_>, Decision, Decision)> = None;
        for _ in 0..random.within(10..30) {
            let changed = random.percent(10);
            let quotas = if changed { &self.quotas[1..] } else { &self.quotas[..1] };
            self.jump_near_an_end(world, random, quotas[0]).await;
            // A process may have cached a denial by the other quota.
            if std::mem::replace(&mut was_changed, changed) != changed {
                sleep(FORGOTTEN).await;
            }
            self.set_clock(world, random);
            let (place, cost) = (random.below(world.places.len()), random.within(1..4));
            if random.percent(10)
                && let Some((charge, real, modelled)) = taken.take()
            {
                world.places[place].process().store.undo(&[charge], &real, None);
                sleep(Duration::from_millis(50)).await;
                model.go_on(world.nodes.last_script().clock);
                model.store.undo(&[charge], &modelled, None);
                world.story.record("world", || format!("{key:?}: undoes {}", charge.cost));
                // Another process may have cached a denial.
                sleep(FORGOTTEN).await;
                continue;
            }
            let charge = charge(quotas, u32::try_from(cost).expect("few"));
            let Some(decision) = self.take(world, place, charge).await else { continue };
            world.story.record(&world.places[place].name, || {
                let (source, numbers) = (decision.source(), numbers(&decision));
                format!("{key:?} cost {cost} of {} by {source}: {numbers}", quotas[0])
            });
            match model.check(world, &[charge], &decision) {
                // A cached denial is as old as its call, at most.
                Ok(expected) if wait(&decision) >= wait(&expected) => {
                    if expected.is_allowed() {
                        taken = Some((charge, decision, expected));
                    }
                }
                Ok(expected) => {
                    let text = format!("{when}: cost {cost} of {}", quotas[0]);
                    let text = format!("{text}: {decision:?} waits less than {expected:?}");
                    return world.story.violate("periods", text);
                }
                Err(text) => {
                    let text = format!("{when}: cost {cost} of {}: {text}", quotas[0]);
                    return world.story.violate("periods", text);
                }
            }
        }
    }

    /// Jumps to an instant near the end of a period, or beyond it, at times.
    async fn jump_near_an_end(&self, world: &World, random: &mut Random, quota: Quota) {
        let now = clocks(world)[0];
        let end = end_of_period(quota, now);
        let away = Duration::from_micros(random.within(1..3_000_000));
        let to = match random.within(0..3) {
            0 => end - away,
            1 => end + away,
            _ => now + (end - now) / 1_000 * u32::try_from(random.within(1..2_500)).expect("few"),
        };
        if random.percent(40) && to > now + FORGOTTEN {
            jump(world, to);
            sleep(FORGOTTEN).await;
        }
    }

    async fn request(&self, world: &World, place: usize, key: usize, cost: u32) {
        let (start, before) = (world.story.now(), clocks(world)[0]);
        let own = Key::from(key.to_string());
        let charge = Charge::new(name(), &own, &self.quotas[..1]).with_cost(cost);
        let answer = self.take(world, place, charge).await;
        let (end, clock) = (world.story.now(), clocks(world)[1]);
        let Some(decision) = answer else { return };
        let (allowed, retry) = (decision.is_allowed(), decision.retry_after());
        let source = decision.source();
        world.story.record(&world.places[place].name, || {
            format!("renewed {key} cost {cost}: allowed {allowed} by {source}, retry {retry:?}")
        });
        if matches!(source, Source::Redis | Source::Leased | Source::DenyCache) {
            let [first, last] = [before, clock].map(|at| end_of_period(self.quotas[0], at));
            let period = (first == last).then_some(last);
            let attempt = Attempt { key, cost, start, end, clock, period, allowed, retry };
            lock(&self.attempts).push(attempt);
        }
    }
}

impl Capability for Periods {
    fn share(&self) -> u64 {
        20
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        self.set_clock(world, &mut random);
        let (key, cost) = (random.below(KEYS), *random.pick(&[1, 1, 2]));
        self.request(world, place, key, cost).await;
    }

    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        if clocks(world)[0] < FIRST {
            jump(world, FIRST + Duration::from_secs(random.within(0..1_000 * 86_400)));
            sleep(FORGOTTEN).await;
        }
        if world.places.iter().all(|place| place.wrappers.leases.is_none()) {
            self.exact(world, &mut random, when).await;
        }
        // A period ends during the faults.
        let end = end_of_period(self.quotas[0], clocks(world)[1]);
        let ahead = Duration::from_millis(random.within(1_000..10_000));
        if end > clocks(world)[0] + ahead + FORGOTTEN {
            jump(world, end - ahead - FORGOTTEN);
        }
        sleep(FORGOTTEN).await;
    }

    /// No period has more units than the limit, plus a limit for each loss. No denial ends before its
    /// period.
    fn check(&self, world: &World) {
        let (log, attempts) = (lock(&world.log), lock(&self.attempts));
        let mut periods: Vec<_> = attempts.iter().filter_map(|it| it.period).collect();
        periods.sort_unstable();
        periods.dedup();
        for (key, n) in (0..KEYS).flat_map(|key| periods.iter().map(move |n| (key, *n))) {
            let of = |it: &&Attempt| it.key == key && it.allowed && it.period == Some(n);
            let of: Vec<_> = attempts.iter().filter(of).collect();
            let admitted = of.iter().map(|it| it.cost).sum::<u32>();
            let from = of.iter().map(|it| it.start).min().unwrap_or_default();
            let to = of.iter().map(|it| it.end).max().unwrap_or_default();
            // The units of a period follow the clock back, into the period before. They are free again
            // when the period begins once more.
            let adds =
                |loss: &&Loss| loss.cause != Cause::Forward && loss.from <= to && loss.to >= from;
            let losses = u32::try_from(log.losses.iter().filter(adds).count()).unwrap_or(0);
            if admitted > self.units * (losses + 1) {
                let text = format!("key {key}: {admitted} of {} units", self.units);
                world.story.violate("periods", format!("{text} from {from:?} to {to:?}"));
            }
        }
        for it in attempts.iter().filter(|it| !it.allowed) {
            let (Some(retry), Some(truth)) = (it.retry, it.period) else { continue };
            // A step of the clock, or another server's clock, in the meantime.
            let steps = |loss: &Loss| {
                let clock = matches!(loss.cause, Cause::Back | Cause::Forward);
                clock && loss.from <= it.end && loss.to + FORGOTTEN >= it.start
            };
            if it.clock + retry < truth && !log.losses.iter().any(steps) {
                let text = format!("{it:?} ends before {truth:?}");
                return world.story.violate("periods", text);
            }
        }
    }
}
