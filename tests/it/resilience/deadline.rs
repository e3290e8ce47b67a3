//! Timeouts of store calls.
//!
//! Time advances only by the tests.

use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::{
    Key, Quota, StoreExt,
    rule::RuleName,
    store::{Charge, TimeoutError},
    testing::FakeClock,
};

use crate::support::{
    driven::{millis, secs},
    shaky::{CALLS, Mood, Shaky, call},
};

const HOURLY: Quota = Quota::per_hour(10);
const BUDGET: Duration = Duration::from_millis(100);

fn shaky(mood: Mood) -> Shaky {
    let shaky = Shaky::new(FakeClock::new().store(64));
    shaky.is(mood);
    shaky
}

/// Passes a charge of one unit to the closure.
fn charged<T>(read: impl FnOnce(Charge<'_>) -> T) -> T {
    read(Charge::new(RuleName::default(), &Key::from("alice"), HOURLY.as_ref()))
}

#[tokio::test(start_paused = true)]
async fn the_timeout_covers_the_whole_answer_of_every_call() {
    for name in CALLS {
        let start = Instant::now();
        let store = shaky(Mood::Late(millis(99)));
        let answer = charged(|charge| call(&store.clone().timeout(BUDGET), name, charge));
        assert!(answer.await.expect("in time").is_allowed(), "{name}");
        assert_eq!(start.elapsed(), millis(99), "{name}");

        for slow in [Mood::Late(millis(101)), Mood::FailingLate(secs(9)), Mood::Hanging] {
            let start = Instant::now();
            let store = shaky(slow);
            let answer = charged(|charge| call(&store.clone().timeout(BUDGET), name, charge));
            let error = answer.await.expect_err("too late");
            assert!(matches!(error, TimeoutError::Elapsed(BUDGET)), "{name}: {error:?}");
            assert_eq!(start.elapsed(), BUDGET, "{name}");
            assert_eq!((store.calls(), store.on_their_way()), (1, 0), "{name}: not tried again");
        }
    }
}
