//! Health of the stores.

use tokio::time::Instant;
use tower_sluice::{LocalStore, RateLimitLayer, StoreExt, admin::Admin};

use super::{look, user, visit, watched};
use crate::support::{
    Broken,
    shaky::{Mood, Shaky},
};

#[tokio::test]
async fn every_layer_reports_the_health_of_its_store() {
    let mut admin = Admin::new();
    let _local = admin.watch("one", RateLimitLayer::rules(user(), LocalStore::new()));
    let stack = Broken::Now.fallback(LocalStore::new(), 1);
    let stack = admin.watch("two", RateLimitLayer::rules(user(), stack));
    let app = super::site(stack, &admin);
    for _ in 0..2 {
        visit(&app, "alice").await;
    }
    let shown = look(&app, "health").await;
    assert_eq!(shown["layers"][0]["layer"], "one");
    let local = &shown["layers"][0]["health"];
    assert_eq!((&local["store"], &local["status"]), (&"local".into(), &"healthy".into()));
    let stack = &shown["layers"][1]["health"];
    assert_eq!((&stack["store"], &stack["status"]), (&"fallback".into(), &"failing".into()));
    assert!(stack["inner"].as_array().is_some_and(|inner| !inner.is_empty()), "{stack}");
}

#[tokio::test]
async fn a_fallback_in_use_is_reported() {
    let app = watched(RateLimitLayer::rules(user(), Broken::Now.fallback(LocalStore::new(), 1)));
    assert_eq!(visit(&app, "alice").await, 200);
    let peeked = super::done(&app, "peek", &super::of("alice")).await;
    assert_eq!(peeked["by"], "fallback");
}

#[tokio::test(start_paused = true)]
async fn slow_health_reports_are_awaited_together_with_a_time_limit() {
    let mut admin = Admin::new();
    for name in ["one", "two", "three"] {
        let store = Shaky::new(LocalStore::new());
        store.is(Mood::Hanging);
        let _ = admin.watch(name, RateLimitLayer::rules(user(), store.fail_open()));
    }
    let layer = admin.watch("well", super::users());
    let app = super::site(layer, &admin);
    let begun = Instant::now();
    let shown = look(&app, "health").await;
    assert_eq!(begun.elapsed().as_secs(), 5);
    let state = |at: usize| &shown["layers"][at]["health"]["status"];
    assert_eq!([state(0), state(2), state(3)], ["failing", "failing", "healthy"]);
}
