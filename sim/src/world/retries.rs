//! An eager client: while it is denied, it asks again each millisecond, and may queue at times. Each
//! number equals the embedded store's, and a deny cache denies only what the server would deny.

use std::time::Duration;

use tokio::time::sleep;
use tower_sluice::{Key, StoreExt};

use super::{
    DELAY, World,
    batches::{Ask, queues},
    capability::Capability,
    exact::{Mirror, numbers},
};
use crate::{quotas::quota, random::Random};

/// The least budget of a process whose path is slow.
const PATIENT: Duration = Duration::from_millis(100);

/// Requests that are repeated.
pub struct Retries;

async fn check(world: &World, mut random: Random, when: &str) {
    let place = random.pick(&world.places);
    let (process, wire, quotas) = (place.process(), &place.client.wire, [quota(&mut random, 500)]);
    if place.wrappers.leases.is_some() {
        return;
    }
    let (mirror, key) = (Mirror::new(), Key::from(format!("retries {when}")));
    let waits = queues(&process.store, quotas[0]);
    let interval = u64::try_from(quotas[0].interval().as_millis()).unwrap_or(0);
    for index in 0..random.within(40..120) {
        if index == 3 && place.wrappers.budget >= PATIENT {
            // Connections are open and scripts are loaded.
            wire.change(|path| path.delay = (3_000, 20_000));
        }
        let max_wait =
            if waits && random.percent(30) { random.within(0..2 * interval + 2) } else { 0 };
        let ask = Ask {
            cost: if random.percent(20) { 2 } else { 1 },
            headroom: 0,
            max_wait: Duration::from_millis(max_wait),
        };
        let charge = ask.charge(&key, &quotas);
        let answer = process.store.take(&[charge]);
        let Some(Ok(decision)) = process.run(async { answer.await }).await else { break };
        world.story.record(&place.name, || {
            let source = decision.source();
            format!("{key:?}: {ask:?} by {source}: {}", numbers(&decision))
        });
        if let Err(text) = mirror.check(world, &[charge], &decision) {
            let text = format!("{when}: {ask:?} of {:?}: {text}", quotas[0]);
            world.story.violate("retries", text);
            break;
        }
        sleep(Duration::from_millis(if decision.is_allowed() { 0 } else { 1 })).await;
    }
    wire.change(|path| path.delay = DELAY);
}

// Not during faults, because the numbers of the server are unknown there.
impl Capability for Retries {
    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        check(world, random, when).await;
    }
}
