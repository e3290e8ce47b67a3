//! Quotas of calendar periods: settings, text, files, and the layer.
//!
//! The table `periods.json` has the decisions.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use jiff::{
    Timestamp, ZonedDateTime,
    tz::{Offset, TimeZone},
};
use proptest::prelude::*;
use tower_sluice::{
    Algorithm, Headers, Key, Limiter, LocalStore, Plan, Quota, RateLimitLayer, Rule, Store,
    StoreExt,
    key::{Everyone, HeaderKey},
    rule::RuleName,
    store::Charge,
    testing::FakeClock,
};

use crate::support::{
    answer, header,
    regressions::keeping,
    shaky::{Mood, Shaky},
    with,
};

/// In a constant, as any quota.
const MONTHLY: Quota = Quota::per_month(5);
const DAY: u64 = 86_400;

fn zoned(text: &str) -> ZonedDateTime {
    text.parse().expect("an anchor")
}

/// Returns a clock that shows this instant.
fn at(text: &str) -> FakeClock {
    let (clock, now) = (FakeClock::new(), text.parse::<Timestamp>().expect("an instant"));
    clock.advance(Duration::from_secs(now.as_second().unsigned_abs()));
    clock
}

#[test]
fn a_quota_has_the_period_of_any_instant() {
    let quota = MONTHLY.anchored_at(&zoned("2024-01-31T00:00[Asia/Tokyo]"));
    let of = |now: &str| {
        let period = quota.calendar_period(now.parse().expect("an instant")).expect("a period");
        [period.start, period.end].map(|edge| edge.to_string())
    };
    assert_eq!(of("2024-02-28T15:00:00Z"), ["2024-02-28T15:00:00Z", "2024-03-30T15:00:00Z"]);
    assert_eq!(of("2024-02-28T14:59:59Z"), ["2024-01-30T15:00:00Z", "2024-02-28T15:00:00Z"]);
    assert_eq!(Quota::per_minute(5).calendar_period(Timestamp::now()), None);
}

#[test]
fn text_and_files_have_the_anchor() {
    let start = zoned("2024-01-31T09:00:00+01:00[Europe/Berlin]");
    for (quota, text) in [
        (MONTHLY, "5/month"),
        (Quota::per_year(5), "5/year"),
        (MONTHLY.anchored_at(&start), "5/month from 2024-01-31T09:00:00+01:00[Europe/Berlin]"),
        (
            Quota::per_day(5).anchored_at(&start),
            "5/day from 2024-01-31T09:00:00+01:00[Europe/Berlin]",
        ),
        (
            Quota::per(5, Duration::from_secs(7 * DAY)).anchored_at(&zoned("2024-01-01[UTC]")),
            "5/week from 2024-01-01T00:00:00+00:00[UTC]",
        ),
        (
            Quota::per_year(5).anchored_at(&zoned("2024-02-29[+05:45]")),
            "5/year from 2024-02-29T00:00:00+05:45[+05:45]",
        ),
    ] {
        assert_eq!(quota.to_string(), text);
        assert_eq!(text.parse(), Ok(quota));
        let file = serde_json::to_value(quota).expect("JSON");
        assert_eq!(file, text);
        let named = quota.with_name("billing").with_soft(2);
        let file = serde_json::to_value(named).expect("JSON");
        assert_eq!(file["period"], text.strip_prefix("5/").expect("a period"));
        assert_eq!(serde_json::from_value::<Quota>(file).expect("a quota"), named);
    }
    let short: Quota = "5/month from 2024-01-31T09:00[Europe/Berlin]".parse().expect("a quota");
    assert_eq!(short, MONTHLY.anchored_at(&start));
}

#[test]
fn a_wrong_setting_is_an_error_with_the_fix() {
    let start = zoned("2024-01-31[UTC]");
    let posix = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").expect("a zone");
    let posix = start.timestamp().to_zoned_datetime(posix);
    let unknown = start.timestamp().to_zoned_datetime(TimeZone::unknown());
    let odd = TimeZone::fixed(Offset::from_seconds(3_601).expect("an offset"));
    let odd = start.timestamp().to_zoned_datetime(odd);
    let errors = [
        Quota::per_hour(5).try_anchored_at(&start),
        Quota::concurrent(5).try_anchored_at(&start),
        Quota::blocked().try_anchored_at(&start),
        MONTHLY.try_anchored_at(&posix),
        MONTHLY.try_anchored_at(&unknown),
        MONTHLY.try_anchored_at(&odd),
        Quota::per_day(5).with_burst(9).try_anchored_at(&start),
        Quota::per_day(5).with_initial(2).try_anchored_at(&start),
        Quota::per_day(5).with_algorithm(Algorithm::SlidingLog).try_anchored_at(&start),
        MONTHLY.try_with_algorithm(Algorithm::Gcra),
        MONTHLY.try_with_burst(9),
        "5/month from now".parse(),
        "5/fortnight".parse(),
    ];
    let fixes = [
        "use Quota::per_day, Quota::per_month or Quota::per_year",
        "use Quota::per_day",
        "use Quota::per_day",
        "use a zone with a name",
        "use a zone with a name",
        "use a zone with a name",
        "burst is set on a window",
        "initial is set on a window",
        "algorithm is set on calendar periods, which are fixed windows; drop it",
        "algorithm is set on calendar periods",
        "burst is set on a window",
        "write the anchor as 2024-01-31T09:00[Europe/Berlin]",
        "end it with one of",
    ];
    for (error, fix) in errors.into_iter().zip(fixes) {
        let error = error.expect_err(fix).to_string();
        assert!(error.contains(fix), "{error}");
    }
}

#[tokio::test]
async fn clients_see_the_end_of_the_period() {
    let clock = at("2024-02-28T23:00:00Z");
    let quota = MONTHLY.anchored_at(&zoned("2024-01-29[Europe/Berlin]"));
    let layer = RateLimitLayer::new(Everyone, quota, clock.store(64)).headers(Headers::RateLimit);
    for _ in 0..5 {
        assert_eq!(answer(&layer, with(&[])).await.status(), 200);
    }
    clock.advance(Duration::from_millis(500));
    let denied = answer(&layer, with(&[])).await;
    assert_eq!(denied.status(), 429);
    // The next period starts on 29 March, before the clocks go forward.
    let wait = 29 * DAY;
    assert_eq!(header(denied.headers(), "retry-after"), wait.to_string());
    assert_eq!(header(denied.headers(), "ratelimit"), format!("\"default\";r=0;t={wait}"));
    let policy = format!("\"default\";q=5;w={}", 31 * DAY);
    assert_eq!(header(denied.headers(), "ratelimit-policy"), policy);
    clock.advance(Duration::from_secs(wait));
    assert_eq!(answer(&layer, with(&[])).await.status(), 200);
}

#[tokio::test]
async fn quotas_of_one_rule_are_named_after_their_units() {
    let quotas = [Quota::per_minute(9), MONTHLY];
    let layer = RateLimitLayer::new(Everyone, quotas, LocalStore::new());
    let response = answer(&layer.headers(Headers::RateLimit), with(&[])).await;
    let policy = header(response.headers(), "ratelimit-policy");
    assert!(policy.contains("\"default-1min\";q=9;w=60"), "{policy}");
    assert!(policy.contains("\"default-month\";q=5"), "{policy}");
}

#[tokio::test]
async fn each_customer_renews_on_another_day() {
    let clock = at("2024-02-10T00:00:00Z");
    let plan = Plan::from_fn(|head, _| {
        let renews = head.headers.get("x-renews").and_then(|it| it.to_str().ok());
        let start = renews.and_then(|it| it.parse().ok()).expect("an anchor");
        MONTHLY.anchored_at(&start).into()
    });
    let rule = Rule::new("customer", HeaderKey::new("x-user"), plan);
    let layer = RateLimitLayer::rules(rule, clock.store(64));
    let ask = async |user: &str, day: u32, wanted: u16| {
        let renews = format!("2023-07-{day:02}[UTC]");
        let request = with(&[("x-user", user), ("x-renews", &renews)]);
        assert_eq!(answer(&layer, request).await.status(), wanted, "{user}");
    };
    for _ in 0..5 {
        ask("alice", 17, 200).await;
        ask("bob", 11, 200).await;
    }
    ask("alice", 17, 429).await;
    clock.advance(Duration::from_secs(DAY));
    ask("alice", 17, 429).await;
    ask("bob", 11, 200).await;
    // The plan of alice changes, but her month from the 9th contains the charges.
    ask("alice", 9, 429).await;
    // Nothing was charged since the 11th.
    ask("alice", 11, 200).await;
}

#[tokio::test]
async fn explanations_name_the_period() {
    let clock = at("2024-02-10T00:00:00Z");
    let limiter = Limiter::named("default", clock.store(64));
    let quota = MONTHLY.anchored_at(&zoned("2024-01-17[UTC]"));
    let text = limiter.explain("alice", &quota, 1).await.to_string();
    let wanted = "(5/month from 2024-01-17T00:00:00+00:00[UTC], fixed window)";
    assert!(text.contains(wanted), "{text}");
}

/// The store counts by windows of a fixed length, so it must not guess.
#[cfg(feature = "governor")]
#[tokio::test]
async fn a_store_without_a_calendar_is_an_error() {
    let limiter = governor::RateLimiter::keyed(governor::Quota::per_hour(NonZeroU32::MIN));
    let store = tower_sluice::store::GovernorStore::new(Arc::new(limiter));
    let (key, quotas) = (Key::from("a"), [MONTHLY]);
    let charge = Charge::new(RuleName::default(), &key, &quotas);
    let error = store.supports(&[charge]).expect_err("no calendar").to_string();
    assert!(error.contains("cannot count calendar periods"), "{error}");
    assert!(store.take(&[charge]).await.is_err());
}

/// A part of a quota has the same periods.
#[tokio::test]
async fn a_fallback_counts_by_the_same_periods() {
    let clock = at("2024-02-10T00:00:00Z");
    let inner = Shaky::new(clock.store(64));
    let limiter = Limiter::named("default", inner.clone().fallback(clock.store(64), 2));
    let quota = Quota::per_month(6).anchored_at(&zoned("2024-01-17[UTC]"));
    let take = async |allowed: bool| {
        let decision = limiter.take("alice", &quota, 1).await;
        assert_eq!(decision.is_allowed(), allowed);
        decision.retry_after()
    };
    for _ in 0..4 {
        take(true).await;
    }
    inner.is(Mood::Failing);
    // Two units are left, one of them for this process.
    take(true).await;
    assert_eq!(take(false).await, Some(Duration::from_secs(7 * DAY)));
    clock.advance(Duration::from_secs(7 * DAY));
    for _ in 0..3 {
        take(true).await;
    }
    take(false).await;
}

proptest! {
    #![proptest_config(keeping(file!()))]

    #[test]
    fn every_anchor_reads_back(
        nanosecond in -3_000_000_000_000_000_000_i128..20_000_000_000_000_000_000,
        zone in prop::sample::select(&["UTC", "Etc/GMT+5", "Europe/Amsterdam", "Africa/Monrovia"]),
        offset in prop::option::of(-1_559_i32..1_560),
        unit in prop::sample::select(vec![Quota::per_day(5), MONTHLY, Quota::per_year(5)]),
    ) {
        let zone = match offset {
            Some(minutes) => TimeZone::fixed(Offset::from_seconds(60 * minutes).expect("an offset")),
            None => TimeZone::get(zone).expect("a zone"),
        };
        let start = Timestamp::from_nanosecond(nanosecond).expect("an instant");
        let quota = unit.anchored_at(&start.to_zoned_datetime(zone));
        prop_assert_eq!(quota.to_string().parse(), Ok(quota), "{}", quota);
    }
}
