//! Penalties of several processes on one server.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Key, Quota, RateLimitLayer, RedisStore, Rule, StoreExt, key::HeaderKey, middleware::Penalty,
    store::Charge,
};

use crate::{
    accounts::{connect, rule},
    servers::{Flavour, Server, eventually},
};

const ONE: Quota = Quota::per_hour(1);

/// Returns `true` if the request of the client is rejected because its key is blocked.
async fn is_blocked(store: &RedisStore, penalty: &Penalty) -> bool {
    let rule = Rule::new("api", HeaderKey::new("x-api-key"), ONE);
    let layer = RateLimitLayer::rules(rule, store.clone().fail_closed());
    let service = layer.expose_decision().penalty("api", penalty.clone()).layer(service_fn(
        |_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) },
    ));
    let request = Request::get("/").header("x-api-key", "mallory").body(()).expect("a request");
    let response = service.oneshot(request).await.expect("infallible");
    response.extensions().get::<tower_sluice::Decision>().expect("exposed").is_blocked()
}

#[tokio::test]
async fn other_processes_reject_a_blocked_key_and_count_its_blocks() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let stores = [connect(&server.url()).await, connect(&server.url()).await];
        let penalty = || {
            let minutes = [1, 10].map(|minutes| Duration::from_secs(60 * minutes));
            Penalty::after(Quota::per_minute(3)).block(minutes)
        };
        let penalties = [penalty(), penalty()];
        let (key, rule) = (Key::from("mallory"), rule("api"));
        let charge = Charge::new(rule, &key, &[]);
        for (at, longest) in [(0, 66), (1, 660)] {
            let mut denied = 0;
            while !is_blocked(&stores[at], &penalties[at]).await {
                denied += 1;
                assert!(denied < 100);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (other, strikes) = (&stores[1 - at], &penalties[1 - at]);
            assert!(is_blocked(other, strikes).await, "the other process rejects it at once");
            let seen =
                stores[at].take(&[Charge::new(rule, &key, &[ONE])]).await.expect("a decision");
            let left = seen.retry_after().expect("it ends").as_secs();
            assert!((longest * 9 / 10..=longest).contains(&left), "{left} s of {longest}");
            stores[at].unblock(&charge).await.expect("unblocked");
            eventually("no block", async || (!is_blocked(other, &penalty()).await).then_some(()))
                .await;
        }
    }
}
