//! Periods of a customer: quotas per day, week, month or year of a calendar, while the clocks of all
//! servers jump by months.
//!
//! The edges of periods are computed here by whole numbers, without the calendar of the crate.

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
    capability::Capability,
    lock,
    oracle::{Cause, Loss},
};
use crate::random::Random;

const KEYS: usize = 2;
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
/// The first jump leads to 2010, from which on the rules of the time zones are those below.
const FIRST: i64 = 14_610 * DAY;
/// The time after which no process has a cached denial from before a jump.
const FORGOTTEN: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Zone {
    Utc,
    Kathmandu,
    Berlin,
    NewYork,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Day,
    Week,
    Month,
    Year,
}

/// The start of a period: a day, and the seconds since its midnight, in a time zone.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    unit: Unit,
    zone: Zone,
    year: i64,
    month: i64,
    day: i64,
    seconds: i64,
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the days from 1 January 1970 to a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let years = 365 * (year - 1970) + leaps(year - 1) - leaps(1969);
    years + (1..month).map(|month| days_in(year, month)).sum::<i64>() + day - 1
}

/// Returns the day of the `n`th Sunday of a month, or of the last one for 0.
fn sunday(year: i64, month: i64, n: i64) -> i64 {
    // 1 January 1970 was a Thursday.
    let is_sunday = |day: &i64| (days(year, month, *day) + 4) % 7 == 0;
    let mut all = (1..=days_in(year, month)).filter(is_sunday);
    if n == 0 { all.next_back() } else { all.nth(usize::try_from(n - 1).unwrap_or(0)) }.unwrap_or(0)
}

impl Zone {
    fn name(self) -> &'static str {
        match self {
            Self::Utc => "UTC",
            Self::Kathmandu => "+05:45",
            Self::Berlin => "Europe/Berlin",
            Self::NewYork => "America/New_York",
        }
    }

    fn standard(self) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Kathmandu => 5 * HOUR + 45 * 60,
            Self::Berlin => HOUR,
            Self::NewYork => -5 * HOUR,
        }
    }

    /// Returns `true` if summer time applies at a Unix time, in seconds.
    fn is_summer(self, at: i64) -> bool {
        let year = 1970 + at.div_euclid(DAY) * 400 / 146_097;
        let within = |year: i64| {
            let of = |month, n, seconds| days(year, month, sunday(year, month, n)) * DAY + seconds;
            let summer = match self {
                Self::Berlin => of(3, 0, HOUR)..of(10, 0, HOUR),
                Self::NewYork => of(3, 2, 7 * HOUR)..of(11, 1, 6 * HOUR),
                _ => 0..0,
            };
            summer.contains(&at)
        };
        within(year - 1) || within(year) || within(year + 1)
    }

    /// Returns the Unix time of a local time: the first one of two, and after a gap, the time that a
    /// clock shows that was not put forward.
    fn unix(self, local: i64) -> i64 {
        let (winter, summer) = (local - self.standard(), local - self.standard() - HOUR);
        if self.is_summer(summer) { summer } else { winter }
    }
}

impl Anchor {
    /// Returns an anchor that is no local time within a gap.
    fn random(random: &mut Random) -> Self {
        let pick = |random: &mut Random, range| random.within(range).cast_signed();
        let (year, month) = (pick(random, 2010..2030), pick(random, 1..13));
        let late = random.percent(60);
        let day = if late { pick(random, 28..32) } else { pick(random, 1..32) };
        Self {
            unit: *random.pick(&[Unit::Day, Unit::Week, Unit::Month, Unit::Month, Unit::Year]),
            zone: *random.pick(&[Zone::Utc, Zone::Kathmandu, Zone::Berlin, Zone::NewYork]),
            year,
            month,
            day: day.min(days_in(year, month)),
            seconds: *random.pick(&[0, 9 * HOUR, 12 * HOUR + 30 * 60, DAY - 1, HOUR / 2]),
        }
    }

    fn quota(&self, units: u32) -> Quota {
        let Self { unit, zone, year, month, day, seconds } = self;
        let (hour, minute, second) = (seconds / HOUR, seconds / 60 % 60, seconds % 60);
        let unit = format!("{unit:?}").to_lowercase();
        let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
        let text = format!("{units}/{unit} from {date}[{}]", zone.name());
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Returns the start of period `n`, in seconds of Unix time.
    fn edge(&self, n: i64) -> i64 {
        let months = match self.unit {
            Unit::Month => n,
            Unit::Year => 12 * n,
            _ => 0,
        };
        let month = self.year * 12 + self.month - 1 + months;
        let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
        let day = days(year, month, self.day.min(days_in(year, month)));
        let more = match self.unit {
            Unit::Day => n,
            Unit::Week => 7 * n,
            _ => 0,
        };
        self.zone.unix((day + more) * DAY + self.seconds)
    }

    /// Returns the number of the period that contains a Unix time, in seconds.
    fn period(&self, at: i64) -> i64 {
        let length = match self.unit {
            Unit::Day => DAY,
            Unit::Week => 7 * DAY,
            Unit::Month => 2_629_746,
            Unit::Year => 31_556_952,
        };
        let near = (at - self.edge(0)).div_euclid(length);
        let found = (near - 3..=near + 3).rev().find(|n| self.edge(*n) <= at);
        found.expect("a period")
    }

    /// Returns the end of the period that contains an instant, of Unix time.
    fn end(&self, at: Duration) -> Duration {
        let end = self.edge(self.period(at.as_secs().cast_signed()) + 1);
        Duration::from_secs(end.unsigned_abs())
    }
}

/// The units that were used, and the instant of the last charge.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    units: u32,
    last: Duration,
}

impl Used {
    fn at(&self, anchor: &Anchor, now: Duration) -> u32 {
        if anchor.end(self.last) > now { self.units } else { 0 }
    }
}

/// A decision of the servers or of a cache, and the clocks of the servers before and after it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    key: usize,
    cost: u32,
    start: Duration,
    end: Duration,
    clocks: [Duration; 2],
    allowed: bool,
    retry: Option<Duration>,
}

/// Quotas of calendar periods.
pub struct Periods {
    anchors: [Anchor; 2],
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
        let anchor = Anchor::random(random);
        // A customer whose periods start on another day from now on.
        let anchors = [anchor, Anchor { unit: anchor.unit, ..Anchor::random(random) }];
        let units = u32::try_from(random.within(1..8)).expect("few");
        Self { anchors, units, attempts: Mutex::default() }
    }

    /// Sets the clock of the processes, which may be wrong by a part of a period.
    fn set_clock(&self, world: &World, random: &mut Random) {
        let short = self.anchors.iter().any(|anchor| anchor.unit == Unit::Day);
        let most = u64::from(if short { 10_u32 } else { 100 }) * HOUR.unsigned_abs();
        let (wrong, now) = (Duration::from_secs(random.within(0..most)), clocks(world)[0]);
        let now = if random.percent(50) { now + wrong } else { now - wrong };
        let now = u64::try_from(now.as_nanos()).expect("few years");
        world.nodes.process_clock.store(now, Relaxed);
    }

    async fn take(
        &self,
        world: &World,
        place: usize,
        key: &str,
        anchor: &Anchor,
        cost: u32,
    ) -> Option<Decision> {
        let (process, own) = (world.places[place].process(), Key::from(key));
        let quotas = [anchor.quota(self.units)];
        let answer = process.store.take(&[Charge::new(name(), &own, &quotas).with_cost(cost)]);
        process.run(async { answer.await }).await?.ok()
    }

    async fn exact(&self, world: &World, random: &mut Random, when: &str) {
        let (key, mut used) = (format!("renewed {when}"), Used::default());
        // Only a request closes the breaker of a process that was alone.
        for place in 0..world.places.len() {
            self.set_clock(world, random);
            drop(self.take(world, place, &key, &self.anchors[0], 0).await);
        }
        let mut was_changed = false;
        let mut taken: Option<(Anchor, u32, Duration, Decision)> = None;
        for _ in 0..random.within(10..30) {
            let changed = random.percent(10);
            let anchor = self.anchors[usize::from(changed)];
            let now = clocks(world)[0];
            let later = |end: Duration, random: &mut Random| match random.within(0..3) {
                0 => Some(end - Duration::from_micros(random.within(1..3_000_000))),
                1 => Some(end + Duration::from_micros(random.within(0..3_000_000))),
                _ => Some(now + (end - now) / 1_000 * u32::try_from(random.within(1..2_500)).ok()?),
            };
            let to = later(anchor.end(now), random).filter(|to| *to > now + FORGOTTEN);
            if let Some(to) = to.filter(|_| random.percent(40)) {
                jump(world, to);
                sleep(FORGOTTEN).await;
            }
            // A process may have cached a denial by the other anchor.
            if std::mem::replace(&mut was_changed, changed) != changed {
                sleep(FORGOTTEN).await;
            }
            self.set_clock(world, random);
            let (place, cost) = (random.below(world.places.len()), random.within(1..4));
            let cost = u32::try_from(cost).expect("few");
            if random.percent(10)
                && let Some((anchor, cost, charged, decision)) = taken.take()
            {
                let (quotas, own) = ([anchor.quota(self.units)], Key::from(key.as_str()));
                let process = world.places[place].process();
                process.store.undo(
                    &[Charge::new(name(), &own, &quotas).with_cost(cost)],
                    &decision,
                    None,
                );
                sleep(Duration::from_millis(50)).await;
                let at = world.nodes.last_script();
                if at < anchor.end(charged) {
                    used.units = used.at(&anchor, at).saturating_sub(cost);
                }
                world.story.record("world", || format!("{key}: undoes {cost}, {used:?}"));
                // Another process may have cached a denial.
                sleep(FORGOTTEN).await;
                continue;
            }
            let Some(decision) = self.take(world, place, &key, &anchor, cost).await else {
                continue;
            };
            let (after, source) = (world.nodes.clock(), decision.source());
            let at = if source == Source::Redis { world.nodes.last_script() } else { after };
            let (before, end) = (used.at(&anchor, at), anchor.end(at));
            let allowed = before + cost <= self.units;
            let retry = match (allowed, cost <= self.units) {
                (true, _) => Some(Duration::ZERO),
                (false, possible) => possible.then_some(end - at),
            };
            let left = self.units - before - if allowed { cost } else { 0 };
            let expected = (allowed, left, retry);
            let found =
                (decision.is_allowed(), decision.remaining().unwrap_or(0), decision.retry_after());
            world.story.record(&world.places[place].name, || {
                format!("{key} cost {cost} of {anchor:?} at {at:?} by {source}: {found:?}")
            });
            let well = match source {
                Source::Redis => found == expected,
                // A cached denial is as old as its call, at most.
                Source::DenyCache => !allowed && !found.0 && found.2 >= expected.2,
                _ => false,
            };
            if !well {
                let text = format!("{when}: cost {cost} of {anchor:?} at {at:?} by {source}");
                let text = format!("{text}: {found:?} instead of {expected:?}, {used:?}");
                return world.story.violate("periods", text);
            }
            if allowed {
                used = Used { units: before + cost, last: at };
                taken = Some((anchor, cost, at, decision));
            }
        }
    }

    async fn request(&self, world: &World, place: usize, key: usize, cost: u32) {
        let (start, before) = (world.story.now(), clocks(world)[0]);
        let answer = self.take(world, place, &key.to_string(), &self.anchors[0], cost).await;
        let (end, after) = (world.story.now(), clocks(world)[1]);
        let Some(decision) = answer else { return };
        let (allowed, retry) = (decision.is_allowed(), decision.retry_after());
        let source = decision.source();
        world.story.record(&world.places[place].name, || {
            format!("renewed {key} cost {cost}: allowed {allowed} by {source}, retry {retry:?}")
        });
        if matches!(source, Source::Redis | Source::Leased | Source::DenyCache) {
            let clocks = [before, after];
            lock(&self.attempts).push(Attempt { key, cost, start, end, clocks, allowed, retry });
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
        async move { self.request(world, place, key, cost).await }.await;
    }

    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        let first = Duration::from_secs((FIRST + DAY).unsigned_abs());
        if clocks(world)[0] < first {
            jump(world, first + Duration::from_secs(random.within(0..1_000 * 86_400)));
            sleep(FORGOTTEN).await;
        }
        if world.places.iter().all(|place| place.wrappers.leases.is_none()) {
            self.exact(world, &mut random, when).await;
        }
        // A period ends during the faults.
        let end = self.anchors[0].end(clocks(world)[1]);
        let ahead = Duration::from_millis(random.within(1_000..10_000));
        if end > clocks(world)[0] + ahead + FORGOTTEN {
            jump(world, end - ahead - FORGOTTEN);
        }
        sleep(FORGOTTEN).await;
    }

    /// No period has more units than the limit, plus a limit for each loss. No denial ends before its
    /// period.
    fn check(&self, world: &World) {
        let (log, attempts, anchor) = (lock(&world.log), lock(&self.attempts), self.anchors[0]);
        let period = |it: &Attempt| {
            let [from, to] = it.clocks.map(|clock| anchor.period(clock.as_secs().cast_signed()));
            (from == to).then_some(from)
        };
        let mut periods: Vec<_> = attempts.iter().filter_map(period).collect();
        periods.sort_unstable();
        periods.dedup();
        for (key, n) in (0..KEYS).flat_map(|key| periods.iter().map(move |n| (key, *n))) {
            let of = |it: &&Attempt| it.key == key && it.allowed && period(it) == Some(n);
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
            let (Some(retry), Some(_)) = (it.retry, period(it)) else { continue };
            let truth = anchor.end(it.clocks[0]);
            // A step of the clock, or another server's clock, in the meantime.
            let steps = |loss: &Loss| {
                let clock = matches!(loss.cause, Cause::Back | Cause::Forward);
                clock && loss.from <= it.end && loss.to + FORGOTTEN >= it.start
            };
            if it.clocks[1] + retry < truth && !log.losses.iter().any(steps) {
                let text = format!("{it:?} ends before {truth:?}");
                return world.story.violate("periods", text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_those_of_a_printed_calendar() {
        let anchor =
            |unit, zone, day, seconds| Anchor { unit, zone, year: 2024, month: 1, day, seconds };
        let berlin = anchor(Unit::Month, Zone::Berlin, 31, 9 * HOUR);
        // 31 January, 29 February and 31 March 2024, of which the last is in summer.
        let edges = [0, 1, 2].map(|n| berlin.edge(n));
        assert_eq!(edges, [1_706_688_000, 1_709_193_600, 1_711_868_400]);
        assert_eq!(berlin.period(1_711_868_399), 1);
        let york = anchor(Unit::Day, Zone::NewYork, 1, 0);
        // 10 March 2024 had 23 hours, and 3 November 25.
        assert_eq!(york.edge(70) - york.edge(69), 23 * HOUR);
        assert_eq!(york.edge(308) - york.edge(307), 25 * HOUR);
        assert_eq!(anchor(Unit::Year, Zone::Utc, 1, 0).edge(1), 1_735_689_600);
    }
}
