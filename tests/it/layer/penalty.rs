//! Blocks of keys with too many strikes.

use std::{convert::Infallible, net::SocketAddr, panic::catch_unwind, time::Duration};

use http::StatusCode;
use tower::{Layer, Service, service_fn};
use tower_sluice::{
    AccessList, ClientIp, Decision, Key, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, Store,
    StoreExt,
    decision::Source,
    key::{HeaderKey, Unreadable},
    middleware::Penalty,
    rule::RuleName,
    store::{Answer, Charge, Context, Never, Op, Unsupported},
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

#[tokio::test(start_paused = true)]
async fn slow_strikes_block_nobody_and_a_block_can_be_ended() {
    let clock = FakeClock::new();
    let store = clock.store(64);
    let layer = layer(store.clone(), penalty());
    for _ in 0..100 {
        assert_eq!(send(&layer, "alice").await, None);
        pass(&clock, MINUTE / 3).await;
    }
    until_blocked(&layer, "alice").await;
    let (key, rule) = (Key::from("alice"), RuleName::new("api").expect("a name"));
    assert!(store.unblock(&Charge::new(rule, &key, &[])).now().is_allowed());
    assert_eq!(send(&layer, "alice").await, None, "at once");
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

#[tokio::test(start_paused = true)]
async fn requests_that_run_have_no_strikes() {
    let clock = FakeClock::new();
    let reported = layer(clock.store(64), penalty()).report_only(true);
    let allowed = layer(clock.store(64), penalty()).allow(AccessList::from_fn(|_| true));
    for _ in 0..20 {
        assert_eq!(send(&reported, "alice").await, None);
        assert_eq!(answer(&allowed, with(&[("x-api-key", "alice")])).await.status(), 200);
    }
    let every = || penalty().by_response(|_| true);
    let reported = layer(clock.store(64), every()).report_only(true);
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), ONE).report_only(true);
    let trial =
        RateLimitLayer::rules(rule, clock.store(64)).expose_decision().penalty("api", every());
    for _ in 0..20 {
        assert_eq!(send(&reported, "alice").await, None);
        assert_eq!(send(&trial, "alice").await, None);
    }
}

/// A client can make some proxies drop the header of its requests.
#[tokio::test(start_paused = true)]
async fn probes_of_a_balancer_pass_although_sixty_requests_without_a_header_were_denied() {
    let clock = FakeClock::new();
    let client = ClientIp::behind(["10.0.0.0/8"]).expect("networks");
    let rule = Rule::new("ip", client, Quota::per_minute(10));
    let layer = RateLimitLayer::rules(rule, clock.store(64)).expose_decision();
    let layer = layer.penalty("ip", Penalty::after(Quota::per_minute(20)));
    let from_balancer = |headers: &[(&str, &str)]| {
        let mut request = with(headers);
        request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 80)));
        request
    };
    let of_client = [("x-forwarded-for", "203.0.113.9")];
    for _ in 0..60 {
        assert!(!is_blocked(&answer(&layer, from_balancer(&[])).await));
        answer(&layer, from_balancer(&of_client)).await;
    }
    pass(&clock, MINUTE / 10).await;
    assert_eq!(answer(&layer, from_balancer(&[])).await.status(), 200, "a probe");
    assert!(is_blocked(&answer(&layer, from_balancer(&of_client)).await), "a client");
}

/// Clients whose forwarding header is unreadable share one key per route.
#[tokio::test(start_paused = true)]
async fn clients_without_an_identity_are_not_blocked() {
    let client = ClientIp::behind(["10.0.0.0/8"]).expect("networks").unreadable(Unreadable::Share);
    let rule = Rule::new("ip", (HeaderKey::new("x-route"), client), ONE);
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(64)).expose_decision();
    let layer = layer.penalty("ip", penalty());
    for (header, blocked) in [("garbage", false), ("203.0.113.9", true)] {
        let mut seen = false;
        for _ in 0..20 {
            let mut request = with(&[("x-route", "/login"), ("x-forwarded-for", header)]);
            request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 80)));
            let response = answer(&layer, request).await;
            let decision = response.extensions().get::<Decision>().expect("exposed");
            seen |= decision.is_blocked();
        }
        assert_eq!(seen, blocked, "{header}");
    }
}

/// Keys that come while the table is full have no strikes, and those of a flood are forgotten in time.
#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_neither_grows_the_table_nor_blocks_new_keys() {
    let clock = FakeClock::new();
    let none = Rule::new("api", HeaderKey::new("x-api-key"), Quota::blocked());
    let layer = RateLimitLayer::rules(none, clock.store(64)).expose_decision();
    let layer = layer.penalty("api", penalty().capacity(64));
    for round in 0..3 {
        for n in 0..5_000 {
            let request = http::Request::get("/").header("x-api-key", format!("key {n}")).body(());
            let response = answer(&layer, request.expect("a request")).await;
            let decision = response.extensions().get::<Decision>().expect("exposed");
            assert!(!decision.is_blocked(), "key {n} in round {round}");
        }
    }
    pass(&clock, 2 * MINUTE).await;
    let (sent, _) = until_blocked(&layer, "mallory").await;
    assert_eq!(sent, 4);
}

/// Strikes of several processes at once are one crossing, and a longer block stays.
#[tokio::test(start_paused = true)]
async fn a_block_is_not_repeated_and_never_shortens_another() {
    let clock = FakeClock::new();
    let store = clock.store(64);
    let layers = [(); 3].map(|()| layer(store.clone(), penalty()));
    for layer in &layers {
        for _ in 0..3 {
            assert_eq!(send(layer, "mallory").await, None);
        }
    }
    let (_, time) = until_blocked(&layers[0], "mallory").await;
    assert!(time <= MINUTE + MINUTE / 10, "{time:?}");
    let (other, hundred) = (clock.store(64), Quota::per_hour(100));
    let late = penalty().by_response(|_| true);
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), hundred);
    let mut service = RateLimitLayer::rules(rule, other.clone()).penalty("api", late).layer(
        service_fn(async |_: http::Request<()>| {
            tokio::time::sleep(MINUTE).await;
            Ok::<_, Infallible>(http::Response::new(String::new()))
        }),
    );
    let (key, name) = (Key::from("bob"), RuleName::new("api").expect("a name"));
    let slow: Vec<_> =
        (0..8).map(|_| Service::call(&mut service, with(&[("x-api-key", "bob")]))).collect();
    assert!(other.block(&Charge::new(name, &key, &[]), 30 * DAY).now().is_allowed());
    futures::future::join_all(slow).await;
    let left = other.take(&[Charge::new(name, &key, &[hundred])]).now().retry_after();
    assert!(left.is_some_and(|left| left > 29 * DAY), "{left:?}");
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

/// Only the rule of all clients lets requests wait.
#[tokio::test(start_paused = true)]
async fn a_full_queue_of_another_rule_does_not_keep_denials_from_being_strikes() {
    let rules = (
        Rule::new("api", HeaderKey::new("x-api-key"), ONE),
        Rule::new("tenant", HeaderKey::new("x-tenant"), Quota::per_second(1)).max_wait(HOUR),
    );
    let layer = RateLimitLayer::rules(rules, FakeClock::new().store(64)).expose_decision();
    let layer = layer.max_waiters_per_key(1).penalty("api", penalty());
    let of = |tenant, key| with(&[("x-tenant", tenant), ("x-api-key", key)]);
    assert!(answer(&layer, of("other", "mallory")).await.status().is_success());
    let mut service = layer.layer(handler(|_| 200));
    let mut both = ["bob", "carol"].map(|key| tokio_test::task::spawn(service.call(of("t", key))));
    assert!(both[0].poll().is_ready() && both[1].poll().is_pending(), "a tenant has one place");
    let mut sent = 0;
    while !is_blocked(&answer(&layer, of("t", "mallory")).await) {
        sent += 1;
        assert!(sent < 20, "no strikes");
    }
    assert_eq!(sent, 4);
    assert!(!is_blocked(&answer(&layer, of("t", "alice")).await), "she was denied by the tenant");
}

/// A charge of nothing does not see the block of its key.
#[tokio::test(start_paused = true)]
async fn strikes_of_free_requests_do_not_shorten_a_block() {
    let store = FakeClock::new().store(64);
    let hundred = Quota::per_hour(100);
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), hundred).cost(0);
    let layer = RateLimitLayer::rules(rule, store.clone());
    let layer = layer.penalty("api", penalty().by_response(|_| true));
    let (key, name) = (Key::from("mallory"), RuleName::new("api").expect("a name"));
    assert!(store.block(&Charge::new(name, &key, &[]), 30 * DAY).now().is_allowed());
    for _ in 0..20 {
        answer(&layer, with(&[("x-api-key", "mallory")])).await;
    }
    let left = store.take(&[Charge::new(name, &key, &[hundred])]).now().retry_after();
    assert_eq!(left, Some(30 * DAY));
}

/// A member who scans on the own plan must not have the whole organization blocked.
#[tokio::test(start_paused = true)]
async fn responses_are_strikes_of_the_alternative_that_paid() {
    let plan = Rule::new("plan", HeaderKey::new("x-user"), Quota::per_day(10));
    let org = Rule::new("org", HeaderKey::new("x-org"), Quota::per_day(100));
    let layer = RateLimitLayer::rules(plan.or(org), FakeClock::new().store(64)).expose_decision();
    let layer = layer.penalty("org", penalty().by_response(|_| true));
    let mallory = || with(&[("x-user", "mallory"), ("x-org", "acme")]);
    for _ in 0..10 {
        assert!(answer(&layer, mallory()).await.status().is_success());
    }
    let alice = with(&[("x-user", "alice"), ("x-org", "acme")]);
    assert!(answer(&layer, alice).await.status().is_success());
    // The plan is empty, so the organization pays.
    for _ in 0..4 {
        assert!(answer(&layer, mallory()).await.status().is_success());
    }
    assert!(is_blocked(&answer(&layer, mallory()).await));
}

/// A store of another crate.
#[derive(Clone)]
struct Named(LocalStore);

impl Store for Named {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        Answer::Now(Ok(self.0.call(op, context).now().with_source(Source::Other("mine"))))
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.supports(charges)
    }
}

#[tokio::test(start_paused = true)]
async fn denials_of_a_store_of_another_crate_are_strikes() {
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), ONE);
    let layer = RateLimitLayer::rules(rule, Named(FakeClock::new().store(64))).expose_decision();
    let layer = layer.penalty("api", penalty());
    for sent in 0..20 {
        let response = answer(&layer, with(&[("x-api-key", "mallory")])).await;
        assert_eq!(is_blocked(&response), sent > 4, "{sent}");
    }
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
