//! Units that processes borrow and give back: together, they admit exactly the limit.

use std::time::Duration;

use tokio::time::sleep;
use tower_sluice::{Algorithm, Key, Quota, StoreExt, rule::RuleName, store::Charge};

use super::{LEASE, World};
use crate::random::Random;

/// A limit of which each process may borrow units for several calls.
const LIMIT: u32 = 400;

/// Sends requests to one account, of which nothing is refilled in a run.
///
/// Some processes leave units unused, and give them back before another one asks for the rest.
pub async fn check(world: &World, mut random: Random) {
    if world.places.iter().all(|place| place.wrappers.leases.is_none()) {
        return;
    }
    let quota = Quota::new(LIMIT, Duration::from_secs(1_000 * 86_400)).expect("a quota");
    let algorithm = *random.pick(&[Algorithm::Gcra, Algorithm::AnchoredWindow]);
    let quotas = [quota.with_algorithm(algorithm)];
    let name = RuleName::new("borrowed").expect("a name");
    let key = Key::everyone();
    let charge = Charge::new(name, &key, &quotas);
    // The first looks may be the probes of breakers.
    for place in &world.places {
        drop(place.process().store.peek(&[charge]).await);
    }
    sleep(LEASE).await;
    let mut allowed = 0;
    let mut denied_in_a_row = 0;
    // A process may deny single calls until a whole lease is there, but not the first after a pause.
    while denied_in_a_row < 2 {
        let process = random.pick(&world.places).process();
        for _ in 0..random.within(1..60) {
            let Ok(decision) = process.store.take(&[charge]).await;
            if !decision.is_allowed() {
                denied_in_a_row += 1;
                break;
            }
            allowed += 1;
            denied_in_a_row = 0;
        }
        sleep(LEASE).await;
    }
    world.story.record("world", || format!("{algorithm:?}: {allowed} of {LIMIT} allowed"));
    if allowed != LIMIT {
        let text = format!("{allowed} of {LIMIT} allowed under {algorithm:?}");
        world.story.violate("leases", text);
    }
}
