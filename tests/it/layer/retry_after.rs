//! `Retry-After`: a client that waits for this time is allowed, and not a second too late.

use std::time::Duration;

use http::{StatusCode, header::RETRY_AFTER};
use proptest::prelude::*;
use tower::Layer;
use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, key::Everyone, middleware::RetryAfter,
    testing::FakeClock,
};

use crate::support::{ALGORITHMS, Strict, answer, ask, get, header, owing, periods, quota};

#[tokio::test]
async fn retry_after_is_rounded_up_and_never_0() {
    let table = [
        ("1ns", "1"),
        ("300ms", "1"),
        ("1000000001ns", "2"),
        ("2s", "2"),
        ("3650day", "315360000"),
    ];
    for (period, seconds) in table {
        let response = answer(&owing(&[quota(&format!("1/{period}"))], 1), get("/")).await;
        assert_eq!(header(response.headers(), "retry-after"), seconds, "{period}");
    }
}

#[tokio::test]
async fn jitter_lengthens_the_wait_by_at_most_its_share() {
    let waits = async |percent| {
        let layer = owing(&[quota("1/1000s")], 1).retry_after(RetryAfter::Jitter(percent));
        let mut waits = Vec::new();
        for _ in 0..300 {
            let response = answer(&layer, get("/")).await;
            assert_eq!(header(response.headers(), "ratelimit"), r#""api";r=0;t=1000"#);
            waits.push(header(response.headers(), "retry-after").parse::<u64>().expect("seconds"));
        }
        (*waits.iter().min().expect("some"), *waits.iter().max().expect("some"))
    };
    assert_eq!(waits(0).await, (1_000, 1_000));
    let (least, most) = waits(10).await;
    assert!(1_000 <= least && least < most && most <= 1_100, "{least} {most}");
}

#[test]
#[should_panic(expected = "11 percent")]
fn jitter_above_ten_percent_panics() {
    let _ = owing(&[quota("10/s")], 0).retry_after(RetryAfter::Jitter(11));
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn retry_after_is_less_than_a_second_too_long_and_a_retry_passes(period in periods()) {
        let quota = Quota::new(1, Duration::from_nanos(period)).expect("a quota");
        let (clock, key) = (FakeClock::new(), Key::everyone());
        let store = clock.store(64);
        let limiter = Limiter::named("default", store.clone());
        let response = |store| {
            let mut service = RateLimitLayer::new(Everyone, quota, store).layer(Strict::default());
            futures::executor::block_on(ask(&mut service, get("/")))
        };
        prop_assert!(limiter.take(key, &quota, 1).now().is_allowed());
        let denied = response(store.clone());
        let reported = denied.headers()[RETRY_AFTER].to_str().expect("text").parse().expect("seconds");
        let (reported, wait) = (Duration::from_secs(reported), Duration::from_nanos(period));
        prop_assert!(reported >= Duration::from_secs(1) && reported >= wait);
        prop_assert!(reported < wait + Duration::from_secs(1));
        clock.advance(reported);
        prop_assert_eq!(response(store).status(), StatusCode::OK);
    }
}

/// Clients that are all denied at once, and obey `Retry-After`.
mod herd {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use tower_sluice::rule::{Rule, RuleName};

    use super::*;

    /// Lets clients retry until each was allowed once. Returns the number of requests and the
    /// seconds until the last one was allowed.
    async fn drain(clients: usize, quota: Quota, retry_after: RetryAfter) -> (usize, u64) {
        let clock = FakeClock::new();
        let layer = RateLimitLayer::new(Everyone, quota, clock.store(64)).retry_after(retry_after);
        let mut service = layer.layer(Strict::default());
        let mut waiting: BinaryHeap<_> = (0..clients).map(|client| Reverse((0, client))).collect();
        let (mut now, mut requests) = (0, 0);
        while let Some(Reverse((second, client))) = waiting.pop() {
            let time = Duration::from_secs(second - now);
            clock.advance(time);
            tokio::time::advance(time).await;
            (now, requests) = (second, requests + 1);
            let response = ask(&mut service, get("/")).await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                let wait: u64 = header(response.headers(), "retry-after").parse().expect("seconds");
                waiting.push(Reverse((now + wait, client)));
            }
        }
        (requests, now)
    }

    /// Lets clients that read `retry-after-ms` retry until each was allowed once. Returns the number of
    /// requests and the time until the last one was allowed.
    async fn drain_by_millis(clients: u32, quota: Quota) -> (u32, Duration) {
        let clock = FakeClock::new();
        let layer = RateLimitLayer::new(Everyone, quota, clock.store(64));
        let layer = layer.retry_after(RetryAfter::Queue).retry_after_ms();
        let mut service = layer.layer(Strict::default());
        let mut waiting: BinaryHeap<_> = (0..clients).map(|client| Reverse((0, client))).collect();
        let (mut now, mut requests) = (0, 0);
        while let Some(Reverse((at, client))) = waiting.pop() {
            let time = Duration::from_millis(at - now);
            clock.advance(time);
            tokio::time::advance(time).await;
            (now, requests) = (at, requests + 1);
            let response = ask(&mut service, get("/")).await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                let wait: u64 =
                    header(response.headers(), "retry-after-ms").parse().expect("a wait");
                waiting.push(Reverse((now + wait, client)));
            }
        }
        (requests, Duration::from_millis(now))
    }

    /// Whole seconds would take 197 s at 10 per second with a burst of 1.
    #[tokio::test(start_paused = true)]
    async fn clients_that_read_milliseconds_need_little_more_than_the_ideal_time() {
        for text in ["10/s", "10/s burst 3", "10/s burst 1", "100/s burst 1", "30/min burst 1"] {
            let quota = quota(text);
            let ideal = quota.interval() * (200 - quota.limit());
            let (requests, time) = drain_by_millis(200, quota).await;
            assert!(time <= ideal.mul_f64(1.05) + Duration::from_millis(10), "{text}: {time:?}");
            assert!(requests <= 1_000, "{text}: {requests} requests");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_rejections_with_a_wait_have_milliseconds_and_only_if_asked_for() {
        let fields = async |layer: RateLimitLayer<Rule<Everyone>, LocalStore>, requests: usize| {
            let mut field = None;
            for _ in 0..requests {
                let response = answer(&layer, get("/")).await;
                field = response.headers().get("retry-after-ms").cloned();
            }
            field.map(|it| it.to_str().expect("text").to_owned())
        };
        let layer = || RateLimitLayer::new(Everyone, quota("1/1500ms"), FakeClock::new().store(64));
        assert_eq!(fields(layer(), 2).await, None);
        assert_eq!(fields(layer().retry_after_ms(), 1).await, None, "allowed");
        assert_eq!(fields(layer().retry_after_ms(), 2).await.as_deref(), Some("1500"));
        let blocked = RateLimitLayer::new(Everyone, Quota::blocked(), FakeClock::new().store(64));
        assert_eq!(fields(blocked.retry_after_ms(), 1).await, None, "waiting does not help");
    }

    const TEN: Quota = Quota::per_second(10);

    #[tokio::test(start_paused = true)]
    async fn a_queue_drains_with_few_requests() {
        for retry_after in [RetryAfter::Earliest, RetryAfter::Jitter(10)] {
            let (requests, seconds) = drain(1_000, TEN, retry_after).await;
            assert_eq!((requests, seconds), (50_500, 99), "{retry_after:?}");
        }
        let (requests, seconds) = drain(1_000, TEN, RetryAfter::Queue).await;
        assert_eq!((requests, seconds), (2_370, 99));
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_drains_with_few_requests_by_every_algorithm() {
        for algorithm in ALGORITHMS {
            let quota = TEN.with_algorithm(algorithm);
            let (herd, shortest) = drain(300, quota, RetryAfter::Earliest).await;
            let (requests, seconds) = drain(300, quota, RetryAfter::Queue).await;
            assert!(requests <= herd / 4 && seconds <= shortest + 1, "{algorithm:?}: {requests}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_denial_of_a_key_gets_a_time_of_its_own_and_never_an_earlier_one() {
        let layer = owing(&[quota("1/10s")], 1).retry_after(RetryAfter::Queue);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let response = answer(&layer, get("/")).await;
            assert_eq!(header(response.headers(), "ratelimit"), r#""api";r=0;t=10"#);
            waits.push(header(response.headers(), "retry-after").to_owned());
        }
        // At most a minute later than the earliest time.
        assert_eq!(waits, ["10", "20", "30", "40", "50", "60", "70", "70", "70"]);
        tokio::time::advance(Duration::from_secs(300)).await;
        let later = answer(&layer, get("/")).await;
        assert_eq!(header(later.headers(), "retry-after"), "10", "the queue ends by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn keys_and_costs_have_places_of_their_own() {
        use tower_sluice::{Cost, key::HeaderKey};

        let clock = FakeClock::new();
        let store = clock.store(64);
        let (name, minute) = (RuleName::new("api").expect("a name"), quota("6/min"));
        let limiter = Limiter::named(name.as_str(), store.clone());
        for key in ["a", "b"] {
            drop(limiter.adjust(key, &minute, 6).now());
        }
        let rule = Rule::new(name.as_str(), HeaderKey::new("key"), minute)
            .cost(Cost::from_fn(|head| if head.path() == "/big" { 3 } else { 1 }));
        let layer = RateLimitLayer::rules(rule, store).retry_after(RetryAfter::Queue);
        let mut waits = Vec::new();
        for (key, path) in [("a", "/"), ("a", "/"), ("b", "/"), ("a", "/big"), ("a", "/")] {
            let request = http::Request::get(path).header("key", key).body(()).expect("a request");
            let response = answer(&layer, request).await;
            waits.push(header(response.headers(), "retry-after").to_owned());
        }
        // `/big` waits for three units, until 30 s, and takes the next 30 s.
        assert_eq!(waits, ["10", "20", "10", "30", "60"]);
    }

    #[tokio::test(start_paused = true)]
    async fn denials_of_a_client_do_not_lengthen_the_waits_of_others_at_a_fair_limit() {
        use tower_sluice::key::HeaderKey;

        let clock = FakeClock::new();
        let site = Rule::new("site", Everyone, quota("6/min"));
        let rule = clock.fair(site.fair_by(HeaderKey::new("key")));
        let layer = RateLimitLayer::rules(rule, clock.store(64)).retry_after(RetryAfter::Queue);
        let wait = async |key| {
            let request = http::Request::get("/").header("key", key).body(()).expect("a request");
            let response = answer(&layer, request).await;
            response.headers().get(RETRY_AFTER).map(|it| it.to_str().expect("text").to_owned())
        };
        for key in ["mallory", "mallory", "mallory", "mallory", "mallory", "alice"] {
            assert_eq!(wait(key).await, None, "{key}");
        }
        // The share of one of two clients is a unit per 20 s.
        for (key, seconds) in [
            ("mallory", "10"),
            ("mallory", "30"),
            ("mallory", "50"),
            ("alice", "20"),
            ("alice", "40"),
            ("mallory", "70"),
            ("bob", "10"),
        ] {
            assert_eq!(wait(key).await.as_deref(), Some(seconds), "{key}");
        }
    }
}
