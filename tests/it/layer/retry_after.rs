//! `Retry-After`: a client that waits for this time is allowed, and not a second too late.

use std::{collections::BTreeSet, task::Poll, time::Duration};

use http::{Request, StatusCode, Version, header::RETRY_AFTER};
use proptest::prelude::*;
use tower::Layer;
use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
    middleware::{HoldUntil, RetryAfter},
    testing::FakeClock,
};

use crate::support::{
    ALGORITHMS, Strict, answer, ask,
    driven::{Time, begin, secs},
    get, header, owing, periods, quota, with,
};

#[tokio::test]
async fn jitter_of_a_short_wait_is_up_to_a_second() {
    for (text, earliest) in [("1/300ms", 1), ("1/1s", 1), ("1/2100ms", 3), ("1/9s", 9)] {
        let layer = owing(&[quota(text)], 1).retry_after(RetryAfter::Jitter(10));
        let mut waits = BTreeSet::new();
        for _ in 0..100 {
            let response = answer(&layer, get("/")).await;
            waits
                .insert(header(response.headers(), "retry-after").parse::<u64>().expect("seconds"));
        }
        assert_eq!(Vec::from_iter(waits), [earliest, earliest + 1], "{text}");
    }
    let layer = owing(&[quota("1/300ms")], 1).retry_after(RetryAfter::Jitter(1)).retry_after_ms();
    for _ in 0..100 {
        let response = answer(&layer, get("/")).await;
        let millis = header(response.headers(), "retry-after-ms").parse::<u64>().expect("a wait");
        assert!((300..=1_300).contains(&millis), "{millis} ms");
    }
}

/// A call over HTTP/1.1 that looks like gRPC-Web gets a plain denial.
#[tokio::test]
async fn times_are_exact_for_clients_that_read_exact_times() {
    let call = |version| {
        let request = Request::post("/").version(version).header("te", "trailers");
        request.header("content-type", "application/grpc").body(()).expect("a request")
    };
    let layer = owing(&[quota("1/300ms")], 1).retry_after(RetryAfter::Queue);
    let mut times = Vec::new();
    for version in [Version::HTTP_11, Version::HTTP_11, Version::HTTP_2] {
        let denied = answer(&layer, call(version)).await;
        let field = |name| header(denied.headers(), name).to_owned();
        times.push([field("retry-after"), field("grpc-retry-pushback-ms")]);
    }
    assert_eq!(times, [["1", ""], ["2", ""], ["3", "2300"]]);
}

/// Ten requests wait, and then no place in the queue is free. As many later ones may wait each second.
#[tokio::test(start_paused = true)]
async fn clients_without_a_place_in_the_queue_return_at_the_rate_of_the_quota() {
    let time = Time::default();
    let ip = Rule::new("ip", HeaderKey::new("ip"), quota("10/s burst 1")).max_wait(secs(1));
    let jobs = |slots| Rule::new("jobs", Everyone, Quota::concurrent(90)).cost(slots);
    let layer = |slots| {
        let layer = RateLimitLayer::rules((ip.clone(), jobs(slots)), time.store());
        layer.retry_after(RetryAfter::Queue).hold_until(HoldUntil::Head)
    };
    let closed = layer(1);
    closed.queue_handle().close();
    for (name, layer, queues) in
        [("full", layer(1), true), ("closed", closed, false), ("several slots", layer(2), false)]
    {
        let mut service = layer.layer(Strict::default());
        let (mut waiting, mut times) = (Vec::new(), Vec::new());
        for _ in 0..31 {
            let mut asking = begin(&mut service, with(&[("ip", "192.0.2.1")])).await;
            match asking.poll() {
                Poll::Pending => waiting.push(asking),
                Poll::Ready(answer) => {
                    let answer = answer.expect("infallible");
                    times.push(header(answer.headers(), "retry-after").to_owned());
                }
            }
        }
        let second = |at: u64| if queues { 1 + at / 10 } else { 1 + at };
        let expected: Vec<_> =
            (0..times.len() as u64 - 1).map(|at| second(at).to_string()).collect();
        assert_eq!((times[0].as_str(), &times[1..]), ("", &*expected), "{name}");
        assert_eq!(waiting.len(), if queues { 10 } else { 0 }, "{name}");
    }
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

    use axum::{Router, body::Body, routing};
    use http::HeaderMap;
    use hyper_util::{client::legacy::Client, rt::TokioExecutor};
    use tokio::{net::TcpListener, task::JoinSet};

    use super::*;

    /// The field that clients obey.
    #[derive(Clone, Copy, Debug)]
    enum Obeyed {
        Seconds,
        Millis,
    }

    impl Obeyed {
        fn wait(self, headers: &HeaderMap) -> Duration {
            let number = |name| header(headers, name).parse().expect("a number");
            match self {
                Self::Seconds => Duration::from_secs(number("retry-after")),
                Self::Millis => Duration::from_millis(number("retry-after-ms")),
            }
        }
    }

    /// The requests and the time of all clients until each was allowed once.
    #[derive(Debug, PartialEq, Eq)]
    struct Drained {
        requests: usize,
        time: Duration,
    }

    fn drained(requests: usize, seconds: u64) -> Drained {
        Drained { requests, time: Duration::from_secs(seconds) }
    }

    /// Lets clients retry until each was allowed once. Only the clock of the store advances.
    async fn drain(clients: usize, quota: Quota, retry_after: RetryAfter) -> Drained {
        let clock = FakeClock::new();
        let layer = RateLimitLayer::new(Everyone, quota, clock.store(64)).retry_after(retry_after);
        drain_layer(clients, &layer, &clock, Obeyed::Seconds).await
    }

    async fn drain_layer(
        clients: usize,
        layer: &RateLimitLayer<Rule<Everyone>, LocalStore>,
        clock: &FakeClock,
        obeyed: Obeyed,
    ) -> Drained {
        let mut service = layer.layer(Strict::default());
        let mut waiting: BinaryHeap<_> =
            (0..clients).map(|client| Reverse((Duration::ZERO, client))).collect();
        let mut drained = drained(0, 0);
        while let Some(Reverse((at, client))) = waiting.pop() {
            clock.advance(at - drained.time);
            drained.time = at;
            drained.requests += 1;
            let response = ask(&mut service, get("/")).await;
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                waiting.push(Reverse((at + obeyed.wait(response.headers()), client)));
            }
        }
        drained
    }

    /// Over real connections, and without a fake clock. A client that a busy machine delays takes the turn of
    /// a later one, which then asks again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn twenty_clients_are_served_within_three_requests_each() {
        let quota = quota("10/s burst 1");
        let queueing = Rule::new("default", Everyone, quota).max_wait(Duration::from_secs(1));
        let queueing = RateLimitLayer::rules(queueing, LocalStore::new());
        let exact = RateLimitLayer::new(Everyone, quota, LocalStore::new()).retry_after_ms();
        for (layer, obeyed) in [(queueing, Obeyed::Seconds), (exact, Obeyed::Millis)] {
            let requests = drain_server(layer, obeyed).await;
            assert!(requests <= 60, "{requests} {obeyed:?}");
        }
    }

    async fn drain_server(
        layer: RateLimitLayer<Rule<Everyone>, LocalStore>,
        obeyed: Obeyed,
    ) -> usize {
        let layer = layer.retry_after(RetryAfter::Queue);
        let app = Router::new().route("/", routing::get(async || "hello")).layer(layer);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let server = tokio::spawn(axum::serve(listener, app).into_future());
        let clients: JoinSet<usize> = (0..20).map(|_| visit(url.clone(), obeyed)).collect();
        let requests = clients.join_all().await.into_iter().sum();
        server.abort();
        requests
    }

    /// Asks with a client of its own until it is allowed. Returns the number of requests.
    async fn visit(url: String, obeyed: Obeyed) -> usize {
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let mut requests = 0;
        loop {
            requests += 1;
            let request = Request::get(&url).body(Body::empty()).expect("a request");
            let response = client.request(request).await.expect("a response");
            if response.status() == StatusCode::OK {
                return requests;
            }
            tokio::time::sleep(obeyed.wait(response.headers())).await;
        }
    }

    const TEN: Quota = Quota::per_second(10);

    #[tokio::test]
    async fn a_queue_drains_with_few_requests() {
        let found = drain(1_000, TEN, RetryAfter::Earliest).await;
        assert_eq!(found, drained(50_500, 99));
        let found = drain(1_000, TEN, RetryAfter::Jitter(10)).await;
        assert!(found.requests < 40_000 && found.time <= Duration::from_secs(102), "{found:?}");
        assert_eq!(drain(1_000, TEN, RetryAfter::Queue).await, drained(2_370, 99));
    }

    #[tokio::test]
    async fn a_queue_drains_with_few_requests_by_every_algorithm() {
        for algorithm in ALGORITHMS {
            let quota = TEN.with_algorithm(algorithm);
            let herd = drain(300, quota, RetryAfter::Earliest).await;
            let queue = drain(300, quota, RetryAfter::Queue).await;
            let is_fast = queue.time <= herd.time + Duration::from_secs(1);
            assert!(queue.requests <= herd.requests / 4 && is_fast, "{algorithm:?}: {queue:?}");
        }
    }

    #[tokio::test]
    async fn each_denial_of_a_key_gets_a_time_of_its_own_and_never_an_earlier_one() {
        let (clock, quota) = (FakeClock::new(), quota("1/10s"));
        let store = clock.store(64);
        drop(Limiter::named("api", store.clone()).charge(Key::everyone(), &quota, 1).now());
        let rule = Rule::new("api", Everyone, quota);
        let layer = RateLimitLayer::rules(rule, store).retry_after(RetryAfter::Queue);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let response = answer(&layer, get("/")).await;
            assert_eq!(header(response.headers(), "ratelimit"), r#""api";r=0;t=10"#);
            waits.push(header(response.headers(), "retry-after").to_owned());
        }
        // At most a minute later than the earliest time.
        assert_eq!(waits, ["10", "20", "30", "40", "50", "60", "70", "70", "70"]);
        clock.advance(Duration::from_secs(300));
        drop(answer(&layer, get("/")).await);
        let later = answer(&layer, get("/")).await;
        assert_eq!(header(later.headers(), "retry-after"), "10", "the queue ends by itself");
    }

    #[tokio::test]
    async fn denials_of_a_client_do_not_lengthen_the_waits_of_others_at_a_fair_limit() {
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
