//! While the system has room, what a quota refuses passes uncharged, as overage; the requests in
//! flight are counted to the last.

mod support;

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    thread,
};

use http::{Request, Response, StatusCode};
use support::{
    Broken, Gated, answer, ask,
    driven::{Counting, begin, handler, held, left, limiter, secs},
    get, header, with,
};
use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Counters, Decision, Elastic, Headers, Key, LocalStore, Quota, RateLimitLayer, Reservation,
    Rule, Settle, Store, Units,
    key::{Everyone, Header},
    store::CannotFail,
    testing::FakeClock,
};

const TWO: Quota = Quota::per_hour(2);

type Layered<S> = RateLimitLayer<Rule<Everyone>, S>;

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn layer<S: Store<Error: CannotFail>>(store: S) -> Layered<S> {
    let cost = Units::from_fn(|parts| match parts.headers.get("x-cost") {
        Some(cost) => cost.to_str().expect("text").parse().expect("a number"),
        None => 1,
    });
    RateLimitLayer::rules(Rule::new("api", Everyone, TWO).cost(cost), store).expose_decision()
}

fn is_overage(response: &Response<String>) -> bool {
    let decision = response.extensions().get::<Decision>().expect("exposed");
    assert!(decision.is_allowed());
    let told = header(response.headers(), "x-ratelimit-overage") == "1";
    assert_eq!(told, decision.is_overage());
    told
}

fn has(store: &LocalStore) -> u32 {
    left(store, "api", Key::everyone(), &TWO)
}

#[tokio::test]
async fn while_the_signal_says_so_the_refused_pass_uncharged_and_marked() {
    let (store, room, counters) = (store(), Arc::new(AtomicBool::new(true)), Counters::new());
    let signal = room.clone();
    let elastic = Elastic::when(move || signal.load(SeqCst));
    let layer = layer(store.clone()).elastic(elastic).count(&counters);
    let seen = handler(|request| {
        let seen: &Decision = request.extensions().get().expect("exposed");
        if seen.is_overage() { 203 } else { 200 }
    });
    let mut service = layer.layer(seen);
    for at in 0..6 {
        let response = ask(&mut service, get("/")).await;
        assert_eq!(is_overage(&response), at >= 2);
        assert_eq!(response.status().as_u16(), if at >= 2 { 203 } else { 200 });
        assert!(!response.headers().contains_key("retry-after"));
    }
    room.store(false, SeqCst);
    let refused = ask(&mut service, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "retry-after"), "1800");
    assert_eq!(header(refused.headers(), "x-ratelimit-overage"), "");
    room.store(true, SeqCst);
    assert!(is_overage(&ask(&mut service, get("/")).await));
    let counts = counters.read();
    assert_eq!((counts.allowed, counts.overage, counts.denied), (7, 5, 1));
}

#[tokio::test]
async fn overage_owes_nothing_so_that_units_come_back_as_if_it_had_been_refused() {
    let clock = FakeClock::new();
    let store = Counting::new(clock.store(64));
    let layer = layer(store.clone()).elastic(Elastic::when(|| true));
    for _ in 0..50 {
        answer(&layer, get("/")).await;
    }
    clock.advance(TWO.interval());
    assert!(!is_overage(&answer(&layer, get("/")).await));
    assert!(is_overage(&answer(&layer, get("/")).await));
    assert_eq!((store.settles(), store.given_back()), (0, 0));
}

#[tokio::test]
async fn what_can_never_fit_stays_refused_however_much_room_there_is() {
    let layer = layer(store()).elastic(Elastic::when(|| true));
    let refused = answer(&layer, with(&[("x-cost", "3")])).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "retry-after"), "");
    let blocked = RateLimitLayer::new(Everyone, Quota::blocked(), store());
    let blocked = answer(&blocked.elastic(Elastic::when(|| true)), get("/")).await;
    assert_eq!(blocked.status(), StatusCode::FORBIDDEN);
    // nor is there room for who has no key
    let unkeyed = RateLimitLayer::new(Header::new("x-user"), TWO, store());
    let unkeyed = answer(&unkeyed.elastic(Elastic::when(|| true)), get("/")).await;
    assert_eq!(unkeyed.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn room_is_no_pardon_for_a_blocked_key() {
    let store = store();
    limiter("api", store.clone()).block(Key::everyone(), secs(30)).now().expect("room");
    let refused = answer(&layer(store).elastic(Elastic::when(|| true)), get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(refused.headers(), "retry-after"), "30");
}

#[tokio::test]
async fn room_does_not_open_a_store_that_fails_closed() {
    for broken in [Broken::Now, Broken::Later] {
        let layer = layer(broken.fail_closed()).elastic(Elastic::when(|| true));
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

#[tokio::test]
async fn overage_has_a_reservation_and_nothing_to_settle() {
    let store = store();
    limiter("api", store.clone()).take(Key::everyone(), &TWO, 2).now();
    let layer = layer(store.clone()).elastic(Elastic::when(|| true));
    let layer = layer.settle(|_| Settle::Refund).reserve_at_least(2);
    let inner = handler(|request| {
        request.extensions().get::<Reservation>().expect("a reservation").refund();
        200
    });
    assert!(is_overage(&ask(&mut layer.layer(inner), get("/")).await));
    assert_eq!(has(&store), 0);
}

#[tokio::test]
async fn the_mark_stands_in_every_family_of_headers() {
    let families = [Headers::Draft11, Headers::Draft07, Headers::Draft06, Headers::XRateLimit];
    for family in families {
        let layer = layer(store()).headers(family).elastic(Elastic::when(|| true));
        let mut marks = Vec::new();
        for _ in 0..3 {
            marks.push(is_overage(&answer(&layer, get("/")).await));
        }
        assert_eq!(marks, [false, false, true], "{family:?}");
    }
}

/// The real service, saturated: `most` requests stand in it until the test lets them go.
async fn saturates<S: Store<Error: CannotFail>>(accounts: &LocalStore, store: S) {
    let (door, elastic) = (Arc::new(Semaphore::new(0)), Elastic::in_flight(4));
    let layer = layer(store).elastic(elastic.clone());
    let inner = held(&door);
    let mut service = layer.layer(inner.clone());
    let mut begin = async || {
        let mut running = begin(&mut service, get("/")).await;
        let first = running.poll().map(|answer| answer.expect("infallible"));
        (running, first)
    };
    let mut running = Vec::new();
    for _ in 0..4 {
        let (request, answer) = begin().await;
        assert!(answer.is_pending(), "two are charged and two pass beyond");
        running.push(request);
    }
    assert_eq!((has(accounts), format!("{elastic:?}")), (0, "Elastic(4 of 4 in flight)".into()));
    for _ in 0..3 {
        let Poll::Ready(refused) = begin().await.1 else { panic!("a fifth request in flight") };
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    // one is answered, one is dropped: room for two
    door.add_permits(1);
    assert_ready_ok!(running.remove(0).poll());
    drop(running.remove(0));
    assert_eq!(format!("{elastic:?}"), "Elastic(2 of 4 in flight)");
    for _ in 0..2 {
        let (request, answer) = begin().await;
        assert!(answer.is_pending());
        running.push(request);
    }
    assert!(begin().await.1.is_ready());
    door.add_permits(4);
    for mut request in running {
        assert!(is_overage(&assert_ready_ok!(request.poll())));
    }
    assert_eq!(format!("{elastic:?}"), "Elastic(0 of 4 in flight)");
    assert_eq!(has(accounts), 0);
}

#[tokio::test]
async fn a_saturated_service_is_protected_and_an_idle_one_is_not() {
    let accounts = store();
    saturates(&accounts, accounts.clone()).await;
    let accounts = store();
    saturates(&accounts, Gated::open(accounts.clone())).await;
}

/// Each asks before any other has its answer: of so many at one moment, four see room.
#[test]
fn threads_at_one_moment_pass_no_more_than_there_is_room_for() {
    const THREADS: usize = 8;
    let (accounts, elastic) = (store(), Elastic::in_flight(4));
    limiter("api", accounts.clone()).take(Key::everyone(), &TWO, 2).now();
    let service =
        layer(accounts).elastic(elastic.clone()).layer(held(&Arc::new(Semaphore::new(0))));
    let (start, asked, rounds) = (Barrier::new(THREADS), Barrier::new(THREADS), 0..2_000);
    let passed = AtomicUsize::new(0);
    let ask = |round: usize| {
        start.wait();
        let mut running = task::spawn(service.clone().oneshot(get("/")));
        if running.poll().is_pending() {
            passed.fetch_add(1, SeqCst);
        }
        asked.wait();
        assert_eq!(passed.load(SeqCst), 4 * (round + 1));
        // nobody leaves before all have counted
        start.wait();
    };
    thread::scope(|scope| {
        (0..THREADS).for_each(|_| drop(scope.spawn(|| rounds.clone().for_each(ask))));
    });
    assert_eq!(format!("{elastic:?}"), "Elastic(0 of 4 in flight)");
}

#[tokio::test]
async fn layers_that_share_a_signal_count_together() {
    let (door, elastic) = (Arc::new(Semaphore::new(0)), Elastic::in_flight(1));
    let busy = layer(store()).elastic(elastic.clone());
    let spent = store();
    limiter("api", spent.clone()).take(Key::everyone(), &TWO, 2).now();
    let other = layer(spent).elastic(elastic.clone());
    let mut running = task::spawn(busy.layer(held(&door)).oneshot(get("/")));
    assert_pending!(running.poll());
    assert_eq!(answer(&other, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    door.add_permits(1);
    assert_ready_ok!(running.poll());
    assert_eq!(answer(&other, get("/")).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn nobody_is_left_in_flight_by_an_error_or_a_panic() {
    let elastic = Elastic::in_flight(9);
    let failing = service_fn(async |request: Request<()>| match request.uri().path() {
        "/panic" => panic!("as the test wants"),
        _ => Err::<Response<String>, _>("no backend"),
    });
    let layer = layer(store()).elastic(elastic.clone());
    let mut service = layer.layer(failing);
    assert_eq!(
        service.ready().await.expect("ready").call(get("/")).await.err(),
        Some("no backend")
    );
    assert_eq!(format!("{elastic:?}"), "Elastic(0 of 9 in flight)");
    let caught = tokio::spawn(service.oneshot(get("/panic"))).await;
    assert!(caught.expect_err("a panic").is_panic());
    assert_eq!(format!("{elastic:?}"), "Elastic(0 of 9 in flight)");
}
