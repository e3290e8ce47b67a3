//! Requests that are charged to the first of several alternatives: a plan, then credits, then a gift.

use std::{sync::Mutex, time::Duration};

use tokio::time::sleep;
use tower_sluice::{
    Decision, Key, Quota, RateLimitLayer, Rule, StoreExt,
    decision::{Outcome, Source},
    key::HeaderKey,
    middleware::Adjustment,
    rule::RuleName,
    store::Charge,
};

use super::{
    RECOVERY, World,
    asks::{Ask, Layered, number},
    calls::{Call, Calls, Model, record, wait},
    capability::Capability,
    exact, lock,
    oracle::{Cause, Entry, Loss, excess},
    wrappers::Wrapped,
};
use crate::{quotas::plain, random::Random};

const NAMES: [&str; 3] = ["plan", "credits", "gift"];
const KEYS: usize = 2;
/// The time in which a refund reaches the servers, without a fault.
const SETTLED: Duration = Duration::from_millis(50);

/// Creates the layer of a process.
fn layered(quotas: &[Quota], store: Wrapped) -> Layered {
    let rule = |index: usize| {
        Rule::new(NAMES[index], HeaderKey::new("x-key"), quotas[index]).cost(number("x-cost"))
    };
    let all = rule(0).or(rule(1));
    let all = if quotas.len() > 2 { all.or(rule(2)) } else { all };
    let layer = RateLimitLayer::rules(all, store).expose_decision();
    Layered::new(&layer.expose_charge(Adjustment::Keep))
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The alternative that paid, on the servers.
    Paid(usize),
    /// No alternative fits.
    Denied,
    /// Nobody knows what the servers did.
    Unknown,
}

#[derive(Clone, Debug)]
struct Attempt {
    entry: Entry,
    key: usize,
    end: End,
    /// The source of the decision about each alternative that was asked.
    sources: Vec<Source>,
    /// The units that the handler gave back.
    back: u32,
}

impl Attempt {
    /// Returns `true` if an alternative may be charged although the process decided by itself, for
    /// example after a time limit.
    fn is_alone(&self, index: usize) -> bool {
        let source = self.sources.get(index);
        source.is_some_and(|it| !matches!(it, Source::Redis | Source::DenyCache))
    }
}

/// Requests with two or three alternatives.
pub struct Alternatives {
    quotas: Vec<Quota>,
    /// `true` if nothing is refilled in a run, so that all charges can be counted.
    slow: bool,
    attempts: Mutex<Vec<Attempt>>,
    /// The units left of each key and alternative, after the faults.
    left: Mutex<Vec<(usize, usize, u32)>>,
}

fn name(index: usize) -> RuleName {
    RuleName::new(NAMES[index]).expect("a name")
}

/// Returns the alternative of an outcome.
fn index(outcome: &Outcome) -> usize {
    NAMES.iter().position(|name| *name == outcome.rule().as_str()).unwrap_or(NAMES.len())
}

impl Alternatives {
    pub fn new(random: &mut Random) -> Self {
        let slow = random.percent(60);
        let quota = |random: &mut Random| match slow {
            true => {
                let units = u32::try_from(random.within(10..150)).expect("few");
                Quota::new(units, Duration::from_secs(1_000 * 86_400)).expect("a quota")
            }
            false => plain(random),
        };
        let quotas = (0..random.within(2..4)).map(|_| quota(random)).collect();
        Self { quotas, slow, attempts: Mutex::default(), left: Mutex::default() }
    }

    /// Sends a request, whose calls are added to `calls`.
    async fn call(&self, world: &World, place: usize, ask: Ask, calls: &Calls) -> Option<Decision> {
        let process = world.places[place].process();
        let store = || record(world, process.store.clone());
        let service = process.alternatives.get_or_init(|| layered(&self.quotas, store()));
        process.run(calls.of(service.call(ask))).await
    }

    /// Checks that one alternative decides, and that all of them deny a denied request. Returns the
    /// end of the request.
    fn end(&self, world: &World, ask: &Ask, decision: &Decision, calls: &[Call]) -> End {
        let outcomes = decision.outcomes();
        let by_server = matches!(decision.source(), Source::Redis | Source::DenyCache);
        if !by_server && decision.source() != Source::Fallback {
            return End::Unknown;
        }
        let deciding: Vec<_> = outcomes.iter().filter(|it| !it.is_passed_over()).collect();
        let all = outcomes.len() == self.quotas.len();
        let denied = outcomes.iter().filter(|it| it.is_denied()).count();
        let expected = if decision.is_allowed() { 0 } else { outcomes.len() };
        if deciding.len() != 1 || !all || denied != expected {
            world.story.violate("alternatives", format!("{ask:?}: {decision:?}"));
        }
        match deciding.first() {
            Some(paid) if by_server && decision.is_allowed() => End::Paid(index(paid)),
            _ if by_server && calls.iter().all(Call::is_by_servers) => End::Denied,
            _ => End::Unknown,
        }
    }

    async fn request(&self, world: &World, place: usize, key: usize, cost: u32, keeps: u32) {
        let (at, start) = (&world.places[place], world.story.now());
        let ask = Ask { key: key.to_string(), weight: 1, cost, keeps };
        let calls = Calls::default();
        let answer = self.call(world, place, ask.clone(), &calls).await;
        let calls = calls.take();
        let end = answer.as_ref().map_or(End::Unknown, |it| self.end(world, &ask, it, &calls));
        let sources: Vec<_> = calls.iter().map(|it| it.decision.source()).collect();
        let now = world.story.now();
        world.story.record(&at.name, || {
            let by = answer.as_ref().map_or("nobody".into(), |it| it.source().to_string());
            format!("alternatives of key {key}, cost {cost}, keeps {keeps}: {end:?} by {by}")
        });
        let back = cost - keeps.min(cost);
        let entry = Entry { keys: [key, 2], ..Entry::allowed(place, cost, start, now) };
        let Some(decision) = answer else {
            let entry = Entry { end: Duration::MAX, ..entry };
            lock(&self.attempts).push(Attempt { entry, key, end, sources, back });
            return;
        };
        world.count_decision();
        let (source, allowed) = (decision.source(), decision.is_allowed());
        let entry = Entry { source, allowed, ..entry };
        lock(&self.attempts).push(Attempt { entry, key, end, sources, back });
        lock(&world.log).entries.push(entry);
        world.check_time(at, start, source, u32::try_from(calls.len()).expect("few"));
    }

    /// Compares each call of a request with an embedded account of its alternative, at the instant of the
    /// call.
    async fn exact(&self, world: &World, mut random: Random, when: &str) {
        if world.places.iter().any(|place| place.wrappers.leases.is_some()) {
            return;
        }
        let text = format!("alternatives {when}");
        let key = Key::from(text.as_str());
        // Each account may be on another server, with a clock of its own.
        let mut models: Vec<_> = self.quotas.iter().map(|_| Model::new()).collect();
        let gap = self.quotas.iter().map(Quota::interval).max().unwrap_or_default();
        let gap = if self.slow { 5_000 } else { u64::try_from(gap.as_micros()).unwrap_or(0) };
        for _ in 0..random.within(8..20) {
            sleep(Duration::from_micros(random.within(0..gap + 1))).await;
            let place = random.below(world.places.len());
            let most = u64::from(self.quotas[random.below(self.quotas.len())].limit());
            let large = random.percent(50);
            let cost = if large { random.within(1..most + 2) } else { random.within(1..4) };
            let cost = u32::try_from(cost).expect("few");
            let keeps = if random.percent(30) { cost / 2 } else { cost };
            let ask = Ask { key: text.clone(), weight: 1, cost, keeps };
            let calls = Calls::default();
            let answer = self.call(world, place, ask.clone(), &calls).await;
            let (Some(decision), made) = (answer, calls.take()) else { return };
            let end = self.end(world, &ask, &decision, &made);
            let retry = decision.retry_after();
            world
                .story
                .record(&world.places[place].name, || format!("{ask:?}: {end:?}, {retry:?}"));
            let paid = match self.explain(&mut models, place, &key, cost, &made, &decision) {
                Ok(paid) => paid,
                Err(text) => {
                    let text = format!("{when}: {ask:?} in p{place}: {text}: {decision:?}");
                    return world.story.violate("alternatives", format!("{text} by {made:?}"));
                }
            };
            let Some(taken) = paid.filter(|_| keeps < cost) else { continue };
            sleep(SETTLED).await;
            let index = made.len() - 1;
            models[index].reach(world.nodes.last_script());
            models[index].keep(self.own(index, &key, cost), &taken, keeps);
        }
    }

    fn own<'a>(&'a self, index: usize, key: &'a Key, cost: u32) -> Charge<'a> {
        Charge::new(name(index), key, &self.quotas[index..=index]).with_cost(cost)
    }

    /// Explains a decision by its calls: one for each alternative, up to the first that fits. Returns the
    /// decision of the account that paid.
    fn explain(
        &self,
        models: &mut [Model],
        place: usize,
        key: &Key,
        cost: u32,
        calls: &[Call],
        decision: &Decision,
    ) -> Result<Option<Decision>, String> {
        let (mut soonest, mut paid, mut source) = (Duration::MAX, None, None);
        for (index, model) in models.iter_mut().enumerate() {
            let call = calls.get(index).ok_or("too few calls")?;
            let expected = model.check(place, &[self.own(index, key, cost)], call)?;
            let own = decision.outcomes().iter().find(|it| it.rule() == name(index));
            let asked = call.decision.outcomes().first();
            // An allowed request waits for no alternative that it has passed over.
            let retry = |it: &Outcome| it.retry_after().filter(|_| !decision.is_allowed());
            let numbers = |it: &Outcome| (it.remaining(), retry(it));
            if own.map(numbers) != asked.map(numbers) {
                return Err(format!("{} has other numbers than its call", NAMES[index]));
            }
            source = Some(call.decision.source());
            if call.decision.is_allowed() {
                paid = Some((index, expected));
                break;
            }
            soonest = soonest.min(wait(&call.decision));
        }
        let count = paid.as_ref().map_or(models.len(), |(index, _)| index + 1);
        let decides = decision.outcomes().iter().find(|it| !it.is_passed_over()).map(index);
        let is_final = match &paid {
            Some((index, _)) => decision.is_allowed() && decides == Some(*index),
            None => !decision.is_allowed() && wait(decision) == soonest,
        };
        if !is_final || calls.len() != count || source != Some(decision.source()) {
            return Err(format!(
                "{count} calls, of which {paid:?} paid, and a wait of {soonest:?}"
            ));
        }
        Ok(paid.map(|(_, taken)| taken))
    }

    /// A block denies requests that reach its alternative, until it ends.
    async fn blocked(&self, world: &World, mut random: Random, when: &str) {
        let (key, index) = (format!("blocked {when}"), random.below(self.quotas.len()));
        // This cost does not fit the alternatives before it.
        let most = self.quotas[..index].iter().map(Quota::limit).max().unwrap_or(0);
        let fits = most < self.quotas[index].limit();
        let (index, cost) = if fits { (index, most + 1) } else { (0, 1) };
        let (own, time) =
            (Key::from(key.as_str()), Duration::from_millis(random.within(500..3_000)));
        let places = [(); 2].map(|()| random.below(world.places.len()));
        let process = world.places[places[0]].process();
        let answer = process.store.block(&Charge::new(name(index), &own, &[]), time);
        drop(process.run(async { answer.await }).await);
        let ask = || Ask { key: key.clone(), weight: 1, cost, keeps: cost };
        let calls = Calls::default();
        let denied = self.call(world, places[1], ask(), &calls).await;
        sleep(time).await;
        let allowed = self.call(world, places[1], ask(), &calls).await;
        let [denied, allowed] = [denied, allowed].map(|it| it.map(|it| it.is_allowed()));
        if denied != Some(false) || allowed != Some(true) {
            let text = format!("{when}: a block of {} for {time:?}", NAMES[index]);
            let text = format!("{text}: allowed {denied:?} within, and {allowed:?} afterwards");
            world.story.violate("alternatives", text);
        }
    }

    /// Reads the units that are left of each account that the faults used.
    async fn read(&self, world: &World) {
        let process = world.places[0].process();
        for (key, index) in
            (0..KEYS).flat_map(|key| (0..self.quotas.len()).map(move |at| (key, at)))
        {
            let (own, quota) = (Key::from(key.to_string()), &self.quotas[index..=index]);
            let answer = process.store.take(&[Charge::new(name(index), &own, quota).with_cost(0)]);
            let Some(Ok(decision)) = process.run(async { answer.await }).await else { continue };
            if decision.source() == Source::Redis {
                lock(&self.left).push((key, index, decision.remaining().unwrap_or(0)));
            }
        }
    }

    /// Checks the sums of all charges: no request is charged to two alternatives, and a refund goes
    /// to the one that paid.
    fn check_sums(&self, world: &World, attempts: &[Attempt]) {
        for key in 0..KEYS {
            let of_key: Vec<_> = attempts.iter().filter(|it| it.key == key).collect();
            let sum = |is: &dyn Fn(&Attempt) -> bool, units: &dyn Fn(&Attempt) -> u32| {
                of_key.iter().filter(|it| is(it)).map(|it| u64::from(units(it))).sum::<u64>()
            };
            let cost = |it: &Attempt| it.entry.cost;
            let may_be_charged = |index: usize, it: &Attempt| {
                it.end == End::Unknown || it.end != End::Paid(index) && it.is_alone(index)
            };
            let times = |it: &Attempt| {
                let alone = (0..self.quotas.len()).filter(|index| may_be_charged(*index, it));
                let most = if it.sources.is_empty() { 1 } else { self.quotas.len() };
                it.entry.cost * u32::try_from(alone.count().min(most)).expect("few")
            };
            let unknown_of_all = sum(&|_| true, &times);
            let mut all = (0, 0);
            for (_, index, left) in lock(&self.left).iter().filter(|it| it.0 == key) {
                let charged = u64::from(self.quotas[*index].limit() - left);
                let paid = sum(&|it| it.end == End::Paid(*index), &cost);
                let back = sum(&|it| it.end == End::Paid(*index), &|it| it.back);
                let unknown = sum(&|it| may_be_charged(*index, it), &cost);
                all = (all.0 + charged, all.1 + paid);
                if charged > paid + unknown || charged + back < paid {
                    let text = format!("key {key}, {}: {charged} charged", NAMES[*index]);
                    let text = format!("{text}, {paid} paid, {back} back, {unknown} unknown");
                    world.story.violate("alternatives", text);
                }
            }
            if all.0 > all.1 + unknown_of_all {
                let text = format!("key {key}: {} charged, {} paid", all.0, all.1);
                let text = format!("{text}, {unknown_of_all} unknown");
                world.story.violate("alternatives", text);
            }
            // Each alternative of a denial was spent before its end.
            for denial in of_key.iter().filter(|it| it.end == End::Denied) {
                let before = |it: &Attempt| it.entry.start <= denial.entry.end;
                let may = |index: usize, it: &Attempt| {
                    before(it) && (it.end == End::Paid(index) || may_be_charged(index, it))
                };
                let fits = |index: usize| {
                    let spent = sum(&|it| may(index, it), &cost);
                    spent + u64::from(denial.entry.cost) <= u64::from(self.quotas[index].limit())
                };
                if let Some(index) = (0..self.quotas.len()).find(|index| fits(*index)) {
                    let text = format!("{denial:?}, but {} has units", NAMES[index]);
                    world.story.violate("alternatives", text);
                    break;
                }
            }
        }
    }

    fn check_limits(&self, world: &World, attempts: &[Attempt], losses: &[Loss], healed: Duration) {
        for (key, index) in
            (0..KEYS).flat_map(|key| (0..self.quotas.len()).map(move |at| (key, at)))
        {
            let paid = |it: &&Attempt| it.key == key && it.end == End::Paid(index);
            let paid: Vec<_> = attempts.iter().filter(paid).collect();
            let back = paid.iter().filter(|it| it.back > 0).map(|it| {
                let (from, cause) = (it.entry.start, Cause::Returned(it.back.into()));
                Loss { from, to: it.entry.end.max(healed) + RECOVERY, cause }
            });
            let losses: Vec<_> = losses.iter().copied().chain(back).collect();
            let entries: Vec<_> = paid.iter().map(|it| it.entry).collect();
            let found = excess(&entries, &self.quotas[index], &losses, Duration::ZERO);
            if let Some((over, from, to)) = found {
                let text = format!("key {key}, {}: {over} units too many", NAMES[index]);
                world.story.violate("alternatives", format!("{text} from {from:?} to {to:?}"));
            }
        }
    }
}

impl Capability for Alternatives {
    fn share(&self) -> u64 {
        40
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        let key = random.below(KEYS);
        let cost = *random.pick(&[1, 1, 1, 2, 3]);
        let keeps = if random.percent(15) { cost / 2 } else { cost };
        self.request(world, place, key, cost, keeps).await;
    }

    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        if when.starts_with("after") && self.slow {
            self.read(world).await;
        }
        self.exact(world, random.fork(), when).await;
        self.blocked(world, random, when).await;
    }

    fn refill(&self, world: &World) -> Duration {
        exact::refill(world)
    }

    fn check(&self, world: &World) {
        let (log, attempts) = (lock(&world.log), lock(&self.attempts));
        let odd = |loss: &Loss| loss.cause != Cause::Back;
        // Leases set units aside.
        let leases = world.places.iter().any(|place| place.wrappers.leases.is_some());
        if self.slow && !leases && !log.repeats && !log.losses.iter().any(odd) {
            self.check_sums(world, &attempts);
        }
        self.check_limits(world, &attempts, &log.losses, log.healed);
    }
}
