//! The capabilities that a run uses. A new one joins by implementing [`Capability`], and by a line
//! in [`all`].

use std::{future::Future, pin::Pin, time::Duration};

use super::{
    World, adjustments::Adjustments, alternatives::Alternatives, batches::Batches, blocks::Blocks,
    bursts::Bursts, holds::Holds, instances::Live, losses::Losses, outages::Outages,
    penalties::Penalties, periods::Periods, queues::Queues, rates::Rates, retries::Retries,
    shares::Shares, waits::Waits,
};
use crate::random::Random;

type BoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A capability of the layer or of its stores: its operations, its model and its bound.
pub trait Capability: Send + Sync {
    /// Returns how often a client chooses this capability, in percent. At 0, it is only compared.
    fn share(&self) -> u64 {
        0
    }

    /// Runs one operation in a process. Faults may be in flight.
    fn operate(
        &self,
        _world: &World,
        _place: usize,
        _random: Random,
    ) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Compares operations with the exact model, one at a time. No fault is in flight, and all
    /// accounts are full.
    fn compare(
        &self,
        world: &World,
        random: Random,
        when: &'static str,
    ) -> impl Future<Output = ()> + Send;

    /// Returns the time after which all its accounts are full, if no operation runs.
    fn refill(&self, _world: &World) -> Duration {
        Duration::ZERO
    }

    /// Checks the bounds of the whole run.
    fn check(&self, _world: &World) {}
}

/// A [`Capability`] of any type.
pub trait AnyCapability: Send + Sync {
    fn share(&self) -> u64;
    fn operate<'a>(&'a self, world: &'a World, place: usize, random: Random) -> BoxFuture<'a>;
    fn compare<'a>(&'a self, world: &'a World, random: Random, when: &'static str)
    -> BoxFuture<'a>;
    fn refill(&self, world: &World) -> Duration;
    fn check(&self, world: &World);
}

impl<C: Capability> AnyCapability for C {
    fn share(&self) -> u64 {
        Capability::share(self)
    }

    fn operate<'a>(&'a self, world: &'a World, place: usize, random: Random) -> BoxFuture<'a> {
        Box::pin(Capability::operate(self, world, place, random))
    }

    fn compare<'a>(
        &'a self,
        world: &'a World,
        random: Random,
        when: &'static str,
    ) -> BoxFuture<'a> {
        Box::pin(Capability::compare(self, world, random, when))
    }

    fn refill(&self, world: &World) -> Duration {
        Capability::refill(self, world)
    }

    fn check(&self, world: &World) {
        Capability::check(self, world);
    }
}

/// Returns the capabilities of requests. Their shares add up to 100.
pub fn all() -> Vec<Box<dyn AnyCapability>> {
    vec![
        Box::new(Rates),
        Box::new(Blocks::default()),
        Box::new(Adjustments::default()),
        Box::new(Queues::default()),
        Box::new(Holds::default()),
        Box::new(Bursts),
        Box::new(Batches),
        Box::new(Retries),
        Box::new(Waits),
        Box::new(Losses),
        // Breakers may be open afterwards.
        Box::new(Outages),
    ]
}

/// Returns the capabilities that share a limit. Their shares add up to 100.
pub fn sharing(random: &mut Random) -> Vec<Box<dyn AnyCapability>> {
    vec![
        Box::new(Alternatives::new(random)),
        Box::new(Penalties::new(random)),
        Box::new(Shares::new(random)),
        Box::new(Live),
        // Last, so that the end of a period is in the faults.
        Box::new(Periods::new(random)),
    ]
}
