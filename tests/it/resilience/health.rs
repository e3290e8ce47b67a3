//! The health that stores report to operators. Time stands still.

use std::sync::Arc;

use tower_sluice::{
    Key, Quota, Store, StoreExt,
    rule::RuleName,
    store::{Charge, Health, Status},
    testing::FakeClock,
};

use crate::support::{
    driven::millis,
    no_limit::NoLimit,
    shaky::{Mood, Shaky},
};

const HOURLY: Quota = Quota::per_hour(100);

fn shaky() -> Shaky {
    Shaky::new(FakeClock::new().store(64))
}

async fn ask(store: &impl Store) {
    let key = Key::from("alice");
    drop(store.take(&[Charge::new(RuleName::default(), &key, HOURLY.as_ref())]).await);
}

/// Lists every store of the tree with its kind and its health.
fn all(condition: &Health) -> Vec<(&'static str, Status, String)> {
    let Health { store, status, detail, inner, .. } = condition;
    let mut found = vec![(*store, *status, detail.clone())];
    found.extend(inner.iter().flat_map(all));
    found
}

#[tokio::test(start_paused = true)]
async fn nested_stores_report_the_health_of_each() {
    let inner = shaky();
    let local = FakeClock::new().store(64);
    let store = inner.clone().timeout(millis(50)).breaker().deny_cache().leases(5);
    let store = Arc::new(store.fallback(local, 1));
    let found = store.health().await;
    assert!(found.is_healthy(), "{found:?}");
    let (names, states): (Vec<_>, Vec<_>) =
        all(&found).into_iter().map(|(name, status, _)| (name, status)).unzip();
    let wanted = ["fallback", "leased", "deny_cache", "breaker", "timeout", "shaky", "local"];
    assert_eq!(names, wanted);
    assert_eq!(states, [Status::Healthy; 7]);

    inner.is(Mood::FailingSoon);
    for _ in 0..5 {
        ask(&store).await;
    }
    let found = store.health().await;
    assert!(!found.is_healthy());
    let found = all(&found);
    let of = |name| found.iter().find(|it| it.0 == name).expect("a report");
    assert_eq!((of("fallback").1, of("breaker").1), (Status::Failing, Status::Failing));
    assert!(of("fallback").2.starts_with("decisions are made in this process"), "{found:?}");
    assert!(of("breaker").2.starts_with("open"), "{found:?}");
    assert_eq!(of("shaky").1, Status::Failing);
    assert_eq!(of("local").1, Status::Healthy);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_reported_as_failing_within_the_timeout() {
    let inner = shaky();
    inner.is(Mood::Hanging);
    let store = inner.timeout(millis(50)).fail_open();
    let found = all(&store.health().await);
    let effect = "requests are allowed without a limit";
    assert_eq!(found[0], ("fail_open", Status::Failing, effect.to_owned()));
    assert_eq!(found[1], ("timeout", Status::Failing, "no answer within 50ms".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_recovers_is_reported_as_failed_until_the_next_call() {
    let inner = shaky();
    let store = inner.clone().fail_closed();
    inner.is(Mood::FailingSoon);
    ask(&store).await;
    inner.is(Mood::Well);
    let found = all(&store.health().await);
    assert_eq!(found[0].1, Status::Healthy);
    assert_eq!(found[0].2, "failed on the last call");
    ask(&store).await;
    assert_eq!(all(&store.health().await)[0].2, "");
}

#[tokio::test]
async fn a_store_without_a_health_report_is_unknown_and_not_failing() {
    let found = NoLimit.boxed().health().await;
    let Health { store, status, inner, .. } = &found;
    assert_eq!((*store, *status, inner.len()), ("other", Status::Unknown, 0));
    assert!(found.is_healthy());
}

#[tokio::test]
async fn the_local_store_reports_its_capacity() {
    let store = FakeClock::new().store(64);
    ask(&store).await;
    let found = Store::health(&&store).await;
    assert_eq!(found.store, "local");
    assert!(found.detail.starts_with("1 of "), "{found:?}");
}
