//! Penalties of several processes on one server.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{
    Key, Quota, RateLimitLayer, Rule, Store, StoreExt,
    key::HeaderKey,
    middleware::Penalty,
    store::{CannotFail, Charge},
};

use crate::{
    accounts::{connect, rule},
    servers::{Flavour, Server},
};

const ONE: Quota = Quota::per_hour(1);

type Limited<S> = RateLimitLayer<Rule<HeaderKey>, S>;

/// Returns `true` if the request of the client is rejected because its key is blocked.
async fn is_blocked<S: Store<Error: CannotFail>>(layer: &Limited<S>) -> bool {
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let request = Request::get("/").header("x-api-key", "mallory").body(()).expect("a request");
    let response = service.oneshot(request).await.expect("infallible");
    response.extensions().get::<tower_sluice::Decision>().expect("exposed").is_blocked()
}

#[tokio::test]
async fn other_processes_reject_a_blocked_key_and_an_unblocked_one_runs_at_once() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let stores = [connect(&server.url()).await, connect(&server.url()).await];
        let layers = stores.each_ref().map(|store| {
            let rule = Rule::new("api", HeaderKey::new("x-api-key"), ONE);
            let layer = RateLimitLayer::rules(rule, store.clone().fail_closed());
            layer.expose_decision().penalty("api", Penalty::after(Quota::per_minute(20)))
        });
        let (key, rule) = (Key::from("mallory"), rule("api"));
        let mut denied = 0;
        while !is_blocked(&layers[0]).await {
            denied += 1;
            assert!(denied < 100);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(denied > 20, "{denied} requests");
        assert!(is_blocked(&layers[1]).await, "the other process rejects it at once");
        let seen = stores[1].take(&[Charge::new(rule, &key, &[ONE])]).await.expect("a decision");
        let left = seen.retry_after().expect("it ends").as_secs();
        assert!((59..=66).contains(&left), "{left} s");
        drop(stores[1].unblock(&Charge::new(rule, &key, &[])).await.expect("unblocked"));
        assert!(!is_blocked(&layers[0]).await && !is_blocked(&layers[1]).await);
    }
}
