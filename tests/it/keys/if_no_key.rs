//! `Rule::if_no_key`: requests with a key are limited by it, all others by another rule.

use http::{Request, StatusCode};
use tower_sluice::{
    LocalStore, Quota, RateLimitLayer, Rule,
    key::HeaderKey,
    rule::{Applies, OnMissingKey, RuleError, Rules},
};

use crate::support::{answer, header, with};

fn client() -> Rule<HeaderKey> {
    Rule::new("client", HeaderKey::new("x-api-key"), Quota::per_hour(3))
}

fn anonymous() -> Rule<HeaderKey> {
    Rule::new("anonymous", HeaderKey::new("x-address"), Quota::per_hour(1))
}

fn layer<R: Rules>(rules: R) -> RateLimitLayer<R, LocalStore> {
    RateLimitLayer::rules(rules, LocalStore::with_capacity(64))
}

/// A request of the address "a" with these values of `x-api-key`.
fn request(keys: &[&str]) -> Request<()> {
    let keys = keys.iter().map(|key| ("x-api-key", *key));
    with(&keys.chain([("x-address", "a")]).collect::<Vec<_>>())
}

/// Returns the status and the names of the rules that charged the request.
async fn ask<R: Rules>(
    layer: &RateLimitLayer<R, LocalStore>,
    keys: &[&str],
) -> (StatusCode, String) {
    let response = answer(layer, request(keys)).await;
    let reported = header(response.headers(), "ratelimit").to_owned();
    let names = reported.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" ");
    (response.status(), names)
}

fn ok(rule: &str) -> (StatusCode, String) {
    (StatusCode::OK, rule.to_owned())
}

#[tokio::test]
async fn no_policy_for_missing_keys_lets_a_request_pass_uncharged() {
    let policies =
        [OnMissingKey::Skip, OnMissingKey::Share, OnMissingKey::Reject(StatusCode::UNAUTHORIZED)];
    for policy in policies {
        let before = client().on_missing_key(policy).if_no_key(anonymous());
        let after = client().if_no_key(anonymous()).on_missing_key(policy);
        for rule in [before, after] {
            assert_eq!(ask(&layer(rule), &[]).await, ok("anonymous"), "{policy:?}");
        }
    }
    let required = client().if_no_key(anonymous()).applies(|_| Applies::Require);
    assert_eq!(ask(&layer(required), &[]).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_dry_run_explains_the_rule_that_would_charge() {
    for (keys, rule) in [(&["alice"][..], "client"), (&[], "anonymous"), (&[""], "anonymous")] {
        let layer = layer(client().if_no_key(anonymous())).expose_decision();
        let would = layer.explain(&request(keys)).await.to_string();
        assert!(would.starts_with(&format!("would be allowed\n  rule \"{rule}\" (")), "{would}");
        assert_eq!(would.matches("rule ").count(), 1, "{would}");
        let decision = answer(&layer, request(keys)).await;
        let decision = decision.extensions().get::<tower_sluice::Decision>().expect("exposed");
        let was = layer.explain_decision(decision, &request(keys)).to_string();
        assert!(was.starts_with(&format!("allowed\n  rule \"{rule}\" (")), "{was}");
    }
}

#[test]
fn both_rules_are_checked_when_the_layer_is_built() {
    let built = |rule| {
        let rules = client().if_no_key(rule);
        RateLimitLayer::try_rules(rules, LocalStore::with_capacity(16)).map(drop)
    };
    let same = built(client());
    assert!(matches!(same, Err(RuleError::SameName(name)) if name.as_str() == "client"));
    let costly = built(anonymous().cost(2));
    assert!(matches!(costly, Err(RuleError::CostAboveLimit { cost: 2, limit: 1, .. })));
}
