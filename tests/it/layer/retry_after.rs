//! `Retry-After`: a client that waits for this time is allowed, and not a second too late.

use std::time::Duration;

use http::{StatusCode, header::RETRY_AFTER};
use proptest::prelude::*;
use tower::Layer;
use tower_sluice::{Key, Limiter, Quota, RateLimitLayer, key::Everyone, testing::FakeClock};

use crate::support::{Strict, answer, ask, get, header, owing, periods, quota};

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
        let layer = owing(&[quota("1/1000s")], 1).retry_jitter(percent);
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
    let _ = owing(&[quota("10/s")], 0).retry_jitter(11);
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn retry_after_is_less_than_a_second_too_long_and_a_retry_passes(period in periods()) {
        let quota = Quota::new(1, Duration::from_nanos(period)).expect("a quota");
        let (clock, key) = (FakeClock::new(), Key::everyone());
        let store = clock.store(64);
        let limiter = Limiter::new(store.clone());
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
