//! Headroom: units that a class of requests leaves for the others.

use std::{sync::Barrier, thread};

use http::{Request, StatusCode};
use tower_sluice::{
    Cost, Key, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::Everyone,
    rule::RuleName,
    store::{CannotFail, Charge},
    testing::FakeClock,
};

use crate::support::{Gated, answer, driven::millis, get, header, with};

const TEN: Quota = Quota::per_second(10);

/// Batch jobs leave four units, and each request names its cost.
fn site(quota: Quota) -> Rule<Everyone> {
    let batch = |head: &tower_sluice::RequestHead<'_>| head.headers.contains_key("x-batch");
    let cost = Cost::from_fn(|head| match head.headers.get("x-cost") {
        Some(cost) => cost.to_str().expect("text").parse().expect("a number"),
        None => 1,
    });
    let headroom = Cost::from_fn(move |head| if batch(head) { 4 } else { 0 });
    Rule::new("site", Everyone, quota).cost(cost).headroom(headroom)
}

fn batch() -> Request<()> {
    with(&[("x-batch", "1")])
}

async fn passes<S: Store<Error: CannotFail>>(
    layer: &RateLimitLayer<Rule<Everyone>, S>,
    request: impl Fn() -> Request<()>,
) -> usize {
    let mut passed = 0;
    while answer(layer, request()).await.status() == StatusCode::OK {
        passed += 1;
    }
    passed
}

#[tokio::test]
async fn requests_with_headroom_stop_earlier_and_others_get_the_units() {
    async fn stops<S: Store<Error: CannotFail>>(clock: &FakeClock, store: S) {
        let layer = RateLimitLayer::rules(site(TEN), store);
        assert_eq!(passes(&layer, batch).await, 6);
        let denied = answer(&layer, batch()).await;
        assert_eq!(header(denied.headers(), "ratelimit"), r#""site";r=4"#);
        assert_eq!(passes(&layer, || get("/")).await, 4);
        clock.advance(millis(400));
        assert_eq!(passes(&layer, batch).await, 0);
        clock.advance(millis(100));
        assert_eq!((passes(&layer, batch).await, passes(&layer, || get("/")).await), (1, 4));
    }
    let clock = FakeClock::new();
    stops(&clock, clock.store(64)).await;
    stops(&clock, Gated::open(clock.store(64))).await;
}

const THREADS: usize = 8;
const RESERVE: u32 = 1_000;
const LIMIT: u32 = if cfg!(debug_assertions) { 50_000 } else { 500_000 };

/// Counts the units taken by the threads that must keep the headroom, until only the headroom is
/// left, and by the other threads. Checks the units that each call leaves.
fn take_all(store: &LocalStore, must_leave: impl Fn(usize) -> bool + Sync) -> [u32; 2] {
    let (quota, start) = ([Quota::per_hour(LIMIT)], Barrier::new(THREADS));
    let run = |thread| {
        let (key, leaves) = (Key::everyone(), must_leave(thread));
        let headroom = if leaves { RESERVE } else { 0 };
        let charge = Charge::new(RuleName::default(), &key, &quota).with_headroom(headroom);
        start.wait();
        let mut taken = [0, 0];
        loop {
            let decision = store.take(&[charge]).now();
            if !decision.is_allowed() {
                return taken;
            }
            assert!(decision.remaining() >= Some(headroom), "{decision:?}");
            taken[usize::from(!leaves)] += 1;
        }
    };
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || run(n))).collect();
        let taken = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        taken.fold([0, 0], |sum, taken| [sum[0] + taken[0], sum[1] + taken[1]])
    })
}

#[test]
fn threads_never_use_their_headroom() {
    let store = FakeClock::new().store(16);
    assert_eq!(take_all(&store, |_| true), [LIMIT - RESERVE, 0]);
    assert_eq!(
        take_all(&store, |_| false),
        [0, RESERVE],
        "it is there for the others, to the last"
    );
    let store = FakeClock::new().store(16);
    let [leaving, others] = take_all(&store, |thread| thread % 2 == 0);
    assert_eq!(leaving + others, LIMIT);
    assert!(others >= RESERVE);
}
