//! Limits in TOML and JSON files.
//!
//! Each text gives the intended value, or an error with the field, its value and the fix. The tests
//! in `examples` load a new file into a running server.

use std::{collections::HashMap, fmt::Debug, time::Duration};

use http::StatusCode;
use proptest::prelude::*;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tower_sluice::{
    Algorithm, Headers, Quota, RateLimitLayer, Rule,
    key::HeaderKey,
    middleware::Penalty,
    rule::{OnMissingKey, Quotas, RuleName, RuleSettings, Rules as _},
    testing::FakeClock,
};

use crate::support::{answer, driven::secs, header, periods, with};

/// A field for the value, since TOML has only fields.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct File<T> {
    it: T,
}

/// Checks that TOML and JSON give the same value, and that the written value reads back.
fn reads_back<T: Debug + DeserializeOwned + PartialEq + Serialize>(it: T) {
    let file = File { it };
    let text = toml::to_string(&file).expect("TOML");
    assert_eq!(toml::from_str::<File<T>>(&text).as_ref(), Ok(&file), "{text}");
    let text = serde_json::to_string(&file).expect("JSON");
    assert_eq!(serde_json::from_str::<File<T>>(&text).ok().as_ref(), Some(&file), "{text}");
}

fn written<T: Serialize>(it: &T) -> Value {
    serde_json::to_value(it).expect("JSON")
}

#[test]
fn fields_of_quotas_have_the_names_of_the_setters() {
    let minute = Quota::per_minute(100);
    let lending = Algorithm::FixedWindow { carry_over: 30, paced: true };
    for (quota, spelled) in [
        (minute, json!("100/min")),
        (minute.with_burst(20), json!("100/min burst 20")),
        (Quota::blocked(), json!("blocked")),
        (minute.with_soft(5), json!({"units": 100, "period": "1min", "soft": 5})),
        (minute.with_max_debt(0), json!({"units": 100, "period": "1min", "max_debt": 0})),
        (
            minute.with_burst(20).with_initial(0).with_name("slow"),
            json!({"units": 100, "period": "1min", "burst": 20, "initial": 0, "name": "slow"}),
        ),
        (
            minute.with_burst(7).with_algorithm(Algorithm::TokenBucket),
            json!({"units": 100, "period": "1min", "burst": 7, "algorithm": "token_bucket"}),
        ),
        (
            Quota::per_day(9).with_algorithm(Algorithm::fixed_window()),
            json!({"units": 9, "period": "1day", "algorithm": "fixed_window"}),
        ),
        (
            Quota::per_hour(9).with_algorithm(lending),
            json!({"units": 9, "period": "1h",
                   "algorithm": {"fixed_window": {"carry_over": 30, "paced": true}}}),
        ),
        (
            Quota::per_hour(9).with_algorithm(Algorithm::AnchoredWindow),
            json!({"units": 9, "period": "1h", "algorithm": "anchored_window"}),
        ),
        (
            minute.with_algorithm(Algorithm::SlidingWindow { buckets: 60 }),
            json!({"units": 100, "period": "1min", "algorithm": {"sliding_window": {"buckets": 60}}}),
        ),
        (
            Quota::per_second(9).with_algorithm(Algorithm::SlidingLog),
            json!({"units": 9, "period": "1s", "algorithm": "sliding_log"}),
        ),
        (
            Quota::blocked().with_name("banned").with_algorithm(Algorithm::SlidingLog),
            json!({"blocked": true, "algorithm": "sliding_log", "name": "banned"}),
        ),
    ] {
        assert_eq!(written(&quota), spelled);
        reads_back(quota);
    }
    let paced: File<Quota> =
        toml::from_str("it = { units = 5, period = \"s\", algorithm.fixed_window.paced = true }")
            .expect("dotted keys");
    assert_eq!(
        paced.it,
        Quota::per_second(5).with_algorithm(Algorithm::FixedWindow { carry_over: 0, paced: true })
    );
}

#[test]
fn routes_are_read_and_written_with_their_quotas() {
    use tower_sluice::rule::RouteSettings;

    let text = r#"it = { "POST /url" = "10/s", "/login" = ["5/min", "50/day"],
                         "GET /shop.Cart/{*rest}" = [], other = "99/s" }"#;
    let text = text.replace('\n', "");
    let file: File<RouteSettings> = toml::from_str(&text).expect("routes");
    let (made, mut rules) = (file.it.rules(), Vec::new());
    made.info(&mut rules);
    let quotas =
        |text: &str| text.split_whitespace().map(crate::support::quota).collect::<Vec<_>>();
    let expected = [
        ("POST /url", quotas("10/s")),
        ("/login", quotas("5/min 50/day")),
        ("GET /shop.Cart/{*rest}", quotas("")),
        ("other", quotas("99/s")),
    ];
    assert_eq!(rules.len(), expected.len());
    for (name, quotas) in expected {
        let rule = rules.iter().find(|rule| rule.name.as_str() == name).expect(name);
        assert_eq!(rule.quotas, Some(&*quotas));
    }
    reads_back(file.it);
}

#[test]
fn header_families_names_and_policies_have_text_forms() {
    for (family, word) in [
        (Headers::RateLimit, "ratelimit"),
        (Headers::Draft07, "draft07"),
        (Headers::Draft06, "draft06"),
        (Headers::XRateLimit, "x-ratelimit"),
        (Headers::XRateLimitDelta, "x-ratelimit-delta"),
        (Headers::ByUnit, "by-unit"),
        (Headers::None, "none"),
    ] {
        assert_eq!(written(&family), word);
        reads_back(family);
    }
    for (missing, spelled) in [
        (OnMissingKey::default(), json!("reject")),
        (OnMissingKey::Reject(StatusCode::UNAUTHORIZED), json!("reject 401")),
        (OnMissingKey::Skip, json!("skip")),
        (OnMissingKey::Share, json!("share")),
    ] {
        assert_eq!(written(&missing), spelled);
        reads_back(missing);
    }
    reads_back(RuleName::new("login").expect("a name"));
    let by_name = toml::from_str::<HashMap<RuleName, Quotas>>("login = '5/min'").expect("a key");
    assert_eq!(by_name.keys().map(RuleName::as_str).collect::<Vec<_>>(), ["login"]);
}

/// Generates every valid quota, up to the extremes.
fn quotas() -> impl Strategy<Value = Quota> {
    let units = || prop_oneof![1..20_u32, 1..20_000_u32, 1..=u32::MAX];
    let algorithm = prop_oneof![
        Just(Algorithm::Gcra),
        Just(Algorithm::TokenBucket),
        (0..9_u32, any::<bool>())
            .prop_map(|(carry_over, paced)| { Algorithm::FixedWindow { carry_over, paced } }),
        Just(Algorithm::AnchoredWindow),
        (1..=1_000_u32).prop_map(|buckets| Algorithm::SlidingWindow { buckets }),
        Just(Algorithm::SlidingLog),
    ];
    let name = prop::sample::select(vec![None, Some("daily"), Some("a \"b\" \\ c")]);
    let debt = prop::option::of(0..50_u32);
    let options = (prop::option::of(units()), prop::option::of(0..50_u32), 0..50_u32, debt);
    let parts = (units(), periods(), algorithm, options, name);
    parts.prop_filter_map("valid", |(units, period, algorithm, options, name)| {
        let (burst, initial, soft, debt) = options;
        let refills = matches!(algorithm, Algorithm::Gcra | Algorithm::TokenBucket);
        let period = match algorithm {
            Algorithm::SlidingWindow { buckets } => period - period % u64::from(buckets),
            _ => period,
        };
        let most = if algorithm == Algorithm::SlidingLog { 9_000 } else { u32::MAX };
        let units = units.min(u32::try_from(period).unwrap_or(most)).min(most);
        let mut quota = Quota::new(units, Duration::from_nanos(period)).ok()?;
        if let Some(burst) = burst.filter(|_| refills) {
            quota = quota.try_with_burst(burst).ok()?;
        }
        quota = quota.try_with_algorithm(algorithm).ok()?;
        quota = quota.try_with_soft(soft).unwrap_or(quota);
        quota = debt.map_or(quota, |units| quota.try_with_max_debt(units).unwrap_or(quota));
        if let Some(initial) = initial.filter(|_| refills) {
            quota = quota.try_with_initial(initial.min(quota.limit())).ok()?;
        }
        Some(name.map_or(quota, |name| quota.with_name(name)))
    })
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn all_settings_read_back(
        all in prop::collection::vec(quotas(), 0..4),
        numbers in (0..9_u32, 0..9_u32, 1..9_000_usize),
        wait in prop_oneof![Just(0), periods()],
        missing in prop::sample::select(vec![OnMissingKey::default(), OnMissingKey::Skip, OnMissingKey::Share]),
        report_only: bool,
        name in "[ -~]{1,64}",
    ) {
        let mut settings = RuleSettings::new(all);
        settings.name = RuleName::new(&name).expect("printable");
        (settings.cost, settings.headroom, settings.max_key_len) = numbers;
        settings.max_wait = Duration::from_nanos(wait);
        settings.missing = missing;
        settings.report_only = report_only;
        reads_back(settings);
    }
}

const FILE: &str = r#"
[user]
name = "user"
quotas = ["10/min", { units = 100, period = "day", algorithm = "anchored_window", name = "daily" }]
cost = 2
headroom = 1
missing = "reject 401"
max_key_len = 5

[plans]
gold = ["20/min burst 40", "200/day"]
partner = []
"#;

#[derive(Deserialize)]
struct Limits {
    user: RuleSettings,
    plans: HashMap<String, Quotas>,
}

fn limits() -> Limits {
    let limits: Limits = toml::from_str(FILE).expect("TOML");
    let other: Value = toml::from_str(FILE).expect("TOML");
    let json: Limits = serde_json::from_value(other).expect("the same in JSON");
    assert_eq!((&json.user, &json.plans), (&limits.user, &limits.plans));
    limits
}

#[tokio::test]
async fn a_rule_from_a_file_equals_the_same_rule_in_code() {
    let daily = Quota::per_day(100).with_algorithm(Algorithm::AnchoredWindow).with_name("daily");
    let in_code = Rule::new("user", HeaderKey::new("x-user"), [Quota::per_minute(10), daily])
        .cost(2)
        .headroom(1)
        .on_missing_key(OnMissingKey::Reject(StatusCode::UNAUTHORIZED))
        .max_key_len(5);
    let in_file = limits().user.rule(HeaderKey::new("x-user"));
    let layers =
        [in_code, in_file].map(|rule| RateLimitLayer::rules(rule, FakeClock::new().store(64)));
    let mut reported = Vec::new();
    for layer in &layers {
        let mut lines = Vec::new();
        for user in ["alice", "alice", "alice", "alice", "alice", "", "mallory"] {
            let response = answer(layer, with(&[("x-user", user)])).await;
            let fields = ["ratelimit-policy", "ratelimit", "retry-after"];
            let fields = fields.map(|name| header(response.headers(), name).to_owned());
            lines.push((response.status().as_u16(), fields));
        }
        reported.push(lines);
    }
    assert_eq!(reported[0], reported[1]);
    let statuses: Vec<_> = reported[1].iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 401, 400], "two of ten, and one left over");
}

#[test]
fn a_new_file_reports_the_field_that_needs_a_restart() {
    let old = limits().user;
    let field = |line: &str| {
        let name = line.split(' ').next().expect("a name");
        let kept = FILE.lines().filter(|kept| !kept.starts_with(&format!("{name} =")));
        let mut lines: Vec<_> = kept.collect();
        lines.insert(lines.iter().position(|line| *line == "[user]").expect("a table") + 1, line);
        let new: Limits = toml::from_str(&lines.join("\n")).expect(line);
        old.needs_restart(&new.user)
    };
    assert_eq!(field("quotas = 'blocked'"), None);
    for line in [
        "name = 'other'",
        "cost = 3",
        "headroom = 0",
        "max_wait = '1s'",
        "missing = 'skip'",
        "report_only = true",
        "max_key_len = 6",
    ] {
        assert_eq!(field(line), line.split(' ').next(), "{line}");
    }
}

#[test]
fn a_penalty_from_a_file_equals_the_same_penalty_in_code() {
    let penalty = || Penalty::after(Quota::per_minute(20).with_burst(5));
    let [minute, ten] = [60, 600].map(secs);
    for (it, in_code) in [
        ("{ after = '20/min burst 5' }", penalty()),
        (
            "{ after = { units = 20, period = 'min', burst = 5 }, block = '10min' }",
            penalty().block([ten]),
        ),
        (
            "{ after = '20/min burst 5', block = ['1min', '10min'], forgive = '1h', capacity = 9 }",
            penalty().block([minute, ten]).forgive(secs(3_600)).capacity(9),
        ),
    ] {
        let text = format!("it = {it}");
        let read: File<Penalty> = toml::from_str(&text).expect(it);
        let json: Value = toml::from_str(&text).expect(it);
        let json: File<Penalty> = serde_json::from_value(json).expect("the same in JSON");
        assert_eq!(format!("{:?}", read.it), format!("{in_code:?}"));
        assert_eq!(format!("{:?}", json.it), format!("{in_code:?}"));
    }
}
