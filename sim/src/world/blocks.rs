//! Blocked keys: a block that the node has confirmed denies the key in every process until it ends.

use std::{sync::Mutex, time::Duration};

use tokio::time::sleep;
use tower_sluice::{
    Decision, Key, Quota, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use super::{
    LEASE, World,
    capability::Capability,
    lock,
    oracle::{Cause, Loss},
};
use crate::random::Random;

const KEYS: u64 = 3;
const ZERO: Duration = Duration::ZERO;

/// Blocks, and attempts of the same keys.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: Mutex<Vec<Event>>,
    /// The attempts that the node or a lease allowed.
    allowed: Mutex<Vec<Event>>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    process: usize,
    key: u64,
    start: Duration,
    end: Duration,
    /// The length of a block.
    time: Duration,
    /// `true` if the node has confirmed it. Otherwise it may take effect at any later time, or never.
    confirmed: bool,
    /// `true` if a lease allowed it.
    leased: bool,
}

impl Event {
    /// Returns the time for which a lease may outlive a block. A block of the same process ends it.
    fn delay(&self, block: &Self) -> Duration {
        if self.leased && self.process != block.process { LEASE } else { ZERO }
    }
}

impl Blocks {
    /// Blocks a key for `time`, ends its block if that is zero, or takes a unit if there is no `time`.
    async fn call(
        &self,
        world: &World,
        place: usize,
        key: u64,
        time: Option<Duration>,
    ) -> Option<Decision> {
        let (start, at) = (world.story.now(), &world.places[place]);
        let process = at.process();
        let (name, own) = (RuleName::new("blocks").expect("a name"), Key::from(key.to_string()));
        let quotas = [Quota::per_second(1_000)];
        let charge = Charge::new(name, &own, &quotas);
        let store = &process.store;
        let answer = match time {
            Some(ZERO) => store.unblock(&charge),
            Some(time) => store.block(&charge, time),
            None => store.take(&[charge.with_cost(1)]),
        };
        let event = Event {
            process: place,
            key,
            start,
            end: start,
            time: time.unwrap_or(ZERO),
            confirmed: false,
            leased: false,
        };
        let index = time.map(|_| {
            let mut blocks = lock(&self.blocks);
            blocks.push(event);
            blocks.len() - 1
        });
        let Ok(decision) = process.run(async { answer.await }).await?;
        let (end, source) = (world.story.now(), decision.source());
        world.story.record(&at.name, || match time {
            Some(time) => format!("key b{key}: blocked for {time:?} by {source}"),
            None => format!("key b{key}: allowed {} by {source}", decision.is_allowed()),
        });
        if matches!(source, Source::Redis | Source::Leased) {
            let leased = source == Source::Leased;
            let event = Event { end, confirmed: true, leased, ..event };
            match index {
                Some(index) => lock(&self.blocks)[index] = event,
                None if decision.is_allowed() => lock(&self.allowed).push(event),
                None => {}
            }
        }
        Some(decision)
    }
}

impl Capability for Blocks {
    fn share(&self) -> u64 {
        5
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let (key, time) = (random.within(0..KEYS), Duration::from_millis(random.within(1..4_000)));
        let time = if random.percent(20) { ZERO } else { time };
        let time = random.percent(30).then_some(time);
        // Enough requests for a lease, which a block of the same process has to end.
        let with_lease = random.percent(15);
        for _ in 0..if with_lease { 8 } else { 0 } {
            drop(self.call(world, place, key, None).await);
        }
        drop(self.call(world, place, key, time).await);
        for _ in 0..if with_lease { 3 } else { 0 } {
            drop(self.call(world, place, key, None).await);
        }
    }

    /// A block in one process holds in another, to the end and no longer.
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        let (one, two) = (random.below(world.places.len()), random.below(world.places.len()));
        let time = Duration::from_millis(random.within(50..2_000));
        drop(self.call(world, one, 0, Some(time)).await);
        let until = world.nodes.last_script().clock + time;
        let denied = self.call(world, two, 0, None).await;
        let left = until.saturating_sub(world.nodes.last_script().clock);
        let wait = denied.as_ref().and_then(Decision::retry_after);
        if denied.as_ref().is_some_and(Decision::is_allowed) || wait != Some(left) {
            world.story.violate("exact", format!("{when}: {wait:?} instead of {left:?} blocked"));
        }
        match random.percent(50) {
            true => drop(self.call(world, one, 0, Some(ZERO)).await),
            false => sleep(left).await,
        }
        // A cached denial lasts for at most a second.
        sleep(super::RECOVERY).await;
        let allowed = self.call(world, two, 0, None).await;
        if !allowed.is_some_and(|decision| decision.is_allowed()) {
            world.story.violate("exact", format!("{when}: denied after the end of a block"));
        }
    }

    fn check(&self, world: &World) {
        let log = lock(&world.log);
        let (blocks, allowed) = (lock(&self.blocks), lock(&self.allowed));
        for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.confirmed) {
            let until = block.start + block.time;
            for attempt in allowed
                .iter()
                .filter(|it| it.key == block.key && it.start >= block.end + it.delay(block))
                .filter(|it| it.end < until)
            {
                // A later block, or the end of a block, replaces an earlier one. The client does not see each of them.
                let replaced = blocks.iter().enumerate().any(|(index, other)| {
                    let later = !other.confirmed || other.end > block.start;
                    index != at && other.key == block.key && later && other.start < attempt.end
                });
                let lost = |loss: &Loss| {
                    loss.cause != Cause::Back && loss.from <= attempt.end && loss.to >= block.start
                };
                if !replaced && !log.losses.iter().any(lost) {
                    world.story.violate("block", format!("{attempt:?} during {block:?}"));
                }
            }
        }
    }
}
