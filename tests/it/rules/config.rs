//! Limits in TOML and JSON files.
//!
//! Each text gives the intended value, or an error with the field, its value and the fix. The tests
//! in `examples` load a new file into a running server.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Debug,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::StatusCode;
use proptest::prelude::*;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tower::Layer;
use tower_sluice::{
    Algorithm, Decision, Headers, Limiter, LivePlan, LocalStore, Quota, RateLimitLayer, Rule,
    Store, StoreExt,
    key::{Everyone, HeaderKey},
    middleware::Penalty,
    rule::{OnMissingKey, Quotas, RuleName, RuleSettings, Rules as _},
    store::{Answer, Charge, Context, Never, Op},
    testing::FakeClock,
};

use crate::support::{Broken, Strict, answer, ask, driven::secs, get, header, periods, with};

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

/// Returns the error for the value of `it = …`, without its location.
fn error<T: Debug + DeserializeOwned>(it: &str) -> String {
    let wrong = toml::from_str::<File<T>>(&format!("it = {it}")).expect_err(it);
    wrong.message().to_owned()
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
fn units_of_time_have_several_spellings_and_one_canonical_form() {
    for (spelled, quota) in [
        ("10/sec", "10/s"),
        ("10/second", "10/s"),
        ("600/10 seconds", "600/10s"),
        ("10/m", "10/min"),
        ("10/minute burst 3", "10/min burst 3"),
        ("10/90minutes", "10/90min"),
        ("10/hour", "10/h"),
        ("10/2hrs", "10/2h"),
        ("10/d", "10/day"),
        ("10/7days", "10/week"),
    ] {
        let read: Quota = spelled.parse().expect(spelled);
        assert_eq!(read.to_string(), quota);
        assert_eq!(written(&read), json!(quota));
    }
    let rule: RuleSettings = toml::from_str("quotas = \"5/s\"\nmax_wait = \"1m\"").expect("a rule");
    assert_eq!((rule.max_wait, written(&rule)["max_wait"].clone()), (secs(60), json!("1min")));
    for text in ["10/M", "10/Min", "10/mo", "10/months", "10/5", "10/ss"] {
        assert!(text.parse::<Quota>().is_err(), "{text}");
    }
}

#[cfg(feature = "axum")]
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

#[cfg(feature = "axum")]
#[test]
fn an_invalid_route_reports_the_route_and_the_fix() {
    use tower_sluice::rule::RouteSettings;

    for (it, said) in [
        (
            "{ \"GET /a\" = \"5/s\" }",
            "other is missing, the quotas of all other requests; add it, as other = \"100/s\", or \
             other = [] to limit nothing",
        ),
        (
            "{ other = \"5/s\", \"GET /a/:id\" = \"5/s\" }",
            "route \"GET /a/:id\": path \"/a/:id\" has a parameter in the syntax of axum 0.7; write \
             {name} or {*name}",
        ),
        (
            "{ other = \"5/s\", \"PSOT /a\" = \"5/s\" }",
            "route \"PSOT /a\": method \"PSOT\" is unknown; give one of GET, HEAD, POST, PUT, DELETE, \
             PATCH, OPTIONS, TRACE, CONNECT, or only the path, for every method (any_method)",
        ),
        (
            "{ other = \"5/s\", \"GET  /a\" = \"5/s\", \"GET /a\" = \"5/s\" }",
            "route \"GET /a\" is given twice; drop one",
        ),
        (
            "{ default = \"5/s\" }",
            "other is missing, the quotas of all other requests; add it, as other = \"100/s\", or \
             other = [] to limit nothing",
        ),
        (
            "{ other = \"5/s\", default = \"5/s\" }",
            "route \"default\": path \"default\" does not start with a slash; add it",
        ),
        (
            "{ other = \"5/s\", \"GET /a\" = \"5/fortnight\" }",
            "quota \"5/fortnight\": period is \"fortnight\"; end it with one of ns, us, ms, s, min, h, day or week",
        ),
        ("\"5/s\"", "invalid type: string \"5/s\", expected a map"),
    ] {
        assert_eq!(error::<RouteSettings>(it), said);
    }
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
    fn every_quota_reads_back(quota in quotas(), others in prop::collection::vec(quotas(), 0..4)) {
        reads_back(quota);
        reads_back(Quotas::from(others));
    }

    #[test]
    fn all_settings_read_back(
        all in prop::collection::vec(quotas(), 0..3),
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

/// Returns the message for the value of `it = …`, and checks that the printed error shows the line.
fn shown<T: Debug + DeserializeOwned>(it: &str) -> String {
    let text = format!("it = {it}");
    let wrong = toml::from_str::<File<T>>(&text).expect_err(it);
    assert!(wrong.to_string().contains(&text), "{wrong}");
    wrong.message().to_owned()
}

#[test]
fn an_invalid_quota_reports_the_field_the_value_and_the_fix() {
    const NUMBER: &str = "give a whole number from 1 to 4294967295";
    const ZERO: &str = "give at least 1, or \"blocked\" to deny all requests";
    const ALGORITHM: &str = "give an algorithm, as \"sliding_log\", { sliding_window = { buckets = 60 } } \
        or { fixed_window = { carry_over = 30, paced = true } }";
    const BURST: &str = "burst is set on a blocked or concurrent quota; drop it";
    const EXCLUDE: &str =
        "units and period, concurrent and blocked exclude each other; give one of them";
    for (it, said) in [
        ("\"5\"", "quota \"5\": quota is \"5\"; write units/period, as 5/s, 200/10s or 100/min burst 20".into()),
        (
            "\"0/s\"",
            "quota \"0/s\": units is \"0\"; give at least 1, or \"blocked\" to deny all requests".into(),
        ),
        ("\"x/s\"", format!("quota \"x/s\": units is \"x\"; {NUMBER}")),
        ("{ units = \"ten\", period = \"s\" }", "invalid type: string \"ten\", expected u32".into()),
        ("{ units = 0, period = \"s\" }", format!("quota \"0/s\": units is \"0\"; {ZERO}")),
        ("{ units = -5, period = \"s\" }", "invalid value: integer `-5`, expected u32".into()),
        ("{ units = 1.5, period = \"s\" }", "invalid type: floating point `1.5`, expected u32".into()),
        (
            "{ units = 4294967296, period = \"s\" }",
            "invalid value: integer `4294967296`, expected u32".into(),
        ),
        ("{ units = [], period = \"s\" }", "invalid type: sequence, expected u32".into()),
        ("{ units = { a = 1 }, period = \"s\" }", "invalid type: map, expected u32".into()),
        ("{ period = \"s\" }", "units is missing; add it, as units = 100".into()),
        ("{ units = 5 }", "period is missing; add it, as period = \"1min\"".into()),
        ("{ units = 5, period = 60 }", "invalid type: integer `60`, expected a string".into()),
        (
            "{ units = 5, period = \"fortnight\" }",
            "quota \"5/fortnight\": period is \"fortnight\"; end it with one of ns, us, ms, s, min, h, day or week".into(),
        ),
        (
            "{ units = 5, period = \"4000day\" }",
            "quota: period is longer than ten years; shorten it (units 5, period 345600000s)".into(),
        ),
        ("{ units = 5, period = \"0s\" }", "quota: period is 0; give at least 1 ns per unit (units 5, period 0ns)".into()),
        ("{ units = 5, period = \"s\", burst = 0 }", format!("quota \"5/s burst 0\": burst is \"0\"; {ZERO}")),
        ("{ concurrent = 0 }", format!("quota \"0 concurrent\": concurrent is \"0\"; {ZERO}")),
        (
            "{ units = 5, period = \"s\", initial = 6 }",
            "quota: initial is above burst; lower it or raise burst (units 5, period 1s, initial 6)".into(),
        ),
        (
            "{ units = 5, period = \"s\", brust = 7 }",
            "unknown field `brust`, expected one of `blocked`, `concurrent`, `units`, `period`, \
             `burst`, `algorithm`, `initial`, `soft`, `max_debt`, `name`, `unit`".into(),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = \"leaky\" }",
            format!("algorithm is \"leaky\": unknown variant `leaky`, expected one of `gcra`, \
             `token_bucket`, `fixed_window`, `anchored_window`, `sliding_window`, `sliding_log`; \
             {ALGORITHM}"),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = \"sliding_window\" }",
            format!("algorithm is \"sliding_window\": invalid type: unit variant, expected struct \
             variant; {ALGORITHM}"),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = { sliding_window = { buckets = 0 } } }",
            "quota: buckets of a sliding window is outside 1 to 1000 (units 5, period 1s, algorithm \
             SlidingWindow { buckets: 0 })".into(),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = { sliding_window = {} } }",
            "missing field `buckets`".into(),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = { fixed_window = { paced = 1 } } }",
            "invalid type: integer `1`, expected a boolean".into(),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = { fixed_window = { pace = true } } }",
            "unknown field `pace`, expected `carry_over` or `paced`".into(),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = { fixed_window = {}, sliding_window.buckets = 5 } }",
            format!("too many fields; {ALGORITHM}"),
        ),
        (
            "{ units = 5, period = \"s\", algorithm = { concurrent = {} } }",
            "unknown variant `concurrent`, expected one of `gcra`, `token_bucket`, `fixed_window`, \
             `anchored_window`, `sliding_window`, `sliding_log`".into(),
        ),
        (
            "{ units = 5, period = \"s\", burst = 9, algorithm = \"sliding_log\" }",
            "quota: burst is set on a window, where it equals units; drop it (units 5, period 1s, \
             algorithm SlidingLog, burst 9)"
                .into(),
        ),
        (
            "{ units = 5, period = \"s\", name = \"\" }",
            "name \"\": it is empty; give 1 to 64 characters".into(),
        ),
        ("{ blocked = true, units = 5 }", EXCLUDE.into()),
        ("{ concurrent = 5, period = \"s\" }", EXCLUDE.into()),
        ("{ blocked = true, burst = 5 }", BURST.into()),
        ("{ concurrent = 5, burst = 10 }", BURST.into()),
        (
            "5",
            "invalid type: integer `5`, expected a quota, as \"100/min burst 20\" or { units = 100, \
             period = \"1min\", burst = 20 }"
                .into(),
        ),
    ] {
        assert_eq!(shown::<Quota>(it), said, "{it}");
    }
    // TOML itself rejects this, JSON does not
    let twice = serde_json::from_str::<Quota>(r#"{"units": 5, "units": 6}"#).expect_err("twice");
    assert_eq!(twice.to_string(), "duplicate field `units` at line 1 column 20");
}

#[test]
fn an_invalid_rule_setting_reports_the_field_the_value_and_the_fix() {
    const MISSING: &str = "give \"skip\", \"share\", \"reject\", or \"reject 401\" with a status \
                           from 400 to 599";
    for (it, said) in [
        ("{ name = \"ip\" }", "missing field `quotas`".into()),
        (
            "{ quotas = [], quota = \"5/s\" }",
            "unknown field `quota`, expected one of `name`, `quotas`, `cost`, `headroom`, `max_wait`, \
             `missing`, `report_only`, `max_key_len`".into(),
        ),
        ("{ quotas = [], cost = \"two\" }", "invalid type: string \"two\", expected u32".into()),
        ("{ quotas = [], max_wait = 2 }", "invalid type: integer `2`, expected a string".into()),
        (
            "{ quotas = [], max_wait = \"2\" }",
            "max_wait is \"2\"; end it with one of ns, us, ms, s, min, h, day or week".into(),
        ),
        (
            "{ quotas = [], max_wait = \"99999day\" }",
            "max_wait is \"99999day\"; give at most ten years".into(),
        ),
        ("{ quotas = [], missing = \"no\" }", format!("missing is \"no\"; {MISSING}")),
        ("{ quotas = [], missing = \"reject 200\" }", format!("missing is \"reject 200\"; {MISSING}")),
        ("{ quotas = [], missing = \"reject+401\" }", format!("missing is \"reject+401\"; {MISSING}")),
        ("{ quotas = [], missing = 401 }", "invalid type: integer `401`, expected a string".into()),
        ("{ quotas = [], missing = {} }", "invalid type: map, expected a string".into()),
        (
            "{ quotas = [], report_only = \"yes\" }",
            "invalid type: string \"yes\", expected a boolean".into(),
        ),
        ("{ quotas = [], max_key_len = 0 }", "max_key_len is 0; give at least 1".into()),
        (
            "{ quotas = [], name = \"a\\nb\" }",
            "name \"a\\nb\": '\\n' at byte 1 is not printable ASCII; drop it".into(),
        ),
        (
            "\"20/s\"",
            "invalid type: string \"20/s\", expected a table, as { name = \"ip\", quotas = \"20/s\" }"
                .into(),
        ),
    ] {
        assert_eq!(shown::<RuleSettings>(it), said, "{it}");
    }
    let many = format!("[{}]", "\"1/s\",".repeat(256));
    assert_eq!(error::<Quotas>(&many), "the list has 256 quotas; give at most 255");
    let family = error::<Headers>("\"draft3\"");
    assert!(
        family.starts_with("unknown variant `draft3`, expected one of `ratelimit`,"),
        "{family}"
    );
}

/// Checks the printed error, with the line and a mark below the value.
#[test]
fn the_location_of_an_invalid_value_is_shown() {
    let file = "[ip]\nquotas = '20/s'\n\n[user]\nquotas = [\n    '5/s',\n    { units = 9, period = 60 },\n]\n";
    let said =
        toml::from_str::<HashMap<String, RuleSettings>>(file).expect_err("wrong").to_string();
    assert_eq!(
        said,
        concat!(
            "TOML parse error at line 7, column 27\n",
            "  |\n",
            "7 |     { units = 9, period = 60 },\n",
            "  |                           ^^\n",
            "invalid type: integer `60`, expected a string\n",
        )
    );
    let said = toml::from_str::<HashMap<String, RuleSettings>>("[ip]\nquotas = []\nburst = 9\n");
    let said = said.expect_err("wrong").to_string();
    assert!(said.starts_with("TOML parse error at line 3, column 1\n"), "{said}");
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

#[tokio::test]
async fn a_rule_from_a_file_can_queue_or_only_report() {
    let settings = |text: &str| toml::from_str::<RuleSettings>(text).expect("TOML");
    let store = FakeClock::new().store(64);
    let reporting = settings("quotas = '1/min'\nreport_only = true").rule(Everyone);
    let reporting = RateLimitLayer::rules(reporting, store).expose_decision();
    for would_deny in [false, true] {
        let response = answer(&reporting, get("/")).await;
        let decision = response.extensions().get::<Decision>().expect("asked");
        assert_eq!((response.status().as_u16(), decision.would_deny()), (200, would_deny));
    }
    let settings = settings("quotas = '1/min'\nmax_wait = '1min'");
    assert_eq!(settings.max_wait, secs(60));
    let patient = RateLimitLayer::rules(settings.rule(Everyone), FakeClock::new().store(64));
    tokio::time::pause();
    let mut service = patient.expose_decision().layer(Strict::default());
    for wait in [0, 60] {
        let response = ask(&mut service, get("/")).await;
        let decision = response.extensions().get::<Decision>().expect("asked");
        assert_eq!(decision.wait(), secs(wait));
    }
}

#[test]
fn quotas_from_a_file_are_plans_and_work_outside_http() {
    let Limits { user, plans } = limits();
    let live = LivePlan::new(user.quotas.clone());
    live.replace(plans["gold"].clone());
    assert_eq!(
        live.quotas(),
        Quotas::from([Quota::per_minute(20).with_burst(40), Quota::per_day(200)])
    );
    assert_eq!(plans["partner"], Quotas::from([]));
    let limiter = Limiter::named("default", FakeClock::new().store(64));
    assert_eq!(limiter.take("alice", &user.quotas, 3).now().outcomes().len(), 2);
}

#[test]
fn conflicting_settings_fail_when_the_layer_is_built() {
    let said = |text: &str| {
        let settings: RuleSettings = toml::from_str(text).expect("TOML");
        let layer =
            RateLimitLayer::try_rules(settings.rule(Everyone), LocalStore::with_capacity(16));
        layer.map(drop).expect_err("nonsense").to_string()
    };
    assert_eq!(
        said("name = 'ip'\nquotas = '5/s'\ncost = 6"),
        "rule ip: cost 6 is above the quota's limit 5, so every request would be denied; lower the \
         cost or raise the burst"
    );
    assert!(said("quotas = ['5/s', '9/s']").contains("give them different periods"));
    let two: HashMap<String, RuleSettings> =
        toml::from_str("a.quotas = '5/s'\nb.quotas = '5/s'").expect("TOML");
    let rules = (two["a"].rule(Everyone), two["b"].rule(Everyone));
    let layer = RateLimitLayer::try_rules(rules, LocalStore::with_capacity(16));
    assert_eq!(
        layer.map(drop).expect_err("one name").to_string(),
        "two rules are named \"default\"; rename one"
    );
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

#[test]
fn an_invalid_penalty_reports_the_field_the_value_and_the_fix() {
    const UNIT: &str = "end it with one of ns, us, ms, s, min, h, day or week";
    const RANGE: &str = "give 1 s to 365 days";
    const RATE: &str = "give a rate with the algorithm Gcra, such as 20/min";
    const BLOCK: &str = "expected a time, as \"15min\", or a list of them";
    let many = format!("after = '20/min', block = [{}]", "'1min', ".repeat(33));
    for (fields, said) in [
        ("block = '1min'", "missing field `after`".to_owned()),
        ("after = 'blocked'", format!("penalty: after is blocked; {RATE}")),
        ("after = '2 concurrent'", format!("penalty: after is 2 concurrent; {RATE}")),
        (
            "after = { units = 20, period = 'min', algorithm = 'fixed_window' }",
            format!("penalty: after is 20/min; {RATE}"),
        ),
        (
            "after = '20/fortnight'",
            format!("quota \"20/fortnight\": period is \"fortnight\"; {UNIT}"),
        ),
        ("after = '20/min', block = '1moon'", format!("penalty: block is \"1moon\"; {UNIT}")),
        ("after = '20/min', block = ['1min', 'x']", format!("penalty: block is \"x\"; {UNIT}")),
        ("after = '20/min', block = '999ms'", format!("penalty: block is 999ms; {RANGE}")),
        ("after = '20/min', block = '366day'", format!("penalty: block is 31622400s; {RANGE}")),
        (
            "after = '20/min', block = '4000day'",
            "penalty: block is \"4000day\"; give at most ten years".into(),
        ),
        ("after = '20/min', block = []", "penalty: block has 0 times; give 1 to 32".into()),
        (&many, "penalty: block has 33 times; give 1 to 32".into()),
        ("after = '20/min', block = 60", format!("invalid type: integer `60`, {BLOCK}")),
        ("after = '20/min', block = { a = 1 }", format!("invalid type: map, {BLOCK}")),
        ("after = '20/min', block = [60]", "invalid type: integer `60`, expected a string".into()),
        ("after = '20/min', forgive = 'x'", format!("penalty: forgive is \"x\"; {UNIT}")),
        ("after = '20/min', forgive = '0s'", format!("penalty: forgive is 0ns; {RANGE}")),
        (
            "after = '20/min', capacity = 0",
            "penalty: capacity is 0; give the number of keys, such as 16384".into(),
        ),
        ("after = '20/min', capacity = -1", "invalid value: integer `-1`, expected usize".into()),
        (
            "after = '20/min', blocks = '1min'",
            "unknown field `blocks`, expected one of `after`, `block`, `forgive`, `capacity`"
                .into(),
        ),
    ] {
        assert_eq!(error::<Penalty>(&format!("{{ {fields} }}")), said);
    }
    assert_eq!(
        error::<Penalty>("'20/min'"),
        "invalid type: string \"20/min\", expected a table, as { after = \"20/min\", block = \
         \"15min\" }"
    );
}

/// Records the quotas of the calls.
#[derive(Debug, Default)]
struct Seen(Mutex<Vec<Quota>>);

impl Seen {
    fn pass(&self, charges: &[Charge<'_>]) -> Answer<Never<Result<Decision, Infallible>>> {
        let mut seen = self.0.lock().expect("one thread");
        charges.iter().for_each(|charge| seen.extend(charge.quotas));
        Answer::Now(Ok(Decision::allow()))
    }
}

impl Store for Seen {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        self.pass(op.charges())
    }
}

/// A share of a quota refills more slowly than its units suggest: as text it would be less strict.
#[tokio::test]
async fn a_share_of_a_quota_is_not_written() {
    let seen = Arc::new(Seen::default());
    let store = Broken::Now.fallback(seen.clone(), 4);
    let whole = Quota::per_second(10);
    assert!(Limiter::named("default", store).take("alice", &whole, 1).await.is_allowed());
    let share = seen.0.lock().expect("one thread")[0];
    assert!(share.interval() > whole.interval(), "{share:?}");
    let wrong = serde_json::to_string(&share).expect_err("not written").to_string();
    assert!(wrong.contains("write the whole quota"), "{wrong}");
}
