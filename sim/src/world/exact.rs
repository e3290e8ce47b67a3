//! Quiet phases: one request at a time, whose decision must equal the exact model to the nanosecond.
//!
//! The model is the embedded store, which passes the conformance kit, at the instant at which the
//! node ran the script.

use std::time::Duration;

use tokio::time::sleep;
use tower_sluice::{
    Decision, Key, LocalStore, Quota, StoreExt, decision::Source, rule::RuleName, store::Charge,
    testing::FakeClock,
};

use super::{DELAY, LEASE, World, network::Path, process::Call, rates};
use crate::random::Random;

/// Embedded accounts on the clock of the servers.
pub struct Mirror {
    clock: FakeClock,
    pub store: LocalStore,
}

impl Mirror {
    pub fn new() -> Self {
        let clock = FakeClock::new();
        Self { store: clock.store(64), clock }
    }

    /// Goes on to an instant of Unix time.
    pub fn go_on(&self, to: Duration) {
        self.clock.advance(to.saturating_sub(self.clock.now()));
    }

    /// Compares a decision that was just made: one by a server must be equal to that of the mirror, and
    /// a cached denial must be true. Returns the decision of the mirror.
    ///
    /// # Errors
    ///
    /// Fails with the difference.
    pub fn check(
        &self,
        world: &World,
        charges: &[Charge<'_>],
        decision: &Decision,
    ) -> Result<Decision, String> {
        match decision.source() {
            Source::Redis => {
                self.go_on(world.nodes.last_script().clock);
                equal(decision, self.store.take(charges).now())
            }
            Source::DenyCache => {
                // It ends by the start of the call that it repeats, so never too late.
                self.go_on(world.nodes.clock());
                let look = self.store.peek(charges).now();
                if look.is_allowed() || decision.is_allowed() {
                    return Err(format!("a cached {decision:?} instead of {look:?}"));
                }
                Ok(look)
            }
            other => Err(format!("decided by {other}")),
        }
    }
}

/// Compares the numbers of a decision with those expected.
///
/// # Errors
///
/// Fails with the difference.
pub fn equal(decision: &Decision, expected: Decision) -> Result<Decision, String> {
    let (found, wanted) = (numbers(decision), numbers(&expected));
    if found == wanted { Ok(expected) } else { Err(format!("{found} instead of {wanted}")) }
}

/// Runs a quiet phase. All accounts must be full.
pub async fn check(world: &World, random: Random, when: &str) {
    if !world.is_exact() {
        at_least_the_limit(world, when).await;
        return;
    }
    one_at_a_time(world, random, when).await;
    world.places.iter().for_each(|place| place.client.wire.change(|path| path.delay = DELAY));
    sleep(refill(world)).await;
}

async fn one_at_a_time(world: &World, mut random: Random, when: &str) {
    let mirror = Mirror::new();
    let names = ["one", "two"].map(|name| RuleName::new(name).expect("a name"));
    // A slow path delays the replies, once connections are open and scripts are loaded.
    let patient = world.places.iter().all(|place| place.wrappers.budget.as_millis() >= 100);
    let slow = patient && random.percent(60);
    for index in 0..random.within(5..25) {
        if slow && index == 8 {
            let delay = |path: &mut Path| path.delay = (3_000, 9_000);
            world.places.iter().for_each(|place| place.client.wire.change(delay));
        }
        let gap = *random.pick(&world.rules.base[0]);
        let gap = u64::try_from(gap.interval().as_nanos()).unwrap_or(0);
        sleep(Duration::from_nanos(random.within(0..2 * gap))).await;
        let place = random.pick(&world.places);
        let keys = [random.below(world.keys), random.below(world.keys)];
        let cost = rates::cost(world, &mut random);
        let call = Call { keys, cost, panics: false };
        let Some(decision) = place.process().call(call).await else { continue };
        let own = keys.map(|key| Key::from(key.to_string()));
        let charges = (0..world.rules.count()).map(|rule| {
            Charge::new(names[rule], &own[rule], &world.rules.base[rule]).with_cost(cost)
        });
        let charges: Vec<_> = charges.collect();
        world.story.record(&place.name, || {
            let (result, source) = (decision.is_allowed(), decision.source());
            format!("keys {keys:?} cost {cost}: allowed {result} by {source}")
        });
        if let Err(text) = mirror.check(world, &charges, &decision) {
            let text = format!("{when}: keys {keys:?} cost {cost}: {text}");
            return world.story.violate("exact", text);
        }
    }
}

/// Returns the numbers that a client sees.
pub fn numbers(decision: &Decision) -> String {
    let left = decision.outcomes().iter().map(|outcome| {
        let (next, reset) = (outcome.next_after(), outcome.reset_after());
        format!("{} (next {next:?}, full {reset:?})", outcome.remaining())
    });
    let left = left.collect::<Vec<_>>().join(" ");
    let (allowed, retry, wait) = (decision.is_allowed(), decision.retry_after(), decision.wait());
    let over = if decision.is_overage() { ", over the limit" } else { "" };
    format!("allowed {allowed}{over}, left {left}, retry {retry:?}, wait {wait:?}")
}

/// With leases, numbers depend on the units that other processes hold. A full account still admits
/// three quarters of its limit.
async fn at_least_the_limit(world: &World, when: &str) {
    let quotas = || world.rules.base.iter().flatten();
    let limit = quotas().map(Quota::limit).min().unwrap_or(0);
    let mut allowed = 0;
    for _ in 0..limit {
        let call = Call { keys: [0, 0], cost: 1, panics: false };
        let decision = world.places[0].process().call(call).await;
        allowed += u32::from(decision.is_some_and(|decision| decision.is_allowed()));
    }
    world.story.record("p0", || format!("{allowed} of {limit} allowed"));
    if allowed < limit * 3 / 4 {
        world.story.violate("liveness", format!("{when}: {allowed} of {limit} allowed"));
    }
    sleep(refill(world)).await;
}

/// Returns the time after which every account is full, also after late charges, which may put it into
/// debt by as much as its limit.
pub fn refill(world: &World) -> Duration {
    let of = |quota: &Quota| 2 * quota.interval() * quota.limit() + 3 * quota.period();
    let rules = [&world.rules.base, &world.rules.other];
    rules.into_iter().flatten().flatten().map(of).max().unwrap_or_default() + LEASE
}
