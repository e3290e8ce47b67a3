//! Toggles, and the reports on rules and denials.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{Router, body::Body, middleware::from_fn};
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_sluice::{
    Cost, Key, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule,
    admin::Admin,
    fingerprint::FingerprintKey,
    key::{Everyone, HeaderKey},
    middleware::Toggle,
};

use super::{THREE, denied, done, look, operators, site, user, users, visit, visits, watched};

const SECRET: [u8; 16] = *b"sixteen bytes ..";

fn off() -> Value {
    json!({ "layer": "api", "on": false })
}

fn on() -> Value {
    json!({ "layer": "api", "on": true })
}

#[tokio::test]
async fn the_kill_switch_allows_all_requests_and_can_be_reverted() {
    let handle = Toggle::on();
    let app = watched(users().enabled(&handle));
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    done(&app, "switch", &off()).await;
    assert_eq!(look(&app, "layers").await["layers"][0]["on"], false);
    assert!(!handle.is_on(), "it is the user's own switch");
    assert_eq!(visits(&app, "alice", 3).await, [200; 3]);
    done(&app, "switch", &on()).await;
    assert_eq!(visit(&app, "alice").await, 429);
    handle.set(false);
    assert_eq!(look(&app, "layers").await["layers"][0]["on"], false);
}

#[tokio::test]
async fn a_layer_or_one_rule_can_be_set_to_report_only() {
    let rules = (user(), Rule::new("site", Everyone, Quota::per_day(5)));
    let app = watched(RateLimitLayer::rules(rules, LocalStore::new()));
    let rule = |rule: &str, on: bool| json!({ "layer": "api", "rule": rule, "report_only": on });
    let layer = |on: bool| json!({ "layer": "api", "report_only": on });
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    done(&app, "switch", &rule("user", true)).await;
    assert_eq!(visits(&app, "alice", 2).await, [200; 2], "the site has two left");
    assert_eq!(visit(&app, "alice").await, 429, "and the rule itself denies");
    let shown = look(&app, "layers").await;
    assert_eq!(shown["layers"][0]["report_only"], false);
    assert_eq!(shown["layers"][0]["rules"][0]["report_only"], true);
    assert_eq!(shown["layers"][0]["rules"][1]["report_only"], false);
    done(&app, "switch", &layer(true)).await;
    assert_eq!(visits(&app, "alice", 2).await, [200; 2]);
    assert_eq!(look(&app, "layers").await["layers"][0]["report_only"], true);
    done(&app, "switch", &layer(false)).await;
    done(&app, "switch", &rule("user", false)).await;
    assert_eq!(visit(&app, "alice").await, 429);
    let rules = &look(&app, "layers").await["layers"][0]["rules"];
    // one of the requests that it would have denied was denied by the site rule
    assert_eq!((&rules[0]["denied"], &rules[0]["reported"]), (&json!(2), &json!(5)));
    assert_eq!((&rules[1]["denied"], &rules[1]["reported"]), (&json!(2), &json!(2)));
}

#[tokio::test]
async fn rules_are_listed_with_all_their_settings() {
    let live = LivePlan::new([Quota::per_minute(60)]);
    let rules = (
        Rule::new("user", HeaderKey::new("x-user"), Quota::per_second(5).with_burst(20))
            .cost(2)
            .headroom(1),
        Rule::new("live", Everyone, &live).cost(Cost::from_fn(|_| 1)),
        Rule::new("plan", Everyone, Plan::from_fn(|_, _| THREE.into())),
    );
    let app = watched(RateLimitLayer::rules(rules, LocalStore::new()));
    live.replace(Quota::per_minute(30));
    let shown = look(&app, "layers").await;
    assert_eq!(
        shown["layers"][0]["rules"],
        json!([
            {
                "rule": "user", "quotas": ["5/s burst 20"], "live": false, "cost": 2, "headroom": 1,
                "queues": false, "report_only": false, "denied": 0, "reported": 0, "recent": [],
                "top": [],
            },
            {
                "rule": "live", "quotas": ["30/min"], "live": true, "cost": null, "headroom": 0,
                "queues": false, "report_only": false, "denied": 0, "reported": 0, "recent": [],
                "top": [],
            },
            {
                "rule": "plan", "quotas": null, "live": false, "cost": 1, "headroom": 0,
                "queues": false, "report_only": false, "denied": 0, "reported": 0, "recent": [],
                "top": [],
            },
        ])
    );
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

#[tokio::test]
async fn a_configured_fingerprint_key_is_kept_and_the_default_is_random() {
    let own = async |name: &str| {
        let mut admin = Admin::new();
        let layer = admin.watch("api", users());
        done(&site(layer, &admin), "peek", &super::of(name)).await["key"].clone()
    };
    assert_ne!(own("alice").await, own("alice").await);
    let app = watched(users().fingerprint(SECRET));
    let alice = Key::from("alice").fingerprint(&FingerprintKey::from(SECRET)).to_string();
    assert_eq!(done(&app, "peek", &super::of("alice")).await["key"], json!(alice));
}

#[tokio::test]
async fn layers_can_share_a_store_and_be_watched_twice() {
    let store = LocalStore::new();
    let other = Rule::new("other", HeaderKey::new("x-user"), Quota::per_day(1));
    let (mut admin, mut second) = (Admin::new(), Admin::new());
    let users = admin.watch("users", RateLimitLayer::rules(user(), store.clone()));
    let others = admin.watch("others", RateLimitLayer::rules(other, store));
    let again = second.watch("again", users.clone());
    let twice = admin.watch("twice", again.clone());
    let hello = axum::routing::any(async || "hello");
    let app = Router::new()
        .route("/a", hello.clone().layer(users))
        .route("/b", hello.clone().layer(others))
        .route("/c", hello.clone().layer(again))
        .route("/d", hello.layer(twice))
        .nest("/admin", admin.router(from_fn(operators)));
    let visit = async |path: &str| {
        let request = Request::get(path).header("x-user", "alice").body(Body::empty());
        app.clone()
            .oneshot(request.expect("a request"))
            .await
            .expect("infallible")
            .status()
            .as_u16()
    };
    let statuses = [visit("/a").await, visit("/c").await, visit("/d").await];
    assert_eq!(statuses, [200; 3]);
    assert_eq!([visit("/a").await, visit("/c").await, visit("/d").await], [429; 3]);
    assert_eq!([visit("/b").await, visit("/b").await], [200, 429]);
    let shown = look(&app, "layers").await;
    // each entry records the requests of its layer and of the layers that were made from it
    assert_eq!([0, 1, 2].map(|layer| recent(&shown, layer).len()), [3, 1, 1]);
    assert_eq!(shown["layers"][2]["layer"], "twice");
    let elsewhere = Router::new().nest("/admin", second.router(from_fn(operators)));
    assert_eq!(recent(&look(&elsewhere, "layers").await, 0).len(), 2);
    // and they share its toggle
    done(&elsewhere, "switch", &json!({ "layer": "again", "on": false })).await;
    assert_eq!([visit("/a").await, visit("/d").await, visit("/b").await], [200, 200, 429]);
}

#[tokio::test]
async fn unwatched_layers_are_neither_listed_nor_recorded() {
    let admin = Admin::new();
    let app = site(users(), &admin);
    visits(&app, "alice", 4).await;
    assert_eq!(look(&app, "layers").await, json!({ "layers": [] }));
    let said = denied(&app, "switch", &on(), 404).await;
    assert_eq!(said, "layer is \"api\"; api/layers has the names of each layer");
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
