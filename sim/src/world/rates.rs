//! Requests through the layer: the limit of every rule, and each process's share in an outage.

use std::time::Duration;

use tokio::time::timeout;
use tower_sluice::{
    Quota,
    decision::{Outcome, Source},
};

use super::{
    World,
    capability::Capability,
    deployment::Kind,
    exact, lock,
    oracle::{self, Entry},
    process::Call,
};
use crate::random::Random;

/// The limits of the rules.
pub struct Rates;

impl Capability for Rates {
    fn share(&self) -> u64 {
        65
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let keys = [random.below(world.keys), random.below(world.keys)];
        let cost = cost(world, &mut random);
        let patience = random.percent(5).then(|| random.within(0..30_000));
        let panics = random.percent(2);
        if random.percent(4) {
            replace(world, place, random.below(2), random.percent(50));
        }
        request(world, place, Call { keys, cost, panics }, patience).await;
    }

    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        for (place, rule) in (0..world.places.len()).flat_map(|place| [(place, 0), (place, 1)]) {
            replace(world, place, rule, true);
        }
        exact::check(world, random, when).await;
    }

    fn refill(&self, world: &World) -> Duration {
        exact::refill(world)
    }

    fn check(&self, world: &World) {
        let processes = u32::try_from(world.places.len()).expect("few");
        let log = lock(&world.log);
        oracle::check(&world.story, &log, &world.rules, world.keys, processes);
        // Leases set units aside, and two accounts on two servers are charged one after the other.
        let leases = world.places.iter().any(|place| place.wrappers.leases.is_some());
        if !leases && (world.rules.count() == 1 || world.nodes.kind != Kind::Cluster) {
            oracle::check_denials(&world.story, &log, &world.rules);
        }
    }
}

/// Returns a cost from one unit to several times the limit.
pub fn cost(world: &World, random: &mut Random) -> u32 {
    let most = world.rules.base[0].first().map_or(1, Quota::limit);
    if random.percent(10) {
        return u32::try_from(random.within(1..u64::from(most) * 3 + 2)).expect("few");
    }
    *random.pick(&[1, 1, 1, 2])
}

/// Gives a rule of a process its own quotas, or fewer units.
fn replace(world: &World, place: usize, rule: usize, own: bool) {
    let quotas = if own { &world.rules.base } else { &world.rules.other };
    if world.rules.live && !quotas[rule].is_empty() {
        let at = &world.places[place];
        at.process().set_plan(rule, quotas[rule].clone());
        world.story.record(&at.name, || {
            let quotas = quotas[rule].iter().map(ToString::to_string).collect::<Vec<_>>();
            format!("the plan of rule {rule} is now {}", quotas.join(", "))
        });
    }
}

/// Sends a request, whose client leaves after `patience` microseconds.
async fn request(world: &World, place: usize, request: Call, patience: Option<u64>) {
    let (at, start) = (&world.places[place], world.story.now());
    let (process, Call { keys, cost, .. }) = (at.process(), request);
    let call = process.call(request);
    let answer = match patience {
        Some(micros) => timeout(Duration::from_micros(micros), call).await.ok().flatten(),
        None => call.await,
    };
    let Some(decision) = answer else {
        let unanswered = Entry::allowed(place, cost, start, Duration::MAX);
        lock(&world.log).unanswered.push(Entry { keys, ..unanswered });
        world.story.record(&at.name, || format!("keys {keys:?} cost {cost}: no answer"));
        return;
    };
    let (end, source, allowed) = (world.story.now(), decision.source(), decision.is_allowed());
    world.count_decision();
    world.story.record(&at.name, || {
        let result = if allowed { "allowed" } else { "denied" };
        let left = decision.remaining().map_or("?".into(), |left| left.to_string());
        let took = end - start;
        format!("keys {keys:?} cost {cost}: {result} by {source}, {left} left, in {took:?}")
    });
    // A process with leases may deny single calls until a whole lease is there.
    let lease = |outcome: &Outcome| {
        let percent = at.wrappers.leases.unwrap_or(0);
        u64::from(outcome.limit()) * u64::from(percent) / 100
    };
    let fits = |it: &Outcome| u64::from(it.remaining()) >= lease(it).max(cost.into());
    if source == Source::DenyCache && decision.outcomes().iter().all(fits) {
        let text = format!("{} denied cost {cost} by itself, with {decision:?}", at.name);
        world.story.violate("deny cache", text);
    }
    world.check_time(at, start, source, 1);
    let entry = Entry { keys, allowed, source, ..Entry::allowed(place, cost, start, end) };
    lock(&world.log).entries.push(entry);
}
