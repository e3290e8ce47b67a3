//! Charges that change later: late charges, refunds, undos and resets, beside the store's decisions.

use std::{sync::Mutex, time::Duration};

use tokio::time::sleep;
use tower_sluice::{
    Decision, Key, Store, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use super::{
    RECOVERY, World,
    capability::Capability,
    exact::{Mirror, equal, numbers},
    lock,
    oracle::{Cause, Entry, Loss, excess},
};
use crate::{
    quotas::{self, DEBT},
    random::Random,
};

const KEYS: u64 = 2;
/// A key that only the comparisons use.
const OWN: u64 = 9;
/// The time in which an undo reaches the node, without a fault.
const SETTLED: Duration = Duration::from_millis(50);

/// Charges, and the units that came back.
#[derive(Debug, Default)]
pub struct Adjustments {
    /// Decisions and late charges that the node made.
    charged: Mutex<Vec<Entry>>,
    /// Units that came back, each with its key.
    returned: Mutex<Vec<(u64, Loss)>>,
    /// Charges that can be undone.
    taken: Mutex<Vec<(u64, Entry, Decision)>>,
    late: Mutex<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Take(u32),
    Late(u32),
    Refund(u32),
    Reset,
    /// At most this number of units of an earlier charge.
    Undo(Option<u32>),
}

impl Change {
    fn random(random: &mut Random) -> Self {
        let units = u32::try_from(random.within(1..4)).expect("few");
        match random.within(0..100) {
            0..65 => Self::Take(units),
            65..78 => Self::Late(units),
            78..86 => Self::Refund(units),
            86..97 => Self::Undo(*random.pick(&[None, None, Some(1)])),
            _ => Self::Reset,
        }
    }

    /// Returns a change of an account that others use and reset as well.
    fn among_others(random: &mut Random) -> Self {
        match random.within(0..100) {
            0..50 => Self::Take(u32::try_from(random.within(1..4)).expect("few")),
            50..80 => Self::Undo(*random.pick(&[None, None, Some(1)])),
            80..90 => Self::Reset,
            _ => Self::random(random),
        }
    }
}

fn name() -> RuleName {
    RuleName::new("adjusted").expect("a name")
}

impl Adjustments {
    async fn change(
        &self,
        world: &World,
        place: usize,
        key: u64,
        change: Change,
        random: &mut Random,
    ) {
        let (start, at) = (world.story.now(), &world.places[place]);
        let (process, own, quotas) =
            (at.process(), Key::from(key.to_string()), [world.rules.adjusted]);
        let (charge, store) = (Charge::new(name(), &own, &quotas), &process.store);
        let returns = |cause, end| Loss { from: start, to: end, cause };
        let answer = match change {
            Change::Take(cost) => store.take(&[charge.with_cost(cost)]),
            Change::Late(units) => {
                *lock(&self.late) += units;
                store.adjust(&charge, units.into())
            }
            Change::Refund(units) => store.adjust(&charge, -i64::from(units)),
            Change::Reset => store.reset(&charge),
            Change::Undo(units) => return self.undo(world, place, key, units, random).await,
        };
        let back = match change {
            Change::Refund(units) => Some(Cause::Returned(units.into())),
            Change::Reset => Some(Cause::State),
            _ => None,
        };
        // Without a reply, it may take effect at any time until the faults are over.
        let index = back.map(|cause| {
            let mut returned = lock(&self.returned);
            returned.push((key, returns(cause, start)));
            returned.len() - 1
        });
        let Some(Ok(decision)) = process.run(async { answer.await }).await else { return };
        let (end, source) = (world.story.now(), decision.source());
        world.story.record(&at.name, || {
            let (allowed, left) = (decision.is_allowed(), decision.remaining());
            format!("key a{key}: {change:?}: allowed {allowed} by {source}, {left:?} left")
        });
        if !matches!(source, Source::Redis | Source::Leased) {
            return;
        }
        match (change, index) {
            (Change::Take(cost), _) if decision.is_allowed() => {
                let charged = Entry { source, ..entry(place, key, cost, start, end) };
                lock(&self.charged).push(charged);
                lock(&self.taken).push((key, charged, decision));
            }
            (Change::Late(units), _) => {
                let charged = Entry { late: true, ..entry(place, key, units, start, end) };
                lock(&self.charged).push(charged);
            }
            // Known to have taken effect before `end`.
            (_, Some(index)) => lock(&self.returned)[index].1.to = end + SETTLED,
            _ => {}
        }
    }

    /// Undoes a charge that was made by any process, at most by `units`.
    async fn undo(
        &self,
        world: &World,
        place: usize,
        key: u64,
        units: Option<u32>,
        random: &mut Random,
    ) {
        let (start, at) = (world.story.now(), &world.places[place]);
        // An undo probes no breaker.
        lock(&world.log).operations.pop();
        let chosen = {
            let mut taken = lock(&self.taken);
            let found = taken.iter().rposition(|(of, ..)| *of == key && random.percent(70));
            found.map(|at| taken.swap_remove(at))
        };
        let Some((_, Entry { cost, end, .. }, decision)) = chosen else { return };
        let most = units.map_or(cost, |units| units.min(cost));
        let back = Loss { from: start, to: start, cause: Cause::Returned(most.into()) };
        lock(&self.returned).push((key, back));
        world.story.record(&at.name, || format!("key a{key}: undoes {most} of {cost} of {end:?}"));
        let (process, own, quotas) =
            (at.process(), Key::from(key.to_string()), [world.rules.adjusted]);
        let charge = Charge::new(name(), &own, &quotas).with_cost(cost);
        process.run(async { process.store.undo(&[charge], &decision, units) }).await;
    }
}

fn entry(place: usize, key: u64, cost: u32, start: Duration, end: Duration) -> Entry {
    let key = usize::try_from(key).expect("few");
    Entry { keys: [key, 0], ..Entry::allowed(place, cost, start, end) }
}

impl Capability for Adjustments {
    fn share(&self) -> u64 {
        10
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let (key, change) = (random.within(0..KEYS), Change::random(&mut random));
        self.change(world, place, key, change, &mut random).await;
    }

    /// Each result equals the embedded store's, also of charges that queue.
    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        if !world.is_exact() {
            return;
        }
        let (mirror, quota) = (Mirror::new(), quotas::quota(&mut random, 500));
        let (own, quotas) = (Key::from(format!("{OWN} {when}")), [quota]);
        world.story.record("world", || format!("key a{OWN}: {quota:?}"));
        let mut taken: Vec<(u32, Duration, Decision, Decision)> = Vec::new();
        // `true` once units came back, of which a deny cache of another process knows nothing.
        let mut lowered = false;
        for _ in 0..random.within(8..40) {
            // Changes of one moment undo charges beside those of others.
            let gap = u64::try_from(2 * quota.interval().as_nanos()).unwrap_or(0);
            let gap = if random.percent(60) { 1 + gap / 16 } else { gap };
            sleep(Duration::from_nanos(random.within(0..gap))).await;
            let place = random.pick(&world.places);
            let most = u64::from(quota.limit()) * 3 + 2;
            let change = match Change::among_others(&mut random) {
                Change::Take(_) if random.percent(15) => {
                    Change::Take(u32::try_from(random.within(1..most)).expect("few"))
                }
                // Beyond the debt that late charges may lead to.
                Change::Late(_) if random.percent(40) => {
                    let debt = u64::from(quota.max_debt().unwrap_or(0));
                    let units = random.within(1..most + 2 * debt);
                    Change::Late(u32::try_from(units).expect("few"))
                }
                other => other,
            };
            let process = place.process();
            lowered |= !matches!(change, Change::Take(_) | Change::Late(_));
            let (store, charge) = (&process.store, Charge::new(name(), &own, &quotas));
            let waits = charge.with_max_wait(Duration::from_millis(random.within(0..400)));
            let waits = if store.supports(&[waits]).is_ok() { waits } else { charge };
            let (answer, charge) = match change {
                Change::Take(cost) => (store.take(&[waits.with_cost(cost)]), waits.with_cost(cost)),
                Change::Late(units) => (store.adjust(&charge, units.into()), charge),
                Change::Refund(units) => (store.adjust(&charge, -i64::from(units)), charge),
                Change::Reset => (store.reset(&charge), charge),
                Change::Undo(units) => {
                    if taken.is_empty() {
                        continue;
                    }
                    let (cost, at, real, modelled) = taken.swap_remove(random.below(taken.len()));
                    let charge = charge.with_cost(cost);
                    process.run(async { store.undo(&[charge], &real, units) }).await;
                    sleep(SETTLED).await;
                    mirror.go_on(world.nodes.last_script().clock);
                    mirror.store.undo(&[charge], &modelled, units);
                    world.story.record(&place.name, || {
                        format!("key a{OWN}: undoes {units:?} of {cost} of {at:?}")
                    });
                    continue;
                }
            };
            let Some(Ok(decision)) = process.run(async { answer.await }).await else {
                continue;
            };
            world
                .story
                .record(&place.name, || format!("key a{OWN}: {change:?}: {}", numbers(&decision)));
            let is_known = match decision.source() {
                Source::DenyCache => !lowered,
                source => source == Source::Redis,
            };
            if !is_known {
                continue;
            }
            mirror.go_on(world.nodes.last_script().clock);
            let expected = match change {
                Change::Late(units) => {
                    equal(&decision, mirror.store.adjust(&charge, units.into()).now())
                }
                Change::Refund(units) => {
                    equal(&decision, mirror.store.adjust(&charge, -i64::from(units)).now())
                }
                Change::Reset => equal(&decision, mirror.store.reset(&charge).now()),
                _ => mirror.check(world, &[charge], &decision),
            };
            let expected = match expected {
                Ok(expected) => expected,
                Err(text) => {
                    let text = format!("{when}: key a{OWN}: {change:?}: {text}");
                    return world.story.violate("exact", text);
                }
            };
            if let (Change::Take(cost), true) = (change, expected.is_allowed()) {
                taken.push((cost, world.story.now(), decision, expected));
            }
        }
    }

    fn refill(&self, world: &World) -> Duration {
        let quota = world.rules.adjusted;
        // A comparison adds at most 40 late charges of 3 units, and a queue of 400 ms.
        let units = quota.limit() + *lock(&self.late) + 120;
        quota.interval() * units + 3 * quota.period()
    }

    fn check(&self, world: &World) {
        let (log, quota) = (lock(&world.log), world.rules.adjusted);
        // The debt had room for all late charges, so each counts in full.
        assert!(*lock(&self.late) < DEBT, "too many late charges for this check");
        for key in 0..KEYS {
            let of_key = |it: &&Entry| it.keys[0] as u64 == key;
            let charged: Vec<_> = lock(&self.charged).iter().filter(of_key).copied().collect();
            let returned = lock(&self.returned);
            let own = returned.iter().filter(|(of, _)| *of == key).map(|(_, loss)| {
                let unconfirmed = loss.from == loss.to;
                let over = log.healed.max(loss.from) + 2 * RECOVERY;
                let to = if unconfirmed { over } else { loss.to };
                Loss { to, cause: loss.cause.repeated(log.repeats), ..*loss }
            });
            let losses: Vec<_> = log.losses.iter().copied().chain(own).collect();
            if let Some((over, from, to)) = excess(&charged, &quota, &losses, Duration::ZERO) {
                let details = format!("key a{key} {quota}: {over} units too many");
                world.story.violate("adjusted", format!("{details} from {from:?} to {to:?}"));
            }
        }
    }
}
