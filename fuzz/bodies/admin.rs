//! Bodies of the admin router: any bytes get an answer, never a fault of the server, and a look
//! changes nothing.

use axum::{
    Router,
    body::{Body, to_bytes},
};
use http::{Request, StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use tokio::runtime::Builder;
use tower::{ServiceExt, layer::util::Identity};
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, RateLimitLayer, Rule, StoreExt, admin::Admin,
    key::HeaderKey, rule::RuleName, store::Charge, testing::FakeClock,
};

use super::input::Input;

const ROUTES: [&str; 7] = ["peek", "reset", "block", "unblock", "switch", "layers", "health"];

const SLOTS: Quota = Quota::concurrent(3);

fn rates() -> [Quota; 2] {
    [Quota::per_second(5), Quota::per_hour(7).with_algorithm(Algorithm::SlidingLog)]
}

/// Creates a router for one layer. `keyed` has a rate and a sliding log, and `slots` has slots.
fn router(store: LocalStore) -> Router {
    let rules = (
        Rule::new("keyed", HeaderKey::new("x-key"), rates()),
        Rule::new("slots", HeaderKey::new("x-key"), SLOTS),
    );
    let mut admin = Admin::new();
    drop(admin.watch("api", RateLimitLayer::rules(rules, store)));
    admin.router(Identity::new())
}

/// Calls the store for the key that most seeds have.
fn ask(call: impl FnOnce(&[Charge<'_>; 2]) -> Decision) -> Decision {
    let (key, rates) = (Key::from("alice"), rates());
    let charge = |rule, quotas| Charge::new(RuleName::new(rule).expect("a name"), &key, quotas);
    call(&[charge("keyed", &rates), charge("slots", &[SLOTS])])
}

fn send(router: &Router, route: &str, body: &[u8]) -> (StatusCode, Vec<u8>) {
    let method = if matches!(route, "layers" | "health") { "GET" } else { "POST" };
    let request = Request::builder().method(method).uri(format!("/api/{route}"));
    let request = request.header(CONTENT_TYPE, "application/json");
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    // The health of a store is asked for in a task, with a timeout.
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let Ok(response) = router.clone().oneshot(request).await;
        let (head, body) = response.into_parts();
        (head.status, to_bytes(body, usize::MAX).await.expect("a body").to_vec())
    })
}

/// Reads the route, and the body.
pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (route, store) = (input.one_of(&ROUTES), FakeClock::new().store(64));
    let (router, running) = (router(store.clone()), ask(|it| store.take(it).now()));
    assert!(running.is_allowed());
    let state = || {
        let accounts = ask(|it| store.peek(it).now());
        (
            send(&router, "layers", &[]),
            format!("{:?} {}", accounts.outcomes(), accounts.is_blocked()),
        )
    };
    let before = state();
    let (status, answer) = send(&router, route, input.rest());
    let text = answer.escape_ascii();
    assert!(!status.is_server_error() && !status.is_redirection(), "{route}: {status} {text}");
    assert!(status.is_success() || !answer.is_empty(), "{route}: {status} without a reason");
    if status.is_success() && route != "switch" {
        assert!(serde_json::from_slice::<Value>(&answer).is_ok(), "{route}: {text}");
    }
    // A body that is an error, or that only looks, changes nothing.
    if !status.is_success() || route == "peek" {
        assert_eq!(state(), before);
        let again = send(&router, route, input.rest());
        assert_eq!(again, (status, answer), "{route} of the same body");
    }
}
