//! What the `metrics` facade is told: one count per rule and request, under closed sets of labels.

mod support;

use std::collections::BTreeMap;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use support::{
    answer, ask,
    driven::{Time, millis},
    get,
    shaky::{Mood, Shaky},
    with,
};
use tokio::runtime::Builder;
use tower_sluice::{
    Limiter, LocalStore, Quota, RateLimitLayer, Rule, Store,
    key::{Everyone, Header},
};

/// Runs `work` on this thread, and gives what was told: by name and labels, a number, or of a
/// histogram how many.
fn told(work: impl AsyncFnOnce()) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    metrics::with_local_recorder(&recorder, || runtime.expect("a runtime").block_on(work()));
    read(&snapshotter)
}

fn read(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let entries = snapshotter.snapshot().into_vec().into_iter();
    let entry = entries.map(|(key, _, _, value)| {
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

/// The numbers whose names begin so, without that beginning.
fn under(told: &BTreeMap<String, u64>, name: &str) -> Vec<(String, u64)> {
    let of = told.iter().filter_map(|(full, n)| Some((full.strip_prefix(name)?, *n)));
    of.map(|(rest, n)| (rest.trim_start().to_owned(), n)).collect()
}

fn pairs<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(name, n)| (name.to_owned(), n)).into()
}

#[test]
fn each_rule_counts_what_became_of_a_request_under_it() {
    let told = told(async || {
        let site = Rule::new("site", Everyone, [Quota::per_hour(100), Quota::per_day(1_000)]);
        let user = Rule::new("user", Header::new("x-user"), Quota::per_hour(2));
        let trial = Rule::new("trial", Everyone, Quota::per_hour(1)).report_only();
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
    assert_eq!(under(&told, "ratelimit.decisions"), decisions);
    assert_eq!(told["ratelimit.unidentified"], 1);
    assert_eq!(told["ratelimit.decision.duration store=local"], 5);
    assert!(!told.keys().any(|name| name.contains("alice")), "no key is a label: {told:?}");
}

/// A layer's rules that are known to refuse are counted as ever, and the time by who told it.
#[test]
fn a_refusal_that_was_told_without_asking_is_one_of_the_rule_that_is_known() {
    let told = told(async || {
        let site = Rule::new("site", Everyone, Quota::per_hour(100));
        let user = Rule::new("user", Everyone, Quota::per_hour(2));
        let layer = RateLimitLayer::rules((site, user), LocalStore::new().deny_cache());
        for _ in 0..7 {
            answer(&layer, get("/")).await;
        }
    });
    let decisions = pairs([
        ("policy=site result=allowed", 2),
        ("policy=user result=allowed", 2),
        ("policy=user result=limited", 5),
    ]);
    assert_eq!(under(&told, "ratelimit.decisions"), decisions);
    let durations = pairs([("store=deny_cache", 4), ("store=local", 3)]);
    assert_eq!(under(&told, "ratelimit.decision.duration"), durations);
}

#[test]
fn what_was_admitted_from_what_is_in_hand_is_counted_as_ever() {
    let told = told(async || {
        let store = LocalStore::new().leased(10);
        let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1_000), store);
        for _ in 0..10 {
            answer(&layer, get("/")).await;
        }
    });
    let decisions = pairs([("policy=default result=allowed", 10)]);
    assert_eq!(under(&told, "ratelimit.decisions"), decisions);
    // the fourth borrows four, and the eighth eight
    let durations = pairs([("store=leased", 5), ("store=local", 5)]);
    assert_eq!(under(&told, "ratelimit.decision.duration"), durations);
}

#[test]
fn near_its_limit_is_from_80_percent_unless_set() {
    let near = |percent: Option<u8>| {
        let told = told(async || {
            let layer = RateLimitLayer::new(Everyone, Quota::per_hour(10), LocalStore::new());
            let layer = percent.map_or(layer.clone(), |percent| layer.near_limit(percent));
            for _ in 0..12 {
                answer(&layer, get("/")).await;
            }
        });
        told["ratelimit.near_limit policy=default"]
    };
    assert_eq!([near(None), near(Some(50)), near(Some(0)), near(Some(100))], [3, 6, 10, 1]);
}

#[test]
fn a_layer_that_only_reports_counts_shadows() {
    let told = told(async || {
        let layer = RateLimitLayer::new(Everyone, Quota::per_hour(1), LocalStore::new());
        let mut service = tower::Layer::layer(&layer.report_only(), support::Strict::default());
        for _ in 0..3 {
            ask(&mut service, get("/")).await;
        }
    });
    let decisions =
        pairs([("policy=default result=allowed", 1), ("policy=default result=shadow_limited", 2)]);
    assert_eq!(under(&told, "ratelimit.decisions"), decisions);
}

#[test]
fn an_outage_is_told_by_what_became_of_requests_by_errors_and_by_the_circuit() {
    let told = told(async || {
        let quota = Quota::per_hour(2);
        let shaky = Shaky::new(LocalStore::new());
        shaky.is(Mood::Hanging);
        let open = RateLimitLayer::new(Everyone, quota, shaky.clone().fail_open());
        let closed = RateLimitLayer::new(Everyone, quota, shaky.clone().fail_closed());
        let here = shaky.clone().deadline(millis(100)).breaker().fallback(LocalStore::new());
        let here = RateLimitLayer::new(Everyone, quota, here);
        for _ in 0..7 {
            answer(&here, get("/")).await;
        }
        shaky.is(Mood::FailingSoon);
        answer(&open, get("/")).await;
        answer(&closed, get("/")).await;
    });
    let decisions = pairs([
        ("policy=default result=failed_closed", 1),
        ("policy=default result=failed_open", 1),
        ("policy=default result=fallback_allowed", 2),
        ("policy=default result=fallback_limited", 5),
    ]);
    assert_eq!(under(&told, "ratelimit.decisions"), decisions);
    assert_eq!(under(&told, "ratelimit.store.errors"), pairs([("kind=timeout", 5)]));
    assert_eq!(told["ratelimit.store.circuit"], 2);
    assert_eq!(told["ratelimit.decision.duration store=fallback"], 7);
}

#[test]
fn stats_set_the_gauges() {
    let told = told(async || {
        let store = Time::default().store();
        for key in 0..3_u64 {
            Limiter::new(store.clone()).take(key, &Quota::per_hour(1), 1).now();
        }
        assert_eq!(store.stats().in_debt, 3);
    });
    assert_eq!(told["ratelimit.keys"], 3);
    assert!(told["ratelimit.slots"] >= 32);
}

#[test]
fn what_finds_no_room_is_counted() {
    let mut overflowed = 0;
    let told = told(async || {
        let store = LocalStore::with_capacity(1);
        for key in 0..100_u64 {
            Limiter::new(store.clone()).take(key, &Quota::per_hour(1), 1).now();
        }
        overflowed = store.stats().overflowed;
    });
    assert_eq!((overflowed, told["ratelimit.overflows"]), (100 - 16, 100 - 16));
}

#[test]
fn blocks_that_find_no_room_are_counted() {
    let told = told(async || {
        let limiter = Limiter::new(LocalStore::with_capacity(1));
        let held = (0..100_u64).filter(|key| limiter.block(*key, millis(9)).now().is_ok());
        assert_eq!(held.count(), 16);
    });
    assert_eq!(told["ratelimit.blocks.denied"], 100 - 16);
}
