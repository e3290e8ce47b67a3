//! `Rule::if_no_key`: requests with a key are limited by it, all others by another rule.

use http::{Request, StatusCode};
use tower_sluice::{
    AccessList, Key, KeyExtractor, LivePlan, LocalStore, Quota, RateLimitLayer, RequestHead, Rule,
    key::{Everyone, HeaderKey, KeyError},
    rule::{Applies, OnMissingKey, RuleError, Rules},
};

use crate::support::{answer, get, header, with};

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

fn denied(rule: &str) -> (StatusCode, String) {
    (StatusCode::TOO_MANY_REQUESTS, rule.to_owned())
}

#[tokio::test]
async fn a_missing_or_empty_header_is_limited_by_the_address() {
    for keys in [&[][..], &[""], &[" \t"]] {
        let layer = layer(client().if_no_key(anonymous()));
        assert_eq!(ask(&layer, keys).await, ok("anonymous"), "{keys:?}");
        assert_eq!(ask(&layer, keys).await, denied("anonymous"), "{keys:?}");
        for _ in 0..3 {
            assert_eq!(ask(&layer, &["alice"]).await, ok("client"), "{keys:?}");
        }
        assert_eq!(ask(&layer, &["alice"]).await, denied("client"), "{keys:?}");
        assert_eq!(ask(&layer, &["bob"]).await, ok("client"), "each key has an account");
    }
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
async fn an_unusable_key_is_not_a_missing_key() {
    let short = || client().max_key_len(4).if_no_key(anonymous());
    for keys in [&["alice"][..], &["a", "b"], &["a", ""], &["", ""]] {
        let layer = layer(short());
        assert_eq!(ask(&layer, keys).await.0, StatusCode::BAD_REQUEST, "{keys:?}");
        assert_eq!(ask(&layer, &[]).await, ok("anonymous"), "{keys:?} was not charged");
    }
    // A trial of the first rule does not lift the limit of the second.
    let trial = layer(short().report_only(true));
    assert_eq!(ask(&trial, &["a", "b"]).await, ok("anonymous"));
    assert_eq!(ask(&trial, &["alice"]).await, denied("anonymous"));
}

#[tokio::test]
async fn a_key_with_a_trial_or_without_quotas_is_not_anonymous() {
    let report_only = client().plan(Quota::blocked()).report_only(true).if_no_key(anonymous());
    let live = LivePlan::new([]);
    let live = client().plan(&live).if_no_key(anonymous());
    for rule in [report_only, live, client().plan([]).if_no_key(anonymous())] {
        let layer = layer(rule);
        for _ in 0..3 {
            assert_eq!(ask(&layer, &["alice"]).await, ok(""));
        }
        assert_eq!(ask(&layer, &[]).await, ok("anonymous"));
        assert_eq!(ask(&layer, &[""]).await, denied("anonymous"));
    }
}

#[tokio::test]
async fn the_second_rule_keeps_its_settings() {
    let live = LivePlan::new(Quota::per_hour(1));
    let replaced = layer(client().if_no_key(anonymous().plan(&live)));
    assert_eq!(ask(&replaced, &[]).await, ok("anonymous"));
    live.replace(Quota::blocked());
    assert_eq!(ask(&replaced, &[]).await.0, StatusCode::FORBIDDEN);
    let trial = layer(client().if_no_key(anonymous().report_only(true)));
    for _ in 0..3 {
        assert_eq!(ask(&trial, &[]).await, ok(""));
    }
    let costly = layer(client().if_no_key(anonymous().plan(Quota::per_hour(4)).cost(4)));
    assert_eq!(ask(&costly, &[]).await, ok("anonymous"));
    assert_eq!(ask(&costly, &[]).await, denied("anonymous"));
}

#[tokio::test]
async fn a_skipped_or_allowed_request_is_charged_to_neither_rule() {
    let skip = client().if_no_key(anonymous()).applies(|_| Applies::Skip);
    let allow = AccessList::from_fn(|_| true);
    let allowed = layer(client().if_no_key(anonymous())).allow(allow);
    for layer in [layer(skip), allowed] {
        for _ in 0..3 {
            assert_eq!(ask(&layer, &[]).await, ok(""));
            assert_eq!(ask(&layer, &["alice"]).await, ok(""));
        }
    }
}

#[tokio::test]
async fn other_rules_are_charged_as_well() {
    let site = || Rule::new("site", Everyone, Quota::per_hour(4));
    let second = || (anonymous(), Rule::new("network", Everyone, Quota::per_hour(9)));
    let either = || client().if_no_key(second());
    let first = layer((either(), site()));
    assert_eq!(ask(&first, &[]).await, ok("anonymous network site"));
    assert_eq!(ask(&first, &["alice"]).await, ok("client site"));
    let last = layer(vec![Box::new(site()) as Box<dyn Rules>, Box::new(either())]);
    assert_eq!(ask(&last, &[""]).await, ok("site anonymous network"));
    assert_eq!(ask(&last, &["alice"]).await, ok("site client"));
    let chain = layer(client().if_no_key(anonymous().if_no_key(site())));
    assert_eq!(ask(&chain, &[]).await, ok("anonymous"));
    let nobody = answer(&chain, get("/")).await;
    assert!(header(nobody.headers(), "ratelimit").starts_with("\"site\";r=3"));
}

/// An extractor whose rule never applies.
struct Nobody;

impl KeyExtractor for Nobody {
    fn extract(&self, _: &RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        Ok(None)
    }
}

#[tokio::test]
async fn an_extractor_that_does_not_apply_has_no_key() {
    let rule = Rule::new("client", Nobody, Quota::per_hour(9)).if_no_key(anonymous());
    assert_eq!(ask(&layer(rule), &["alice"]).await, ok("anonymous"));
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

#[cfg(feature = "serde")]
#[tokio::test]
async fn rules_from_a_file_can_replace_each_other() {
    use tower_sluice::rule::RuleSettings;

    #[derive(serde::Deserialize)]
    struct Limits {
        client: RuleSettings,
        anonymous: RuleSettings,
    }

    for missing in ["", "missing = 'skip'", "missing = 'share'", "missing = 'reject 401'"] {
        let limits: Limits = toml::from_str(&format!(
            "[client]\nname = 'client'\nquotas = '3/h'\n{missing}\n\
             [anonymous]\nname = 'anonymous'\nquotas = '1/h'"
        ))
        .expect("TOML");
        let anonymous = limits.anonymous.rule(HeaderKey::new("x-address"));
        let client = limits.client.rule(HeaderKey::new("x-api-key")).if_no_key(anonymous);
        let layer = layer(client);
        assert_eq!(ask(&layer, &[]).await, ok("anonymous"), "{missing}");
        assert_eq!(ask(&layer, &[""]).await, denied("anonymous"), "{missing}");
        assert_eq!(ask(&layer, &["alice"]).await, ok("client"), "{missing}");
    }
}
