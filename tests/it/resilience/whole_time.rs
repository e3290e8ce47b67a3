//! The whole time for each call of a request, in every order of the wrappers.
//!
//! Time advances only by the tests.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep};
use tower_sluice::{
    Key, Quota, Store, StoreExt, rule::RuleName, store::Charge, testing::FakeClock,
};

use crate::support::{
    any_error::{
        AnyError, Wrapper,
        Wrapper::{Breaker, DenyCache, FailClosed, FailOpen, Fallback, Leases, Timeout},
    },
    driven::millis,
    shaky::{Mood, Shaky},
};

const BUDGET: Duration = Duration::from_millis(100);
const HOURLY: Quota = Quota::per_hour(1_000);

const RECOMMENDED: [Wrapper; 5] = [Timeout, Breaker, DenyCache, Leases, Fallback];

/// Every pair of wrappers with a timeout inside, between and outside, and the recommended order.
fn stacks() -> Vec<Vec<Wrapper>> {
    const OTHERS: [Wrapper; 6] = [Breaker, DenyCache, Leases, Fallback, FailOpen, FailClosed];
    let pairs = OTHERS.into_iter().flat_map(|one| OTHERS.map(|other| [one, other]));
    let stacks = pairs.flat_map(|[one, other]| {
        [vec![Timeout, one, other], vec![one, Timeout, other], vec![one, other, Timeout]]
    });
    stacks.chain([RECOMMENDED.to_vec()]).collect()
}

/// Takes one unit for alice. Returns the time until the decision or the error.
async fn take<S: Store>(store: &S) -> Duration {
    let (start, alice, quotas) = (Instant::now(), Key::from("alice"), [HOURLY]);
    let charge = Charge::new(RuleName::default(), &alice, &quotas);
    let _ = store.take(&[charge]).await;
    start.elapsed()
}

/// Returns the longest time of requests to a hot key, which has `left` units. The store is in the
/// first mood for 150 ms, and in the second from then on.
async fn longest(wrappers: &[Wrapper], left: u32, moods: [Mood; 2]) -> Duration {
    let shaky = Shaky::new(FakeClock::new().store(64));
    let inner = AnyError(shaky.clone()).boxed();
    let store = wrappers.iter().fold(inner, |store, one| one.wrap(store));
    for _ in 0..20 {
        assert_eq!(take(&store).await, Duration::ZERO);
    }
    let (alice, quotas) = (Key::from("alice"), [HOURLY]);
    let charge = Charge::new(RuleName::default(), &alice, &quotas);
    let units = shaky.store.take(&[charge.with_cost(0)]).now().outcomes()[0].remaining();
    drop(shaky.store.take(&[charge.with_cost(units - left)]).now());

    let change = async {
        shaky.set_mood(moods[0]);
        sleep(millis(150)).await;
        shaky.set_mood(moods[1]);
    };
    let request = |at: u64| {
        let store = &store;
        async move {
            sleep(millis(at)).await;
            take(store).await
        }
    };
    let requests = join_all((0..300).step_by(7).flat_map(|at| [at; 3]).map(request));
    let ((), times) = tokio::join!(change, requests);
    times.into_iter().max().expect("requests")
}

/// Returns the longest time of a decision. Around a timeout, leases wait twice for another call, and make
/// at most three calls.
fn most(wrappers: &[Wrapper]) -> Duration {
    let last = |which| wrappers.iter().rposition(|it| *it == which);
    if last(Leases) > last(Timeout) { 5 * BUDGET } else { BUDGET }
}

/// A breaker opens after five failures.
#[tokio::test(start_paused = true)]
async fn waiting_calls_do_not_open_the_breaker_after_one_lost_call() {
    let shaky = Shaky::new(FakeClock::new().store(64));
    let breaker = shaky.clone().timeout(BUDGET).breaker();
    let store = breaker.clone().leases(5);
    for _ in 0..3 {
        take(&store).await;
    }
    shaky.set_mood(Mood::Hanging);
    let request = async |at: u64| {
        sleep(millis(at)).await;
        take(&store).await
    };
    let recovery = async {
        sleep(millis(50)).await;
        shaky.set_mood(Mood::Well);
    };
    let ((), times) = tokio::join!(recovery, join_all((0..=24).map(request)));
    assert!(times.iter().all(|time| *time <= BUDGET), "{times:?}");
    assert!(!breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn no_call_is_longer_than_the_timeout_in_any_order_of_the_wrappers() {
    let late = |ms| Mood::Late(millis(ms));
    let failing = |ms| Mood::FailingLate(millis(ms));
    for wrappers in stacks() {
        for moods in [
            [Mood::Hanging; 2],
            [late(99); 2],
            [late(60), Mood::Hanging],
            [failing(99), late(40)],
            [failing(60), Mood::Well],
        ] {
            for left in [900, 3] {
                let time = longest(&wrappers, left, moods).await;
                assert!(
                    time <= most(&wrappers),
                    "{time:?} with {wrappers:?}, {moods:?}, {left} left"
                );
            }
        }
    }
}
