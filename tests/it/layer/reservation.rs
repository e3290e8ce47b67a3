//! Charge handles, by which a handler adjusts the charge to the actual cost.

use std::thread;

use http::{Request, StatusCode};
use tower::Layer;
use tower_sluice::{
    AccessList, Key, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    decision::Outcome,
    key::{Everyone, HeaderKey},
    middleware::{Adjustment, ChargeHandle, Overcommit},
    rule::OnMissingKey,
    testing::FakeClock,
};

use crate::support::{
    ask,
    driven::{Time, handler, left, limiter, millis, secs},
    get, header,
    shaky::{Mood, Shaky},
    store, with,
};

const TEN: Quota = Quota::per_hour(10);

fn reservation(request: &Request<()>) -> ChargeHandle {
    request.extensions().get().cloned().expect("a reservation")
}

#[tokio::test]
async fn the_charge_of_one_rule_is_adjusted_separately() {
    let store = store();
    let rules = (
        Rule::new("calls", Everyone, TEN),
        Rule::new("tokens", Everyone, [Quota::per_hour(100), Quota::per_day(500)]).cost(50),
    );
    let layer = RateLimitLayer::rules(rules, store.clone()).expose_charge(Adjustment::Refund);
    let handler = handler(|request| {
        let reserved = reservation(&request);
        let wrong = reserved.adjust_rule_to("token", 7).expect_err("no such rule");
        assert_eq!(wrong.to_string(), "unknown rule `token`, expected one of `calls`, `tokens`");
        assert_eq!(reserved.adjust_rule_to("tokens", 20), Ok(()));
        assert_eq!(reserved.adjust_rule_to("tokens", 90), Ok(()), "which is ignored");
        assert_eq!(reserved.decision().outcomes().len(), 3);
        200
    });
    ask(&mut layer.layer(handler), get("/")).await;
    let tokens = limiter("tokens", store.clone());
    let look = tokens.peek(Key::everyone(), &[Quota::per_hour(100), Quota::per_day(500)]).now();
    let tokens: Vec<_> = look.outcomes().iter().map(Outcome::remaining).collect();
    assert_eq!(tokens, [80, 480]);
    assert_eq!(left(&store, "calls", Key::everyone(), &TEN), 10, "dropped, it became the default");
}

/// Other clients use the account of the site as well, so it is neither blocked nor reset.
#[tokio::test]
async fn a_handler_blocks_and_resets_only_the_keys_of_its_client() {
    let clock = FakeClock::new();
    let store = clock.store(64);
    let inner = handler(|request| {
        match request.uri().path() {
            "/attack" => reservation(&request).block(secs(30)).expect("room"),
            "/forgive" => reservation(&request).reset(),
            _ => {}
        }
        200
    });
    let user = Rule::new("user", HeaderKey::new("x-user"), TEN).on_missing_key(OnMissingKey::Share);
    let rules = (user, Rule::new("site", Everyone, TEN));
    let layer = RateLimitLayer::rules(rules, store.clone()).expose_charge(Adjustment::Keep);
    let mut service = layer.layer(inner);
    let by = |path: &str, user: &str| {
        let request = Request::get(path).header("x-user", user);
        request.body(()).expect("a request")
    };
    ask(&mut service, by("/attack", "alice")).await;
    let denied = ask(&mut service, by("/", "alice")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(denied.headers(), "retry-after"), "30");
    assert_eq!(ask(&mut service, by("/", "bob")).await.status(), StatusCode::OK);
    assert_eq!(ask(&mut service, get("/attack")).await.status(), StatusCode::OK);
    assert_eq!(ask(&mut service, get("/forgive")).await.status(), StatusCode::OK, "it is shared");
    clock.advance(secs(30));
    assert_eq!(ask(&mut service, by("/forgive", "alice")).await.status(), StatusCode::OK);
    assert_eq!(left(&store, "user", "alice", &TEN), 10);
    assert_eq!(left(&store, "site", Key::everyone(), &TEN), 5);
}

#[tokio::test]
async fn a_request_that_was_not_charged_resets_no_account() {
    let one = Quota::per_hour(1);
    for only_reports in [true, false] {
        let store = store();
        let layer =
            RateLimitLayer::rules(Rule::new("user", HeaderKey::new("x-user"), one), store.clone())
                .expose_charge(Adjustment::Keep);
        let layer = if only_reports {
            layer.report_only(true)
        } else {
            layer.overcommit(Overcommit::when(|| true))
        };
        for left_over in [1, 0] {
            let inner = handler(|request| {
                reservation(&request).reset();
                200
            });
            let response = ask(&mut layer.layer(inner), with(&[("x-user", "alice")])).await;
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(left(&store, "user", "alice", &one), left_over, "{only_reports}");
            drop(limiter("user", store.clone()).charge(Key::from("alice"), &one, 1).now());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_thread_without_a_runtime_adjusts_and_blocks_as_well() {
    let time = Time::default();
    let shared = Shaky::new(time.store());
    shared.set_mood(Mood::Late(millis(5)));
    let layer = RateLimitLayer::rules(
        Rule::new("user", HeaderKey::new("x-user"), TEN),
        shared.clone().fail_closed(),
    );
    let handler = handler(|request| {
        let charge = reservation(&request);
        let work = move || {
            charge.adjust_to(4);
            charge.block(secs(30)).expect("sent");
        };
        thread::spawn(work).join().expect("no panic");
        200
    });
    let layer = layer.expose_charge(Adjustment::Keep);
    let mut service = layer.layer(handler);
    assert_eq!(ask(&mut service, with(&[("x-user", "alice")])).await.status(), StatusCode::OK);
    tokio::time::sleep(millis(20)).await;
    assert_eq!(left(&shared.store, "user", "alice", &TEN), 6);
    let denied = ask(&mut service, with(&[("x-user", "alice")])).await;
    assert_eq!(header(denied.headers(), "retry-after"), "30");
}

/// An inner layer that adjusts by the response has no handle for the handler.
#[tokio::test]
async fn a_handler_gets_the_handle_of_the_innermost_layer_that_exposes_one() {
    let tokens = |store: &LocalStore| {
        let layer = RateLimitLayer::rules(Rule::new("tokens", Everyone, TEN), store.clone());
        layer.expose_charge(Adjustment::AtLeast(5))
    };
    let user = |store: &LocalStore| {
        RateLimitLayer::rules(Rule::new("user", Everyone, TEN), store.clone())
            .adjust(|_| Adjustment::Charge(3))
    };
    let handler = handler(|request| {
        reservation(&request).adjust_to(2);
        200
    });
    let left = |store: &LocalStore| {
        ["tokens", "user"].map(|rule| left(store, rule, Key::everyone(), &TEN))
    };
    let first = store();
    ask(&mut tokens(&first).layer(user(&first).layer(handler.clone())), get("/")).await;
    assert_eq!(left(&first), [8, 7]);
    let second = store();
    let everyone = AccessList::from_fn(|_| true);
    let allowed = user(&second).allow(everyone).layer(handler.clone());
    ask(&mut tokens(&second).layer(allowed), get("/")).await;
    assert_eq!(left(&second), [8, 10]);
    let third = store();
    let both = user(&third).expose_charge(Adjustment::Keep).layer(handler);
    ask(&mut tokens(&third).layer(both), get("/")).await;
    assert_eq!(left(&third), [5, 8]);
}

/// One rule after another, more rules than a machine word has bits.
#[tokio::test]
async fn a_handle_adjusts_each_of_a_hundred_rules() {
    // With less room, some accounts would be shared.
    let store = LocalStore::with_capacity(10_000);
    let names: Vec<_> = (0..100).map(|n| format!("rule-{n}")).collect();
    let rules: Vec<_> = names.iter().map(|name| Rule::new(name, Everyone, TEN).cost(4)).collect();
    let inner = handler(|request| {
        let reserved = reservation(&request);
        assert_eq!(reserved.adjust_rule_to("rule-99", 1), Ok(()));
        reserved.adjust_to(2);
        200
    });
    let layer = RateLimitLayer::rules(rules, store.clone()).expose_charge(Adjustment::Keep);
    assert_eq!(ask(&mut layer.layer(inner), get("/")).await.status(), StatusCode::OK);
    for name in &names {
        let expected = if name == "rule-99" { 9 } else { 8 };
        assert_eq!(left(&store, name, Key::everyone(), &TEN), expected, "{name}");
    }
}
