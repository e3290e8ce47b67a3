//! Fair shares of a pool: clients with weights, in several processes.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tower_sluice::{
    Decision, Key, Quota, RateLimitLayer, Rule, StoreExt,
    decision::{Outcome, Source},
    key::{Everyone, HeaderKey},
    middleware::Adjustment,
    rule::RuleName,
    store::Charge,
    testing::FakeClock,
};

use super::{
    RECOVERY, World,
    asks::{Ask, Layered, number},
    calls::{Call, Calls, Model, record, wait},
    capability::Capability,
    deployment::Kind,
    lock,
    oracle::{Cause, Entry, excess},
    process::Process,
    wrappers::{OnFailure, Wrapped},
};
use crate::{quotas::DEBT, random::Random};

/// The weights of the clients in the faults.
const WEIGHTS: [u32; 4] = [1, 2, 4, 0];
/// The time in which an adjustment reaches the servers, without a fault.
const SETTLED: Duration = Duration::from_millis(50);
/// The time after an outage in which breakers close.
const CLOSED: Duration = Duration::from_secs(3);
/// The time of a generation of clients, and the number for which a client keeps its place.
const GENERATION: Duration = Duration::from_millis(500);
const KEPT: u128 = 20;

/// The layer of a process, whose rule has the virtual clock.
#[derive(Clone)]
pub struct Service {
    layered: Layered,
    clock: FakeClock,
    start: Instant,
}

impl Service {
    fn new(world: &World, name: &str, quota: Quota, clients: usize, store: Wrapped) -> Self {
        let site = Rule::new(name, Everyone, quota).cost(number("x-cost"));
        let site = site.fair_by(HeaderKey::new("x-key")).weight(number("x-weight"));
        let (clock, start) = (FakeClock::new(), world.story.start());
        let site = clock.fair(site.max_clients(clients));
        let layer = RateLimitLayer::rules(site, record(world, store)).expose_decision();
        let layered = Layered::new(&layer.expose_charge(Adjustment::Keep));
        Self { layered, clock, start }
    }

    /// Sends a request, whose calls are added to `calls`.
    async fn call(&self, process: &Process, ask: Ask, calls: &Calls) -> Option<Decision> {
        self.clock.advance(self.start.elapsed().saturating_sub(self.clock.now()));
        process.run(calls.of(self.layered.call(ask))).await
    }
}

/// The clients that a process knows: the generation of their last admitted request, and their weight.
struct Known {
    places: Vec<Option<(String, u128, u32)>>,
    /// Clients without a place have one share together.
    others: (u128, u32),
}

/// The part of a client that asks.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Its place, if it has a share of its own.
    place: Option<usize>,
    weight: u32,
    /// The sum of this weight and of those of the clients that were admitted.
    sum: u64,
}

impl Known {
    fn part(&mut self, client: &str, weight: u32, now: Duration) -> Part {
        let generation = now.as_nanos() / GENERATION.as_nanos();
        let is_old = |place: &Option<(String, u128, u32)>| {
            place.as_ref().is_none_or(|(_, last, _)| generation - last > KEPT)
        };
        self.places.iter_mut().filter(|place| is_old(place)).for_each(|place| *place = None);
        let is_own =
            |it: &Option<(String, u128, u32)>| it.as_ref().is_some_and(|(name, ..)| name == client);
        let own = self.places.iter().position(is_own);
        let place = own.or_else(|| self.places.iter().position(Option::is_none));
        let weight = if place.is_some() { weight } else { 1 };
        let mut others = self.places.clone();
        if let Some(place) = place {
            others[place] = None;
        }
        let unplaced = place.map(|_| self.others);
        let others = others.iter().flatten().map(|(_, last, weight)| (*last, *weight));
        let recent = others.chain(unplaced).filter(|(last, _)| generation - last < 2);
        let sum = recent.map(|(_, weight)| u64::from(weight)).sum::<u64>() + u64::from(weight);
        Part { place, weight, sum }
    }

    fn admit(&mut self, client: &str, part: Part, now: Duration) {
        let generation = now.as_nanos() / GENERATION.as_nanos();
        match part.place {
            Some(place) => self.places[place] = Some((client.into(), generation, part.weight)),
            None => self.others = (generation, part.weight),
        }
    }
}

/// Returns the share of a client: its part of the rate, and the burst of half a second.
fn share(pool: &Quota, weight: u32, of: u64, cost: u32) -> Quota {
    let nanos = pool.interval().as_nanos() * u128::from(of) / u128::from(weight);
    let burst = u32::try_from(500_000_000_u128.div_ceil(nanos)).expect("few").max(cost);
    let interval = Duration::from_nanos(u64::try_from(nanos).expect("few"));
    let quota = Quota::new(1, interval).and_then(|it| it.try_with_burst(burst));
    let share = quota.and_then(|it| it.try_with_max_debt(DEBT)).expect("a share");
    // The sum of the weights changes the share, and not its account.
    share.on_account_of(pool)
}

/// The units that clients beyond their share leave.
fn reserve(pool: &Quota) -> u32 {
    pool.limit() * 30 / 100
}

/// The numbers of a decision: the charged share's units left, those of the pool, or the wait.
#[derive(Debug, PartialEq)]
enum Numbers {
    Allowed { share: Option<u32>, pool: u32 },
    Denied { retry: Duration },
}

fn numbers(decision: &Decision) -> Numbers {
    let (outcomes, left) = (decision.outcomes(), |it: &Outcome| it.remaining());
    let share = outcomes.iter().rev().nth(1).filter(|it| !it.is_passed_over());
    match decision.is_allowed() {
        true => Numbers::Allowed { share: share.map(left), pool: outcomes.last().map_or(0, left) },
        false => Numbers::Denied { retry: wait(decision) },
    }
}

fn name(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

/// The charges that a request may make.
#[derive(Clone, Copy)]
struct Charges<'a> {
    /// The share of the client, if it has one.
    own: Option<Charge<'a>>,
    pool: Charge<'a>,
}

impl<'a> Charges<'a> {
    fn beyond(self) -> Charge<'a> {
        self.pool.with_headroom(reserve(&self.pool.quotas[0]))
    }

    /// Explains a decision by its calls: one within the share of its client, and one beyond it. Returns
    /// the charges that were made, with their decision.
    ///
    /// A request beyond its share makes no second call if the first shows that the pool has too little.
    fn explain(
        self,
        model: &mut Model,
        place: usize,
        calls: &[Call],
        decision: &Decision,
    ) -> Result<Option<(Vec<Charge<'a>>, Decision)>, String> {
        let (mut calls, mut retry) = (calls.iter(), Duration::MAX);
        let mut last = None;
        if let Some(own) = self.own {
            let call = calls.next().ok_or("no call within the share")?;
            let taken = model.check(place, &[own, self.pool], call)?;
            if call.decision.is_allowed() {
                is_last(calls.next(), call, decision)?;
                return Ok(Some((vec![own, self.pool], taken)));
            }
            retry = wait(&call.decision);
            last = self.foresee(model, call).map(|wait| (call, wait));
        }
        if last.is_none() {
            let call = calls.next().ok_or("no call beyond the share")?;
            let taken = model.check(place, &[self.beyond()], call)?;
            if call.decision.is_allowed() {
                is_last(calls.next(), call, decision)?;
                return Ok(Some((vec![self.pool], taken)));
            }
            last = Some((call, wait(&call.decision)));
        }
        let (call, beyond) = last.expect("a call");
        is_last(calls.next(), call, decision)?;
        let retry = retry.min(beyond);
        if wait(decision) != retry {
            return Err(format!("a wait of {:?} instead of {retry:?}", wait(decision)));
        }
        Ok(None)
    }

    /// Returns the wait beyond the share, if a denied call within it shows that it is denied, too.
    fn foresee(self, model: &Model, denied: &Call) -> Option<Duration> {
        if denied.decision.source() == Source::Redis {
            let look = model.peek(self.beyond());
            return (!look.is_allowed()).then(|| wait(&look));
        }
        let (pool, quota) = (denied.decision.outcomes().last()?, &self.pool.quotas[0]);
        if !pool.is_denied() {
            return None;
        }
        let more = self.beyond().headroom;
        let fits = self.pool.cost + more <= quota.limit();
        let wait = pool.retry_after().filter(|_| fits).map(|it| it + quota.interval() * more);
        Some(wait.unwrap_or(Duration::MAX))
    }
}

/// Checks that no call follows, and that the decision is that of the call.
fn is_last(next: Option<&Call>, call: &Call, decision: &Decision) -> Result<(), String> {
    if let Some(next) = next {
        return Err(format!("one more call: {next:?}"));
    }
    let is_same = call.decision.source() == decision.source()
        && call.decision.is_allowed() == decision.is_allowed()
        && (!decision.is_allowed() || numbers(&call.decision) == numbers(decision));
    if is_same { Ok(()) } else { Err(format!("another decision than {call:?}")) }
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    entry: Entry,
    /// `true` if the servers decided.
    is_known: bool,
    /// `true` if the process decided one of its calls by itself, which may have charged the servers.
    is_alone: bool,
    keeps: u32,
    /// The units of the pool that its calls charged on one server of a cluster, and undid.
    undone: u32,
}

/// Returns `true` if the server of the share denied a call on a cluster, and that of the pool did not.
fn is_undone(call: &Call) -> bool {
    let decision = &call.decision;
    let is_paid = decision.outcomes().last().is_some_and(|pool| !pool.is_denied());
    decision.source() == Source::Redis && !decision.is_allowed() && is_paid
}

/// A pool that clients share.
pub struct Shares {
    quota: Quota,
    /// `true` if nothing is refilled in a run, so that all charges can be counted.
    slow: bool,
    attempts: Mutex<Vec<Attempt>>,
    /// The units left of the pool, after the faults.
    left: Mutex<Option<u32>>,
}

/// A request of a flood.
#[derive(Clone, Copy, Debug)]
struct Sent {
    client: usize,
    entry: Entry,
}

/// A client of a flood: its name and weight, and the time between two requests.
struct Sender {
    client: usize,
    weight: u32,
    gap: Duration,
    /// Each request goes to the next of these processes.
    processes: Vec<(Arc<Process>, Service)>,
    sent: Arc<Mutex<Vec<Sent>>>,
    story: Arc<super::Story>,
}

impl Sender {
    async fn send(&self, at: usize) {
        let (process, service) = self.processes[at % self.processes.len()].clone();
        let key = format!("c{}", self.client);
        let ask = Ask { key, weight: self.weight, cost: 1, keeps: 1 };
        let start = self.story.now();
        let Some(decision) = service.call(&process, ask, &Calls::default()).await else { return };
        let (end, source, allowed) = (self.story.now(), decision.source(), decision.is_allowed());
        let entry = Entry { source, allowed, ..Entry::allowed(0, 1, start, end) };
        lock(&self.sent).push(Sent { client: self.client, entry });
    }

    /// Sends until an instant, without waiting for answers.
    async fn run(self: Arc<Self>, until: Instant) {
        let (mut tasks, mut next) = (JoinSet::new(), Instant::now());
        for at in 0.. {
            if next >= until {
                break;
            }
            sleep_until(next).await;
            let sender = self.clone();
            tasks.spawn(async move { sender.send(at).await });
            next += self.gap;
        }
        tasks.join_all().await;
    }
}

impl Shares {
    pub fn new(random: &mut Random) -> Self {
        let slow = random.percent(50);
        let units = u32::try_from(random.within(10..80)).expect("few");
        let period = if slow { Duration::from_secs(10 * 86_400) } else { 2 * RECOVERY };
        let quota = Quota::new(units, period).and_then(|it| it.try_with_max_debt(DEBT));
        let quota = quota.expect("a quota");
        Self { quota, slow, attempts: Mutex::default(), left: Mutex::default() }
    }

    async fn request(&self, world: &World, place: usize, ask: Ask) {
        let (at, start) = (&world.places[place], world.story.now());
        let process = at.process();
        let service = process
            .shares
            .get_or_init(|| Service::new(world, "site", self.quota, 16, process.store.clone()));
        let calls = Calls::default();
        let answer = service.call(&process, ask.clone(), &calls).await;
        let calls = calls.take();
        let end = world.story.now();
        world.story.record(&at.name, || match &answer {
            Some(decision) => format!("{ask:?}: {:?} by {}", numbers(decision), decision.source()),
            None => format!("{ask:?}: no answer"),
        });
        let entry = Entry::allowed(place, ask.cost, start, end);
        let is_alone = !calls.iter().all(Call::is_by_servers);
        let mut undone = 0;
        if world.nodes.kind == Kind::Cluster {
            undone = calls.iter().filter(|it| is_undone(it)).map(|_| ask.cost).sum();
        }
        let attempt = Attempt { entry, is_known: false, is_alone, keeps: ask.keeps, undone };
        let Some(decision) = answer else {
            let entry = Entry { end: Duration::MAX, ..entry };
            lock(&self.attempts).push(Attempt { entry, ..attempt });
            return;
        };
        world.count_decision();
        let (source, allowed) = (decision.source(), decision.is_allowed());
        let (entry, is_known) = (Entry { source, allowed, ..entry }, source == Source::Redis);
        lock(&self.attempts).push(Attempt { entry, is_known, ..attempt });
        // The account of a client may be on another server than those of others.
        let client = ask.key[1..].parse().expect("a number");
        lock(&world.log).entries.push(Entry { keys: [client, 3], ..entry });
        let outcomes = decision.outcomes();
        let count = if ask.weight > 0 { 2 } else { 1 };
        let is_paid = outcomes.last().is_some_and(|pool| !pool.is_denied());
        if is_known && (outcomes.len() != count || allowed != is_paid) {
            world.story.violate("shares", format!("{ask:?}: {decision:?}"));
        }
        world.check_time(at, start, source, u32::try_from(calls.len()).expect("few"));
    }

    /// Compares each call of a request with embedded accounts, at the instant of the call. The weights of
    /// each process apply.
    async fn exact(&self, world: &World, mut random: Random, when: &str) {
        let leases = world.places.iter().any(|place| place.wrappers.leases.is_some());
        // The share and the pool are on two servers of a cluster, with two clocks.
        if world.nodes.kind == Kind::Cluster || leases {
            return;
        }
        let units = u32::try_from(random.within(2..60)).expect("few");
        let burst = u32::try_from(random.within(4..40)).expect("few");
        let pool = Quota::new(units, 2 * RECOVERY).and_then(|it| it.try_with_burst(burst));
        let pool = pool.and_then(|it| it.try_with_max_debt(DEBT)).expect("a quota");
        let rule = format!("exact-{}", &when[..5].trim());
        let mut model = Model::new();
        let most = *random.pick(&[1_usize, 2, 16]);
        let mut processes: Vec<_> = (0..world.places.len())
            .map(|place| {
                let process = world.places[place].process();
                let store = process.store.clone();
                let service = Service::new(world, &rule, pool, most, store);
                (process, service, Known { places: vec![None; most], others: (0, 0) })
            })
            .collect();
        world.story.record("world", || format!("{rule}: {pool:?}, {most} clients"));
        let few = 1 + random.below(processes.len());
        let gap = u64::try_from(pool.interval().as_micros()).expect("few");
        let everyone = Key::everyone();
        for _ in 0..random.within(20..60) {
            let pause = if random.percent(4) { 11_000_000 } else { 0 };
            sleep(Duration::from_micros(random.within(0..2 * gap) + random.within(0..pause + 1)))
                .await;
            let (at, client) = (random.below(few), random.below(WEIGHTS.len()));
            let large = u64::from(if random.percent(10) { burst + 2 } else { 4 });
            let cost = u32::try_from(random.within(1..large)).expect("few");
            let keeps = *random.pick(&[cost, cost, cost, cost / 2, cost + 2]);
            let weight = WEIGHTS[client];
            let ask = Ask { key: format!("c{client}"), weight, cost, keeps };
            let (process, service, known) = &mut processes[at];
            let asked = world.story.now();
            let part = (weight > 0).then(|| known.part(&ask.key, weight, asked));
            let calls = Calls::default();
            let answer = service.call(process, ask.clone(), &calls).await;
            let Some(decision) = answer else { return };
            if let Some(part) = part.filter(|_| decision.is_allowed()) {
                known.admit(&ask.key, part, asked);
            }
            let is_own = part.is_some_and(|part| part.place.is_some());
            let client = Key::from(if is_own { ask.key.as_str() } else { "others" });
            let quota = part.map(|part| [share(&pool, part.weight, part.sum, cost)]);
            let share_name = name(&format!("{rule}.share"));
            let own = quota.as_ref().map(|it| Charge::new(share_name, &client, it).with_cost(cost));
            let pools = [pool];
            let pool = Charge::new(name(&rule), &everyone, &pools).with_cost(cost);
            let found = numbers(&decision);
            world.story.record(&world.places[at].name, || format!("{ask:?}: {found:?}"));
            let made = calls.take();
            let paid = match (Charges { own, pool }).explain(&mut model, at, &made, &decision) {
                Ok(paid) => paid,
                Err(text) => {
                    let text = format!("{when}: {ask:?} of {part:?} in p{at}: {text}: {found:?}");
                    return world.story.violate("shares", format!("{text} by {made:?}"));
                }
            };
            let Some((charges, taken)) = paid.filter(|_| keeps != cost) else { continue };
            sleep(SETTLED).await;
            model.reach(world.nodes.last_script());
            for charge in charges {
                model.keep(charge, &taken, keeps);
            }
        }
    }

    /// Some clients ask for less than their shares, beside others that ask for much more. The first
    /// pause and come back.
    async fn flood(&self, world: &World, mut random: Random, when: &str) {
        let rate = u32::try_from(random.within(30..60)).expect("few");
        // Less would not have room for all bursts of shares at once.
        let burst = rate * u32::try_from(random.within(6..8)).expect("few");
        let pool = Quota::per_second(rate).with_burst(burst);
        let rule = format!("flood-{}", &when[..5].trim());
        let (small, large) = (1 + random.below(3), 1 + random.below(2));
        let weights: Vec<_> = (0..small + large).map(|_| *random.pick(&[1, 1, 2, 3])).collect();
        let sum: u32 = weights.iter().sum();
        let gap = |client: usize| {
            let own = f64::from(rate * weights[client]) / f64::from(sum);
            let others = f64::from(3 * rate) / f64::from(u32::try_from(large).expect("few"));
            Duration::from_secs_f64(if client < small { 1.25 / own } else { 1.0 / others })
        };
        // Each process must know each client in each generation.
        let slowest = (0..small).map(gap).max().unwrap_or_default();
        let visits = usize::try_from(400 / slowest.as_millis()).expect("few");
        let few = visits.clamp(1, world.places.len());
        let processes: Vec<_> = world.places[..few]
            .iter()
            .map(|place| {
                let process = place.process();
                let service = Service::new(world, &rule, pool, 16, process.store.clone());
                (process, service)
            })
            .collect();
        let sent = Arc::<Mutex<Vec<Sent>>>::default();
        let senders: Vec<_> = (0..weights.len())
            .map(|client| {
                let (story, sent) = (world.story.clone(), sent.clone());
                let (gap, weight, processes) = (gap(client), weights[client], processes.clone());
                Arc::new(Sender { client, weight, gap, processes, sent, story })
            })
            .collect();
        world.story.record("world", || {
            format!("{rule}: {pool:?}, weights {weights:?}, {small} are small, {few} processes")
        });
        let mut first = JoinSet::new();
        for sender in &senders {
            let sender = sender.clone();
            first.spawn(async move {
                for at in 0..sender.processes.len() {
                    sender.send(at).await;
                }
            });
        }
        first.join_all().await;
        let seconds = |seconds: f64| Duration::from_secs_f64(seconds);
        let (start, now) = (world.story.now(), Instant::now());
        let (pause, back, end) = (seconds(4.0), seconds(7.5), seconds(9.0));
        let mut tasks = JoinSet::new();
        for sender in senders {
            let is_small = sender.client < small;
            tasks.spawn(async move {
                if is_small {
                    sender.clone().run(now + pause).await;
                    sleep_until(now + back).await;
                }
                sender.run(now + end).await;
            });
        }
        tasks.join_all().await;
        let sent = lock(&sent);
        let violate = |text: String| world.story.violate("shares", format!("{when}: {text}"));
        let denied = |it: &&Sent| {
            let is_warm = it.entry.start >= start + seconds(2.5);
            it.client < small && is_warm && !it.entry.allowed
        };
        if let Some(it) = sent.iter().find(denied) {
            let after = it.entry.start.saturating_sub(start);
            violate(format!("{it:?} within its share, after {after:?}: {pool:?}, {weights:?}"));
        }
        let by_server = |it: &&Sent| {
            matches!(it.entry.source, Source::Redis | Source::DenyCache | Source::Leased)
        };
        if let Some(it) = sent.iter().find(|it| !by_server(it)) {
            violate(format!("{it:?} without a fault"));
        }
        let admitted: Vec<_> = sent.iter().map(|it| it.entry).filter(|it| it.allowed).collect();
        if let Some((over, from, to)) = excess(&admitted, &pool, &[], Duration::ZERO) {
            violate(format!("{over} units of {pool:?} too many from {from:?} to {to:?}"));
        }
        let (from, to) = (start + pause + seconds(1.5), start + back);
        let used = admitted.iter().filter(|it| it.start >= from && it.end < to).count();
        if used * 10 < rate as usize * 2 * 9 {
            violate(format!("{used} of {pool:?} used in two seconds while others pause"));
        }
    }

    /// A process without its server has a part of the pool, and uses all of it but the reserve.
    async fn alone(&self, world: &World, mut random: Random, when: &str) {
        let falls_back =
            |place: &&usize| world.places[**place].wrappers.on_failure == OnFailure::Fallback;
        let all: Vec<_> = (0..world.places.len()).collect();
        let all: Vec<_> = all.iter().filter(falls_back).copied().collect();
        if all.is_empty() {
            return;
        }
        let place = &world.places[*random.pick(&all)];
        let rate = u32::try_from(random.within(30..60)).expect("few");
        let pool = Quota::per_second(rate).with_burst(2 * rate);
        let rule = format!("alone-{}", &when[..5].trim());
        let process = place.process();
        let service = Service::new(world, &rule, pool, 16, process.store.clone());
        let (count, sent) = (process.instances.count(), Arc::<Mutex<Vec<Sent>>>::default());
        world.story.record("fault", || format!("begins: {} is alone, {pool:?}", place.name));
        place.client.wire.change(|path| (path.up, path.down) = (false, false));
        let until = Instant::now() + Duration::from_secs(3);
        let mut tasks = JoinSet::new();
        for client in 0..2 {
            let (story, sent) = (world.story.clone(), sent.clone());
            let (processes, gap) =
                (vec![(process.clone(), service.clone())], RECOVERY / (2 * rate));
            let sender = Sender { client, weight: 1, gap, processes, sent, story };
            tasks.spawn(Arc::new(sender).run(until));
        }
        tasks.join_all().await;
        let is_same = process.instances.count() == count;
        place.client.wire.change(|path| (path.up, path.down) = (true, true));
        world.story.record("fault", || format!("ends: {} is alone", place.name));
        sleep(CLOSED).await;
        let sent = lock(&sent);
        let violate = |text: String| world.story.violate("shares", format!("{when}: {text}"));
        if let Some(it) = sent.iter().find(|it| it.entry.source != Source::Fallback) {
            return violate(format!("{it:?} without a server"));
        }
        let admitted: Vec<_> = sent.iter().map(|it| it.entry).filter(|it| it.allowed).collect();
        let part = Quota::new(1, pool.interval() * count);
        let part = part.and_then(|it| it.try_with_burst(pool.limit().div_ceil(count)));
        let part = part.expect("a quota");
        let over = excess(&admitted, &part, &[], Duration::ZERO);
        if let Some((over, from, to)) = over.filter(|_| is_same) {
            violate(format!("{over} units of {part:?} too many from {from:?} to {to:?}"));
        }
        let ends = || sent.iter().map(|it| it.entry.end);
        let time = ends().max().unwrap_or_default() - ends().min().unwrap_or_default();
        let burst = f64::from(pool.limit() / count) * 0.7;
        let least = burst + f64::from(rate) / f64::from(count) * time.as_secs_f64() - 4.0;
        if is_same && (admitted.len() as f64) < least {
            let admitted = admitted.len();
            violate(format!("{admitted} instead of {least:.0} units of {part:?} in {time:?}"));
        }
    }

    /// Reads the units that are left of the pool that the faults used.
    async fn read(&self, world: &World) {
        let (process, everyone, quotas) =
            (world.places[0].process(), Key::everyone(), [self.quota]);
        let answer =
            process.store.take(&[Charge::new(name("site"), &everyone, &quotas).with_cost(0)]);
        let Some(Ok(decision)) = process.run(async { answer.await }).await else { return };
        if decision.source() == Source::Redis {
            *lock(&self.left) = decision.remaining();
        }
    }

    /// Checks the sum of all charges of the pool, and that each denial has a reason.
    fn check_sums(&self, world: &World, attempts: &[Attempt]) {
        let sum = |is: &dyn Fn(&Attempt) -> bool, units: &dyn Fn(&Attempt) -> u32| {
            attempts.iter().filter(|it| is(it)).map(|it| u64::from(units(it))).sum::<u64>()
        };
        let is_paid = |it: &Attempt| it.is_known && it.entry.allowed;
        // A process that falls silent between the servers of two accounts leaves the first charged.
        let perhaps = |it: &Attempt| !it.is_known || it.is_alone;
        let most = |it: &Attempt| it.entry.cost.max(it.keeps);
        if let Some(left) = *lock(&self.left) {
            let charged = u64::from(self.quota.limit() - left);
            let least = sum(&is_paid, &|it| it.entry.cost.min(it.keeps));
            let most = sum(&is_paid, &most) + sum(&perhaps, &most);
            if charged > most || charged < least.min(self.quota.limit().into()) {
                let text = format!("{charged} charged to the pool, {least} to {most} paid");
                world.story.violate("shares", text);
            }
        }
        for denial in attempts.iter().filter(|it| !perhaps(it) && !it.entry.allowed) {
            let before = |it: &Attempt| it.entry.start <= denial.entry.end;
            let paid = sum(&|it| before(it) && is_paid(it), &most);
            // An undone charge counts until its undo arrives. If the server does not know the script of
            // the undo, this is after a second call of the same request.
            let meanwhile = |it: &Attempt| {
                before(it) && it.entry.end.saturating_add(SETTLED) >= denial.entry.start
            };
            let undone = sum(&meanwhile, &|it| it.undone);
            let spent = paid + sum(&|it| before(it) && perhaps(it), &most) + undone;
            let wanted = spent + u64::from(denial.entry.cost + reserve(&self.quota));
            if wanted <= u64::from(self.quota.limit()) {
                let text = format!("{denial:?}, but {spent} of {:?} are charged", self.quota);
                return world.story.violate("shares", text);
            }
        }
    }
}

impl Capability for Shares {
    fn share(&self) -> u64 {
        20
    }

    async fn operate(&self, world: &World, place: usize, mut random: Random) {
        // Each client pauses in every other second, except the first.
        let client = random.below(WEIGHTS.len());
        let is_on = (world.story.now().as_secs() + client as u64).is_multiple_of(2);
        let client = if is_on { client } else { 0 };
        let cost = *random.pick(&[1, 1, 1, 2, 3]);
        let more = if self.slow { 2 } else { 0 };
        let keeps = *random.pick(&[cost, cost, cost, cost, cost / 2, cost + more]);
        let ask = Ask { key: format!("c{client}"), weight: WEIGHTS[client], cost, keeps };
        self.request(world, place, ask).await;
    }

    async fn compare(&self, world: &World, mut random: Random, when: &'static str) {
        if when.starts_with("after") && self.slow {
            self.read(world).await;
        }
        self.exact(world, random.fork(), when).await;
        if random.percent(50) {
            self.flood(world, random.fork(), when).await;
        }
        if random.percent(50) {
            self.alone(world, random, when).await;
        }
    }

    fn check(&self, world: &World) {
        let (log, attempts) = (lock(&world.log), lock(&self.attempts));
        let odd = |it: &super::oracle::Loss| it.cause != Cause::Back;
        // Leases set units aside.
        let leases = world.places.iter().any(|place| place.wrappers.leases.is_some());
        if self.slow && !leases && !log.repeats && !log.losses.iter().any(odd) {
            self.check_sums(world, &attempts);
        }
        let paid = attempts.iter().filter(|it| it.is_known && it.entry.allowed);
        let back = paid.clone().filter(|it| it.keeps < it.entry.cost).map(|it| {
            let cause = Cause::Returned(u64::from(it.entry.cost - it.keeps)).repeated(log.repeats);
            let to = it.entry.end.max(log.healed) + RECOVERY;
            super::oracle::Loss { from: it.entry.start, to, cause }
        });
        let losses: Vec<_> = log.losses.iter().copied().chain(back).collect();
        let entries: Vec<_> = paid.map(|it| it.entry).collect();
        if let Some((over, from, to)) = excess(&entries, &self.quota, &losses, Duration::ZERO) {
            let text = format!("{over} units of the pool too many from {from:?} to {to:?}");
            world.story.violate("shares", text);
        }
    }
}
