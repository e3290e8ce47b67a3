//! The phases of a run: the models, clients and faults, the recovery, and the models again.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower_sluice::decision::Source;

use super::{MARGIN, RECOVERY, World, deployment::Kind, leases, lock, oracle::Entry};
use crate::random::Random;

/// The time after which a connection that fell silent is replaced, also if a breaker permits few
/// requests: by the first request a second after one without an answer.
const SILENCE: Duration = Duration::from_secs(4);

impl World {
    /// Plays all phases. Returns the number of faults.
    pub(super) async fn play(self: Arc<Self>, random: &mut Random) -> u64 {
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
        lock(&self.log).healed = healed;
        self.story.record("world", || "the last fault is over");
        sleep(Duration::from_millis(50)).await;
        let silenced = !lock(&self.log).silenced.is_empty();
        let until = Instant::now() + if silenced { 2 * SILENCE } else { 3 * RECOVERY };
        for place in 0..self.places.len() {
            clients.spawn(self.clone().client(place, random.fork(), until));
        }
        while clients.join_next().await.is_some() {}
        self.check_recovery(healed);
        // TCP ends a silent connection that no request has used, by its keepalive.
        let silenced = lock(&self.log).silenced.clone();
        silenced.iter().for_each(|process| self.places[*process].client.wire.cut());
        let back = lock(&self.log).back;
        sleep(self.refill() + back).await;
        self.compare(random, "after the faults").await;
        // Last, so that no other check depends on its time.
        leases::check(&self, random.fork()).await;
        count
    }

    /// Returns the time after which every account is full.
    fn refill(&self) -> Duration {
        let all = self.capabilities.iter();
        all.map(|capability| capability.refill(self)).max().unwrap_or_default()
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
                Source::Fallback | Source::FailedOpen | Source::FailedClosed | Source::Busy
            );
            let base = if log.silenced.contains(&entry.process) { SILENCE } else { RECOVERY };
            let answer = self.places[entry.process].wrappers.budget + MARGIN;
            let due = healed + base + answer;
            // Only a request probes a breaker, and others do not wait for its answer.
            let later = |it: &&(usize, Duration)| it.0 == entry.process && it.1 > due;
            let probe = log.operations.iter().filter(later).map(|(_, start)| *start).min();
            // In a cluster, each server has a breaker, which a request of the same keys probes.
            let same = |it: &&Entry| {
                let called = !matches!(it.source, Source::DenyCache | Source::Leased);
                it.process == entry.process && it.keys == entry.keys && called && it.start > due
            };
            let of_keys = || log.entries.iter().filter(same).map(|it| it.start).min();
            let probe = if self.nodes.kind == Kind::Cluster { of_keys() } else { probe };
            if of_failure && entry.start > probe.unwrap_or(due) + answer {
                let (process, source, after) = (entry.process, entry.source, entry.start - healed);
                self.story.violate("recovery", format!("p{process} by {source} {after:?} later"));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Topic;

    #[tokio::test(start_paused = true)]
    async fn each_server_of_a_cluster_has_a_probe_and_one_only() {
        let worlds = (0..).map(|seed| World::new(&mut Random::new(seed), false, Topic::Requests));
        let world = worlds.into_iter().find(|it| it.nodes.kind == Kind::Cluster).expect("one");
        let answer = world.places[0].wrappers.budget + MARGIN;
        let due = RECOVERY + answer;
        let add = |key: usize, source: Source, start: Duration| {
            let mut log = lock(&world.log);
            log.operations.push((0, start));
            let keys = [key, 0];
            log.entries.push(Entry { keys, source, ..Entry::allowed(0, 1, start, start) });
        };
        let violations = || {
            world.check_recovery(Duration::ZERO);
            world.story.violations().len()
        };
        add(0, Source::Redis, due + MARGIN);
        let first = due + MARGIN + 2 * answer;
        add(1, Source::DenyCache, due + MARGIN);
        add(1, Source::Fallback, first);
        assert_eq!(violations(), 0);
        add(1, Source::Fallback, first + 2 * answer);
        assert_eq!(violations(), 1);
    }
}
