//! Toggles, and the reports on rules and denials.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::Router;
use serde_json::{Value, json};
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule,
    admin::Admin,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::Toggle,
};

use super::{denied, done, look, site, user, users, visit, visits, watched};

const SECRET: [u8; 16] = *b"sixteen bytes ..";

#[tokio::test]
async fn a_layer_or_one_rule_can_be_set_to_report_only() {
    let rules = (user(), Rule::new("site", Everyone, Quota::per_day(5)));
    let app = watched(RateLimitLayer::rules(rules, LocalStore::new()));
    let rule = |rule: &str, on: bool| json!({ "layer": "api", "rule": rule, "report_only": on });
    let layer = |on: bool| json!({ "layer": "api", "report_only": on });
    let would = async || {
        let peeked = done(&app, "peek", &super::of("alice")).await;
        peeked["would"].as_str().expect("a text").to_owned()
    };
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    assert!(!would().await.contains("allowed"));
    done(&app, "switch", &rule("user", true)).await;
    assert!(would().await.contains("; allowed anyway: the rule only reports\n"));
    assert_eq!(visits(&app, "alice", 2).await, [200; 2], "the site has two left");
    assert_eq!(visit(&app, "alice").await, 429, "the site denies");
    let shown = look(&app, "layers").await;
    assert_eq!(shown["layers"][0]["report_only"], false);
    assert_eq!(shown["layers"][0]["rules"][0]["report_only"], true);
    assert_eq!(shown["layers"][0]["rules"][1]["report_only"], false);
    done(&app, "switch", &layer(true)).await;
    assert_eq!(visits(&app, "alice", 2).await, [200; 2]);
    assert_eq!(look(&app, "layers").await["layers"][0]["report_only"], true);
    assert!(would().await.contains("; allowed anyway: the layer only reports\n"));
    done(&app, "switch", &json!({ "layer": "api", "on": false })).await;
    assert!(would().await.contains("; allowed anyway: the layer is off\n"));
    done(&app, "switch", &json!({ "layer": "api", "on": true })).await;
    done(&app, "switch", &layer(false)).await;
    done(&app, "switch", &rule("user", false)).await;
    assert_eq!(visit(&app, "alice").await, 429);
    let rules = &look(&app, "layers").await["layers"][0]["rules"];
    // one of the requests that it would have denied was denied by the site rule
    assert_eq!((&rules[0]["denied"], &rules[0]["reported"]), (&json!(2), &json!(5)));
    assert_eq!((&rules[1]["denied"], &rules[1]["reported"]), (&json!(2), &json!(2)));
}

fn recent(shown: &Value, layer: usize) -> &Vec<Value> {
    shown["layers"][layer]["rules"][0]["recent"].as_array().expect("a list")
}

#[tokio::test]
async fn the_last_denials_of_a_rule_are_kept_by_fingerprint() {
    let mut admin = Admin::new();
    let layer = admin.watch("api", users().fingerprint(SECRET));
    let app = site(layer, &admin);
    visits(&app, "alice", 3).await;
    assert!(recent(&look(&app, "layers").await, 0).is_empty());
    visits(&app, "bob", 4).await;
    visits(&app, "alice", 60).await;
    let shown = look(&app, "layers").await;
    let last = recent(&shown, 0);
    assert_eq!(last.len(), 50, "bounded, and the newest stay");
    let alice = Key::from("alice").fingerprint(&FingerprintKey::from(SECRET)).to_string();
    for denial in last {
        assert_eq!((&denial["key"], &denial["result"]), (&json!(alice), &json!("limited")));
        let wait = denial["retry_after_ms"].as_u64().expect("a wait");
        assert!((1..=86_400_000).contains(&wait));
    }
    assert!(!shown.to_string().contains("\"alice\""));
    assert_eq!(look(&app, "layers").await["layers"][0]["rules"][0]["denied"], 61);
    // a read of this key shows the same fingerprint
    assert_eq!(done(&app, "peek", &super::of("alice")).await["key"], json!(alice));
}

fn fingerprint(name: &str) -> String {
    Key::from(name).fingerprint(&FingerprintKey::from(SECRET)).to_string()
}

fn listed(name: &str) -> Value {
    json!({ "layer": "api", "rule": "user", "fingerprint": fingerprint(name) })
}

async fn top(app: &Router) -> Value {
    look(app, "layers").await["layers"][0]["rules"][0]["top"].clone()
}

#[tokio::test]
async fn the_most_denied_keys_are_listed_by_fingerprint() {
    let mut admin = Admin::new();
    let layer = admin.watch("api", users().fingerprint(SECRET));
    let app = site(layer, &admin);
    assert_eq!(top(&app).await, json!([]));
    visits(&app, "bob", 5).await;
    visits(&app, "alice", 13).await;
    let row = |name: &str, denied: u32| json!({ "key": fingerprint(name), "denied": denied, "blocked_until_ms": null });
    assert_eq!(top(&app).await, json!([row("alice", 10), row("bob", 2)]));
    for n in 0..200 {
        visits(&app, &format!("other-{n}"), 4).await;
    }
    let rows = top(&app).await;
    assert_eq!((rows.as_array().map(Vec::len), &rows[0]), (Some(50), &row("alice", 10)));
    assert!(!look(&app, "layers").await.to_string().contains("alice"));
}

#[tokio::test]
async fn a_listed_key_is_blocked_and_unblocked_by_its_fingerprint() {
    let mut admin = Admin::new();
    let layer = admin.watch("api", users().fingerprint(SECRET));
    let app = site(layer, &admin);
    visits(&app, "alice", 4).await;
    let mut block = listed("alice");
    block["for"] = json!("10min");
    assert_eq!(done(&app, "block", &block).await["done"], "block");
    let end = top(&app).await[0]["blocked_until_ms"].as_u64().map(Duration::from_millis);
    let left = UNIX_EPOCH + end.expect("a block");
    let left = left.duration_since(SystemTime::now()).expect("a later time").as_secs();
    assert!((590..=600).contains(&left), "{left}");
    done(&app, "reset", &listed("alice")).await;
    assert_eq!(visits(&app, "alice", 1).await, [429]);
    assert_eq!(done(&app, "peek", &listed("alice")).await["key"], json!(fingerprint("alice")));
    // A block by the key itself is shown too.
    done(&app, "unblock", &super::of("alice")).await;
    assert_eq!(top(&app).await[0]["blocked_until_ms"], Value::Null);
    assert_eq!(visits(&app, "alice", 1).await, [200]);

    let mut both = listed("alice");
    both["key"] = json!("alice");
    let why = denied(&app, "peek", &both, 400).await;
    assert_eq!(why, "give either a key, as \"key\": \"alice\", or a fingerprint");
    let unlisted = "which rule \"user\" does not list; give the key";
    let why = denied(&app, "unblock", &listed("bob"), 400).await;
    assert!(why.ends_with(unlisted), "{why}");
}

#[tokio::test]
async fn keys_are_listed_in_clear_text_only_if_the_operator_chose_so() {
    let mut admin = Admin::new().show_keys();
    let layer = admin.watch("api", users());
    let app = site(layer, &admin);
    let name = "<img src=x onerror=alert(1)>";
    visits(&app, name, 4).await;
    let clear = top(&app).await[0]["clear"].clone();
    assert_eq!(clear, name);
    let account = json!({ "layer": "api", "rule": "user", "key": clear });
    assert_eq!(done(&app, "peek", &account).await["quotas"][0]["remaining"], 0);
}

#[tokio::test]
async fn each_denying_rule_is_recorded_with_its_own_wait() {
    let rule = |name, quota| Rule::new(name, HeaderKey::new("x-user"), quota);
    let rules = (
        rule("minute", Quota::per_minute(1)),
        rule("day", Quota::per_day(1)),
        rule("trial", Quota::per_hour(1)).report_only(true),
        rule("never", Quota::blocked()).report_only(true),
    );
    let app = watched(RateLimitLayer::rules(rules, LocalStore::new()));
    assert_eq!(visits(&app, "alice", 2).await, [200, 429]);
    let shown = look(&app, "layers").await;
    let rules = shown["layers"][0]["rules"].as_array().expect("rules");
    let last = |at: usize| &rules[at]["recent"][0];
    let wait = |at: usize| last(at)["retry_after_ms"].as_u64().expect("a wait");
    assert!((1..=60_000).contains(&wait(0)), "{shown}");
    assert!((3_600_001..=86_400_000).contains(&wait(1)), "{shown}");
    assert!((60_001..=3_600_000).contains(&wait(2)), "{shown}");
    assert_eq!(last(2)["result"], "shadow_limited");
    assert_eq!(last(3)["retry_after_ms"], Value::Null);
    let counts = |at: usize| rules[at]["recent"].as_array().map(Vec::len);
    assert_eq!([0, 1, 2, 3].map(counts), [Some(1), Some(1), Some(1), Some(2)]);
}

/// The page would show and change a toggle that the layer does not have.
#[test]
fn a_watched_layer_keeps_its_toggles_and_its_secret() {
    let watched = || Admin::new().watch("api", users());
    let secret = || FingerprintKey::new("correct horse battery staple").expect("a key");
    let setters: [&dyn Fn(); 3] = [
        &|| drop(watched().enabled(Toggle::on())),
        &|| drop(watched().report_only(Toggle::on())),
        &|| drop(watched().fingerprint(secret())),
    ];
    for set in setters {
        assert!(catch_unwind(AssertUnwindSafe(set)).is_err());
    }
}

#[cfg(feature = "governor")]
#[tokio::test]
async fn a_store_without_report_only_rules_refuses_the_switch() {
    use std::{num::NonZeroU32, sync::Arc};
    use tower_sluice::{StoreExt, store::GovernorStore};

    let ten = governor::Quota::per_hour(NonZeroU32::new(10).expect("above 0"));
    let governor = governor::RateLimiter::<Key, _, _>::keyed(ten);
    let store = GovernorStore::new(Arc::new(governor)).fail_closed();
    let app = watched(RateLimitLayer::rules(user(), store));
    let switch = json!({ "layer": "api", "rule": "user", "report_only": true });
    let said = denied(&app, "switch", &switch, 409).await;
    assert!(said.ends_with("; omit rule to switch the layer"), "{said}");
}

#[tokio::test]
async fn a_request_that_costs_nothing_would_be_allowed() {
    let rule = Rule::new("user", HeaderKey::new("x-user"), Quota::blocked()).cost(0);
    let app = watched(RateLimitLayer::rules(rule, LocalStore::new()));
    assert_eq!(visit(&app, "alice").await, 200);
    let would = done(&app, "peek", &super::of("alice")).await["would"].to_string();
    assert!(would.contains("; allowed anyway: a request costs nothing"), "{would}");
}
