//! What only reports refuses nobody and changes nothing for others; decisions and counters say
//! what would have been. A switch turns a whole layer off.

mod support;

use http::{Response, StatusCode};
use support::{
    Gated, Strict, answer, ask,
    driven::{Counting, Time, begin, handler, left, limiter, millis, secs},
    get, lines, with,
};
use tokio_test::{assert_pending, assert_ready_ok};
use tower::Layer;
use tower_sluice::{
    AccessList, Charge, Counters, Decision, Key, LocalStore, Mode, PeerIp, Quota, RateLimitLayer,
    Reservation, Rule, RuleName, Settle, Store, Switch,
    key::{Everyone, Header},
    testing::FakeClock,
};

const TWO: Quota = Quota::per_hour(2);
const FIVE: Quota = Quota::per_hour(5);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn trial() -> Rule<Everyone> {
    Rule::new("trial", Everyone, TWO).report_only()
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
async fn a_rule_that_reports_refuses_nobody_and_says_whom_it_would_have() {
    let (store, counters) = (store(), Counters::new());
    let layer = RateLimitLayer::rules(trial(), store.clone()).expose_decision().count(&counters);
    for at in 0..6 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let decision = decision(&response);
        assert_eq!((decision.is_allowed(), decision.would_deny()), (true, at >= 2));
        assert_eq!(lines(response.headers()), [""; 0], "and nothing of it is told");
        assert_eq!(has(&store, "trial", TWO), 1_u32.saturating_sub(at));
    }
    let counts = counters.read();
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
async fn what_another_rule_refuses_is_not_charged_to_one_that_reports() {
    let store = store();
    limiter("real", store.clone()).take(Key::everyone(), &FIVE, 5).now();
    let layer = RateLimitLayer::rules((trial(), real()), store.clone());
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(has(&store, "trial", TWO), 2);
}

/// Two quotas of one rule are charged all or none, reported or not.
#[tokio::test]
async fn a_rule_of_several_quotas_reports_exactly_what_it_would_refuse_enforced() {
    let (clock, quotas) = (FakeClock::new(), [Quota::per_second(1), Quota::per_minute(10)]);
    let rule = || Rule::new("api", Everyone, quotas);
    let reporting = RateLimitLayer::rules(rule().report_only(), clock.store(64)).expose_decision();
    let enforcing = RateLimitLayer::rules(rule(), clock.store(64));
    for at in 0..200 {
        let would = answer(&reporting, get("/")).await;
        let does = answer(&enforcing, get("/")).await.status() != StatusCode::OK;
        assert_eq!(decision(&would).would_deny(), does, "request {at}");
        clock.advance(millis(300));
    }
}

#[tokio::test]
async fn a_rule_that_reports_lets_pass_who_has_no_identity() {
    let users = || Rule::new("user", Header::new("x-user"), TWO).report_only();
    for layer in [users(), users().mode(|_| Mode::Require)] {
        let layer = RateLimitLayer::rules(layer, store());
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn what_was_not_charged_is_not_refunded() {
    let store = store();
    limiter("trial", store.clone()).take(Key::everyone(), &TWO, 2).now();
    let rules = (trial(), real());
    let layer = RateLimitLayer::rules(rules, store.clone()).settle(|_| Settle::Refund);
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    assert_eq!((has(&store, "trial", TWO), has(&store, "real", FIVE)), (0, 5));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_gives_back_only_what_was_charged() {
    let time = Time::default();
    let (store, even) = (time.store(), Quota::per_second(1));
    limiter("trial", store.clone()).take(Key::everyone(), &TWO, 2).now();
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
async fn a_layer_that_reports_refuses_nobody_and_tells_clients_nothing_it_would_refuse() {
    let (store, counters) = (store(), Counters::new());
    let layer = RateLimitLayer::rules(real(), store.clone()).report_only();
    let layer = layer.expose_decision().count(&counters);
    for at in 0..9 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(decision(&response).is_allowed(), at < 5);
        assert_eq!(response.headers().contains_key("ratelimit"), at < 5);
        assert!(!response.headers().contains_key("retry-after"));
    }
    let counts = counters.read();
    assert_eq!((counts.allowed, counts.denied, counts.would_deny), (5, 0, 4));
    assert_eq!(has(&store, "real", FIVE), 0);
}

#[tokio::test]
async fn a_layer_that_reports_lets_pass_whom_it_does_not_know_or_not_admit() {
    let counters = Counters::new();
    let users = RateLimitLayer::new(Header::new("x-user"), TWO, store());
    let denying = RateLimitLayer::new(Everyone, TWO, store()).deny(AccessList::from_fn(|_| true));
    let (users, denying) = (users.report_only().count(&counters), denying.report_only());
    assert_eq!(answer(&users, get("/")).await.status(), StatusCode::OK);
    assert_eq!(answer(&users, with(&[("x-user", "a"), ("x-user", "b")])).await.status(), 200);
    assert_eq!(answer(&denying.count(&counters), get("/")).await.status(), StatusCode::OK);
    let no_peer = RateLimitLayer::new(PeerIp::new(), TWO, store()).report_only();
    assert_eq!(answer(&no_peer, get("/")).await.status(), StatusCode::OK);
    assert_eq!((counters.read().would_deny, counters.read().denied), (3, 0));
}

/// All were asked for before the first had answered.
#[tokio::test(start_paused = true)]
async fn a_layer_that_reports_makes_nobody_wait_nor_refuses_him_for_want_of_a_place() {
    let time = Time::default();
    let gated = Gated::shut(time.store());
    let rule = Rule::new("even", Everyone, Quota::per_second(1)).max_wait(secs(60));
    let layer = RateLimitLayer::rules(rule, gated.clone()).max_waiters(1).report_only();
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
async fn a_switch_turns_a_whole_layer_off_and_on_and_no_store_is_asked_meanwhile() {
    let (local, switch) = (store(), Switch::on());
    let store = Counting::new(local.clone());
    let inner = handler(|request| {
        // what a handler asks for is there, whether there is a limit or not
        request.extensions().get::<Reservation>().expect("a reservation").settle(1);
        200
    });
    let layer = RateLimitLayer::rules(trial().cost(2), store.clone()).switch(&switch);
    let layer = layer.deny(AccessList::from_fn(|parts| parts.uri.path() == "/denied"));
    let layer = layer.reserve();
    let (mut one, mut other) = (layer.layer(inner.clone()), layer.clone().layer(inner));
    let mut status = async |path| {
        let first = ask(&mut one, get(path)).await.status();
        assert_eq!(ask(&mut other, get(path)).await.status(), first);
        first.as_u16()
    };
    switch.clone().set(false);
    assert!(!switch.is_on());
    for _ in 0..5 {
        assert_eq!((status("/").await, status("/denied").await), (200, 200));
    }
    assert_eq!((store.takes(), store.settles()), (0, 0));
    switch.set(true);
    assert_eq!((status("/").await, status("/denied").await), (200, 403));
    assert_eq!((store.takes(), has(&local, "trial", TWO)), (2, 1));
}

/// In whichever order: costs are added, and one of the two is in earnest.
#[test]
fn an_account_that_is_also_charged_in_earnest_refuses() {
    let (key, name) = (Key::everyone(), RuleName::default());
    let charge = Charge::new(name, &key, TWO.as_ref()).cost(2);
    for charges in [[charge, charge.report_only()], [charge.report_only(), charge]] {
        assert!(!store().take(&charges).now().is_allowed());
    }
    assert!(store().take(&[charge.report_only(); 2]).now().is_allowed());
}

#[tokio::test]
async fn a_rule_reports_while_its_switch_is_on_and_its_fields_go_with_it() {
    let (store, switch) = (store(), Switch::on());
    let rule = Rule::new("trial", Everyone, TWO).report_only_while(&switch);
    let layer = RateLimitLayer::rules((rule, real()), store);
    let told = |response: &Response<String>| {
        let fields = lines(response.headers());
        ["trial", "real"].map(|name| fields.iter().any(|field| field.contains(name)))
    };
    for _ in 0..3 {
        let response = answer(&layer, get("/")).await;
        assert_eq!((response.status(), told(&response)), (StatusCode::OK, [false, true]));
    }
    switch.set(false);
    let response = answer(&layer, get("/")).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(told(&response), [true, true]);
    // a rule that refuses is told of in each field, whatever it did before
    let fields = lines(response.headers());
    for field in ["ratelimit:", "ratelimit-policy:"] {
        let told = fields.iter().any(|it| it.starts_with(field) && it.contains("\"trial\""));
        assert!(told, "{fields:?}");
    }
    switch.set(true);
    let response = answer(&layer, get("/")).await;
    assert_eq!((response.status(), told(&response)), (StatusCode::OK, [false, true]));
}

#[tokio::test]
async fn a_rule_that_begins_to_report_is_not_told_any_more() {
    let (store, switch) = (store(), Switch::off());
    let rule = Rule::new("trial", Everyone, TWO).report_only_while(&switch);
    let layer = RateLimitLayer::rules(rule, store);
    assert!(!lines(answer(&layer, get("/")).await.headers()).is_empty());
    switch.set(true);
    for _ in 0..3 {
        let response = answer(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(lines(response.headers()), [""; 0]);
    }
}

#[tokio::test]
async fn a_layer_reports_while_its_switch_is_on() {
    let (switch, counters) = (Switch::off(), Counters::new());
    let layer = RateLimitLayer::rules(real(), store()).count(&counters).report_only_while(&switch);
    let clone = layer.clone();
    for _ in 0..5 {
        assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    }
    assert_eq!(answer(&clone, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    switch.set(true);
    assert_eq!(answer(&clone, get("/")).await.status(), StatusCode::OK);
    switch.set(false);
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let counts = counters.read();
    assert_eq!((counts.allowed, counts.denied, counts.would_deny), (5, 2, 1));
}

/// A rule that refuses where it has no key lets it pass while it reports.
#[tokio::test]
async fn without_a_key_a_rule_refuses_only_while_its_switch_is_off() {
    let switch = Switch::on();
    let rule = Rule::new("user", Header::new("x-user"), TWO).report_only_while(&switch);
    let layer = RateLimitLayer::rules(rule, store());
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::OK);
    switch.set(false);
    assert_eq!(answer(&layer, get("/")).await.status(), StatusCode::BAD_REQUEST);
}

/// Two quotas that clients would be told of by one name are refused whether or not both refuse now.
#[test]
fn names_of_quotas_do_not_clash_when_a_rule_is_flipped() {
    for switch in [Switch::on(), Switch::off()] {
        let named = |name, quota: Quota| Rule::new(name, Everyone, quota.named("burst"));
        let rules = (named("a", TWO).report_only_while(&switch), named("b", FIVE));
        let error = RateLimitLayer::try_rules(rules, store()).map(drop).unwrap_err();
        assert!(error.to_string().contains("burst"), "{error}");
    }
}
