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
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Decision, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, Store,
    decision::Source,
    key::Everyone,
    middleware::HoldUntil,
    quota::{Aimd, Gradient},
    rule::RuleName,
    store::Charge,
    testing::FakeClock,
};

use crate::support::{driven::secs, get, header, with};

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

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Plays a queue with several servers behind the limit of `quota`, and measures from `from` on.
fn play(quota: Quota, work: Work, phases: &[Phase], from: f64) -> Figures {
    let (clock, mut random) = (FakeClock::new(), Random(0x9e37_79b9_7f4a_7c15));
    let (store, key, quotas) = (clock.store(64), Key::everyone(), [quota]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    // The end and the number of each request in a server.
    let mut busy: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let mut queue = VecDeque::new();
    let mut running: HashMap<u64, (u64, Decision)> = HashMap::new();
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
            let (started, mut decision) = running.remove(&ended).expect("it runs");
            decision.take_slot().expect("slots").complete(false);
            if counts {
                latencies.push(now - started);
            }
        } else {
            arrival = now + nanos(random.exponential(1.0 / (CAPACITY * phase.load)));
            let decision = store.call(tower_sluice::store::Op::Take(&[charge])).now();
            if decision.is_allowed() {
                number += 1;
                queue.push_back(number);
                running.insert(number, (now, decision));
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

fn steady(load: f64, end: f64) -> Vec<Phase> {
    vec![Phase { end: 10.0, load: 0.7, servers: SERVERS }, Phase { end, load, servers: SERVERS }]
}

/// The p99 of a service with one request in five of its capacity.
fn unloaded(work: Work) -> f64 {
    play(Quota::concurrent(1_000), work, &steady(0.2, 60.0), 10.0).p99
}

fn adaptive(work: Work) -> [(&'static str, Quota); 2] {
    let timeout = Duration::from_secs_f64(2.0 * unloaded(work));
    [
        ("gradient", Quota::adaptive(Gradient::default())),
        ("aimd", Quota::adaptive(Aimd::new(timeout))),
    ]
}

const ALL: [Work; 3] = [Work::Equal, Work::Exponential, Work::Bimodal];

#[test]
fn an_overload_keeps_the_goodput_and_the_latency() {
    for work in ALL {
        let unloaded = unloaded(work);
        // The last one is an overload of five minutes.
        for (load, end) in [(1.0, 60.0), (2.0, 60.0), (5.0, 60.0), (2.0, 300.0)] {
            let limits = [16, 32, 48].map(Quota::concurrent);
            let best = limits.map(|limit| play(limit, work, &steady(load, 60.0), 15.0).goodput);
            let best = best.into_iter().fold(0.0, f64::max);
            for (name, quota) in adaptive(work) {
                let found = play(quota, work, &steady(load, end), 15.0);
                let (goodput, p99) = (found.goodput / best, found.p99 / unloaded);
                println!(
                    "{work:?} {name} {load} until {end} s: goodput {:.1} %, p99 {p99:.2}, shed {:.2} %",
                    goodput * 100.0,
                    found.shed * 100.0
                );
                assert!(goodput >= 0.95, "{work:?} {name} {load}: {goodput}");
                assert!(load < 2.0 || p99 <= 3.0, "{work:?} {name} {load}: {p99}");
            }
        }
    }
}

#[test]
fn a_usual_load_is_not_shed() {
    for work in ALL {
        for (name, quota) in adaptive(work) {
            let found = play(quota, work, &steady(0.7, 300.0), 15.0);
            println!("{work:?} {name} 0.7: shed {:.3} %", found.shed * 100.0);
            assert!(found.shed <= 0.001, "{work:?} {name}: {found:?}");
        }
    }
}

#[test]
fn a_limit_settles_within_five_seconds_of_a_change_of_the_capacity() {
    for work in ALL {
        let unloaded = unloaded(work);
        for (name, quota) in adaptive(work) {
            let phase = |end, servers| Phase { end, load: 0.9, servers };
            let steps = [phase(30.0, SERVERS), phase(60.0, SERVERS / 2), phase(90.0, SERVERS)];
            let halved = play(quota, work, &steps[..2], 35.0);
            let restored = play(quota, work, &steps, 65.0);
            println!(
                "{work:?} {name}: halved goodput {:.1} % p99 {:.2}; restored goodput {:.1} %",
                halved.goodput * 200.0,
                halved.p99 / unloaded,
                restored.goodput / 0.9 * 100.0
            );
            assert!(halved.goodput >= 0.95 * 0.5, "{work:?} {name}: {halved:?}");
            assert!(halved.p99 <= 4.0 * unloaded, "{work:?} {name}: {halved:?}");
            assert!(restored.goodput >= 0.95 * 0.9, "{work:?} {name}: {restored:?}");
        }
    }
}

/// Clients that cancel early would lower the measured latency, and then the limit.
#[test]
fn requests_without_a_response_count_only_if_they_are_slow() {
    let clock = FakeClock::new();
    let limiter = Limiter::new(clock.store(64));
    let quota = Quota::adaptive(Gradient::default()).with_initial(30);
    let limit = || limiter.peek("all", &quota).now().outcomes()[0].limit();
    let window = |time: u64, complete: bool| {
        let count = if complete { 29 } else { 50 };
        let mut all: Vec<_> = (0..count).map(|_| limiter.take("all", &quota, 1).now()).collect();
        clock.advance(Duration::from_millis(time));
        if complete {
            all.iter_mut().filter_map(Decision::take_slot).for_each(|slot| slot.complete(false));
        }
    };
    assert_eq!(limit(), 30);
    (0..40).for_each(|_| window(200, true));
    let before = limit();
    (0..40).for_each(|_| window(1, false));
    assert_eq!(limit(), before, "early cancellations change nothing");
    (0..40).for_each(|_| window(200, true));
    assert!(limit() >= before, "the usual latency is still the usual one");
    (0..5).for_each(|_| window(2_000, false));
    assert!(limit() < before, "a service that hangs is overloaded: {before}, {}", limit());
    limiter.reset("all", &quota).now();
    assert_eq!(limit(), 30);
}

#[tokio::test]
async fn a_shed_request_is_charged_under_no_rate_and_gets_a_503() {
    let store = LocalStore::with_capacity(64);
    let quotas = [Quota::adaptive(Gradient::default()).with_initial(1), Quota::per_hour(3)];
    let rule = Rule::new("api", Everyone, quotas);
    let layer = RateLimitLayer::rules(rule, store.clone()).hold_until(HoldUntil::Head);
    let limiter = Limiter::named(RuleName::new("api").expect("a name"), store.clone());
    let inner =
        service_fn(async |_| Ok::<_, std::convert::Infallible>(Response::new(String::new())));
    let service = layer.layer(inner);
    let running = limiter.take(Key::everyone(), &quotas, 1).now();
    let shed = limiter.take(Key::everyone(), &quotas, 1).now();
    assert_eq!((shed.is_allowed(), shed.source()), (false, Source::Overload));
    let request = with(&[("accept", "application/json")]);
    let response = service.clone().oneshot(request).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(response.headers(), "retry-after"), "1");
    let body = response.body();
    assert!(body.contains("http-problem-types#temporary-reduced-capacity"), "{body}");
    assert!(body.contains("\"violated-policies\":[\"api-concurrent\"]"), "{body}");
    let left = limiter.peek(Key::everyone(), &quotas).now();
    assert_eq!(left.outcomes()[1].remaining(), 2);
    drop(running);
    for _ in 0..2 {
        let response = service.clone().oneshot(get("/")).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
    }
    // The rate of the client is its own fault, even if the service is overloaded.
    let response = service.oneshot(get("/")).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// A client that reads slowly could otherwise hold all slots, and no window would ever close.
#[tokio::test]
async fn adaptive_slots_are_free_at_the_head_and_others_at_the_end_of_the_body() {
    let store = LocalStore::with_capacity(64);
    let rules = (
        Rule::new("overload", Everyone, Quota::adaptive(Gradient::default()).with_initial(2)),
        Rule::new("streams", Everyone, Quota::concurrent(30)),
    );
    let layer = RateLimitLayer::rules(rules, store.clone());
    let inner = service_fn(async |_| {
        let never = futures::stream::pending::<Result<axum::body::Bytes, std::io::Error>>();
        Ok::<_, std::convert::Infallible>(Response::new(axum::body::Body::from_stream(never)))
    });
    let service = layer.layer(inner);
    let mut streams = Vec::new();
    for at in 1..=30 {
        let response = service.clone().oneshot(get("/")).await.expect("infallible");
        assert_eq!((at, response.status(), store.stats().held), (at, StatusCode::OK, at));
        streams.push(response);
    }
    let response = service.clone().oneshot(get("/")).await.expect("infallible");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "each stream holds a slot");
    drop((streams, response));
    assert_eq!(store.stats().held, 0, "no slot is freed twice or never");
}

#[test]
fn a_wait_for_a_rate_is_no_latency() {
    let clock = FakeClock::new();
    let (store, key) = (clock.store(64), Key::everyone());
    let rule = |name| RuleName::new(name).expect("a name");
    let (limit, rate) = (
        [Quota::adaptive(Aimd::new(secs(1))).with_initial(30)],
        [Quota::per_second(2).with_burst(1)],
    );
    let charges = [
        Charge::new(rule("overload"), &key, &limit),
        Charge::new(rule("rate"), &key, &rate).with_max_wait(secs(60)),
    ];
    let take = || store.call(tower_sluice::store::Op::Take(&charges)).now();
    let queued: Vec<_> = (0..20).map(|_| take()).collect();
    let mut passed = Duration::ZERO;
    for (at, mut decision) in (0..).zip(queued) {
        assert_eq!(decision.wait(), Duration::from_millis(500) * at);
        let end = decision.wait() + Duration::from_millis(50);
        clock.advance(end - passed);
        passed = end;
        decision.take_slot().expect("a slot").complete(false);
    }
    let limit = Limiter::named(rule("overload"), store.clone()).peek(Key::everyone(), &limit).now();
    assert!(limit.outcomes()[0].limit() >= 30, "{limit:?}");
}

#[test]
fn a_request_beyond_the_limit_of_the_moment_may_be_repeated() {
    let quota = Quota::adaptive(Gradient::default()).with_burst(30).with_initial(4);
    let limiter = Limiter::new(LocalStore::with_capacity(64));
    for (cost, is_unknown) in [(5, true), (30, true), (31, false)] {
        let denied = limiter.take("all", &quota, cost).now();
        assert_eq!(denied.source(), Source::Overload);
        assert_eq!((cost, denied.outcomes()[0].is_wait_unknown()), (cost, is_unknown));
        assert_eq!(denied.expected_wait(), is_unknown.then_some(secs(1)));
    }
}

/// The cost may be chosen by a client.
#[test]
fn a_denied_cost_does_not_raise_the_limit() {
    for quota in [
        Quota::adaptive(Aimd::new(secs(5))).with_initial(20),
        Quota::adaptive(Gradient::default()).with_initial(20),
    ] {
        let clock = FakeClock::new();
        let limiter = Limiter::new(clock.store(64));
        for _ in 0..500 {
            let running = limiter.take("all", &quota, 1).now().take_slot().expect("a slot");
            for cost in [20, 900, 2_000] {
                assert!(!limiter.take("all", &quota, cost).now().is_allowed());
            }
            clock.advance(Duration::from_millis(20));
            running.complete(false);
        }
        let limit = limiter.peek("all", &quota).now().outcomes()[0].limit();
        assert_eq!(limit, 20, "{quota}");
    }
}

#[test]
fn inner_503s_lower_the_limit() {
    let clock = FakeClock::new();
    let limiter = Limiter::new(clock.store(64));
    let quota = Quota::adaptive(Aimd::new(secs(5))).with_initial(40);
    for round in 0..20 {
        let mut all: Vec<_> = (0..30).map(|_| limiter.take("all", &quota, 1).now()).collect();
        clock.advance(Duration::from_millis(110));
        let slots = all.iter_mut().filter_map(Decision::take_slot);
        slots.for_each(|slot| slot.complete(round >= 10));
    }
    let limit = limiter.peek("all", &quota).now().outcomes()[0].limit();
    assert!((15..30).contains(&limit), "{limit}");
}

/// A client could otherwise cause one such response in each window, and lower the limit for all.
#[test]
fn a_few_503s_or_slow_responses_do_not_lower_the_limit() {
    for (name, quota) in [
        ("gradient", Quota::adaptive(Gradient::default()).with_initial(200)),
        ("aimd", Quota::adaptive(Aimd::new(secs(5))).with_initial(200)),
    ] {
        for is_slow in [false, true] {
            let clock = FakeClock::new();
            let limiter = Limiter::new(clock.store(64));
            let take = || limiter.take("all", &quota, 1).now().take_slot();
            for _ in 0..50 {
                let slow = take();
                clock.advance(if is_slow { secs(6) } else { Duration::ZERO });
                let fast: Vec<_> = (0..199).map(|_| take()).collect();
                for slot in fast.iter().flatten() {
                    clock.advance(Duration::from_micros(550));
                    slot.complete(false);
                }
                slow.iter().for_each(|slot| slot.complete(!is_slow));
            }
            let limit = limiter.peek("all", &quota).now().outcomes()[0].limit();
            assert!(limit > 100, "{name}, slow: {is_slow}: {limit}");
        }
    }
}

#[test]
fn adaptive_quotas_are_checked_when_a_layer_is_built() {
    let quota = Quota::adaptive(Gradient::default());
    let waits = Rule::new("api", Everyone, quota).max_wait(secs(1));
    let error = RateLimitLayer::try_rules(waits, LocalStore::new()).expect_err("no queue");
    assert!(error.to_string().contains("max_wait with an adaptive quota"), "{error}");
    assert!(quota.try_with_max_debt(1).is_err());
    assert!(quota.with_burst(10).try_with_initial(11).is_err());
    assert!("adaptive aimd".parse::<Quota>().is_err());
    for text in ["adaptive gradient", "adaptive aimd 500ms", "adaptive gradient burst 64"] {
        assert_eq!(text.parse::<Quota>().expect(text).to_string(), text);
    }
}

#[cfg(feature = "serde")]
#[test]
fn adaptive_quotas_are_read_from_files() {
    for quota in [
        Quota::adaptive(Gradient::default()),
        Quota::adaptive(Aimd::new(secs(2))).with_burst(64),
        Quota::adaptive(Gradient::default()).with_initial(9).with_burst(64).with_soft(3),
    ] {
        let text = serde_json::to_string(&quota).expect("it is written");
        assert_eq!(serde_json::from_str::<Quota>(&text).expect(&text), quota, "{text}");
    }
    let read = |text| serde_json::from_str::<Quota>(text).expect_err("invalid").to_string();
    let error = read(r#"{"adaptive": "vegas"}"#);
    assert!(error.contains("adaptive is \"vegas\"; give gradient, or aimd"), "{error}");
    let error = read(r#"{"adaptive": "gradient", "period": "1s"}"#);
    assert!(error.contains("adaptive and blocked exclude each other"), "{error}");
}
