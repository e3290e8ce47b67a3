//! Late refunds, and cancelled requests.

use std::{sync::Arc, time::Duration};

use http::Request;
use tokio::sync::Semaphore;
use tower::Layer as _;
use tower_sluice::{PeerIp, Quota, RateLimitLayer, middleware::Adjustment, testing::FakeClock};

use super::{
    from, ip, statuses,
    support::driven::{begin, held},
    three,
};

const ATTACKER: &str = "203.0.113.9";

fn mine() -> Request<()> {
    from(ip(ATTACKER), &[])
}

/// Holds 300 requests open for an hour and refunds all of them at its end.
#[tokio::test]
async fn late_refunds_do_not_exceed_the_burst() {
    let (clock, door) = (FakeClock::new(), Arc::new(Semaphore::new(0)));
    let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_minute(5), clock.store(64));
    let layer = layer.adjust(|_| Adjustment::Refund);
    let mut service = layer.clone().layer(held(&door));
    let mut open = Vec::new();
    for _ in 0..300 {
        let mut call = begin(&mut service, mine()).await;
        tokio_test::assert_pending!(call.poll());
        open.push(call);
        clock.advance(Duration::from_secs(12));
    }
    door.add_permits(300);
    for mut call in open {
        // without this, the task exhausts tokio's cooperative budget
        tokio::task::yield_now().await;
        let response = tokio_test::assert_ready_ok!(call.poll());
        assert_eq!(response.status(), 200);
    }
    // admitted requests stay pending, since the handler never finishes
    let mut service = layer.layer(held(&Arc::new(Semaphore::new(0))));
    let mut running = Vec::new();
    for _ in 0..305 {
        tokio::task::yield_now().await;
        let mut call = begin(&mut service, mine()).await;
        if call.poll().is_pending() {
            running.push(call);
        }
    }
    assert_eq!(running.len(), 5);
}

/// Simulates a rapid reset of HTTP/2 streams. Each request is sent and immediately cancelled.
#[tokio::test]
async fn a_cancelled_request_stays_charged() {
    let refunding = three(PeerIp::new()).adjust(|_| Adjustment::Refund);
    for layer in [three(PeerIp::new()), refunding] {
        let mut service = layer.layer(held(&Arc::new(Semaphore::new(0))));
        for polled in [false, true, true] {
            let mut call = begin(&mut service, mine()).await;
            if polled {
                tokio_test::assert_pending!(call.poll());
            }
        }
        assert_eq!(statuses(&layer, (0..10).map(|_| mine())).await, [(429, 10)]);
    }
}
