//! An outage of one process: each decision of its fallback equals an embedded store with the share of
//! the process, which knows the units that the server had left.
//!
//! A process that is late is no outage: the server decides, or the request is denied and its charge
//! comes back.

use std::time::Duration;

use tokio::{join, time::sleep};
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use super::{
    MARGIN, PATIENCE, Place, RECOVERY, World,
    batches::{Ask, queues},
    capability::Capability,
    exact::{Mirror, equal, numbers},
    lock,
    oracle::share,
    wrappers::OnFailure,
};
use crate::{quotas::quota, random::Random};

/// Outages of processes with a fallback.
pub struct Outages;

/// The process, its server's quota, and the model of its fallback.
struct Outage<'a> {
    world: &'a World,
    place: &'a Place,
    quota: Quota,
    share: Quota,
    key: Key,
    mirror: Mirror,
}

const ONE: Ask = Ask { cost: 1, headroom: 0, max_wait: Duration::ZERO };

/// A charge of the fallback, with the decision of the model.
type Taken = (Ask, Decision, Decision);

impl Outage<'_> {
    fn charge<'a>(&'a self, ask: Ask, quotas: &'a [Quota]) -> Charge<'a> {
        ask.charge(&self.key, quotas)
    }

    /// Returns the request as the fallback sees it.
    fn shared(&self, ask: Ask) -> Ask {
        Ask { headroom: ask.headroom / self.world.count(), ..ask }
    }

    fn set_clock(&self) {
        self.mirror.go_on(self.world.story.now());
    }

    /// Takes from the server, which lowers the units left of the fallback to its share.
    async fn take_from_server(&self, ask: Ask) {
        let (quotas, shares, process) = ([self.quota], [self.share], self.place.process());
        let answer = process.store.take(&[self.charge(ask, &quotas)]);
        let Some(Ok(decision)) = process.run(async { answer.await }).await else { return };
        self.set_clock();
        self.tell(&format!("{ask:?}"), &decision);
        let outcome = match (decision.source(), decision.outcomes()) {
            (Source::Redis, [outcome]) => outcome,
            _ => return,
        };
        let charge = self.charge(Ask { cost: 0, ..ask }, &shares);
        let local = self.mirror.store.take(&[charge]).now().remaining().unwrap_or(0);
        let left = match outcome.remaining() {
            full if full >= self.quota.limit() => self.share.limit(),
            left => left / self.world.count(),
        };
        if local > left {
            drop(self.mirror.store.adjust(&charge, i64::from(local - left)).now());
        }
    }

    /// Resets the account on the server, and with it the share.
    async fn reset_on_server(&self) {
        let (quotas, shares, process) = ([self.quota], [self.share], self.place.process());
        let answer = process.store.reset(&self.charge(ONE, &quotas));
        let Some(Ok(decision)) = process.run(async { answer.await }).await else { return };
        self.set_clock();
        self.tell("resets", &decision);
        if decision.source() == Source::Redis {
            drop(self.mirror.store.reset(&self.charge(ONE, &shares)).now());
        }
    }

    fn tell(&self, what: &str, decision: &Decision) {
        self.world.story.record(&self.place.name, || {
            let source = decision.source();
            format!("key {:?}: {what} by {source}: {}", self.key, numbers(decision))
        });
    }

    /// Runs one operation without a server. Returns `false` if a number is wrong.
    async fn operate(&self, random: &mut Random, waits: bool, taken: &mut Vec<Taken>) -> bool {
        let (quotas, shares, process) = ([self.quota], [self.share], self.place.process());
        let (ask, store) = (Ask::random(random, &self.quota, waits), &process.store);
        let (real, local) = (self.charge(ONE, &quotas), self.charge(ONE, &shares));
        let units = i64::try_from(random.within(1..9)).expect("few");
        let chosen = random.within(0..11);
        let (what, answer) = match chosen {
            0..5 => (format!("{ask:?}"), store.take(&[self.charge(ask, &quotas)])),
            5 => (format!("charges {units} late"), store.adjust(&real, units)),
            6 | 7 => (format!("refunds {units}"), store.adjust(&real, -units)),
            8 => ("resets".into(), store.reset(&real)),
            _ => {
                let Some((ask, decision, modelled)) = taken.pop() else { return true };
                let most = random.percent(50).then_some(1);
                self.set_clock();
                store.undo(&[self.charge(ask, &quotas)], &decision, most);
                let shared = self.shared(ask);
                self.mirror.store.undo(&[self.charge(shared, &shares)], &modelled, most);
                self.tell(&format!("undoes {most:?} of"), &decision);
                return true;
            }
        };
        let Some(Ok(decision)) = process.run(async { answer.await }).await else { return true };
        self.set_clock();
        self.tell(&what, &decision);
        if decision.source() == Source::Busy {
            let text = format!("{}: {what} is busy, without a server", self.place.name);
            self.world.story.violate("outage", text);
        }
        if decision.source() != Source::Fallback {
            return true;
        }
        let expected = match chosen {
            0..5 => self.mirror.store.take(&[self.charge(self.shared(ask), &shares)]),
            5 => self.mirror.store.adjust(&local, units),
            8 => self.mirror.store.reset(&local),
            _ => self.mirror.store.adjust(&local, -units),
        };
        match equal(&decision, expected.now()) {
            Ok(expected) if chosen < 5 && expected.is_allowed() => {
                taken.push((ask, decision, expected));
            }
            Ok(_) => {}
            Err(text) => {
                let text = format!("{}: {what} under {:?}: {text}", self.place.name, self.quota);
                self.world.story.violate("outage", text);
                return false;
            }
        }
        true
    }

    async fn check(&self, mut random: Random) {
        let gap = u64::try_from(self.share.interval().as_micros() * 2).unwrap_or(0);
        let waits = queues(&self.place.process().store, self.quota);
        for _ in 0..random.within(0..5) {
            // A queue and soft units lead beyond the limit, which no number shows.
            let ask =
                Ask { max_wait: Duration::ZERO, ..Ask::random(&mut random, &self.quota, false) };
            if self.quota.soft() == 0 {
                self.take_from_server(ask).await;
            }
            if random.percent(20) {
                self.reset_on_server().await;
            }
        }
        self.world.story.record("fault", || format!("begins: {} is alone", self.place.name));
        let wire = &self.place.client.wire;
        wire.change(|path| (path.up, path.down) = (false, false));
        let mut taken = Vec::new();
        for _ in 0..random.within(4..14) {
            sleep(Duration::from_micros(random.within(0..gap + 1))).await;
            if !self.operate(&mut random, waits, &mut taken).await {
                break;
            }
        }
        wire.change(|path| (path.up, path.down) = (true, true));
        self.world.story.record("fault", || format!("ends: {} is alone", self.place.name));
    }
}

/// A process that is paused while an answer is on its way.
struct Late<'a> {
    world: &'a World,
    place: &'a Place,
    key: Key,
}

impl Late<'_> {
    async fn take(&self, cost: u32) -> Option<Decision> {
        let (quotas, process) = ([Quota::per_day(100)], self.place.process());
        let charge = Charge::new(RuleName::default(), &self.key, &quotas).with_cost(cost);
        let answer = process.store.take(&[charge]);
        process.run(async { answer.await }).await.and_then(Result::ok)
    }

    async fn pause(&self, after: Duration, length: Duration) {
        let process = self.place.process();
        sleep(after).await;
        process.pause(true);
        sleep(length).await;
        process.pause(false);
    }

    async fn check(&self, mut random: Random) {
        let budget = self.place.wrappers.budget;
        // A breaker may be open, and only a request probes it.
        for _ in 0..10 {
            match self.take(0).await {
                Some(look) if look.source() == Source::Redis => break,
                _ => sleep(PATIENCE * budget).await,
            }
        }
        let after = Duration::from_micros(random.within(0..4_000));
        let length = budget / 10 * u32::try_from(random.within(0..300)).expect("few");
        let (decision, ()) = join!(self.take(1), self.pause(after, length));
        *lock(&self.place.disturbed) = self.world.story.now();
        let Some(decision) = decision else { return };
        let source = decision.source();
        self.world.story.record(&self.place.name, || {
            format!("late by {length:?} after {after:?}: decided by {source}")
        });
        sleep(RECOVERY).await;
        let left = self.take(0).await.and_then(|look| look.remaining());
        // A denied charge is undone.
        let expected = match source {
            Source::Redis => Some(99),
            Source::Busy if after + length + MARGIN > PATIENCE * budget => Some(100),
            _ => None,
        };
        if expected.is_none() || left != expected {
            let text = format!("{}: late by {length:?} after {after:?}", self.place.name);
            self.world.story.violate("late", format!("{text}: by {source}, {left:?} left"));
        }
    }
}

// Not during other faults, because the fallback then knows the units that other processes took.
impl Capability for Outages {
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        let places: Vec<_> =
            world.places.iter().filter(|place| place.wrappers.leases.is_none()).collect();
        if !places.is_empty() {
            let place = *random.pick(&places);
            let late = Late { world, place, key: Key::from(format!("late {when}")) };
            late.check(random.fork()).await;
        }
        let falls_back = |place: &&Place| {
            place.wrappers.on_failure == OnFailure::Fallback && place.wrappers.leases.is_none()
        };
        let places: Vec<_> = world.places.iter().filter(falls_back).collect();
        if places.is_empty() {
            return;
        }
        let (place, quota) = (*random.pick(&places), quota(&mut random, 500));
        let (key, share) = (Key::from(format!("outage {when}")), share(&quota, world.count()));
        let outage = Outage { world, place, quota, share, key, mirror: Mirror::new() };
        outage.check(random).await;
    }
}
