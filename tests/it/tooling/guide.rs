//! The figures and statements of the guide.

use std::{convert::Infallible, sync::Arc, time::Duration};

use tower_sluice::{
    Algorithm, Cost, Decision, Key, Limiter, LocalStore, PeerIp, Quota, RateLimitLayer, RedisStore,
    Rule, StoreExt,
    key::{Everyone, HeaderKey},
    rule::RuleName,
    store::{Charge, DynStore, Timeout},
    testing::FakeClock,
};

use crate::support::{answer, get, header, quota, with};

/// Returns the units that one key gets in each of these seconds and before, with attempts in each
/// second.
fn most<const N: usize>(quotas: &[Quota], seconds: [u64; N]) -> [u32; N] {
    let clock = FakeClock::new();
    let limiter = Limiter::named("default", clock.store(16));
    let (mut all, mut now) = (0, 0);
    seconds.map(|second| {
        loop {
            let left = limiter.peek("mallory", quotas).now().remaining().unwrap_or(0);
            drop(limiter.take("mallory", quotas, left).now());
            all += left;
            if now == second {
                return all;
            }
            clock.advance(Duration::from_secs(1));
            now += 1;
        }
    })
}

/// `choosing`, *Which algorithm?*
#[test]
fn a_hundred_per_minute_is_nearly_200_in_the_first_minute_unless_chosen_otherwise() {
    let hundred = Quota::per_minute(100);
    assert_eq!(most(&[hundred], [0, 59, 60]), [100, 198, 200]);
    assert_eq!(most(&[Quota::per_minute(90).with_burst(10)], [0, 59, 60]), [10, 98, 99]);
    assert_eq!(most(&[hundred.with_burst(1)], [0])[0], 1);
    for algorithm in [Algorithm::SlidingLog, Algorithm::fixed_window()] {
        assert_eq!(most(&[hundred.with_algorithm(algorithm)], [0, 59, 60]), [100, 100, 200]);
    }
}

/// `login`, *The limits*.
#[test]
fn five_in_fifteen_minutes_are_nine_in_the_first_unless_a_log_counts() {
    let rate = quota("5/15min");
    for rate in [rate, Quota::per_hour(20).with_burst(5)] {
        assert_eq!(most(&[rate], [0, 899, 900]), [5, 9, 10]);
    }
    assert_eq!(most(&[rate.with_algorithm(Algorithm::SlidingLog)], [0, 899, 900]), [5, 5, 10]);
}

/// `choosing`, *Which algorithm?*: a request, and then many 59 seconds later, around the edge.
#[test]
fn only_sliding_algorithms_keep_a_period_that_begins_anywhere() {
    let in_61_seconds = |algorithm| {
        let quota = Quota::per_minute(10).with_algorithm(algorithm);
        let clock = FakeClock::new();
        let limiter = Limiter::named("default", clock.store(16));
        let take = |most: usize| {
            (0..most).filter(|_| limiter.take("alice", &quota, 1).now().is_allowed()).count()
        };
        let first = take(1);
        clock.advance(Duration::from_secs(59));
        let before = take(100);
        clock.advance(Duration::from_secs(1));
        first + before + take(100)
    };
    assert_eq!(in_61_seconds(Algorithm::Gcra), 11);
    assert_eq!(in_61_seconds(Algorithm::SlidingWindow { buckets: 6 }), 10);
    assert_eq!(in_61_seconds(Algorithm::SlidingLog), 11, "the first is a minute old by then");
    assert_eq!(in_61_seconds(Algorithm::TokenBucket), 20);
    assert_eq!(in_61_seconds(Algorithm::fixed_window()), 20);
    assert_eq!(in_61_seconds(Algorithm::AnchoredWindow), 20);
}

/// `numbers`, *Numbers to start with*.
#[test]
fn the_numbers_to_start_with_allow_what_the_table_says() {
    for (quotas, expected) in [
        (&["5/min", "50/day"][..], [5, 10, 52]),
        (&["10/s burst 50", "100000/day"], [50, 650, 36_050]),
        (&["40000/min", "1000000/day"], [40_000, 80_000, 1_041_666]),
        (&["20/s burst 200"], [200, 1_400, 72_200]),
        (&["2/s burst 5"], [5, 125, 7_205]),
        (&["10/min burst 3", "200/day"], [3, 13, 208]),
    ] {
        let all: Vec<_> = quotas.iter().map(|text| quota(text)).collect();
        assert_eq!(most(&all, [0, 60, 3_600]), expected, "{quotas:?}");
    }
}

/// `numbers`, *Uploads*.
#[tokio::test]
async fn an_upload_without_a_length_pays_for_the_largest_body() {
    const LARGEST: u64 = 100 << 20;
    let mebibytes = Cost::from_fn(|head| {
        let length = head.headers.get("content-length").and_then(|length| length.to_str().ok());
        let bytes: u64 = length.and_then(|length| length.parse().ok()).unwrap_or(LARGEST);
        u32::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u32::MAX).max(1)
    });
    let rule = Rule::new("mebibytes", HeaderKey::new("x-user"), Quota::per_day(2_048));
    let layer = RateLimitLayer::rules(rule.cost(mebibytes), FakeClock::new().store(100));
    let forty = (40_u64 << 20).to_string();
    for (headers, left) in [
        (&[("x-user", "alice"), ("content-length", &*forty)][..], "r=2008;"),
        (&[("x-user", "alice")], "r=1908;"),
    ] {
        let response = answer(&layer, with(headers)).await;
        let shown = header(response.headers(), "ratelimit");
        assert!(shown.contains(left), "{shown}");
    }
}

/// `numbers`, *From traffic*: a page of 25 requests within a second, every twenty seconds.
#[test]
fn a_low_rate_with_a_large_burst_serves_a_browser() {
    let allowed = |quota: Quota| {
        let clock = FakeClock::new();
        let limiter = Limiter::named("page", clock.store(16));
        let mut allowed = 0;
        for request in 0..30 * 25 {
            let at = Duration::from_millis(request / 25 * 20_000 + request % 25 * 40);
            clock.advance(at - clock.now());
            allowed += u32::from(limiter.take("browser", &quota, 1).now().is_allowed());
        }
        allowed
    };
    for (rate, burst) in [(2, 24), (5, 21), (10, 16)] {
        let quota = Quota::per_second(rate);
        assert_eq!(allowed(quota.with_burst(burst)), 750);
        assert!(allowed(quota.with_burst(burst - 1)) < 750);
        assert_eq!(most(&[quota.with_burst(burst)], [3_600]), [burst + 3_600 * rate]);
    }
}

/// `numbers`, *From capacity*.
#[test]
fn the_rules_from_capacity_can_be_built() {
    let rules = (
        Rule::new("client", PeerIp::new(), Quota::per_second(15)),
        Rule::new("site", Everyone, Quota::per_second(300).with_burst(150)),
    );
    assert!(RateLimitLayer::try_rules(rules, LocalStore::new()).is_ok());
}

/// `migrating`, *From nginx*: of 40 requests at one instant, those that run at once, that wait, and
/// that are denied.
#[test]
fn the_bursts_of_nginx_have_equal_numbers_here() {
    let of_forty = |burst, wait| {
        let (store, key) = (FakeClock::new().store(100), Key::from("client"));
        let quotas = [Quota::per_second(10).with_burst(burst)];
        let charge = Charge::new(RuleName::default(), &key, &quotas).with_max_wait(wait);
        let decisions: Vec<_> = (0..40).map(|_| store.take(&[charge]).now()).collect();
        let count = |wanted: fn(&Decision) -> bool| {
            decisions.iter().filter(|decision| wanted(decision)).count()
        };
        [
            count(|one| one.is_allowed() && one.wait().is_zero()),
            count(|one| one.is_allowed() && !one.wait().is_zero()),
            count(|one| !one.is_allowed()),
        ]
    };
    assert_eq!(of_forty(1, Duration::from_secs(2)), [1, 20, 19], "burst=20");
    assert_eq!(of_forty(21, Duration::ZERO), [21, 0, 19], "burst=20 nodelay");
    assert_eq!(of_forty(9, Duration::from_millis(1_200)), [9, 12, 19], "burst=20 delay=8");
}

/// `outages`, *What are my choices?*: a Redis server that does not exist.
#[tokio::test]
async fn each_policy_has_its_own_statuses_in_an_outage() {
    let redis = || {
        let store = RedisStore::connect("redis://127.0.0.1:1").lazy().expect("a URL");
        store.timeout(Timeout::DEFAULT).breaker()
    };
    // One of two processes has half of the quota.
    let local = redis().fallback(FakeClock::new().store(100), 2);
    let cases: [(Arc<DynStore<Infallible>>, [u16; 3]); 3] = [
        (redis().fail_open().boxed(), [200, 200, 200]),
        (redis().fail_closed().boxed(), [503, 503, 503]),
        (local.boxed(), [200, 200, 429]),
    ];
    for (store, expected) in cases {
        let layer = RateLimitLayer::new(Everyone, Quota::per_minute(4), store);
        for status in expected {
            assert_eq!(answer(&layer, get("/")).await.status(), status);
        }
    }
}
