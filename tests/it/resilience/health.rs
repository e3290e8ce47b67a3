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
