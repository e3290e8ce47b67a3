//! Error messages for invalid input, with the field, the value and the fix.
//!
//! An invalid constant does not compile. At run time, as here, the check panics.
//!
//! Tests for each kind of invalid input:
//!
//! | input | test |
//! |---|---|
//! | no units, no burst, no period; too long, too fast | here |
//! | a quota that its algorithm or its store cannot count | here |
//! | cost 0 | `a_cost_of_zero_reads_the_account` |
//! | a cost above the quota's limit | here: a fixed cost at build time, a computed cost per request |
//! | "per second" read as "one every n seconds" | `per_second_multiplies` |
//! | networks, prefixes and hops | here |
//! | networks of proxies that are invalid or lack their prefix; a proxy that is not configured | `logs::lints` |
//! | an operator's key of another type than that of the rule | `tooling::admin::accounts` |
//! | names of rules, quotas and headers | here |
//! | settings of wrappers and layers | here |
//! | quotas, rules and routes in files | `rules::config` |
//! | routes that no request can match | here; the same result in the router: `rules::by_route` |
//! | a charge handle for a rule that the layer does not have; a missing charge handle | `layer::reservation` |
//! | addresses of Redis | here; hidden passwords: `servers::probe` |
//! | a server that is old, forbids commands, or evicts | `servers::probe` |
//! | a layer on a store in which the rule has other quotas | `layer::one_limit` |
//! | no peer address: 500, and the log line | here, and `logs::peer` |
//! | a key that is missing, doubled or too long | here, and by policy in `keys::extractors` |
//! | a key that is not UTF-8 | `keys::extractors`: `a_header_is_a_key_byte_for_byte` |

use std::{
    convert::Infallible,
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use http::{HeaderMap, StatusCode};
use tower_sluice::{
    AccessList, Algorithm, ClientIp, Cost, KeyExtractor, Limiter, LocalStore, PeerIp, Plan, Quota,
    RateLimitLayer, RequestHead, Rule, Store, StoreExt,
    key::{Everyone, HeaderKey, Unreadable},
    middleware::{Counters, RetryAfter},
    rule::{OnMissingKey, RuleName},
};

use crate::support::{answer, get, with};

const TEN: Quota = Quota::per_second(10);

fn store() -> LocalStore {
    LocalStore::with_capacity(16)
}

/// Returns the message of a panic.
fn panic<T>(of: impl FnOnce() -> T) -> String {
    let said = catch_unwind(AssertUnwindSafe(of)).err().expect("a panic");
    let text = said.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| said.downcast_ref::<String>().cloned()).expect("a text")
}

fn error<T: Debug, E: ToString>(result: Result<T, E>) -> String {
    result.expect_err("nonsense").to_string()
}

/// Returns the error of a layer with these rules.
fn build_error<K>(rules: K, store: impl Store<Error = Infallible>) -> String
where
    K: tower_sluice::rule::Rules,
{
    RateLimitLayer::try_rules(rules, store).map(drop).expect_err("nonsense").to_string()
}

fn read(text: &str) -> String {
    error(text.parse::<Quota>())
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_quota_of_zero_units_suggests_a_blocked_quota() {
    const UNITS: &str = "quota: units is 0; use Quota::blocked() to deny all requests";
    const BURST: &str = "quota: burst is 0; use Quota::blocked() to deny all requests";
    assert_eq!(panic(|| Quota::per_second(0)), UNITS);
    assert_eq!(error(Quota::new(0, SECOND)), format!("{UNITS} (units 0, period 1s)"));
    const FIX: &str = "give at least 1, or \"blocked\" to deny all requests";
    assert_eq!(read("0/s"), format!("quota \"0/s\": units is \"0\"; {FIX}"));
    assert_eq!(panic(|| TEN.with_burst(0)), BURST);
    assert_eq!(error(TEN.try_with_burst(0)), format!("{BURST} (units 10, period 1s, burst 0)"));
    assert_eq!(read("5/s burst 0"), format!("quota \"5/s burst 0\": burst is \"0\"; {FIX}"));
}

#[test]
fn a_period_of_zero_reports_the_shortest_period() {
    const PERIOD: &str = "quota: period is 0; give at least 1 ns per unit (units 5, period 0ns)";
    assert_eq!(error(Quota::new(5, Duration::ZERO)), PERIOD);
    assert_eq!(read("5/0s"), PERIOD);
}

#[test]
fn a_quota_longer_than_ten_years_reports_its_values() {
    assert_eq!(
        error(Quota::per_day(1).try_with_burst(3_651)),
        "quota: burst × interval is longer than ten years; lower burst or raise the rate \
         (units 1, period 86400s, burst 3651)"
    );
    assert_eq!(
        panic(|| Quota::per_day(1).with_burst(3_651)),
        "quota: burst × interval is longer than ten years; lower burst or raise the rate"
    );
    assert_eq!(
        error(Quota::new(7, Duration::MAX)),
        "quota: period is longer than ten years; shorten it \
         (units 7, period 18446744073.709551615s)"
    );
    assert_eq!(
        read("1/99999999999999999999day"),
        "quota \"1/99999999999999999999day\": period is \"99999999999999999999day\"; give at most \
         ten years"
    );
}

#[test]
fn a_quota_over_any_period_can_be_a_constant() {
    const TEN_SECONDS: Duration = Duration::from_secs(10);
    const SEARCHES: Quota = Quota::per(200, TEN_SECONDS);
    assert_eq!(SEARCHES, "200/10s".parse().expect("a quota"));
    assert_eq!(Ok(SEARCHES), Quota::new(200, TEN_SECONDS));
    assert_eq!(Quota::per(9, Duration::from_millis(1_500)).to_string(), "9/1500ms");
    for (units, period) in
        [(0, TEN_SECONDS), (5, Duration::ZERO), (7, Duration::MAX), (2, Duration::from_nanos(1))]
    {
        let error = error(Quota::new(units, period));
        let said = panic(|| Quota::per(units, period));
        assert!(error.starts_with(&said) && said.starts_with("quota: "), "{said}, {error}");
    }
    let years = Duration::from_secs(10 * 365 * 86_400);
    assert!(Quota::new(1, years).is_ok());
    assert!(Quota::new(1, years + Duration::from_nanos(1)).is_err());
}

/// The text may come from a client.
#[test]
fn a_long_text_is_cut_in_the_error() {
    let long = format!("{}/s", "\u{e9}".repeat(50_000));
    assert_eq!(
        read(&long),
        format!(
            "quota \"{0}\"..: units is \"{0}\"..; give a whole number from 1 to 4294967295",
            "\u{e9}".repeat(20)
        )
    );
}

#[test]
fn a_rate_above_the_resolution_reports_the_resolution() {
    const TOO_FAST: &str = "quota: units come back faster than one per nanosecond (1000000000/s); \
                            lower units or lengthen period";
    assert_eq!(panic(|| Quota::per_second(2_000_000_000)), TOO_FAST);
    assert_eq!(read("2000000000/s"), format!("{TOO_FAST} (units 2000000000, period 1s)"));
}

#[test]
fn an_invalid_quota_text_reports_the_invalid_part() {
    for (text, said) in [
        ("5", "quota is \"5\"; write units/period, as 5/s, 200/10s or 100/min burst 20"),
        ("x/s", "units is \"x\"; give a whole number from 1 to 4294967295"),
        (
            "0.5/s",
            "units is \"0.5\"; give a whole number; for less than one, lengthen the period, as 1/2s",
        ),
        ("-5/s", "units is \"-5\"; give a whole number from 1 to 4294967295"),
        ("5/s burst many", "burst is \"many\"; give a whole number from 1 to 4294967295"),
        (
            "5/fortnight",
            "period is \"fortnight\"; end it with one of ns, us, ms, s, min, h, day or week",
        ),
    ] {
        assert_eq!(read(text), format!("quota {text:?}: {said}"));
    }
}

#[test]
fn a_quota_that_its_algorithm_cannot_count_reports_a_fix() {
    let log = Algorithm::SlidingLog;
    let sliding = |buckets| Algorithm::SlidingWindow { buckets };
    let paced = Algorithm::FixedWindow { carry_over: 0, paced: true };
    for (wrong, said) in [
        (
            TEN.with_burst(9).try_with_algorithm(log),
            "burst is set on a window, where it equals units; \
          drop it (units 10, period 1s, algorithm SlidingLog, burst 9)",
        ),
        (
            Quota::per_day(10_001).try_with_algorithm(log),
            "a sliding log of more than 10000 units; use \
          SlidingWindow or Gcra (units 10001, period 86400s, algorithm SlidingLog)",
        ),
        (
            TEN.try_with_algorithm(sliding(0)),
            "buckets of a sliding window is outside 1 to 1000 \
          (units 10, period 1s, algorithm SlidingWindow { buckets: 0 })",
        ),
        (
            TEN.try_with_algorithm(sliding(7)),
            "buckets does not divide the period into whole \
          nanoseconds; choose another (units 10, period 1s, algorithm SlidingWindow { buckets: 7 })",
        ),
        (
            TEN.with_algorithm(paced).try_with_soft(1),
            "soft is set on a paced window; choose one of them \
          (units 10, period 1s, algorithm FixedWindow { carry_over: 0, paced: true }, soft 1)",
        ),
        (
            TEN.try_with_initial(11),
            "initial is above burst; lower it or raise burst (units 10, period 1s, initial 11)",
        ),
        (
            TEN.with_max_debt(3).try_with_initial(11),
            "initial is above burst; lower it or raise burst (units 10, period 1s, initial 11, \
             max_debt 3)",
        ),
        (
            TEN.with_algorithm(log).try_with_initial(1),
            "initial is set on a window; it is for Gcra and \
          TokenBucket only (units 10, period 1s, algorithm SlidingLog, initial 1)",
        ),
        (
            Quota::per_day(1).try_with_max_debt(3_651),
            "max_debt × interval is longer than ten years; lower max_debt or raise the rate \
             (units 1, period 86400s, max_debt 3651)",
        ),
        (
            TEN.with_algorithm(log).try_with_max_debt(10_001),
            "max_debt of a sliding log is above 10000; lower it, or use SlidingWindow or Gcra \
             (units 10, period 1s, algorithm SlidingLog, max_debt 10001)",
        ),
        (
            Quota::blocked().try_with_burst(1),
            "burst, soft, initial or max_debt is set on a blocked quota; \
          drop it (units 0, period 1s, burst 1)",
        ),
    ] {
        assert_eq!(error(wrong), format!("quota: {said}"));
    }
}

#[test]
fn a_blocked_quota_has_no_burst_soft_initial_nor_debt() {
    let blocked = Quota::blocked();
    for changed in [
        blocked.try_with_burst(1),
        blocked.try_with_soft(1),
        blocked.try_with_initial(1),
        blocked.try_with_max_debt(1),
    ] {
        let said = "burst, soft, initial or max_debt is set on a blocked quota; drop it";
        assert!(error(changed).starts_with(&format!("quota: {said}")));
    }
    assert_eq!(blocked.try_with_burst(0), Ok(blocked));
}

#[test]
fn a_quota_that_the_store_cannot_count_fails_to_build() {
    let rule = |quota: Quota| Rule::new("api", Everyone, quota).max_wait(SECOND);
    assert_eq!(
        build_error(rule(TEN.with_soft(1)), store()),
        "the store cannot do this: max_wait with a soft quota; choose one of them"
    );
    assert_eq!(
        build_error(rule(TEN.with_algorithm(Algorithm::SlidingLog)), store()),
        "the store cannot do this: max_wait with an algorithm that cannot queue; use Gcra"
    );
}

#[test]
fn per_second_multiplies() {
    let (limiter, quota) = (Limiter::named("default", store()), Quota::per_second(60));
    assert!((0..60).all(|_| limiter.take("alice", &quota, 1).now().is_allowed()));
    assert_eq!(quota.to_string(), "60/s");
}

#[test]
fn a_cost_of_zero_reads_the_account() {
    let limiter = Limiter::named("default", store());
    let quota = Quota::per_hour(1);
    assert!(limiter.take("alice", &quota, 1).now().is_allowed());
    let look = limiter.take("alice", &quota, 0).now();
    assert!(look.is_allowed() && look.remaining() == Some(0));
    drop(limiter.block("alice", SECOND).now().expect("room"));
    assert!(!limiter.take("alice", &quota, 1).now().is_allowed());
    assert!(
        limiter.take("alice", &quota, 0).now().is_allowed(),
        "a cost of zero reads, as documented"
    );
}

#[test]
fn a_fixed_cost_above_the_limit_fails_to_build() {
    const TEXT: &str = "rule api: cost 11 is above the quota's limit 10, so every request would \
                        be denied; lower the cost or raise the burst";
    let rule = || Rule::new("api", Everyone, TEN).cost(11);
    assert_eq!(build_error(rule(), store()), TEXT);
    assert_eq!(panic(|| RateLimitLayer::rules(rule(), store())), TEXT);
}

/// Returns the status, the body and the header fields of the response.
async fn response<K: tower_sluice::rule::Rules>(
    layer: &RateLimitLayer<K, LocalStore>,
    headers: &[(&str, &str)],
) -> (u16, String, HeaderMap) {
    let (head, body) = answer(layer, with(headers)).await.into_parts();
    (head.status.as_u16(), body, head.headers)
}

#[tokio::test]
async fn a_computed_cost_above_the_limit_is_denied_without_retry_after() {
    let rule = Rule::new("api", Everyone, TEN).cost(Cost::from_fn(|_| 11));
    let (status, body, headers) = response(&RateLimitLayer::rules(rule, store()), &[]).await;
    assert_eq!(status, 429);
    assert_eq!(body, "This request costs more than its quota ever allows.\n");
    assert!(!headers.contains_key("retry-after"));
}

#[test]
fn an_invalid_network_is_named() {
    const NONE: &str = "is not a network; write 10.0.0.0/8 or 2001:db8::/32";
    const BITS: &str = "has bits set beyond its prefix; clear them or lengthen the prefix";
    const ALL: &str = "contains all addresses; give the networks of the proxies";
    for (text, said) in [
        ("10.0.0/8", NONE),
        ("10.0.0.0/33", NONE),
        ("2001:db8::/129", NONE),
        ("proxy.internal", NONE),
        ("", NONE),
        ("10.0.0.1/8", BITS),
        ("2001:db8::1/32", BITS),
    ] {
        let said = format!("network {text:?} {said}");
        assert_eq!(error(ClientIp::behind(["192.0.2.0/24", text])), said);
        assert_eq!(error(AccessList::networks([text])), said);
    }
    for text in ["0.0.0.0/0", "::/0"] {
        assert_eq!(error(ClientIp::behind([text])), format!("network {text:?} {ALL}"));
        assert!(AccessList::networks([text]).is_ok(), "an access list may contain all addresses");
    }
    assert_eq!(
        error(ClientIp::behind(["::ffff:0:0/96"])),
        format!("network \"::ffff:0:0/96\" {ALL}")
    );
    assert_eq!(
        error(ClientIp::behind(["10.0.0.0"])),
        "network \"10.0.0.0\" looks like a network; give its prefix length, or /32 or /128 for one \
         address"
    );
}

#[test]
fn a_prefix_out_of_range_reports_the_range() {
    let client = || ClientIp::hops(1);
    for bits in [0, 129, 255] {
        let said = "ipv6_prefix: give 1 to 128 bits";
        assert_eq!(panic(|| PeerIp::new().ipv6_prefix(bits)), said);
        assert_eq!(panic(|| client().ipv6_prefix(bits)), said);
    }
    for bits in [0, 33, 128] {
        let said = "ipv4_prefix: give 1 to 32 bits";
        assert_eq!(panic(|| PeerIp::new().ipv4_prefix(bits)), said);
        assert_eq!(panic(|| client().ipv4_prefix(bits)), said);
    }
}

#[test]
fn a_rejection_needs_a_status_of_an_error() {
    const FIX: &str = "rejects with 200 OK; give a status from 400 to 599";
    let rule = || Rule::new("user", HeaderKey::new("x-user"), TEN);
    let client = || ClientIp::hops(1);
    let text = panic(|| rule().on_missing_key(OnMissingKey::Reject(StatusCode::OK)));
    assert_eq!(text, format!("on_missing_key {FIX}"));
    let text = panic(|| client().unreadable(Unreadable::Reject(StatusCode::OK)));
    assert_eq!(text, format!("unreadable {FIX}"));
    let text = panic(|| client().reject_without_header(StatusCode::OK));
    assert_eq!(text, format!("reject_without_header {FIX}"));
    let text = panic(|| rule().max_key_len(0));
    assert_eq!(text, "max_key_len is 0; give at least 1");
    let text = panic(|| store().fail_closed().retry_after(Duration::ZERO));
    assert_eq!(text, "retry_after of fail_closed is 0; give at least 1 ns");
}

#[test]
fn zero_hops_suggest_the_peer_address() {
    const FIX: &str = "give 1 to 32; without a proxy, use PeerIp";
    for hops in [0, 33] {
        assert_eq!(panic(|| ClientIp::hops(hops)), format!("hops: {FIX}"));
    }
}

#[test]
fn an_invalid_name_reports_the_character_and_its_position() {
    let long = "x".repeat(65);
    for (name, said) in [
        ("", "it is empty; give 1 to 64 characters"),
        ("caf\u{e9}", "'\u{e9}' at byte 3 is not printable ASCII; drop it"),
        ("a\nb", "'\\n' at byte 1 is not printable ASCII; drop it"),
        (&long, "65 characters; give at most 64"),
    ] {
        let said = format!("name {name:?}: {said}");
        assert_eq!(error(RuleName::new(name)), said);
        assert_eq!(panic(|| Rule::new(name, Everyone, TEN)), said);
    }
    assert_eq!(
        panic(|| TEN.with_name("caf\u{e9}")),
        "quota: a name is 1 to 64 printable ASCII characters"
    );
}

#[test]
fn a_name_given_twice_is_named() {
    let rule = || Rule::new("api", Everyone, TEN);
    assert_eq!(build_error((rule(), rule()), store()), "two rules are named \"api\"; rename one");
    let twice =
        Rule::new("api", Everyone, [TEN.with_name("short"), Quota::per_day(9).with_name("short")]);
    assert_eq!(
        build_error(twice, store()),
        "two quotas are called \"short\" in header fields; give them different periods or names \
         (Quota::with_name)"
    );
}

#[test]
fn an_invalid_header_name_is_named() {
    assert_eq!(
        panic(|| HeaderKey::new("x api key")),
        "header \"x api key\": invalid HTTP header name; use letters, digits and -"
    );
}

#[test]
fn more_quotas_than_a_decision_supports_fail_to_build() {
    let many = || vec![TEN; 256];
    let rule = Rule::new("api", Everyone, many());
    assert_eq!(build_error(rule, store()), "rule api: 256 quotas; give at most 255");
    let live = || Plan::from(&tower_sluice::LivePlan::new(many()));
    assert_eq!(panic(live), "rule: 256 quotas; give at most 255");
}

#[test]
fn a_timeout_of_zero_reports_the_default() {
    const TEXT: &str = "timeout: limit is 0 s; give the store time to answer, such as 100 ms \
                        (Timeout::DEFAULT)";
    assert_eq!(panic(|| store().timeout(Duration::ZERO)), TEXT);
}

#[test]
fn breaker_settings_out_of_range_report_the_range() {
    let millis = Duration::from_millis;
    let breaker = || store().breaker();
    assert_eq!(panic(|| breaker().failures(0)), "breaker: failures is 0; give at least 1");
    for percent in [0, 101] {
        let said = format!("breaker: rate is {percent}; give 1 to 100 percent");
        assert_eq!(panic(|| breaker().rate(percent, 20)), said);
    }
    assert_eq!(panic(|| breaker().rate(50, 0)), "breaker: answers is 0; give at least 1");
    assert_eq!(
        panic(|| breaker().open_for(Duration::ZERO..=millis(100))),
        "breaker: first open time is 0 s; give the store time to recover, such as 100 ms"
    );
    assert_eq!(
        panic(|| breaker().open_for(millis(100)..=millis(99))),
        "breaker: longest open time is 99ms, below the first of 100ms; give at least the first"
    );
    let _ = breaker().open_for(millis(1)..=Duration::MAX);
}

#[test]
fn zero_instances_are_an_error() {
    const TEXT: &str = "instances is 0; give at least 1, because this process counts too";
    assert_eq!(panic(|| store().fallback(store(), 0)), TEXT);
    assert_eq!(panic(|| store().leases(5).instances(0)), TEXT);
    let _ = store().fallback(store(), u32::MAX);
}

#[test]
fn a_jitter_out_of_range_reports_the_range() {
    assert_eq!(
        panic(|| RateLimitLayer::per_ip(TEN).retry_after(RetryAfter::Jitter(11))),
        "retry jitter: 11 percent; give 0 to 10"
    );
}

#[tokio::test]
async fn a_missing_peer_address_reports_the_fix() {
    let parts = get("/").into_parts().0;
    let error = PeerIp::new().extract(&RequestHead::from(&parts)).expect_err("no address");
    assert_eq!(
        error.to_string(),
        "no peer address in the request's extensions; with axum 0.8, serve \
         `app.into_make_service_with_connect_info::<SocketAddr>()`; a Unix socket has no address: use \
         `ClientIp::hops(1)` behind a proxy, or another key; in a test, add `.extension(SocketAddr)` to \
         the request"
    );
    let behind = ClientIp::behind(["10.0.0.0/8"]).expect("a network");
    assert_eq!(behind.extract(&RequestHead::from(&parts)), Err(error));
    let (status, body, _) = response(&RateLimitLayer::per_ip(TEN), &[]).await;
    assert_eq!(status, 500);
    assert!(body.starts_with("The rate limiter found no peer address"), "{body}");
}

#[tokio::test]
async fn an_unusable_key_reports_the_reason_and_is_counted() {
    let counters = Counters::new();
    let rule = Rule::new("user", HeaderKey::new("x-user"), TEN);
    let layer = RateLimitLayer::rules(rule, store()).on_decision(counters.clone());
    let long = "k".repeat(1_025);
    for (headers, said) in [
        (&[][..], "missing header x-user"),
        (&[("x-user", " ")], "missing header x-user"),
        (&[("x-user", "alice"), ("x-user", "bob")], "header x-user is sent more than once"),
        (&[("x-user", &long)], "key of 1025 bytes is too long; send at most 1024"),
    ] {
        let (status, body, headers) = response(&layer, headers).await;
        assert_eq!((status, body), (400, format!("Request rejected: {said}.\n")));
        assert!(!headers.contains_key("retry-after"));
    }
    let client = ClientIp::hops(2);
    let layer = RateLimitLayer::new(client, TEN, store()).on_decision(counters.clone());
    for (value, said) in [
        ("203.0.113.9", "missing client's address in x-forwarded-for"),
        ("203.0.113.9, unknown", "header x-forwarded-for has an entry without a valid address"),
    ] {
        let (status, body, _) = response(&layer, &[("x-forwarded-for", value)]).await;
        assert_eq!((status, body), (400, format!("Request rejected: {said}.\n")));
    }
    let denied = RateLimitLayer::per_ip(TEN)
        .on_decision(counters.clone())
        .deny(AccessList::from_fn(|_| true));
    assert_eq!(answer(&denied, get("/")).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(counters.snapshot().unkeyed, 7);
    assert_eq!(counters.snapshot().denied, 0);
}

#[cfg(feature = "axum")]
#[test]
fn a_route_that_no_request_matches_reports_the_fix() {
    use http::Method;
    use tower_sluice::{by_route, rule::try_by_route};

    let said = |method: Method, template: &str| {
        let said = error(try_by_route([(method.clone(), template, TEN)], TEN));
        assert_eq!(panic(|| by_route([(method.clone(), template, TEN)], TEN)), said);
        said
    };
    for (template, fix) in [
        ("", "does not start with a slash; add it"),
        ("url", "does not start with a slash; add it"),
        ("über", "does not start with a slash; add it"),
        ("/url/:id", "has a parameter in the syntax of axum 0.7; write {name} or {*name}"),
        ("/*rest", "has a parameter in the syntax of axum 0.7; write {name} or {*name}"),
        ("/url?id=1", "contains a space, a query or a fragment; drop it"),
        ("/url#top", "contains a space, a query or a fragment; drop it"),
        ("/a b", "contains a space, a query or a fragment; drop it"),
        ("/a\nb", "contains a space, a query or a fragment; drop it"),
    ] {
        let route = format!("route \"GET {template}\": path {template:?}");
        assert_eq!(said(Method::GET, template), format!("{route} {fix}"));
    }
    for name in ["get", "PSOT", "PURGE", "Get"] {
        let method = Method::from_bytes(name.as_bytes()).expect("a token");
        assert_eq!(
            said(method, "/url"),
            format!(
                "route \"{name} /url\": method \"{name}\" is unknown; give one of GET, HEAD, POST, \
                 PUT, DELETE, PATCH, OPTIONS, TRACE, CONNECT, or only the path, for every method \
                 (any_method)"
            )
        );
    }
    let twice = || [(Method::GET, "/a/{x}", TEN), (Method::GET, "/a/{x}", TEN)];
    let text = "route \"GET /a/{x}\" is given twice; drop one";
    assert_eq!(error(try_by_route(twice(), TEN)), text);
    let any = || by_route([(Method::GET, "/a", TEN)], TEN);
    assert_eq!(
        panic(|| any().any_method("b", TEN)),
        "route \"b\": path \"b\" does not start with a slash; add it"
    );
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;
    use tower_sluice::RedisStore;

    /// The part of the message in the middle comes from the redis crate.
    #[test]
    fn an_invalid_address_is_an_error_without_its_password() {
        const FIX: &str = "; give redis://[user:password@]host[:port][/db]";
        for url in [
            "",
            "secret",
            "localhost:6379",
            "http://me:secret@localhost:80",
            "redis://",
            "redis://me:secret@localhost/x",
            "redis://localhost:99999",
        ] {
            for said in [
                error(RedisStore::connect(url).lazy()),
                error(RedisStore::cluster(&["redis://127.0.0.1", url]).lazy()),
                error(RedisStore::sentinel(&["redis://127.0.0.1", url], "primary").lazy()),
            ] {
                assert!(said.starts_with("redis: an address is invalid: "), "{said}");
                assert!(said.ends_with(FIX) && !said.contains("secret"), "{said}");
            }
        }
    }

    #[test]
    fn a_missing_address_and_one_without_tcp_are_errors() {
        for (said, expected) in [
            (error(RedisStore::cluster(&[]).lazy()), "no address is given"),
            (error(RedisStore::sentinel(&[], "primary").lazy()), "no address is given"),
            (
                error(RedisStore::cluster(&["unix:///run/redis.sock"]).lazy()),
                "a server of a cluster is reached by TCP; give redis://host:port",
            ),
        ] {
            assert!(said.starts_with("redis: ") && said.contains(expected), "{said}");
        }
    }

    #[test]
    fn a_prefix_with_a_hash_tag_is_an_error() {
        for prefix in ["", "{api}", "a b"] {
            let said = format!("prefix {prefix:?}: give 1 to 64 of [A-Za-z0-9_.:-]");
            assert_eq!(panic(|| RedisStore::connect("redis://127.0.0.1:1").prefix(prefix)), said);
        }
    }

    /// The Redis store also counts in nanoseconds; windows begin at whole microseconds.
    #[test]
    fn a_quota_that_redis_cannot_count_exactly_reports_the_bound() {
        let store = || RedisStore::connect("redis://127.0.0.1:1").lazy().expect("an address");
        let said = |quota| build_error(Rule::new("api", Everyone, quota), store().fail_closed());
        let odd = Quota::new(1, Duration::from_nanos(1_500)).expect("a quota");
        assert_eq!(
            said(odd.with_algorithm(Algorithm::fixed_window())),
            "the store cannot do this: a window, bucket or refill that is not a whole number of \
             microseconds, the resolution of Redis's clock; choose another period, or Gcra"
        );
        let large = Quota::per_day(4_000_000_000);
        assert_eq!(
            said(large.with_algorithm(Algorithm::SlidingWindow { buckets: 1 })),
            "the store cannot do this: (units + max_debt + soft) * width of a sliding or paced \
             window, in microseconds, is 2^53 or more, which exceeds Lua's numbers; use more \
             buckets, or Gcra"
        );
    }
}
