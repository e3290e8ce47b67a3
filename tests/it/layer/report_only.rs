//! Report-only rules, which deny nothing, and toggles.

use http::{Response, StatusCode};
use tokio_test::{assert_pending, assert_ready_ok};
use tower::Layer;
use tower_sluice::{
    AccessList, Decision, Key, LocalStore, PeerIp, Quota, RateLimitLayer, Rule, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::{Adjustment, ChargeHandle, Counters, Toggle},
    rule::{Applies, RuleName},
    store::Charge,
    testing::FakeClock,
};

use crate::support::{
    Gated, Strict, answer, ask,
    driven::{Counting, Time, begin, handler, left, limiter, millis, secs},
    get, lines, with,
};

const TWO: Quota = Quota::per_hour(2);
const FIVE: Quota = Quota::per_hour(5);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

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

#[tokio::test]
async fn other_rules_are_enforced_and_charged_as_if_alone() {
    let (store, alone) = (store(), store());
    let layer = RateLimitLayer::rules((trial(), real()), store.clone()).expose_decision();
    let plain = RateLimitLayer::rules(real(), alone.clone());
    for at in 0..8 {
        let (both, one) = (answer(&layer, get("/")).await, answer(&plain, get("/")).await);
        assert_eq!((both.status(), lines(both.headers())), (one.status(), lines(one.headers())));
        assert_eq!(both.body(), one.body());
        assert_eq!(has(&store, "real", FIVE), has(&alone, "real", FIVE));
        assert_eq!(decision(&both).would_deny(), at >= 2);
    }
}

#[tokio::test]
async fn a_denial_of_another_rule_charges_nothing_to_a_report_only_rule() {
    let store = store();
    drop(limiter("real", store.clone()).take(Key::everyone(), &FIVE, 5).now());
    let layer = RateLimitLayer::rules((trial(), real()), store.clone());
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(has(&store, "trial", TWO), 2);
}

/// Two quotas of one rule are charged all or none, enforced or report-only.
#[tokio::test]
async fn a_rule_of_several_quotas_reports_exactly_its_enforced_denials() {
    let (clock, quotas) = (FakeClock::new(), [Quota::per_second(1), Quota::per_minute(10)]);
    let rule = || Rule::new("api", Everyone, quotas);
    let reporting =
        RateLimitLayer::rules(rule().report_only(true), clock.store(64)).expose_decision();
    let enforcing = RateLimitLayer::rules(rule(), clock.store(64));
    for at in 0..200 {
        let would = answer(&reporting, get("/")).await;
        let does = answer(&enforcing, get("/")).await.status() != StatusCode::OK;
        assert_eq!(decision(&would).would_deny(), does, "request {at}");
        clock.advance(millis(300));
    }
}

#[tokio::test]
async fn a_report_only_rule_allows_requests_without_a_key() {
    let users = || Rule::new("user", HeaderKey::new("x-user"), TWO).report_only(true);
    for layer in [users(), users().applies(|_| Applies::Require)] {
        let layer = RateLimitLayer::rules(layer, store());
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn uncharged_requests_are_not_refunded() {
    let store = store();
    drop(limiter("trial", store.clone()).take(Key::everyone(), &TWO, 2).now());
    let rules = (trial(), real());
    let layer = RateLimitLayer::rules(rules, store.clone()).adjust(|_| Adjustment::Refund);
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    assert_eq!((has(&store, "trial", TWO), has(&store, "real", FIVE)), (0, 5));
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
async fn a_report_only_layer_denies_nothing_and_hides_its_denials_from_clients() {
    let (store, counters) = (store(), Counters::new());
    let layer = RateLimitLayer::rules(real(), store.clone()).report_only(true);
    let layer = layer.expose_decision().on_decision(counters.clone());
    for at in 0..9 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(decision(&response).is_allowed(), at < 5);
        assert_eq!(response.headers().contains_key("ratelimit"), at < 5);
        assert!(!response.headers().contains_key("retry-after"));
    }
    let counts = counters.snapshot();
    assert_eq!((counts.allowed, counts.denied, counts.would_deny), (5, 0, 4));
    assert_eq!(has(&store, "real", FIVE), 0);
}

#[tokio::test]
async fn a_report_only_layer_allows_requests_without_a_key_or_on_a_deny_list() {
    let counters = Counters::new();
    let users = RateLimitLayer::new(HeaderKey::new("x-user"), TWO, store());
    let denying = RateLimitLayer::new(Everyone, TWO, store()).deny(AccessList::from_fn(|_| true));
    let (users, denying) =
        (users.report_only(true).on_decision(counters.clone()), denying.report_only(true));
    assert_eq!(answer(&users, get("/")).await.status(), StatusCode::OK);
    assert_eq!(answer(&users, with(&[("x-user", "a"), ("x-user", "b")])).await.status(), 200);
    assert_eq!(
        answer(&denying.on_decision(counters.clone()), get("/")).await.status(),
        StatusCode::OK
    );
    let no_peer = RateLimitLayer::new(PeerIp::new(), TWO, store()).report_only(true);
    assert_eq!(answer(&no_peer, get("/")).await.status(), StatusCode::OK);
    assert_eq!((counters.snapshot().would_deny, counters.snapshot().denied), (3, 0));
}

/// All three calls are pending before the first has an answer.
#[tokio::test(start_paused = true)]
async fn a_report_only_layer_neither_queues_requests_nor_denies_them_for_a_full_queue() {
    let time = Time::default();
    let gated = Gated::shut(time.store());
    let rule = Rule::new("even", Everyone, Quota::per_second(1)).max_wait(secs(60));
    let layer = RateLimitLayer::rules(rule, gated.clone()).max_waiters(1).report_only(true);
    let mut service = layer.layer(Strict::default());
    let mut asking = Vec::new();
    for _ in 0..3 {
        asking.push(begin(&mut service, get("/")).await);
    }
    asking.iter_mut().for_each(|asking| assert_pending!(asking.poll()));
    gated.admit(3);
    for asking in &mut asking {
        assert_eq!(assert_ready_ok!(asking.poll()).status(), StatusCode::OK);
    }
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
async fn a_rule_and_its_fields_follow_its_report_only_toggle() {
    let (store, toggle) = (store(), Toggle::on());
    let rule = Rule::new("trial", Everyone, TWO).report_only(&toggle);
    let layer = RateLimitLayer::rules((rule, real()), store);
    let reported = |response: &Response<String>| {
        let fields = lines(response.headers());
        ["trial", "real"].map(|name| fields.iter().any(|field| field.contains(name)))
    };
    for _ in 0..3 {
        let response = answer(&layer, get("/")).await;
        assert_eq!((response.status(), reported(&response)), (StatusCode::OK, [false, true]));
    }
    toggle.set(false);
    let response = answer(&layer, get("/")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(reported(&response), [true, true]);
    // a rule that denies is reported in each field, also if it was report-only before
    let fields = lines(response.headers());
    for field in ["ratelimit:", "ratelimit-policy:"] {
        let found = fields.iter().any(|it| it.starts_with(field) && it.contains("\"trial\""));
        assert!(found, "{fields:?}");
    }
    toggle.set(true);
    let response = answer(&layer, get("/")).await;
    assert_eq!((response.status(), reported(&response)), (StatusCode::OK, [false, true]));
}

#[tokio::test]
async fn two_rules_that_trade_modes_trade_fields() {
    let switches = [Toggle::on(), Toggle::off()];
    let rule = |at: usize, name| Rule::new(name, Everyone, FIVE).report_only(&switches[at]);
    let layer = RateLimitLayer::rules((rule(0, "one"), rule(1, "two")), store());
    for (reports, named) in [(true, [false, true]), (false, [true, false])] {
        switches[0].set(reports);
        switches[1].set(!reports);
        let fields = lines(answer(&layer, get("/")).await.headers());
        let found = ["one", "two"].map(|name| fields.iter().any(|field| field.contains(name)));
        assert_eq!(found, named, "{fields:?}");
    }
}

#[tokio::test]
async fn a_rule_that_becomes_report_only_is_no_longer_in_the_fields() {
    let (store, toggle) = (store(), Toggle::off());
    let rule = Rule::new("trial", Everyone, TWO).report_only(&toggle);
    let layer = RateLimitLayer::rules(rule, store);
    assert!(!lines(answer(&layer, get("/")).await.headers()).is_empty());
    toggle.set(true);
    for _ in 0..3 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(lines(response.headers()), [""; 0]);
    }
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

/// A rule that rejects a missing key lets the request pass while it is report-only.
#[tokio::test]
async fn without_a_key_a_rule_rejects_only_while_its_toggle_is_off() {
    let toggle = Toggle::on();
    let rule = Rule::new("user", HeaderKey::new("x-user"), TWO).report_only(&toggle);
    let layer = RateLimitLayer::rules(rule, store());
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    toggle.set(false);
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::BAD_REQUEST);
}

/// Two quotas with one name in the fields are an error, whether or not both rules deny at the
/// moment.
#[test]
fn names_of_quotas_do_not_clash_when_a_toggle_changes() {
    for toggle in [Toggle::on(), Toggle::off()] {
        let named = |name, quota: Quota| Rule::new(name, Everyone, quota.with_name("burst"));
        let rules = (named("a", TWO).report_only(&toggle), named("b", FIVE));
        let error = RateLimitLayer::try_rules(rules, store()).map(drop).unwrap_err();
        assert!(error.to_string().contains("burst"), "{error}");
    }
}
