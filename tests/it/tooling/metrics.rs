//! Metrics: one count per rule and request, with closed sets of labels.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, OnceLock},
};

use metrics::{SharedString, Unit};
use metrics_util::{
    CompositeKey,
    debugging::{DebugValue, DebuggingRecorder},
};
use tokio::runtime::Builder;
use tower_sluice::{
    Limiter, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::{Counters, DecisionEvent, HoldUntil, Overcommit},
    rule::Rules,
};

use crate::support::{
    Gated, answer,
    driven::{Time, millis},
    get,
    shaky::{Mood, Shaky},
    with,
};

type Entry = (CompositeKey, Option<Unit>, Option<SharedString>, DebugValue);

/// Runs `work` on this thread and returns what it recorded.
fn entries(work: impl AsyncFnOnce()) -> Vec<Entry> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    metrics::with_local_recorder(&recorder, || runtime.expect("a runtime").block_on(work()));
    snapshotter.snapshot().into_vec()
}

/// Runs `work` on this thread and returns the recorded values, by name and labels. A histogram
/// gives its number of samples.
fn recorded(work: impl AsyncFnOnce()) -> BTreeMap<String, u64> {
    let entry = entries(work).into_iter().map(|(key, _, _, value)| {
        let labels = key.key().labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = format!("{}{}", key.key().name(), labels.collect::<String>());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let value = match value {
            DebugValue::Counter(count) => count,
            DebugValue::Gauge(value) => value.0 as u64,
            DebugValue::Histogram(samples) => samples.len() as u64,
        };
        (name, value)
    });
    entry.collect()
}

/// Returns the values whose names start with this prefix, without the prefix.
fn under(recorded: &BTreeMap<String, u64>, name: &str) -> Vec<(String, u64)> {
    let of = recorded.iter().filter_map(|(full, n)| Some((full.strip_prefix(name)?, *n)));
    of.map(|(rest, n)| (rest.trim_start().to_owned(), n)).collect()
}

fn pairs<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(name, n)| (name.to_owned(), n)).into()
}

#[test]
fn every_metric_has_a_unit_and_a_description() {
    let entries = entries(async || {
        let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1), LocalStore::new());
        for _ in 0..2 {
            answer(&layer, get("/")).await;
        }
    });
    assert!(!entries.is_empty());
    for (key, unit, text, _) in entries {
        assert!(unit.is_some() && text.is_some(), "{}", key.key());
    }
}

#[test]
fn each_rule_counts_its_result_of_a_request() {
    let recorded = recorded(async || {
        let site = Rule::new("site", Everyone, [Quota::per_hour(100), Quota::per_day(1_000)]);
        let user = Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(2));
        let trial = Rule::new("trial", Everyone, Quota::per_hour(1)).report_only(true);
        let layer = RateLimitLayer::rules((site, user, trial), LocalStore::new());
        for _ in 0..5 {
            answer(&layer, with(&[("x-user", "alice")])).await;
        }
        answer(&layer, get("/")).await;
    });
    let decisions = pairs([
        ("policy=site result=allowed", 2),
        ("policy=trial result=allowed", 1),
        ("policy=trial result=shadow_limited", 4),
        ("policy=user result=allowed", 2),
        ("policy=user result=limited", 3),
    ]);
    assert_eq!(under(&recorded, "ratelimit.decisions"), decisions);
    assert_eq!(recorded["ratelimit.unidentified"], 1);
    assert_eq!(recorded["ratelimit.decision.duration store=local"], 5);
    assert!(!recorded.keys().any(|name| name.contains("alice")), "no key is a label: {recorded:?}");
}

#[test]
fn a_request_beyond_the_limit_is_not_counted_as_report_only() {
    let recorded = recorded(async || {
        let layer = RateLimitLayer::new(Everyone, Quota::per_hour(2), LocalStore::new());
        let layer = layer.overcommit(Overcommit::when(|| true));
        for _ in 0..5 {
            answer(&layer, get("/")).await;
        }
    });
    let decisions = pairs([("policy=default result=allowed", 5)]);
    assert_eq!(under(&recorded, "ratelimit.decisions"), decisions);
}

#[test]
fn a_request_is_near_the_limit_from_80_percent_on() {
    let recorded = recorded(async || {
        let layer = RateLimitLayer::new(Everyone, Quota::per_hour(10), LocalStore::new());
        for _ in 0..12 {
            answer(&layer, get("/")).await;
        }
    });
    assert_eq!(recorded["ratelimit.near_limit policy=default"], 3);
}

#[test]
fn an_outage_shows_in_results_errors_and_the_circuit_state() {
    let recorded = recorded(async || {
        let quota = Quota::per_hour(2);
        let shaky = Shaky::new(LocalStore::new());
        shaky.set_mood(Mood::Hanging);
        let open = RateLimitLayer::new(Everyone, quota, shaky.clone().fail_open());
        let closed = RateLimitLayer::new(Everyone, quota, shaky.clone().fail_closed());
        let here = shaky.clone().timeout(millis(100)).breaker().fallback(LocalStore::new(), 1);
        let here = RateLimitLayer::new(Everyone, quota, here);
        for _ in 0..7 {
            answer(&here, get("/")).await;
        }
        shaky.set_mood(Mood::FailingSoon);
        answer(&open, get("/")).await;
        answer(&closed, get("/")).await;
        // A late answer of a server that works is neither an outage nor an error.
        shaky.set_mood(Mood::Busy);
        answer(&open, get("/")).await;
        answer(&closed, get("/")).await;
    });
    let decisions = pairs([
        ("policy=default result=busy", 2),
        ("policy=default result=failed_closed", 1),
        ("policy=default result=failed_open", 1),
        ("policy=default result=fallback_allowed", 2),
        ("policy=default result=fallback_limited", 5),
    ]);
    assert_eq!(under(&recorded, "ratelimit.decisions"), decisions);
    assert_eq!(under(&recorded, "ratelimit.store.errors"), pairs([("kind=timeout", 5)]));
    assert_eq!(recorded["ratelimit.store.circuit"], 2);
    assert_eq!(recorded["ratelimit.decision.duration store=fallback"], 7);
}

/// Sends one request through a layer that is report-only or not. Returns its result for hooks, those of the
/// rules in metrics, and the counts of allowed, denied and reported requests.
fn reports<K: Rules>(rules: K, mood: Mood, report_only: bool) -> String {
    let shaky = Shaky::new(LocalStore::new());
    shaky.set_mood(mood);
    let counters = Counters::new();
    let result = Arc::new(OnceLock::new());
    let seen = result.clone();
    let layer = RateLimitLayer::rules(rules, shaky.fail_closed())
        .report_only(report_only)
        .on_decision(counters.clone())
        .on_decision(move |event: &DecisionEvent<'_>| seen.set(event.result()).expect("one"));
    let recorded = recorded(async || drop(answer(&layer, get("/")).await));
    let results = under(&recorded, "ratelimit.decisions policy=").into_iter().map(|(of, _)| of);
    let results = results.collect::<Vec<_>>().join(", ").replace("result=", "");
    let counts = counters.snapshot();
    let counts = [counts.allowed, counts.denied, counts.would_deny];
    format!("{}: {results}; {counts:?}", result.get().copied().flatten().expect("a decision"))
}

/// A request that an outage lets pass, because it costs nothing, or because its rules or its layer only report.
#[test]
fn all_reports_of_a_request_in_an_outage_agree() {
    let rule = |name| Rule::new(name, Everyone, Quota::per_hour(1));
    let free = || rule("free").cost(0);
    let trial = || rule("trial").report_only(true);
    for (mood, denied) in [(Mood::Failing, "failed_closed"), (Mood::Busy, "busy")] {
        let closed = format!("{denied}: api {denied}; [0, 1, 0]");
        assert_eq!(reports(rule("api"), mood, false), closed);
        assert_eq!(
            reports(rule("api"), mood, true),
            "shadow_limited: api shadow_limited; [0, 0, 1]"
        );
        for report_only in [false, true] {
            let found = reports(free(), mood, report_only);
            assert_eq!(found, "allowed: free allowed; [1, 0, 0]", "{mood:?}");
            let found = reports(trial(), mood, report_only);
            assert_eq!(found, "allowed: trial shadow_limited; [1, 0, 1]", "{mood:?}");
            let found = reports((free(), trial()), mood, report_only);
            assert_eq!(found, "allowed: trial shadow_limited; [1, 0, 1]", "{mood:?}");
        }
    }
}

/// The body of the response cannot hold a slot.
#[test]
fn a_request_whose_slot_cannot_be_held_is_counted_under_the_rule_that_needs_it() {
    let recorded = recorded(async || {
        let rule = |name, quota: Quota| Rule::new(name, Everyone, quota);
        let rules = (rule("site", Quota::per_hour(2)), rule("jobs", Quota::concurrent(2)));
        answer(&RateLimitLayer::rules(rules, LocalStore::new()), get("/")).await;
    });
    let decisions = pairs([("policy=jobs result=failed_closed", 1)]);
    assert_eq!(under(&recorded, "ratelimit.decisions"), decisions);
}

#[test]
fn limits_follow_live_plans_and_have_the_names_of_header_fields() {
    let live = LivePlan::new([Quota::per_second(5), Quota::per_hour(100)]);
    let chosen = Plan::from_fn(|_, _| Quota::per_hour(7).into());
    let rules = (
        Rule::new("fixed", Everyone, Quota::per_hour(9).with_burst(3)),
        Rule::new("live", Everyone, &live),
        Rule::new("chosen", Everyone, chosen),
        Rule::new("slots", Everyone, [Quota::concurrent(2), Quota::per_day(8).with_name("day")]),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::new()).hold_until(HoldUntil::Head);
    let at_first = [
        ("policy=fixed quota=fixed", 3),
        ("policy=live quota=live-1h", 100),
        ("policy=live quota=live-1s", 5),
        ("policy=slots quota=day", 8),
        ("policy=slots quota=slots-concurrent", 2),
    ];
    // The recorder may be installed after the layer is built.
    let recorded = recorded(async || drop(answer(&layer, get("/")).await));
    assert_eq!(under(&recorded, "ratelimit.limit"), pairs(at_first));
    live.replace([Quota::per_second(6), Quota::per_hour(100)]);
    let recorded = self::recorded(async || {
        for _ in 0..2 {
            answer(&layer, get("/")).await;
        }
    });
    let changed = pairs([("policy=live quota=live-1h", 100), ("policy=live quota=live-1s", 6)]);
    assert_eq!(under(&recorded, "ratelimit.limit"), changed);
}

#[test]
fn the_limit_of_a_removed_or_renamed_quota_is_0() {
    let live = LivePlan::new([Quota::per_second(5), Quota::per_hour(100)]);
    let layer = RateLimitLayer::rules(Rule::new("live", Everyone, &live), LocalStore::new());
    let six = Quota::per_second(6);
    let recorded = recorded(async || {
        drop(answer(&layer, get("/")).await);
        for plan in [six, six.with_name("new")] {
            live.replace(plan);
            drop(answer(&layer, get("/")).await);
        }
    });
    let limits = [
        ("policy=live quota=live", 0),
        ("policy=live quota=live-1h", 0),
        ("policy=live quota=live-1s", 0),
        ("policy=live quota=new", 6),
    ];
    assert_eq!(under(&recorded, "ratelimit.limit"), pairs(limits));
}

fn take(store: &LocalStore, key: u64) {
    drop(Limiter::named("default", store.clone()).take(key, &Quota::per_hour(1), 1).now());
}

#[test]
fn the_embedded_store_sets_gauges_and_counts_what_finds_no_room() {
    let recorded = recorded(async || {
        let small = LocalStore::with_capacity(1);
        (0..100).for_each(|key| take(&small, key));
        assert_eq!(small.stats().overflowed, 100 - 16);
        let limiter = Limiter::named("default", LocalStore::with_capacity(1));
        let held = (0..100_u64).filter(|key| limiter.block(*key, millis(9)).now().is_ok());
        assert_eq!(held.count(), 16);
        let store = Time::default().store();
        (0..3).for_each(|key| take(&store, key));
        assert_eq!(store.stats().active, 3);
    });
    assert_eq!(recorded["ratelimit.overflows"], 100 - 16);
    assert_eq!(recorded["ratelimit.blocks.denied"], 100 - 16);
    assert_eq!(recorded["ratelimit.keys"], 3);
    assert!(recorded["ratelimit.capacity"] >= 32);
}

/// An alert on the increase of a counter misses the first event of a counter that starts at one.
#[test]
fn counters_without_labels_start_at_zero() {
    let counters = ["ratelimit.blocks.denied", "ratelimit.overflows", "ratelimit.unidentified"];
    let built = || RateLimitLayer::new(Everyone, Quota::per_hour(1), LocalStore::with_capacity(16));
    let from_the_start = recorded(async || drop(built()));
    assert_eq!(counters.map(|name| from_the_start.get(name)), [Some(&0); 3]);
    // The recorder may be installed after the layer is built.
    let layer = built();
    let later = recorded(async || drop(answer(&layer, get("/")).await));
    assert_eq!(counters.map(|name| later.get(name)), [Some(&0); 3]);
}

/// A request with alternatives records how often it asked the store, at once or later.
#[test]
fn a_request_with_a_choice_records_its_store_calls() {
    let entries = entries(async || {
        let rule = |name, units| Rule::new(name, Everyone, Quota::per_day(units));
        let rules = || rule("plan", 2).or(rule("credits", 1)).or(rule("gift", 1));
        let at_once = RateLimitLayer::rules(rules(), LocalStore::new());
        let later = RateLimitLayer::rules(rules(), Gated::open(LocalStore::new()));
        let plain = RateLimitLayer::rules(rule("plain", 1), LocalStore::new());
        for _ in 0..5 {
            answer(&at_once, get("/")).await;
            answer(&later, get("/")).await;
            answer(&plain, get("/")).await;
        }
    });
    let is_labelled = |entry: &Entry| entry.0.key().labels().count() > 0;
    assert!(
        !entries.iter().filter(|it| it.0.key().name() == "ratelimit.attempts").any(is_labelled)
    );
    let mut attempts = samples(entries, "ratelimit.attempts");
    attempts.sort_by(f64::total_cmp);
    // Two requests of each layer are paid by the plan, one by the credits, one by the gift, and one is
    // denied.
    assert_eq!(attempts, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]);
}

#[test]
fn utilization_is_of_the_fullest_quota_of_a_rule_under_each_wrapper() {
    let quotas = [Quota::per_day(1_000), Quota::per_hour(4)];
    let shares = [0.25, 0.5, 0.75, 1.0, 1.0];
    let store = || Time::default().store();
    let down = || {
        let shaky = Shaky::new(store());
        shaky.set_mood(Mood::Failing);
        shaky
    };
    macro_rules! of {
        ($store:expr) => {
            utilization(&RateLimitLayer::new(Everyone, quotas, $store))
        };
    }
    assert_eq!(of!(store().deny_cache()), shares, "a cached denial has the same outcomes");
    assert_eq!(of!(store().timeout(millis(100)).breaker().fail_closed()), shares);
    assert_eq!(of!(store().leases(10)), shares);
    assert_eq!(of!(store().boxed()), shares);
    assert_eq!(of!(down().fallback(store(), 2)), [0.5, 1.0, 1.0, 1.0, 1.0], "its share");
    assert!(of!(down().fail_open()).is_empty(), "no quota is known");
}

/// Returns the utilization after each of five requests that one quota of four limits.
fn utilization(layer: &RateLimitLayer<Rule<Everyone>, impl Store<Error = Infallible>>) -> Vec<f64> {
    let entries = entries(async || {
        for _ in 0..5 {
            answer(layer, get("/")).await;
        }
    });
    samples(entries, "ratelimit.utilization")
}

/// Returns the samples of a histogram.
fn samples(entries: Vec<Entry>, name: &str) -> Vec<f64> {
    let of = entries.into_iter().filter(|(key, ..)| key.key().name() == name);
    let samples = of.flat_map(|(.., value)| match value {
        DebugValue::Histogram(samples) => samples,
        other => panic!("{name}: {other:?}"),
    });
    samples.map(f64::from).collect()
}
