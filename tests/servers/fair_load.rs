//! Real connections to a server whose clients share a pool.

use std::time::Duration;

use tower_sluice::{RedisStore, StoreExt};

use self::example::{load, pausing, weighted};
use crate::servers::Server;

#[path = "../../examples/fair_load.rs"]
#[expect(dead_code, reason = "the example prints")]
mod example;

/// An axum server, and real connections. The example has the same load for 20 s, and smaller bounds.
#[tokio::test(flavor = "multi_thread")]
async fn real_connections_have_equal_or_weighted_shares() {
    let server = Server::redis().await;
    let store = async |prefix| {
        let store = RedisStore::connect(&server.url()).prefix(prefix).await;
        store.expect("a store").fail_closed()
    };
    let (one, other, time) = (store("one").await, store("other").await, Duration::from_secs(6));
    let (pausing, weighted) = (pausing(), weighted());
    let (equal, weighted) = tokio::join!(load(one, &pausing, time), load(other, &weighted, time));
    let (equal, weighted) = (equal.expect("answers"), weighted.expect("answers"));
    assert!(equal.jain(20) > 0.9, "Jain's index {}: {:?}", equal.jain(20), equal.counted);
    let each = [0, 1, 2].map(|at: usize| f64::from(weighted.counted[at] >> at));
    let all = f64::from(weighted.counted.iter().sum::<u32>()) / 7.0;
    assert!(each.iter().all(|it| (it / all - 1.0).abs() < 0.15), "{:?}", weighted.counted);
    for load in [equal, weighted] {
        assert!(f64::from(load.admitted) <= load.bound(), "{} > {}", load.admitted, load.bound());
        assert!(f64::from(load.admitted) > load.bound() * 0.8, "{} are few", load.admitted);
    }
}
