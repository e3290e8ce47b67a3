//! Adaptive limits: a queue with several servers on the virtual clock, and what a client sees.
#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for the guide"
)]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    time::Duration,
};

use http::{Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::Everyone,
    middleware::{HoldUntil, Slot},
    rule::{Adaptive, Measurement},
    testing::FakeClock,
};

use crate::support::{
    Strict,
    driven::{begin, limiter, secs},
    get,
};

/// The servers behind the limit, and their mean time for a request.
const SERVERS: usize = 16;
const MEAN: f64 = 0.05;
const CAPACITY: f64 = SERVERS as f64 / MEAN;

/// Pseudo-random numbers, equal in each run (xorshift).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// The distribution of the time of a request in a server.
#[derive(Clone, Copy, Debug)]
enum Work {
    Equal,
    Exponential,
    /// Nine of ten requests take half of the mean, and one takes 5.5 times the mean.
    Bimodal,
}

impl Work {
    fn time(self, random: &mut Random) -> f64 {
        match self {
            Self::Equal => MEAN,
            Self::Exponential => random.exponential(MEAN),
            Self::Bimodal if random.unit() < 0.9 => MEAN * 0.5,
            Self::Bimodal => MEAN * 5.5,
        }
    }
}

/// A part of a run: its end in seconds, the load in parts of the capacity, and the servers.
struct Phase {
    end: f64,
    load: f64,
    servers: usize,
}

/// The requests of a run after its warmup.
#[derive(Debug)]
struct Figures {
    /// Completed requests in parts of the capacity.
    goodput: f64,
    /// Seconds.
    p99: f64,
    shed: f64,
}

/// The limit of a run.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Fixed(u32),
    Gradient,
    Aimd(Duration),
}

impl Limit {
    fn adaptive(self, clock: &FakeClock) -> Option<Adaptive> {
        match self {
            Self::Fixed(_) => None,
            Self::Gradient => Some(clock.adaptive(Adaptive::gradient())),
            Self::Aimd(timeout) => Some(clock.adaptive(Adaptive::aimd(timeout))),
        }
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Plays a queue with several servers behind `limit`, and measures from `from` on.
fn play(limit: Limit, work: Work, phases: &[Phase], from: f64) -> Figures {
    let (clock, mut random) = (FakeClock::new(), Random(0x9e37_79b9_7f4a_7c15));
    let (limiter, adaptive) = (Limiter::named("default", clock.store(64)), limit.adaptive(&clock));
    let fixed = if let Limit::Fixed(limit) = limit { limit } else { 1 };
    let quota = || match &adaptive {
        Some(limit) => limit.plan().quotas(),
        None => Quota::concurrent(fixed).into(),
    };
    // The end and the number of each request in a server.
    let mut busy: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut queue = VecDeque::new();
    let mut running = HashMap::new();
    let (mut now, mut arrival, mut number) = (0, 0, 0);
    let (mut latencies, mut shed) = (Vec::new(), 0_u32);
    loop {
        let ends = busy.peek().map(|Reverse((end, _))| *end).filter(|end| *end <= arrival);
        let at = ends.unwrap_or(arrival);
        clock.advance(Duration::from_nanos(at - now));
        now = at;
        let Some(phase) = phases.iter().find(|phase| now <= nanos(phase.end)) else { break };
        let counts = now > nanos(from);
        if ends.is_some() {
            let Some(Reverse((_, ended))) = busy.pop() else { break };
            let (started, _slot, measurement) = running.remove(&ended).expect("it runs");
            Option::into_iter(measurement).for_each(|it: Measurement| it.complete(false));
            if counts {
                latencies.push(now - started);
            }
        } else {
            arrival = now + nanos(random.exponential(1.0 / (CAPACITY * phase.load)));
            let mut decision = limiter.take("all", &quota(), 1).now();
            if decision.is_allowed() {
                number += 1;
                queue.push_back(number);
                let measurement = adaptive.as_ref().map(|limit| limit.start(1));
                running.insert(number, (now, decision.take_slot(), measurement));
            } else {
                shed += u32::from(counts);
            }
        }
        while busy.len() < phase.servers {
            let Some(next) = queue.pop_front() else { break };
            busy.push(Reverse((now + nanos(work.time(&mut random)), next)));
        }
    }
    latencies.sort_unstable();
    let done = latencies.len() as f64;
    let seconds = phases.last().expect("a phase").end - from;
    Figures {
        goodput: done / seconds / CAPACITY,
        p99: latencies[latencies.len() * 99 / 100] as f64 / 1e9,
        shed: f64::from(shed) / (done + f64::from(shed)),
    }
}

/// A load in parts of the capacity of some servers, after one of 0.7.
fn after_calm(servers: usize, load: f64, end: f64) -> [Phase; 2] {
    let part = servers as f64 / SERVERS as f64;
    [Phase { end: 10.0, load: 0.7 * part, servers }, Phase { end, load: load * part, servers }]
}

/// The p99 of a service with one request in five of its capacity.
fn unloaded(work: Work, servers: usize) -> f64 {
    play(Limit::Fixed(1_000), work, &after_calm(servers, 0.2, 60.0), 10.0).p99
}

fn adaptive(work: Work) -> [Limit; 2] {
    let timeout = Duration::from_secs_f64(2.0 * unloaded(work, SERVERS));
    [Limit::Gradient, Limit::Aimd(timeout)]
}

const ALL: [Work; 3] = [Work::Equal, Work::Exponential, Work::Bimodal];

/// What a run keeps: the part of the capacity that it uses at least, and its p99 at most, in parts of that
/// of the unloaded service.
struct Keeps {
    goodput: f64,
    p99: f64,
}

impl Keeps {
    /// Checks a run on some servers.
    fn check(&self, limit: Limit, work: Work, servers: usize, phases: &[Phase], from: f64) {
        let found = play(limit, work, phases, from);
        let goodput = found.goodput * SERVERS as f64 / servers as f64;
        let p99 = found.p99 / unloaded(work, servers);
        let load = phases.last().map_or(0.0, |phase| phase.load);
        let run = format!("{limit:?} {work:?} {servers} servers {load} from {from} s on");
        println!("{run}: goodput {goodput:.3}, p99 {p99:.2}, shed {:.4}", found.shed);
        assert!(goodput >= self.goodput && p99 <= self.p99, "{run}: {goodput}, {p99}");
    }
}

#[test]
fn an_overload_keeps_the_goodput_and_the_latency() {
    for work in ALL {
        // The last one is an overload of five minutes.
        for (load, end, p99) in
            [(1.0, 60.0, f64::MAX), (2.0, 60.0, 3.0), (5.0, 60.0, 3.0), (2.0, 300.0, 3.0)]
        {
            for limit in adaptive(work) {
                let phases = after_calm(SERVERS, load, end);
                Keeps { goodput: 0.95, p99 }.check(limit, work, SERVERS, &phases, 15.0);
            }
        }
    }
}

/// The limit has room for about four more requests than it needs, which a single server feels most. If the
/// overload is there from the start, its latency is not learned as the usual one.
#[test]
fn an_overload_of_few_and_of_many_servers_keeps_the_goodput() {
    for (servers, most_after_calm) in
        [(1, 8.0), (2, 5.0), (4, 5.0), (10, 5.0), (16, 3.5), (64, 3.5)]
    {
        for (work, load) in ALL.into_iter().flat_map(|work| [(work, 2.0), (work, 5.0)]) {
            let phases = after_calm(servers, load, 40.0);
            let keeps = Keeps { goodput: 0.88, p99: most_after_calm };
            keeps.check(Limit::Gradient, work, servers, &phases, 15.0);
            if servers >= 4 {
                let keeps = Keeps { goodput: 0.9, p99: 2.5 };
                keeps.check(Limit::Gradient, work, servers, &phases[1..], 10.0);
            }
        }
    }
}

#[test]
fn a_usual_load_is_not_shed() {
    for work in ALL {
        for limit in adaptive(work) {
            let found = play(limit, work, &after_calm(SERVERS, 0.7, 300.0), 15.0);
            println!("{limit:?} {work:?} 0.7: shed {:.5}", found.shed);
            assert!(found.shed <= 0.001, "{limit:?} {work:?}: {found:?}");
        }
    }
}

#[test]
fn a_limit_settles_within_five_seconds_of_a_change_of_the_capacity() {
    for work in ALL {
        for limit in adaptive(work) {
            let phase = |end, servers| Phase { end, load: 0.9, servers };
            let steps = [phase(30.0, SERVERS), phase(60.0, SERVERS / 2), phase(90.0, SERVERS)];
            let half = Keeps { goodput: 0.95 * 0.5, p99: 4.0 };
            half.check(limit, work, SERVERS, &steps[..2], 35.0);
            let whole = Keeps { goodput: 0.95 * 0.9, p99: f64::MAX };
            whole.check(limit, work, SERVERS, &steps, 65.0);
        }
    }
}

/// A client that reads slowly could otherwise hold all slots, and no window would ever close.
#[tokio::test]
async fn adaptive_slots_are_free_at_the_head_and_others_at_the_end_of_the_body() {
    let stores = || (LocalStore::with_capacity(64), LocalStore::with_capacity(64));
    let ((store, _), (exposed, _), (first, second)) = (stores(), stores(), stores());
    let fallback = first.clone().fallback(second.clone(), 1).boxed();
    let cases = [
        ("a store", store.clone().boxed(), [&store, &store], false),
        ("a slot that handlers may keep", exposed.clone().boxed(), [&exposed, &exposed], true),
        ("a store with a fallback", fallback, [&first, &second], false),
    ];
    for (is_last, (name, layer_store, counted, exposes)) in
        [false, true].into_iter().flat_map(|is_last| cases.clone().map(|case| (is_last, case)))
    {
        let held = || counted.map(|it| it.stats().held);
        let limit = Adaptive::gradient().initial(2);
        let overload = Rule::new("overload", Everyone, limit.plan());
        let streams = Rule::new("streams", Everyone, Quota::concurrent(30));
        let rules = if is_last { (streams, overload) } else { (overload, streams) };
        let layer = RateLimitLayer::rules(rules, layer_store);
        let layer = if exposes { layer.expose_slot() } else { layer };
        let inner = service_fn(async |_| {
            let never = futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
            Ok::<_, std::convert::Infallible>(Response::new(axum::body::Body::from_stream(never)))
        });
        let service = layer.layer(inner);
        let mut streams = Vec::new();
        for at in 1..=30 {
            let mut response = service.clone().oneshot(get("/")).await.expect("infallible");
            assert_eq!(response.extensions_mut().remove::<Slot>().is_some(), exposes);
            assert_eq!((at, response.status(), held()), (at, StatusCode::OK, [at; 2]), "{name}");
            streams.push(response);
        }
        let response = service.clone().oneshot(get("/")).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "each stream holds a slot");
        drop((streams, response));
        assert_eq!(held(), [0; 2], "{name}: no slot is freed twice or never");
    }
}

/// The responses of each window all have one status, and the header field or not.
#[tokio::test]
async fn a_layer_chooses_which_responses_show_an_overload() {
    const FIELD: &str = "x-overloaded";
    for (status, has_field, is_overload) in [
        (StatusCode::OK, true, true),
        (StatusCode::OK, false, false),
        (StatusCode::SERVICE_UNAVAILABLE, true, true),
        (StatusCode::SERVICE_UNAVAILABLE, false, false),
    ] {
        let clock = FakeClock::new();
        let limit = clock.adaptive(Adaptive::aimd(secs(1)).initial(20));
        let rule = Rule::new("overload", Everyone, limit.plan());
        let layer = RateLimitLayer::rules(rule, clock.store(64))
            .overload_if(|response| response.headers.contains_key(FIELD));
        let inner = service_fn(async |_| {
            clock.advance(Duration::from_millis(50));
            let mut response = Response::builder().status(status);
            if has_field {
                response = response.header(FIELD, "1");
            }
            Ok::<_, std::convert::Infallible>(response.body(String::new()).expect("a response"))
        });
        let service = layer.hold_until(HoldUntil::Head).layer(inner);
        for _ in 0..20 {
            service.clone().oneshot(get("/")).await.expect("infallible");
        }
        assert_eq!(limit.limit() < 20, is_overload, "{status}, {has_field}: {}", limit.limit());
    }
}

/// A request that waited for its slot then waits for a permit of the inner limit.
#[tokio::test(start_paused = true)]
async fn a_wait_for_the_inner_service_is_no_latency() {
    for is_cancelled in [false, true] {
        let clock = FakeClock::new();
        let (store, limit) = (clock.store(64), clock.adaptive(Adaptive::aimd(secs(1)).initial(30)));
        let layer = RateLimitLayer::rules(
            Rule::new("api", Everyone, limit.plan()).max_wait(secs(60)),
            store.clone(),
        );
        let inner = tower::limit::ConcurrencyLimit::new(Strict::default(), 1);
        let mut service = layer.hold_until(HoldUntil::Head).layer(inner);
        let answered = async || {
            let response = service.clone().oneshot(get("/")).await.expect("infallible");
            assert_eq!(response.status(), StatusCode::OK);
        };
        // The usual latency is known.
        for _ in 0..20 {
            answered().await;
            clock.advance(Duration::from_millis(100));
        }
        let before = limit.limit();
        for _ in 0..40 {
            let limiter = limiter("api", store.clone());
            let running = limiter.take(Key::everyone(), &limit.plan().quotas(), limit.limit());
            let mut waiting = begin(&mut service, get("/")).await;
            assert_pending!(waiting.poll());
            let mut other = service.clone();
            other.ready().await.expect("a permit");
            drop(running);
            assert_pending!(waiting.poll());
            assert_eq!(store.stats().held, 1, "it has its slot");
            clock.advance(secs(5));
            if !is_cancelled {
                drop(other);
                assert_ready_ok!(waiting.poll());
            }
        }
        assert!(limit.limit() >= before, "{before}, then {}", limit.limit());
    }
}

#[tokio::test]
async fn a_request_beyond_the_limit_of_the_moment_may_be_repeated() {
    let limit = Adaptive::gradient().max(30).initial(4);
    let [shed, never_fits] = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
    for (cost, status) in [(5, shed), (30, shed), (31, never_fits)] {
        let rule = Rule::new("overload", Everyone, limit.plan()).cost(cost);
        let layer = RateLimitLayer::rules(rule, LocalStore::with_capacity(64));
        let layer = layer.hold_until(HoldUntil::Head);
        let inner =
            service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
        let shed = layer.layer(inner).oneshot(get("/")).await.expect("infallible");
        assert_eq!((cost, shed.status()), (cost, status));
        let may_repeat = status == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(shed.headers().contains_key("retry-after"), may_repeat, "{cost}");
    }
}
