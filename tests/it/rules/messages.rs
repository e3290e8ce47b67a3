//! Messages for invalid input, with the field, the value and the fix, in one table.
//!
//! `messages.txt` has a heading for each kind of input, and below it each input with the message in
//! the next lines. A changed message fails the test, which prints the lines to replace.
//!
//! An invalid constant does not compile. At run time, as here, the check panics.

use std::{
    any::Any,
    fmt::{Debug, Display},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use http::StatusCode;
use jiff::{
    Timestamp, ZonedDateTime,
    tz::{Offset, TimeZone},
};
use serde::{Deserialize, de::DeserializeOwned};
use tower_sluice::{
    AccessList, Algorithm, ClientIp, Cost, Headers, Key, LivePlan, LocalStore, PeerIp, Plan, Quota,
    RateLimitLayer, RedisStore, Rule, StoreExt, by_route,
    key::{Everyone, HeaderKey, Unreadable},
    middleware::{Penalty, RetryAfter},
    rule::{FairRule, OnMissingKey, Quotas, RouteSettings, RuleName, RuleSettings},
    store::GovernorStore,
};

const TABLE: &str = include_str!("messages.txt");

const TEN: Quota = Quota::per_second(10);
const LOG: Algorithm = Algorithm::SlidingLog;
const PACED: Algorithm = Algorithm::FixedWindow { carry_over: 0, paced: true };
const NANO: Duration = Duration::from_nanos(1);

const fn sliding(buckets: u32) -> Algorithm {
    Algorithm::SlidingWindow { buckets }
}

fn store() -> LocalStore {
    LocalStore::with_capacity(16)
}

fn redis() -> tower_sluice::store::RedisBuilder {
    RedisStore::connect("redis://127.0.0.1:1")
}

fn api(quota: Quota) -> Rule<Everyone> {
    Rule::new("api", Everyone, quota)
}

fn fair(rule: Rule<Everyone>) -> FairRule<HeaderKey> {
    rule.fair_by(HeaderKey::new("x-user"))
}

fn punish(rule: &str) {
    let layer = RateLimitLayer::rules(fair(api(TEN)), store());
    drop(layer.penalty(rule, Penalty::after(TEN)));
}

fn epoch(zone: TimeZone) -> ZonedDateTime {
    Timestamp::UNIX_EPOCH.to_zoned_datetime(zone)
}

/// The error of a layer, whose type prints nothing.
fn build<K: tower_sluice::rule::Rules>(rules: K) -> Result<(), impl Display> {
    RateLimitLayer::try_rules(rules, store()).map(drop)
}

fn read() -> Cost {
    Cost::from_fn(|_| 1)
}

fn build_on_governor(rule: Rule<Everyone>) -> Result<(), impl Display> {
    let ten = governor::Quota::per_second(std::num::NonZeroU32::new(10).expect("above 0"));
    let limiter = Arc::new(governor::RateLimiter::<Key, _, _>::keyed(ten));
    RateLimitLayer::try_rules(rule, GovernorStore::new(limiter).fail_open()).map(drop)
}

fn build_on_redis(quota: Quota) -> Result<(), impl Display> {
    let store = redis().lazy().expect("an address").fail_closed();
    RateLimitLayer::try_rules(api(quota), store).map(drop)
}

/// The message of a result or of a panic.
trait Message {
    fn message(self) -> String;
}

impl<T, E: Display> Message for Result<T, E> {
    fn message(self) -> String {
        match self {
            Ok(_) => "valid".to_owned(),
            Err(error) => error.to_string(),
        }
    }
}

/// A value whose invalid settings panic.
struct Panics<F>(F);

impl<F: FnOnce() -> T, T> Message for Panics<F> {
    fn message(self) -> String {
        let text = |panic: &Box<dyn Any + Send>| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a text")
        };
        catch_unwind(AssertUnwindSafe(self.0)).map(drop).map_err(|panic| text(&panic)).message()
    }
}

/// Lists each expression with its message.
macro_rules! messages {
    ($($case:expr;)*) => {
        vec![$((stringify!($case).split_whitespace().collect::<Vec<_>>().join(" "), $case.message())),*]
    };
}

/// Panics of setters and of constants that are computed.
fn panics() -> Vec<(String, String)> {
    let hour = Duration::from_secs(3_600);
    let none = Duration::ZERO;
    let client = || ClientIp::hops(1);
    let user = || Rule::new("user", HeaderKey::new("x-user"), TEN);
    messages![
        Panics(|| Quota::per_second(0));
        Panics(|| Quota::per(2, NANO));
        Panics(|| TEN.with_burst(0));
        Panics(|| TEN.with_name("caf\u{e9}"));
        Panics(|| Rule::new("caf\u{e9}", Everyone, TEN));
        Panics(|| RateLimitLayer::rules(api(TEN).cost(11), store()));
        Panics(|| Plan::from(&LivePlan::new(vec![TEN; 256])));
        Panics(|| PeerIp::new().ipv6_prefix(0));
        Panics(|| client().ipv6_prefix(129));
        Panics(|| PeerIp::new().ipv4_prefix(33));
        Panics(|| client().ipv4_prefix(0));
        Panics(|| ClientIp::hops(0));
        Panics(|| ClientIp::hops(33));
        Panics(|| user().on_missing_key(OnMissingKey::Reject(StatusCode::OK)));
        Panics(|| client().unreadable(Unreadable::Reject(StatusCode::OK)));
        Panics(|| client().reject_without_header(StatusCode::OK));
        Panics(|| user().max_key_len(0));
        Panics(|| HeaderKey::new("x api key"));
        Panics(|| by_route([(http::Method::GET, "/a/:id", TEN)], TEN));
        Panics(|| by_route([(http::Method::GET, "/a", TEN)], TEN).any_method("b", TEN));
        Panics(|| fair(Rule::new("api", Everyone, [TEN, Quota::per_day(9)])));
        Panics(|| fair(api(TEN.with_algorithm(LOG))));
        Panics(|| fair(api(TEN.with_initial(1))));
        Panics(|| fair(api(TEN).plan([])));
        Panics(|| fair(api(TEN).max_wait(hour)));
        Panics(|| fair(api(TEN).if_no_key(user())));
        Panics(|| fair(api(Quota::per_day(9).with_burst(3))));
        Panics(|| fair(api(TEN)).max_clients(0));
        Panics(|| api(TEN).fair_by(Everyone));
        Panics(|| punish("api"));
        Panics(|| punish("api.share"));
        Panics(|| store().fail_closed().retry_after(none));
        Panics(|| store().timeout(none));
        Panics(|| store().breaker().failures(0));
        Panics(|| store().breaker().rate(0, 20));
        Panics(|| store().breaker().rate(101, 20));
        Panics(|| store().breaker().rate(50, 0));
        Panics(|| store().breaker().open_for(none..=hour));
        Panics(|| store().breaker().open_for(hour..=NANO));
        Panics(|| store().breaker().open_for(NANO..=Duration::MAX));
        Panics(|| store().fallback(store(), 0));
        Panics(|| store().fallback(store(), u32::MAX));
        Panics(|| store().deny_cache().max_age(hour));
        Panics(|| store().deny_cache().max_age(Duration::from_secs(60)));
        Panics(|| store().deny_cache().capacity(0));
        Panics(|| store().leases(0));
        Panics(|| store().leases(26));
        Panics(|| store().leases(5).instances(0));
        Panics(|| store().leases(5).capacity(0));
        Panics(|| store().leases(5).max_age(none));
        Panics(|| store().leases(5).max_age(hour));
        Panics(|| RateLimitLayer::per_ip(TEN).retry_after(RetryAfter::Jitter(11)));
        Panics(|| redis().prefix("{api}"));
        Panics(|| redis().prefix(""));
    ]
}

/// Errors of quotas, layers and stores.
fn errors() -> Vec<(String, String)> {
    let second = Duration::from_secs(1);
    let years = Duration::from_secs(10 * 365 * 86_400);
    let odd = Quota::per(1, Duration::from_nanos(1_500));
    let month = Quota::per_month(5);
    let day = Quota::per_day(5);
    let utc = epoch(TimeZone::UTC);
    let posix = epoch(TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").expect("a zone"));
    let unknown = epoch(TimeZone::unknown());
    let seconds = epoch(TimeZone::fixed(Offset::from_seconds(3_601).expect("an offset")));
    messages![
        Quota::new(0, second);
        Quota::new(5, Duration::ZERO);
        Quota::new(7, Duration::MAX);
        Quota::new(1, years);
        Quota::new(1, years + NANO);
        TEN.try_with_burst(0);
        Quota::per_day(1).try_with_burst(3_651);
        TEN.with_burst(9).try_with_algorithm(LOG);
        Quota::per_day(10_001).try_with_algorithm(LOG);
        TEN.try_with_algorithm(sliding(0));
        TEN.try_with_algorithm(sliding(7));
        TEN.with_algorithm(PACED).try_with_soft(1);
        TEN.try_with_initial(11);
        TEN.with_max_debt(3).try_with_initial(11);
        TEN.with_algorithm(LOG).try_with_initial(1);
        Quota::per_day(1).try_with_max_debt(3_651);
        TEN.with_algorithm(LOG).try_with_max_debt(10_001);
        Quota::blocked().try_with_burst(0);
        Quota::blocked().try_with_burst(1);
        Quota::blocked().try_with_soft(1);
        Quota::blocked().try_with_initial(1);
        Quota::blocked().try_with_max_debt(1);
        Quota::per_hour(5).try_anchored_at(&utc);
        Quota::concurrent(5).try_anchored_at(&utc);
        Quota::blocked().try_anchored_at(&utc);
        month.try_anchored_at(&posix);
        month.try_anchored_at(&unknown);
        month.try_anchored_at(&seconds);
        day.with_burst(9).try_anchored_at(&utc);
        day.with_initial(2).try_anchored_at(&utc);
        day.with_algorithm(LOG).try_anchored_at(&utc);
        month.try_with_algorithm(Algorithm::Gcra);
        month.try_with_burst(9);
        build(api(TEN).cost(11));
        build(api(TEN).cost(5).headroom(6));
        build(api(TEN).cost(read()).headroom(10));
        build(api(TEN).cost(5).headroom(5));
        build(api(TEN.with_soft(1)).cost(5).headroom(6));
        build(api(TEN).cost(0).headroom(11));
        build(api(TEN).headroom(read()));
        build(api(Quota::blocked()).headroom(11));
        build(Rule::new("api", Everyone, &LivePlan::new(TEN)).headroom(11));
        build_on_governor(api(TEN));
        build_on_governor(api(TEN).headroom(1));
        build_on_governor(api(TEN).headroom(read()));
        build_on_governor(api(TEN).report_only(true));
        build(api(TEN.with_soft(1)).max_wait(second));
        build(api(TEN.with_algorithm(LOG)).max_wait(second));
        build(api(Quota::concurrent(2)).max_wait(second).or(Rule::new("b", Everyone, TEN)));
        build((api(TEN), api(TEN)));
        build(Rule::new("api", Everyone, [TEN.with_name("a"), Quota::per_day(9).with_name("a")]));
        build(Rule::new("api", Everyone, vec![TEN; 256]));
        build_on_redis(odd.with_algorithm(Algorithm::fixed_window()));
        build_on_redis(Quota::per_day(4_000_000_000).with_algorithm(sliding(1)));
        RedisStore::cluster(&[]).lazy();
        RedisStore::sentinel(&[], "primary").lazy();
        RedisStore::cluster(&["unix:///run/redis.sock"]).lazy();
        serde_json::from_str::<Quota>(r#"{"units": 5, "units": 6}"#);
        serde_json::from_str::<Quotas>(&format!("[{}\"1/s\"]", "\"1/s\",".repeat(255)));
    ]
}

/// A field for the value, since TOML has only fields.
#[derive(Debug, Deserialize)]
struct File<T> {
    it: T,
}

/// Returns the message for the value of `it = …`, and checks that the printed error shows the line.
fn toml<T: Debug + DeserializeOwned>(it: &str) -> String {
    let text = format!("it = {it}");
    match toml::from_str::<File<T>>(&text) {
        Ok(File { it }) => format!("valid: {it:?}"),
        Err(error) => {
            assert!(error.to_string().contains(&text), "{error}");
            error.message().to_owned()
        }
    }
}

/// Returns the message for an input below this heading.
fn message_of(heading: &str, input: &str) -> String {
    match heading {
        "quota" => toml::<Quota>(input),
        "list of quotas" => toml::<Quotas>(input),
        "rule" => toml::<RuleSettings>(input),
        "routes" => toml::<RouteSettings>(input),
        "penalty" => toml::<Penalty>(input),
        "header fields" => toml::<Headers>(input),
        "text of a quota" => input.parse::<Quota>().message(),
        "name" => RuleName::new(&input.replace("\\n", "\n")).message(),
        "networks of proxies" => ClientIp::behind(["192.0.2.0/24", input]).message(),
        "networks" => AccessList::networks([input]).message(),
        _ => panic!("{heading} is no kind of input"),
    }
}

/// Returns the inputs below each heading of the table that lists the inputs itself.
fn inputs() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found = Vec::new();
    for line in TABLE.lines() {
        if let Some(heading) = line.strip_prefix("# ") {
            found.push((heading, Vec::new()));
        } else if !line.is_empty() && !line.starts_with(' ') {
            found.last_mut().expect("a heading").1.push(line);
        }
    }
    found.retain(|(heading, _)| !["panics", "errors"].contains(heading));
    found
}

#[test]
fn every_invalid_input_gets_the_message_of_the_table() {
    let mut all = vec![("panics", panics()), ("errors", errors())];
    for (heading, inputs) in inputs() {
        let said = inputs.iter().map(|input| ((*input).to_owned(), message_of(heading, input)));
        all.push((heading, said.collect()));
    }
    let mut text = String::new();
    for (heading, cases) in all {
        text += &format!("# {heading}\n");
        for (input, said) in cases {
            text += &format!("{input}\n    {}\n", said.trim_end().replace('\n', "\n    "));
        }
        text += "\n";
    }
    let changed = text.lines().zip(TABLE.lines()).find(|(said, listed)| said != listed);
    assert_eq!(changed, None, "a line of messages.txt; all of it:\n{text}");
    assert_eq!(text.lines().count(), TABLE.lines().count());
}
