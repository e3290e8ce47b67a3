//! The admin router over accounts in Redis.

use std::time::Duration;

use serde_json::json;
use tower_sluice::{RateLimitLayer, RedisStore, StoreExt};

use crate::{
    servers::{Server, eventually},
    support::admin::{denied, done, look, of, user, visit, visits, watched, with},
};

#[tokio::test(flavor = "multi_thread")]
async fn accounts_in_redis_can_be_read_reset_and_blocked() {
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).await.expect("a store");
    let store = store.timeout(Duration::from_secs(60)).fail_closed();
    let app = watched(RateLimitLayer::rules(user(), store));
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    for _ in 0..3 {
        let peeked = done(&app, "peek", &of("alice")).await;
        assert_eq!(
            (&peeked["by"], &peeked["quotas"][0]["remaining"]),
            (&json!("redis"), &json!(0))
        );
    }
    done(&app, "reset", &of("alice")).await;
    assert_eq!(visit(&app, "alice").await, 200);
    done(&app, "block", &with(of("alice"), "for", "1h")).await;
    assert_eq!(visit(&app, "alice").await, 429);
    let peeked = done(&app, "peek", &of("alice")).await;
    assert!(peeked["blocked_ms"].as_u64().is_some_and(|left| left > 0), "{peeked}");
    assert_eq!(peeked["quotas"][0]["remaining"], 2);
    done(&app, "unblock", &of("alice")).await;
    assert_eq!(visit(&app, "alice").await, 200);
    // A busy machine may exceed the timeout at first.
    let health = eventually("the store is healthy", async || {
        let health = look(&app, "health").await["layers"][0]["health"].to_string();
        (health.contains("\"redis\"") && !health.contains("failing")).then_some(health)
    });
    let health = health.await;
    assert!(!health.contains("127.0.0.1"), "{health}");

    drop(server);
    visit(&app, "alice").await;
    for route in ["peek", "reset", "unblock"] {
        let said = denied(&app, route, &of("alice"), 503).await;
        assert!(said.contains(": it failed (see api/health)"), "{said}");
    }
    assert!(look(&app, "health").await.to_string().contains("failing"));
}
