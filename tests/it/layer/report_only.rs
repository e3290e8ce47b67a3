//! Report-only rules, which deny nothing, and toggles.

use http::{Response, StatusCode};
use tokio_test::assert_pending;
use tower::Layer;
use tower_sluice::{
    AccessList, Decision, Key, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::Everyone,
    middleware::{Adjustment, ChargeHandle, Counters, Toggle},
    rule::RuleName,
    store::Charge,
};

use crate::support::{
    Strict, answer, ask,
    driven::{Counting, Time, begin, handler, left, limiter, secs},
    get, lines, store,
};

const TWO: Quota = Quota::per_hour(2);
const FIVE: Quota = Quota::per_hour(5);

fn trial() -> Rule<Everyone> {
    Rule::new("trial", Everyone, TWO).report_only(true)
}

fn real() -> Rule<Everyone> {
    Rule::new("real", Everyone, FIVE)
}

fn has(store: &LocalStore, name: &str, quota: Quota) -> u32 {
    left(store, name, Key::everyone(), &quota)
}

fn decision(response: &Response<String>) -> &Decision {
    response.extensions().get().expect("exposed")
}

#[tokio::test]
async fn a_report_only_rule_denies_nothing_and_reports_what_it_would_deny() {
    let (store, counters) = (store(), Counters::new());
    let layer = RateLimitLayer::rules(trial(), store.clone())
        .expose_decision()
        .on_decision(counters.clone());
    for at in 0..6 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let decision = decision(&response);
        assert_eq!((decision.is_allowed(), decision.would_deny()), (true, at >= 2));
        assert_eq!(lines(response.headers()), [""; 0], "the fields do not mention it");
        assert_eq!(has(&store, "trial", TWO), 1_u32.saturating_sub(at));
    }
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.denied, counts.would_deny), (6, 0, 4));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_queued_request_undoes_only_its_charges() {
    let time = Time::default();
    let (store, even) = (time.store(), Quota::per_second(1));
    drop(limiter("trial", store.clone()).take(Key::everyone(), &TWO, 2).now());
    let queue = Rule::new("even", Everyone, even).max_wait(secs(9));
    let mut service =
        RateLimitLayer::rules((trial(), queue), store.clone()).layer(Strict::default());
    ask(&mut service, get("/")).await;
    let mut waiting = begin(&mut service, get("/")).await;
    assert_pending!(waiting.poll());
    drop(waiting);
    assert_eq!(has(&store, "trial", TWO), 0);
    time.pass(secs(1)).await;
    assert_eq!(has(&store, "even", even), 1);
}

#[tokio::test]
async fn a_toggle_turns_a_layer_off_and_on_without_store_calls_while_off() {
    let (local, toggle) = (store(), Toggle::on());
    let store = Counting::new(local.clone());
    let inner = handler(|request| {
        // the extension that a handler reads is present with and without a limit
        request.extensions().get::<ChargeHandle>().expect("a reservation").adjust_to(1);
        200
    });
    let layer = RateLimitLayer::rules(trial().cost(2), store.clone()).enabled(&toggle);
    let layer = layer.deny(AccessList::from_fn(|head| head.path() == "/denied"));
    let layer = layer.expose_charge(Adjustment::Keep);
    let (mut one, mut other) = (layer.layer(inner.clone()), layer.clone().layer(inner));
    let mut status = async |path| {
        let first = ask(&mut one, get(path)).await.status();
        assert_eq!(ask(&mut other, get(path)).await.status(), first);
        first.as_u16()
    };
    toggle.clone().set(false);
    assert!(!toggle.is_on());
    for _ in 0..5 {
        assert_eq!((status("/").await, status("/denied").await), (200, 200));
    }
    assert_eq!((store.takes(), store.settles()), (0, 0));
    toggle.set(true);
    assert_eq!((status("/").await, status("/denied").await), (200, 403));
    assert_eq!((store.takes(), has(&local, "trial", TWO)), (2, 1));
}

/// The costs are added in either order, and one of the two rules is enforced.
#[test]
fn an_account_that_is_also_charged_by_an_enforced_rule_denies() {
    let (key, name) = (Key::everyone(), RuleName::default());
    let charge = Charge::new(name, &key, TWO.as_ref()).with_cost(2);
    for charges in
        [[charge, charge.with_report_only(true)], [charge.with_report_only(true), charge]]
    {
        assert!(!store().take(&charges).now().is_allowed());
    }
    assert!(store().take(&[charge.with_report_only(true); 2]).now().is_allowed());
}

#[tokio::test]
async fn a_layer_is_report_only_while_its_toggle_is_on() {
    let (toggle, counters) = (Toggle::off(), Counters::new());
    let layer =
        RateLimitLayer::rules(real(), store()).on_decision(counters.clone()).report_only(&toggle);
    let clone = layer.clone();
    for _ in 0..5 {
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
    assert_eq!(answer(&clone, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    toggle.set(true);
    assert_eq!(answer(&clone, get("/")).await.status(), StatusCode::OK);
    toggle.set(false);
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.denied, counts.would_deny), (5, 2, 1));
}
