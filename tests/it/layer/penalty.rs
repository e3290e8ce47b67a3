//! Blocks of keys with too many strikes.

use std::{convert::Infallible, panic::catch_unwind, time::Duration};

use http::StatusCode;
use tower::{Layer, Service, service_fn};
use tower_sluice::{
    Decision, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, key::HeaderKey, middleware::Penalty,
    testing::FakeClock,
};

use crate::support::{answer, ask, driven::handler, with};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
/// One request per hour: all others are denials.
const ONE: Quota = Quota::per_hour(1);

/// A penalty after three denials per minute.
fn penalty() -> Penalty {
    Penalty::after(Quota::per_minute(3)).block([MINUTE, 10 * MINUTE, HOUR]).forgive(DAY)
}

/// Moves the clock of the store and that of the penalty.
async fn pass(clock: &FakeClock, time: Duration) {
    clock.advance(time);
    tokio::time::advance(time).await;
}

type Limited = RateLimitLayer<Rule<HeaderKey>, LocalStore>;

fn layer(store: LocalStore, penalty: Penalty) -> Limited {
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), ONE);
    RateLimitLayer::rules(rule, store).expose_decision().penalty("api", penalty)
}

/// Sends a request of a client. Returns the time for which its key is blocked, if it is.
async fn send(layer: &Limited, client: &'static str) -> Option<Duration> {
    let response = answer(layer, with(&[("x-api-key", client)])).await;
    let decision = response.extensions().get::<Decision>().expect("exposed");
    decision.is_blocked().then(|| decision.retry_after().expect("it ends"))
}

/// Sends requests until the key is blocked. Returns their number and the time of the block.
async fn until_blocked(layer: &Limited, client: &'static str) -> (u32, Duration) {
    for requests in 0..20 {
        if let Some(time) = send(layer, client).await {
            return (requests, time);
        }
    }
    panic!("the key is not blocked");
}

#[tokio::test(start_paused = true)]
async fn each_block_of_a_key_is_longer_until_one_is_forgiven() {
    let clock = FakeClock::new();
    let layer = layer(clock.store(64), penalty());
    // One request is admitted, and the fourth denial is one too many.
    let mut requests = 5;
    for expected in [MINUTE, 10 * MINUTE, HOUR, HOUR] {
        let (sent, time) = until_blocked(&layer, "mallory").await;
        assert_eq!(sent, requests, "{expected:?}");
        assert!((expected..=expected + expected / 10).contains(&time), "{expected:?}: {time:?}");
        // Requests of a blocked key are no strikes.
        for _ in 0..10 {
            assert!(send(&layer, "mallory").await.is_some());
        }
        assert_eq!(send(&layer, "bob").await, None);
        pass(&clock, time).await;
        requests = if time >= HOUR { 5 } else { 4 };
    }
    // A block is forgiven each day.
    pass(&clock, DAY).await;
    let (_, time) = until_blocked(&layer, "mallory").await;
    assert!((HOUR..2 * HOUR).contains(&time), "{time:?}");
    pass(&clock, 2 * DAY).await;
    let (_, time) = until_blocked(&layer, "mallory").await;
    assert!((10 * MINUTE..11 * MINUTE + MINUTE).contains(&time), "{time:?}");
    pass(&clock, 3 * DAY).await;
    let (_, time) = until_blocked(&layer, "mallory").await;
    assert!((MINUTE..2 * MINUTE).contains(&time), "{time:?}");
}

/// A block is shorter than the time in which strikes are forgotten.
#[tokio::test(start_paused = true)]
async fn a_block_of_a_second_clears_the_strikes() {
    let clock = FakeClock::new();
    let layer = layer(clock.store(64), penalty().block([Duration::from_secs(1)]));
    for expected in [5, 4, 4] {
        let (sent, time) = until_blocked(&layer, "mallory").await;
        assert_eq!(sent, expected);
        pass(&clock, time).await;
    }
}

fn is_blocked<B>(response: &http::Response<B>) -> bool {
    response.extensions().get::<Decision>().expect("exposed").is_blocked()
}

/// Others could otherwise have a client blocked, who fill the queue or the store.
#[tokio::test(start_paused = true)]
async fn a_full_queue_and_a_full_store_are_no_strikes() {
    let clock = FakeClock::new();
    let second = Quota::per_second(1);
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), second).max_wait(HOUR);
    let layer = RateLimitLayer::rules(rule, clock.store(64)).max_waiters(2).expose_decision();
    let layer = layer.penalty("api", penalty());
    let mut service = layer.layer(handler(|_| 200));
    // A key has half of the places.
    let keys = ["mallory", "mallory", "mallet", "mallet"];
    let waiting: Vec<_> = keys.map(|key| service.call(with(&[("x-api-key", key)]))).into();
    let mut waiting: Vec<_> = waiting.into_iter().map(tokio_test::task::spawn).collect();
    let ready = waiting.iter_mut().filter_map(|it| it.poll().is_ready().then_some(())).count();
    assert_eq!(ready, 2, "two wait");
    for sent in 0..20 {
        let response = answer(&layer, with(&[("x-api-key", "alice")])).await;
        assert_eq!((response.status().is_success(), is_blocked(&response)), (sent == 0, false));
    }

    let store = clock.store(8);
    let full = self::layer(store.clone(), penalty());
    for n in 0..200 {
        let request = http::Request::get("/").header("x-api-key", format!("invented {n}")).body(());
        answer(&full, request.expect("a request")).await;
    }
    assert!(store.stats().overflowed > 0);
    for _ in 0..20 {
        assert_eq!(send(&full, "alice").await, None);
    }
}

/// A client could otherwise keep as many requests waiting as it may, and have any number denied.
#[tokio::test(start_paused = true)]
async fn waiting_requests_of_a_client_do_not_keep_its_denials_from_being_strikes() {
    let second = Quota::per_second(1);
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), second).max_wait(HOUR);
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(64)).expose_decision();
    let layer = layer.max_waiters_per_key(1).penalty("api", penalty());
    let mut service = layer.layer(handler(|_| 200));
    let mut both =
        [(); 2].map(|()| tokio_test::task::spawn(service.call(with(&[("x-api-key", "mallory")]))));
    assert!(both[0].poll().is_ready() && both[1].poll().is_pending(), "a key has one place");
    let (sent, _) = until_blocked(&layer, "mallory").await;
    assert_eq!(sent, 4);
}

#[test]
fn invalid_values_are_errors() {
    let text = |of: fn()| {
        let panic = catch_unwind(of).expect_err("a panic");
        panic.downcast::<String>().map_or_else(|_| "no text".to_owned(), |text| *text)
    };
    assert_eq!(
        text(|| drop(Penalty::after(Quota::concurrent(2)))),
        "penalty: after is 2 concurrent; give a rate with the algorithm Gcra, such as 20/min"
    );
    assert_eq!(text(|| drop(penalty().block([]))), "penalty: block has 0 times; give 1 to 32");
    assert_eq!(
        text(|| drop(penalty().block([MINUTE, Duration::from_millis(999)]))),
        "penalty: block is 999ms; give 1 s to 365 days"
    );
    assert_eq!(
        text(|| drop(penalty().forgive(366 * DAY))),
        "penalty: forgive is 31622400s; give 1 s to 365 days"
    );
    assert!(catch_unwind(|| penalty().capacity(0)).is_err());
    assert_eq!(
        text(|| {
            let rule = Rule::new("ip", PeerIp::new(), ONE);
            let layer = RateLimitLayer::rules(rule, LocalStore::with_capacity(8));
            drop(layer.penalty("id", Penalty::after(ONE)));
        }),
        "penalty: unknown rule `id`, expected one of `ip`"
    );
}

#[tokio::test(start_paused = true)]
async fn responses_can_be_strikes_instead_of_denials() {
    let clock = FakeClock::new();
    let penalty = penalty().by_response(|it| it.status == StatusCode::NOT_FOUND);
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), Quota::per_hour(100));
    let layer = RateLimitLayer::rules(rule, clock.store(64)).penalty("api", penalty);
    let status = |request: &http::Request<()>| match request.uri().path() {
        "/" => 200,
        _ => 404,
    };
    let mut service = layer.layer(service_fn(move |request: http::Request<()>| {
        let response = http::Response::builder().status(status(&request)).body(String::new());
        std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
    }));
    let to = |path: &'static str| {
        let mut request = with(&[("x-api-key", "mallory")]);
        *request.uri_mut() = path.parse().expect("a path");
        request
    };
    for _ in 0..20 {
        assert_eq!(ask(&mut service, to("/")).await.status(), 200);
    }
    for _ in 0..4 {
        assert_eq!(ask(&mut service, to("/scan")).await.status(), 404);
    }
    let blocked = ask(&mut service, to("/")).await;
    assert_eq!(blocked.status(), 429);
    // Denials are no strikes then.
    let one = Rule::new("api", HeaderKey::new("x-api-key"), ONE);
    let never = self::penalty().by_response(|_| false);
    let layer = RateLimitLayer::rules(one, clock.store(64)).expose_decision().penalty("api", never);
    for _ in 0..20 {
        assert_eq!(send(&layer, "bob").await, None);
    }
}
