//! Processes that are counted while they run: their shares add up to each limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep};
use tower_sluice::{
    Algorithm, Key, Quota, StoreExt, decision::Source, rule::RuleName, store::Charge,
};

use super::{Place, World, capability::Capability, wrappers::OnFailure};
use crate::random::Random;

/// The time after which each process knows the number: a process that ended is counted for ten
/// seconds, and a smaller number is returned twice, three seconds apart.
const STABLE: Duration = Duration::from_secs(20);
/// The time after an outage in which breakers close.
const CLOSED: Duration = Duration::from_secs(3);

/// Processes that start, die and freeze.
pub struct Live;

/// The processes of a moment.
struct Moment<'a> {
    world: &'a World,
    /// The places whose processes run.
    running: Vec<&'a Place>,
    when: String,
}

fn quota(random: &mut Random) -> Quota {
    let units = u32::try_from(random.within(1..40)).expect("few");
    // Nothing is refilled in a run.
    let base = Quota::new(units, Duration::from_secs(100 * 86_400)).expect("a quota");
    base.with_algorithm(*random.pick(&[
        Algorithm::Gcra,
        Algorithm::Gcra,
        Algorithm::fixed_window(),
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 5 },
        Algorithm::SlidingLog,
    ]))
}

impl Moment<'_> {
    fn violate(&self, text: &str) {
        self.world.story.violate("instances", format!("{}: {text}", self.when));
    }

    /// Cuts all processes off, each of which takes until it is denied. Returns the units of a quota
    /// that they admit together.
    async fn outage(&self, random: &mut Random, name: &str) -> (Quota, u32) {
        let (quota, admitted) = (quota(random), Arc::<AtomicU32>::default());
        let key = Key::from(format!("{} {name}", self.when));
        let set_paths = |is_open: bool| {
            let wires = self.world.places.iter().map(|place| &place.client.wire);
            wires.for_each(|wire| wire.change(|path| (path.up, path.down) = (is_open, is_open)));
        };
        self.world.story.record("fault", || format!("begins: all are alone, {quota:?}"));
        set_paths(false);
        let mut tasks = JoinSet::new();
        for place in &self.running {
            let (process, key, admitted) = (place.process(), key.clone(), admitted.clone());
            tasks.spawn(async move {
                let rule = RuleName::new("counted").expect("a name");
                // More than the limit, so that each share is spent.
                for _ in 0..=quota.limit() {
                    let quotas = [quota];
                    let answer = process.store.take(&[Charge::new(rule, &key, &quotas)]);
                    let decision = process.run(async { answer.await }).await?.ok()?;
                    if decision.source() != Source::Fallback {
                        return None;
                    }
                    if !decision.is_allowed() {
                        return Some(());
                    }
                    admitted.fetch_add(1, Relaxed);
                }
                None
            });
        }
        let ends = tasks.join_all().await;
        set_paths(true);
        let admitted = admitted.load(Relaxed);
        self.world.story.record("fault", || {
            let counts = self.running.iter().map(|place| place.process().instances.count());
            let counts = counts.collect::<Vec<_>>();
            format!("ends: all are alone, {admitted} admitted, processes known: {counts:?}")
        });
        if ends.contains(&None) {
            self.violate("a process without a server does not deny");
        }
        sleep(CLOSED).await;
        (quota, admitted)
    }

    /// The shares add up to the limit.
    async fn stable(&self, random: &mut Random) {
        sleep(STABLE).await;
        let counts = self.running.iter().map(|place| place.process().instances.count());
        let counts: Vec<_> = counts.collect();
        if counts.iter().any(|count| *count as usize != self.running.len()) {
            self.violate(&format!("{counts:?} known of {}", self.running.len()));
        }
        let (quota, admitted) = self.outage(random, "stable").await;
        if admitted != quota.limit() {
            self.violate(&format!("{admitted} of {quota:?} admitted, stable"));
        }
    }

    /// The shares add up to at most `limit · (1 + moved / n)`. Each share is rounded.
    async fn moving(&self, random: &mut Random, moved: usize, least: usize) {
        let (quota, admitted) = self.outage(random, "moving").await;
        let (moved, least) = (moved as u64, least as u64);
        let most = u64::from(quota.limit()) + (u64::from(quota.limit()) * moved).div_ceil(least);
        let most = most + self.running.len() as u64;
        if u64::from(admitted) > most {
            self.violate(&format!("{admitted} of {quota:?} admitted, {moved} moved of {least}"));
        }
    }
}

async fn scenario(world: &World, mut random: Random, when: &str) {
    let count = world.places.len();
    let moment = |stage: &str, gone: &[usize]| Moment {
        world,
        running: (0..count).filter(|at| !gone.contains(at)).map(|at| &world.places[at]).collect(),
        when: format!("{when}, {stage}"),
    };
    let moved = 1 + random.below(count - 1);
    let first = random.below(count);
    let gone: Vec<_> = (0..moved).map(|at| (first + at) % count).collect();
    let dies = random.percent(60);
    if random.percent(50) {
        moment("all", &[]).stable(&mut random).await;
    } else {
        sleep(STABLE).await;
    }
    for at in &gone {
        world.story.record(&world.places[*at].name, || if dies { "dies" } else { "freezes" });
        match dies {
            true => world.kill(*at),
            false => world.places[*at].process().pause(true),
        }
    }
    let least = count - moved;
    sleep(Duration::from_millis(random.within(0..16_000))).await;
    moment("fewer", &gone).moving(&mut random, moved, least).await;
    if random.percent(50) {
        moment("few", &gone).stable(&mut random).await;
    } else {
        sleep(STABLE).await;
    }
    for at in &gone {
        world.story.record(&world.places[*at].name, || if dies { "starts" } else { "goes on" });
        match dies {
            true => world.restart(*at),
            false => world.places[*at].process().pause(false),
        }
    }
    sleep(Duration::from_millis(random.within(0..8_000))).await;
    moment("more", &[]).moving(&mut random, moved, least).await;
    moment("all again", &[]).stable(&mut random).await;
}

impl Capability for Live {
    async fn compare(&self, world: &World, random: Random, when: &'static str) {
        let falls_back = |place: &Place| place.wrappers.on_failure == OnFailure::Fallback;
        if world.places.iter().all(falls_back) {
            scenario(world, random, when).await;
        }
    }
}
