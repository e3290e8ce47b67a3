//! Requests of one key that are sent at once, and share calls: each number equals the same requests
//! one after another, at the instant at which the server ran their call.

use std::time::Duration;

use tokio::{task::JoinSet, time::sleep};
use tower_sluice::{
    Decision, Key, Quota, Store, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use super::{
    World,
    capability::Capability,
    exact::{Mirror, numbers},
};
use crate::{quotas::quota, random::Random};

/// The pasts that a check follows at most.
const MOST: usize = 60;

/// Batches of equal and unequal requests.
pub struct Batches;

/// The demand of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    pub cost: u32,
    pub headroom: u32,
    pub max_wait: Duration,
}

impl Ask {
    /// Returns a cost from one unit to several times the limit.
    pub fn random(random: &mut Random, quota: &Quota, queues: bool) -> Self {
        let few = |random: &mut Random, end| u32::try_from(random.within(0..end)).expect("few");
        let large = u64::from(quota.limit()) * 3 + 2;
        let cost = 1 + if random.percent(80) { few(random, 3) } else { few(random, large) };
        let headroom = if random.percent(25) { few(random, 4) } else { 0 };
        let millis = if queues && random.percent(50) { random.within(0..4_000) } else { 0 };
        Self { cost, headroom, max_wait: Duration::from_millis(millis) }
    }

    pub fn charge<'a>(&self, key: &'a Key, quotas: &'a [Quota]) -> Charge<'a> {
        let name = RuleName::new("asked").expect("a name");
        let charge = Charge::new(name, key, quotas).with_cost(self.cost);
        charge.with_headroom(self.headroom).with_max_wait(self.max_wait)
    }
}

/// Returns `true` if requests may queue under a quota.
pub fn queues(store: &impl Store, quota: Quota) -> bool {
    let (key, quotas) = (Key::from("queues"), [quota]);
    let ask = Ask { cost: 1, headroom: 0, max_wait: Duration::from_secs(1) };
    store.supports(&[ask.charge(&key, &quotas)]).is_ok()
}

/// A request, with the numbers of its decision.
type Member = (Ask, String);

/// The requests that a server decided at each instant, in order.
type Past = Vec<(Duration, Vec<Ask>)>;

/// Returns the embedded store after these requests.
fn replay(past: &Past, quotas: &[Quota], key: &Key) -> Mirror {
    let mirror = Mirror::new();
    for (at, asks) in past {
        mirror.go_on(*at);
        for ask in asks {
            drop(mirror.store.take(&[ask.charge(key, quotas)]).now());
        }
    }
    mirror
}

/// Returns the order of these requests at one instant that explains their numbers, if there is one:
/// equal requests are decided together.
fn order(
    members: &[Member],
    at: Duration,
    past: &Past,
    quotas: &[Quota],
    key: &Key,
) -> Option<Vec<Ask>> {
    let mut groups: Vec<(Ask, Vec<&str>)> = Vec::new();
    for (ask, numbers) in members {
        match groups.iter_mut().find(|(of, _)| of == ask) {
            Some((_, all)) => all.push(numbers),
            None => groups.push((*ask, vec![numbers])),
        }
    }
    groups.iter_mut().for_each(|(_, all)| all.sort_unstable());
    permutations(groups.len()).into_iter().find_map(|order| {
        let mirror = replay(past, quotas, key);
        mirror.go_on(at);
        let mut asks = Vec::new();
        for index in order {
            let (ask, seen) = &groups[index];
            let take = |_| numbers(&mirror.store.take(&[ask.charge(key, quotas)]).now());
            let mut expected: Vec<_> = (0..seen.len()).map(take).collect();
            expected.sort_unstable();
            if expected != *seen {
                return None;
            }
            // A denial changes no account, except that it creates one with initial units.
            let changes = |numbers: &&&str| {
                numbers.starts_with("allowed true") || quotas[0].initial().is_some()
            };
            asks.extend(seen.iter().filter(changes).map(|_| *ask));
        }
        Some(asks)
    })
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |all, next| {
        let places = |order: Vec<usize>| {
            (0..=order.len()).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, next);
                longer
            })
        };
        all.into_iter().flat_map(places).collect()
    })
}

/// Returns each past that explains the numbers, of those before and the instants of the calls since.
///
/// Requests of a call were sent one after another, but a call that has to be repeated with its script
/// may run after a later one. Returns `None` if too many pasts are possible.
fn explain(
    pasts: Vec<Past>,
    members: &[Member],
    clocks: &[Duration],
    quotas: &[Quota],
    key: &Key,
) -> Option<Vec<Past>> {
    let mut states: Vec<_> = pasts.into_iter().map(|past| (members.to_vec(), past)).collect();
    for at in clocks {
        let mut next: Vec<(Vec<Member>, Past)> = Vec::new();
        for (rest, past) in &states {
            let ends = |from| (from + 1..=rest.len()).map(move |to| (from, to));
            let calls = (0..rest.len()).flat_map(ends).chain([(0, 0)]);
            for (from, to) in calls {
                let order = order(&rest[from..to], *at, past, quotas, key);
                let Some(asks) = order else { continue };
                let more = (!asks.is_empty()).then_some((*at, asks));
                let past = past.iter().cloned().chain(more).collect();
                let state = ([&rest[..from], &rest[to..]].concat(), past);
                if !next.contains(&state) {
                    next.push(state);
                }
                if next.len() > MOST {
                    return None;
                }
            }
        }
        states = next;
    }
    Some(states.into_iter().filter(|(rest, _)| rest.is_empty()).map(|(_, past)| past).collect())
}

async fn check(world: &World, mut random: Random, when: &str) {
    let place = random.pick(&world.places);
    let (process, quotas) = (place.process(), [quota(&mut random, 500)]);
    let (key, waits) = (Key::from(format!("batch {when}")), queues(&process.store, quotas[0]));
    let mut pasts = vec![Past::new()];
    for _ in 0..3 {
        let gap = u64::try_from(quotas[0].interval().as_micros() * 3).unwrap_or(0);
        sleep(Duration::from_micros(random.within(0..gap + 1))).await;
        let asks: Vec<_> =
            (0..=random.below(3)).map(|_| Ask::random(&mut random, &quotas[0], waits)).collect();
        drop(world.nodes.take_clocks());
        let mut sent = JoinSet::new();
        for index in 0..random.below(8) + 1 {
            let (ask, process, key) = (*random.pick(&asks), process.clone(), key.clone());
            sent.spawn(async move {
                let answer = process.store.take(&[ask.charge(&key, &quotas)]);
                (index, ask, answer.await)
            });
        }
        let mut answers: Vec<(usize, Ask, Decision)> = Vec::new();
        while let Some(Ok((index, ask, Ok(decision)))) = sent.join_next().await {
            answers.push((index, ask, decision));
        }
        answers.sort_by_key(|(index, ..)| *index);
        let clocks = world.nodes.take_clocks();
        let by_server =
            |(.., decision): &&(usize, Ask, Decision)| decision.source() == Source::Redis;
        let members: Vec<Member> = answers
            .iter()
            .filter(by_server)
            .map(|(_, ask, decision)| (*ask, numbers(decision)))
            .collect();
        world.story.record(&place.name, || {
            format!("a batch of {} at {clocks:?} of {}: {members:?}", answers.len(), quotas[0])
        });
        let before = pasts.first().cloned();
        let Some(found) = explain(pasts, &members, &clocks, &quotas, &key) else { return };
        pasts = found;
        if pasts.is_empty() {
            let text = format!("{when}: no order at {clocks:?} explains {members:?}");
            let text = format!("{text} of {:?} after {before:?}", quotas[0]);
            world.story.violate("batch", text);
            return;
        }
    }
}

// Not during faults, because the instants of the calls are unknown there.
impl Capability for Batches {
    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        if world.places.iter().all(|place| place.wrappers.leases.is_none()) {
            check(world, random, when).await;
        }
    }
}
