//! A burst of one key is no outage. The simulation has 2,000 callers: a debug build needs most of their
//! timeout for itself.

use std::time::Duration;

use crate::{
    busy_key::{Bursts, POLICIES, WRAPPERS},
    rule_kinds::Kind,
    servers::Server,
};

#[tokio::test]
async fn a_burst_of_one_key_is_decided_by_redis_and_delays_no_other_key() {
    let (server, mut broken) = (Server::redis().await, Vec::new());
    for (number, policy) in POLICIES.into_iter().enumerate() {
        for (order, wrappers) in WRAPPERS.into_iter().enumerate() {
            // Each policy and each order meets each size.
            let callers = [200, 500][(number + order) % 2];
            let hold = Duration::from_millis(90);
            let bursts = Bursts { policy, wrappers, callers, bursts: 2, hold };
            // The first kind has slots.
            let all = number == order % POLICIES.len();
            for kind in Kind::all().into_iter().take(if all { usize::MAX } else { 1 }) {
                let figures = bursts.play(&server, kind).await;
                let all = figures.broken().into_iter();
                broken.extend(all.map(|what| format!("{kind:?}, {bursts:?}: {what}")));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
