//! Requests through the layer: the limit of every rule, and each process's share in an outage.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    MARGIN, World,
    capability::{BoxFuture, Capability},
    exact, lock,
    oracle::{self, Entry},
};
use crate::random::Random;

/// The limits of the rules.
pub struct Rates;

impl Capability for Rates {
    fn share(&self) -> u64 {
        95
    }

    fn operate<'a>(&'a self, world: &'a World, place: usize, mut random: Random) -> BoxFuture<'a> {
        let keys = [random.below(world.keys), random.below(world.keys)];
        let cost = *random.pick(&[1, 1, 1, 2]);
        let patience = random.percent(5).then(|| random.within(0..30_000));
        Box::pin(request(world, place, keys, cost, patience))
    }

    fn compare<'a>(
        &'a self,
        world: &'a World,
        random: Random,
        when: &'static str,
    ) -> BoxFuture<'a> {
        Box::pin(exact::check(world, random, when))
    }

    fn check(&self, world: &World) {
        let processes = u32::try_from(world.places.len()).expect("few");
        oracle::check(&world.story, &lock(&world.log), &world.rules, world.keys, processes);
    }
}

/// Sends a request, whose client leaves after `patience` microseconds.
async fn request(world: &World, place: usize, keys: [usize; 2], cost: u32, patience: Option<u64>) {
    let (at, start) = (&world.places[place], world.story.now());
    let process = at.process();
    let call = process.call(keys, cost);
    let answer = match patience {
        Some(micros) => timeout(Duration::from_micros(micros), call).await.ok().flatten(),
        None => call.await,
    };
    let Some(decision) = answer else {
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
    let disturbed = *lock(&at.disturbed) >= start;
    if end - start > at.wrappers.budget + MARGIN && !disturbed {
        let budget = at.wrappers.budget;
        let text = format!("{} answered after {:?} of {budget:?}", at.name, end - start);
        world.story.violate("budget", text);
    }
    let entry = Entry { process: place, keys, cost, start, end, allowed, source };
    lock(&world.log).entries.push(entry);
}
