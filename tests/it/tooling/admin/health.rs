//! Health of the stores.

use tower_sluice::{LocalStore, RateLimitLayer, StoreExt, admin::Admin};

use super::{look, user, visit};
use crate::support::Broken;

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
