//! Simulated decisions, compared with a real layer on a fake clock.

use std::time::Duration;

use http::{Method, Request, Response};
use proptest::{collection::vec, prelude::*};
use tower::Layer;
use tower_sluice::{
    Algorithm, Cost, Decision, Quota, RateLimitLayer, RequestHead, Rule,
    decision::Source,
    key::{Everyone, HeaderKey},
    rule::{Applies, OnMissingKey, RuleName, Rules},
    testing::FakeClock,
};

use super::simulate::{Call, Simulator, Verdict};
use crate::support::{
    Strict, ask,
    driven::{Time, begin, millis, secs},
    get,
    random::{Row, rows},
};

const WINDOW: Algorithm = Algorithm::SlidingWindow { buckets: 4 };

fn cost(header: &'static str) -> Cost {
    Cost::from_fn(move |head| {
        head.headers.get(header).and_then(|units| units.to_str().ok()?.parse().ok()).unwrap_or(1)
    })
}

/// Rules that charge or skip in every way, in one decision.
fn rules() -> (Rule<HeaderKey>, Rule<Everyone>, Rule<Everyone>) {
    let two = [Quota::per_second(3), Quota::per_minute(9).with_algorithm(WINDOW)];
    let user = Rule::new("user", HeaderKey::new("x-key"), two).cost(cost("x-cost"));
    let site =
        Rule::new("site", Everyone, Quota::per_second(5).with_soft(2)).headroom(cost("x-room"));
    let trial = Quota::per_minute(4).with_algorithm(Algorithm::TokenBucket);
    let skip_head = |head: &RequestHead<'_>| match *head.method {
        Method::HEAD => Applies::Skip,
        _ => Applies::Charge,
    };
    (
        user.on_missing_key(OnMissingKey::Share).applies(|head| match *head.method {
            Method::HEAD => Applies::Skip,
            Method::PUT => Applies::Require,
            _ => Applies::Charge,
        }),
        site.applies(skip_head),
        Rule::new("trial", Everyone, trial).report_only(true).applies(skip_head),
    )
}

fn request() -> impl Strategy<Value = Request<()>> {
    let methods = [Method::GET, Method::GET, Method::GET, Method::HEAD, Method::PUT];
    let method = prop::sample::select(methods.to_vec());
    let key = prop::option::of(prop::sample::select(vec!["a", "b", "c"]));
    (method, key, 0..5_u32, 0..3_u32).prop_map(|(method, key, cost, room)| {
        let request = Request::builder().method(method).header("x-cost", cost);
        let request = request.header("x-room", room);
        let request = key.into_iter().fold(request, |request, key| request.header("x-key", key));
        request.body(()).expect("a request")
    })
}

fn call(at: Duration, request: &Request<()>) -> Call {
    Call { at, parts: request.clone().into_parts().0 }
}

/// Decides all calls of a trace.
fn simulate(rules: impl Rules, trace: impl IntoIterator<Item = Call>) -> Vec<Verdict> {
    let mut simulator = Simulator::new(rules, 1_024);
    trace.into_iter().map(|call| simulator.decide(&call)).collect()
}

/// Summarizes a decision.
fn summary(decision: &Decision) -> (bool, bool, bool, Duration, Vec<Row>) {
    let (allowed, overage) = (decision.is_allowed(), decision.is_overage());
    (allowed, overage, decision.would_deny(), decision.wait(), rows(decision))
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn the_verdict_equals_the_response_of_the_layer(
        trace in vec((prop_oneof![Just(0), 0..900_u64], request()), 1..60)
    ) {
        let clock = FakeClock::new();
        let layer = RateLimitLayer::rules(rules(), clock.store(64)).expose_decision();
        let mut service = layer.layer(Strict::default());
        let mut simulator = Simulator::new(rules(), 64);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for (pause, request) in trace {
            clock.advance(millis(pause));
            let verdict = simulator.decide(&call(clock.now(), &request));
            let response: Response<String> = runtime.block_on(ask(&mut service, request));
            let decision = response.extensions().get::<Decision>();
            let decision = decision.filter(|it| it.source() != Source::Bypass);
            prop_assert_eq!(verdict.passes(), response.status().is_success());
            prop_assert_eq!(verdict.decision().map(summary), decision.map(summary));
            let has_no_key = !verdict.passes() && verdict.decision().is_none();
            prop_assert_eq!(has_no_key, response.status().as_u16() == 400);
            prop_assert!(!verdict.is_late && verdict.at == clock.now());
        }
    }
}

/// A layer queues at most this number of requests, and denies others until a position is free.
#[tokio::test(start_paused = true)]
async fn the_queue_has_the_size_of_that_of_a_layer() {
    let rule = || {
        let quota = Quota::per_second(10).with_burst(1);
        Rule::new("site", Everyone, quota).max_wait(secs(1_000))
    };
    let time = Time::default();
    let mut service = RateLimitLayer::rules(rule(), time.store()).layer(Strict::default());
    let mut simulator = Simulator::new(rule(), 64);
    let mut waiting = Vec::new();
    for round in 0..4 {
        for _ in 0..if round == 0 { 1_100 } else { 7 } {
            let mut asking = begin(&mut service, get("/")).await;
            let verdict = simulator.decide(&call(time.0.now(), &get("/")));
            match asking.poll() {
                std::task::Poll::Ready(Ok(response)) => {
                    let wait = verdict.decision().map(Decision::wait);
                    assert_eq!(wait, Some(Duration::ZERO), "round {round}");
                    assert_eq!(verdict.passes(), response.status().is_success());
                }
                _ => {
                    assert!(verdict.passes() && verdict.is_limited());
                    waiting.push(asking);
                }
            }
        }
        time.pass(millis(350)).await;
        waiting.retain_mut(|asking| asking.poll().is_pending());
    }
    // 1 024 at first, and then as many as have finished: three or four each time
    assert!((1_010..=1_024).contains(&waiting.len()), "{}", waiting.len());
}

#[test]
fn the_clock_never_goes_back_and_late_calls_are_counted() {
    let quota = Quota::per_second(1);
    let trace = [5_000, 3_000, 5_999, 0, 6_000].map(|at| call(millis(at), &get("/")));
    let played = simulate(Rule::new("site", Everyone, quota), trace);
    let shown = |verdict: &Verdict| (verdict.at.as_millis(), verdict.is_late, verdict.passes());
    let said: Vec<_> = played.iter().map(shown).collect();
    assert_eq!(
        said,
        [
            (5_000, false, true),
            (5_000, true, false),
            (5_999, false, false),
            (5_999, true, false),
            (6_000, false, true)
        ]
    );
}

#[test]
fn the_last_representable_instant_works() {
    let quota = Quota::per_day(1).with_burst(3_650);
    let rule = Rule::new("site", Everyone, quota).cost(3_650).max_wait(Duration::MAX);
    let mut simulator = Simulator::new(rule, 64).measure(64);
    let mut passes = |at| simulator.decide(&call(at, &get("/"))).passes();
    assert!(passes(Duration::MAX) && passes(Duration::MAX) && !passes(Duration::ZERO));
    assert!(simulator.least()[0].quota().is_none(), "ten years of debt");
}

#[test]
fn preflights_are_charged_as_in_a_layer() {
    let preflight = Request::options("/").header("origin", "https://app.example");
    let preflight = preflight.header("access-control-request-method", "PUT");
    let preflight = preflight.body(()).expect("a request");
    let rule = || Rule::new("site", Everyone, Quota::per_second(1));
    let trace = [&preflight; 2].map(|it| call(secs(1), it));
    let passed: Vec<_> = simulate(rule(), trace).iter().map(Verdict::passes).collect();
    assert_eq!(passed, [true, false]);
}

#[test]
fn a_store_that_is_too_small_is_reported() {
    let rule = || Rule::new("user", HeaderKey::new("x-key"), Quota::per_hour(1));
    let trace = || {
        (0..2_000_u32).map(|n| {
            let request = Request::get("/").header("x-key", n).body(()).expect("a request");
            call(secs(1), &request)
        })
    };
    let play = |keys| {
        let mut simulator = Simulator::new(rule(), keys).measure(keys);
        let passed = trace().filter(|call| simulator.decide(call).passes()).count();
        (passed, simulator.stats().overflowed, simulator.least()[0].quota().expect("a quota"))
    };
    let (passed, overflowed, least) = play(16);
    assert!(passed < 2_000 && overflowed > 0, "new keys share accounts");
    assert!(least.limit() > 1, "{least}");
    assert_eq!(play(100_000), (2_000, 0, Quota::per_hour(1)));
}

/// Under the smallest limit no request is denied, so the accounts stay in debt for longer.
#[test]
fn measuring_needs_more_capacity_and_reports_it() {
    let rule = || Rule::new("user", HeaderKey::new("x-key"), Quota::per_second(1));
    let trace = || {
        (0..10_000_u64).map(|n| {
            let request = Request::get("/").header("x-key", n / 100).body(());
            call(secs(n / 100), &request.expect("a request"))
        })
    };
    let least = |keys| {
        let mut simulator = Simulator::new(rule(), keys).measure(keys);
        trace().for_each(|call| drop(simulator.decide(&call)));
        assert_eq!(simulator.stats().overflowed, 0);
        let overflowed = simulator.least_stats().expect("measured").overflowed;
        (overflowed > 0, simulator.least()[0].quota().expect("a quota").limit())
    };
    assert_eq!(least(1_000), (false, 100));
    let (overflowed, limit) = least(16);
    assert!(overflowed && limit > 100, "{limit}");
    assert!(Simulator::new(rule(), 16).least_stats().is_none());
}

/// Only rules whose own quotas cause the wait are reported.
#[test]
fn a_wait_is_reported_for_the_rule_that_causes_it() {
    let (one, paced) =
        (Quota::per_second(1), Algorithm::FixedWindow { carry_over: 0, paced: true });
    let name = |name: &str| RuleName::new(name).expect("a name");
    let of = |rule: &str, quota| Rule::new(rule, Everyone, quota).max_wait(secs(60));
    let waiting = |rules: Vec<Rule<Everyone>>| {
        let verdict = simulate(rules, [call(secs(1), &get("/")), call(secs(1), &get("/"))]);
        let verdict = verdict.last().expect("a verdict");
        assert!(verdict.decision().is_some_and(|decision| !decision.wait().is_zero()));
        ["a", "b", "c"]
            .into_iter()
            .filter(|rule| verdict.waits_for.contains(&name(rule)))
            .collect::<Vec<_>>()
    };
    assert_eq!(waiting(vec![of("a", one)]), ["a"]);
    // the last unit, and a unit of the headroom
    let two = Quota::per_minute(2);
    assert_eq!(
        waiting(vec![of("a", two), of("b", one), of("c", two.with_burst(3)).headroom(2)]),
        ["b", "c"]
    );
    assert_eq!(
        waiting(vec![of("a", two), of("b", Quota::per_second(9).with_algorithm(paced))]),
        ["b"]
    );
    assert_eq!(
        waiting(vec![of("a", one).report_only(true), of("b", one), of("c", one).cost(0)]),
        ["b"]
    );
    assert!(simulate(of("a", two), [call(secs(1), &get("/"))])[0].waits_for.is_empty());
}
