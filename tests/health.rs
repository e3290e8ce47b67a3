//! What stores tell operators of how they are doing. Time stands still.

mod support;

use std::sync::Arc;

use support::{
    driven::millis,
    shaky::{Mood, Shaky},
};
use tower_sluice::{
    Charge, Key, Quota, RuleName, Store,
    store::{Condition, State},
    testing::{FakeClock, NoLimit},
};

const HOURLY: Quota = Quota::per_hour(100);

fn shaky() -> Shaky {
    Shaky::new(FakeClock::new().store(64))
}

async fn ask(store: &impl Store) {
    let key = Key::from("alice");
    drop(store.take(&[Charge::new(RuleName::default(), &key, HOURLY.as_ref())]).await);
}

/// Every store of the tree: what it is, and how.
fn all(condition: &Condition) -> Vec<(&'static str, State, String)> {
    let Condition { store, state, detail, inner, .. } = condition;
    let mut told = vec![(*store, *state, detail.clone())];
    told.extend(inner.iter().flat_map(all));
    told
}

#[tokio::test(start_paused = true)]
async fn a_tower_of_stores_tells_of_each() {
    let inner = shaky();
    let local = FakeClock::new().store(64);
    let store = inner.clone().deadline(millis(50)).breaker().deny_cache().leased(5);
    let store = Arc::new(store.fallback(local));
    let told = store.health().await;
    assert!(told.is_well(), "{told:?}");
    let (names, states): (Vec<_>, Vec<_>) =
        all(&told).into_iter().map(|(name, state, _)| (name, state)).unzip();
    let wanted = ["fallback", "leased", "deny_cache", "breaker", "deadline", "shaky", "local"];
    assert_eq!(names, wanted);
    assert_eq!(states, [State::Well; 7]);

    inner.is(Mood::FailingSoon);
    for _ in 0..5 {
        ask(&store).await;
    }
    let told = store.health().await;
    assert!(!told.is_well());
    let told = all(&told);
    let of = |name| told.iter().find(|it| it.0 == name).expect("it tells");
    assert_eq!((of("fallback").1, of("breaker").1), (State::Failing, State::Failing));
    assert!(of("fallback").2.starts_with("decisions are made in this process"), "{told:?}");
    assert!(of("breaker").2.starts_with("open"), "{told:?}");
    assert_eq!(of("shaky").1, State::Failing);
    assert_eq!(of("local").1, State::Well);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_told_as_failing_within_the_deadline() {
    let inner = shaky();
    inner.is(Mood::Hanging);
    let store = inner.deadline(millis(50)).fail_open();
    let told = all(&store.health().await);
    assert_eq!(told[0], ("fail_open", State::Failing, "requests pass without a limit".to_owned()));
    assert_eq!(told[1], ("deadline", State::Failing, "no answer within 50ms".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_answers_again_is_told_to_have_failed_until_it_is_asked() {
    let inner = shaky();
    let store = inner.clone().fail_closed();
    inner.is(Mood::FailingSoon);
    ask(&store).await;
    inner.is(Mood::Well);
    let told = all(&store.health().await);
    assert_eq!(told[0].1, State::Well);
    assert_eq!(told[0].2, "failed when it was last asked");
    ask(&store).await;
    assert_eq!(all(&store.health().await)[0].2, "");
}

#[tokio::test]
async fn a_store_that_says_nothing_is_unknown_and_no_failure() {
    let told = NoLimit.boxed().health().await;
    assert_eq!(told, Condition::unknown("other"));
    assert!(told.is_well());
}

#[tokio::test]
async fn the_embedded_store_tells_its_room() {
    let store = FakeClock::new().store(64);
    ask(&store).await;
    let told = Store::health(&&store).await;
    assert_eq!(told.store, "local");
    assert!(told.detail.starts_with("1 of "), "{told:?}");
}
