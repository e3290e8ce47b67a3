//! Header fields of every family, byte for byte.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{HeaderMap, Request, Response, StatusCode};
use proptest::{prelude::*, string::string_regex};
use tower::{Layer, service_fn};
use tower_sluice::{
    Algorithm, Cost, Decision, Headers, Key, Limiter, LocalStore, Quota, RateLimitLayer, Reject,
    RequestHead, Rule, TooManyRequests,
    key::{Everyone, HeaderKey},
    reject::{Rejection, reject_fn},
    rule::{RuleName, Rules},
    testing::FakeClock,
};

use crate::support::{Owing, Strict, answer, ask, get, header, owing, periods, quota, with};

type Words = fn(&Rejection<'_>, &RequestHead<'_>) -> Response<String>;

/// Applies `layer` to a handler's response with these headers.
async fn beside(layer: &Owing, there: &[(&'static str, &'static str)]) -> HeaderMap {
    let handler = answered(there);
    let inner = service_fn(move |_: Request<()>| {
        let handler = handler.clone();
        async { Ok::<_, Infallible>(handler) }
    });
    ask(&mut layer.layer(inner), get("/")).await.into_parts().0.headers
}

/// Creates a response with these fields.
fn answered(fields: &[(&'static str, &'static str)]) -> Response<String> {
    let mut response = Response::new(String::new());
    for (name, value) in fields {
        response.headers_mut().append(*name, value.parse().expect("a value"));
    }
    response
}

/// Returns the lines of the rate limit fields.
fn limits(headers: &HeaderMap) -> Vec<String> {
    let reported = headers.iter().filter(|(name, _)| name.as_str().contains("ratelimit"));
    let mut lines: Vec<_> = reported
        .map(|(name, value)| format!("{name}: {}", value.to_str().expect("text")))
        .collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn the_list_fields_equal_their_table() {
    let table = [
        (&["10/s"][..], 0, r#""api";q=10;w=1"#, r#""api";r=9;t=1"#),
        (&["1000/h"], 387, r#""api";q=1000;w=3600"#, r#""api";r=612;t=2204"#),
        (&["5/500ms"], 0, r#""api";q=5;w=1"#, r#""api";r=4;t=1"#),
        (&["100/min burst 20"], 0, r#""api";q=20;w=12"#, r#""api";r=19;t=12"#),
        (&["3/s"], 0, r#""api";q=3;w=1"#, r#""api";r=2;t=1"#),
        (
            &["5/10s", "1000/h"],
            1,
            r#""api-10s";q=5;w=10, "api-1h";q=1000;w=3600"#,
            r#""api-10s";r=3;t=6, "api-1h";r=998;t=3593"#,
        ),
    ];
    for (quotas, owed, policy, fields) in table {
        let quotas: Vec<_> = quotas.iter().map(|text| quota(text)).collect();
        let response = answer(&owing(&quotas, owed), get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(response.headers(), "ratelimit-policy"), policy);
        assert_eq!(header(response.headers(), "ratelimit"), fields);
    }
}

/// Returns the policy, the state, the status and the text of a response.
async fn reported<K: Rules + 'static, S>(
    layer: &RateLimitLayer<K, S>,
) -> (String, String, u16, String)
where
    S: tower_sluice::Store<Error: tower_sluice::store::CannotFail>,
{
    let response = answer(layer, get("/")).await;
    let field = |name| header(response.headers(), name).to_owned();
    let (policy, state) = (field("ratelimit-policy"), field("ratelimit"));
    (policy, state, response.status().as_u16(), response.into_body())
}

/// The registry of units is closed, so another unit is in no field.
#[tokio::test]
async fn fields_have_only_units_of_the_registry() {
    let bytes = Quota::per_minute(1 << 20).with_unit("content-bytes").with_name("up");
    let tokens = Quota::per_minute(1_000).with_unit("tokens").with_name("tokens");
    let counted = Quota::per_hour(60).with_unit("requests").with_name("calls");
    assert_eq!(counted, Quota::per_hour(60).with_name("calls"));
    let layer = || owing(&[bytes, tokens, counted], 0);
    let (policy, state, ..) = reported(&layer()).await;
    assert_eq!(policy, r#""up";q=1048576;qu="content-bytes";w=60, "calls";q=60;w=3600"#);
    assert_eq!(state, r#""up";r=1048575;t=60, "calls";r=59;t=3540"#);
    // The older families know no units.
    let headers = answer(&layer().headers(Headers::Draft07), get("/")).await.into_parts().0.headers;
    let fields = ["ratelimit-policy: 60;w=3600", "ratelimit: limit=60, remaining=59, reset=3540"];
    assert_eq!(limits(&headers), fields);

    let rule = Rule::new("ai", Everyone, tokens).cost(700);
    let layer = RateLimitLayer::rules(rule, FakeClock::new().store(64));
    let nothing = (String::new(), String::new());
    let (policy, state, status, _) = reported(&layer).await;
    assert_eq!((policy, state, status), (nothing.0.clone(), nothing.1.clone(), 200));
    let (policy, state, status, text) = reported(&layer).await;
    assert_eq!((policy, state, status), (nothing.0, nothing.1, 429));
    assert_eq!(text, "Quota exhausted: 300 of 1000 tokens left; retry in 24 s.\n");
}

/// The partition key is the fingerprint of the key, which logs write in hexadecimal digits.
#[tokio::test]
async fn a_partition_key_is_the_fingerprint_of_the_key() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use tower_sluice::{fingerprint::FingerprintKey, key::HeaderKey};

    let secret = FingerprintKey::from(*b"sixteen bytes ..");
    let rules = || {
        let quotas = [Quota::per_minute(2), Quota::per_hour(60)];
        let user = Rule::new("user", HeaderKey::new("x-user"), quotas);
        (user, Rule::new("site", Everyone, Quota::per_hour(60)))
    };
    let pk = |key: Key| {
        let digits = key.fingerprint(&secret).to_string();
        let bytes = u64::from_str_radix(&digits, 16).expect("16 digits").to_be_bytes();
        format!("pk=:{}:", STANDARD.encode(bytes))
    };
    let (alice, all) = (pk(Key::from("alice")), pk(Key::everyone()));
    assert_eq!(alice, "pk=:vGzMcEPcmss=:");
    let layer =
        |headers| RateLimitLayer::rules(rules(), FakeClock::new().store(64)).headers(headers);
    let ask = async |layer: &RateLimitLayer<_, LocalStore>| {
        let response = answer(layer, with(&[("x-user", "alice")])).await;
        (response.status().as_u16(), limits(response.headers()))
    };
    let policy = format!(
        "ratelimit-policy: \"user-1min\";q=2;w=60;{alice}, \"user-1h\";q=60;w=3600;{alice}, \
         \"site\";q=60;w=3600;{all}"
    );
    let keyed = layer(Headers::RateLimit.partition_key(secret));
    for (status, numbers) in [
        (200, ["r=1;t=30", "r=59;t=3540", "r=59;t=3540"]),
        (200, ["r=0;t=30", "r=58;t=3480", "r=58;t=3480"]),
        (429, ["r=0;t=30", "r=58", "r=58"]),
    ] {
        let [minute, hour, site] = numbers;
        let state = format!(
            "ratelimit: \"user-1min\";{minute};{alice}, \"user-1h\";{hour};{alice}, \
             \"site\";{site};{all}"
        );
        assert_eq!(ask(&keyed).await, (status, vec![policy.clone(), state]));
    }
    // By default, and in the older families, there is no partition key.
    let plain = [
        layer(Headers::RateLimit.into()),
        layer(Headers::Draft07.partition_key(secret)),
        layer(Headers::RateLimit.only_when_denied().partition_key(secret)),
    ];
    for layer in plain {
        assert!(!ask(&layer).await.1.concat().contains("pk="));
    }
}

#[tokio::test]
async fn older_families_report_the_binding_quota() {
    // six units of the first quota are used, so one refills in two seconds
    let layer = |family| owing(&[quota("5/5s"), quota("1000/h")], 6).headers(family);
    let policy = "ratelimit-policy: 5;w=5, 1000;w=3600";
    let table = [
        (Headers::Draft07, vec![policy, "ratelimit: limit=5, remaining=0, reset=2"]),
        (
            Headers::Draft06,
            vec!["ratelimit-limit: 5", policy, "ratelimit-remaining: 0", "ratelimit-reset: 2"],
        ),
        (
            Headers::XRateLimitDelta,
            vec!["x-ratelimit-limit: 5", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 2"],
        ),
        (Headers::None, vec![]),
    ];
    for (family, lines) in table {
        let response = answer(&layer(family), get("/")).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(limits(response.headers()), lines, "{family:?}");
        assert_eq!(header(response.headers(), "retry-after"), "2", "{family:?}");
    }
}

/// The fields of an inner limiter, and those of the layer: both in lists, otherwise all of the
/// tighter one, with its policy.
#[tokio::test]
async fn existing_fields_are_listed_or_kept_or_replaced_as_a_whole() {
    let parts = |line: &String| -> (&'static str, &'static str) {
        line.clone().leak().split_once(": ").expect("a field")
    };
    // in Unix time, the reset of two responses may differ
    for family in FAMILIES.into_iter().filter(|family| *family != Headers::XRateLimit) {
        let layer = || owing(&[quota("10/s")], 0).headers(family);
        let ours = limits(&beside(&layer(), &[]).await);
        for (owed, inner_is_kept) in [(0, false), (88, false), (89, true), (98, true)] {
            let inner = owing(&[quota("99/min")], owed).headers(family);
            let theirs = limits(&beside(&inner, &[]).await);
            let there: Vec<_> = theirs.iter().map(parts).collect();
            let mut expected = if inner_is_kept { theirs.clone() } else { ours.clone() };
            if family == Headers::RateLimit {
                expected = [theirs, ours.clone()].concat();
                expected.sort();
            }
            assert_eq!(limits(&beside(&layer(), &there).await), expected, "{family:?}, {owed}");
        }
    }
}

/// The request was beyond a quota, of an inner limiter or of the layer.
#[tokio::test]
async fn the_overage_of_the_layer_is_set_beside_the_fields_of_a_tighter_quota() {
    let layer = owing(&[quota("2/h").with_soft(1)], 2).headers(Headers::XRateLimitDelta);
    let there = [("x-ratelimit-remaining", "0"), ("x-ratelimit-limit", "7")];
    let headers = beside(&layer, &there).await;
    assert_eq!(header(&headers, "x-ratelimit-limit"), "7");
    assert_eq!(header(&headers, "x-ratelimit-overage"), "1");
    let headers = beside(&owing(&[quota("2/h")], 0), &[("x-ratelimit-overage", "1")]).await;
    assert_eq!(header(&headers, "x-ratelimit-overage"), "1");
    // Also if no field can express the unit of the quota.
    let tokens = quota("2/h").with_soft(1).with_unit("tokens");
    for family in FAMILIES.into_iter().filter(|family| *family != Headers::None) {
        for there in [&[][..], &there] {
            let headers = beside(&owing(&[tokens], 2).headers(family), there).await;
            assert_eq!(header(&headers, "x-ratelimit-overage"), "1", "{family:?}");
            assert_eq!(headers.len(), 1 + there.len(), "{family:?}: {headers:?}");
        }
    }
}

const FAMILIES: [Headers; 6] = [
    Headers::RateLimit,
    Headers::Draft07,
    Headers::Draft06,
    Headers::XRateLimit,
    Headers::XRateLimitDelta,
    Headers::None,
];

#[tokio::test]
async fn fields_can_be_sent_with_rejections_only() {
    let layer = owing(&[quota("2/h")], 1).headers(Headers::RateLimit.only_when_denied());
    assert!(limits(answer(&layer, get("/")).await.headers()).is_empty());
    assert_eq!(limits(answer(&layer, get("/")).await.headers()).len(), 2);
}

/// Returns the response of a layer in which `name` has this quota and a request costs `cost`.
fn respond(name: &str, quota: Quota, owed: u32, cost: u32) -> Response<String> {
    let (store, key) = (FakeClock::new().store(64), Key::everyone());
    let name = RuleName::new(name).expect("a name");
    drop(Limiter::named(name.as_str(), store.clone()).charge(key, &quota, owed).now());
    let rule = Rule::new(name.as_str(), Everyone, quota).cost(Cost::from_fn(move |_| cost));
    let layer = RateLimitLayer::rules(rule, store).expose_decision();
    futures::executor::block_on(ask(&mut layer.layer(Strict::default()), get("/")))
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000_000_000)).expect("fits")
}

/// Returns the only item of a list field: its name, and its integer parameters by key.
fn item(field: &str) -> (String, impl Fn(&str) -> Option<i64>) {
    let list: sfv::List = sfv::Parser::new(field).parse().expect(field);
    let [sfv::ListEntry::Item(item)] = &list[..] else { panic!("{field}: not one item") };
    let (name, params) = (item.bare_item.as_string().expect("a string"), item.params.clone());
    let integer = |value: &sfv::BareItem| i64::from(value.as_integer().expect("an integer"));
    (name.to_string(), move |key: &str| {
        params.iter().find(|(known, _)| known.as_str() == key).map(|(_, value)| integer(value))
    })
}

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn fields_read_back_as_the_numbers_of_the_decision(
        name in string_regex("[ -~]{1,64}").expect("a pattern"),
        units in (0_u32..32, 1_u32..).prop_map(|(shift, n)| (n >> shift).max(1)),
        period in periods(),
        (owed, cost) in (0..=200_u64, 0..=100_u64),
    ) {
        let Ok(quota) = Quota::new(units, Duration::from_nanos(period)) else { return Ok(()) };
        let cost = u32::try_from(u64::from(units) * cost / 100).expect("at most the limit");
        // A debt is at most the limit.
        let owed = (u64::from(units) * owed / 100).min(u32::MAX.into());
        let response = respond(&name, quota, u32::try_from(owed).expect("at most the limit"), cost);
        let decision = response.extensions().get::<Decision>().expect("exposed");
        let outcome = decision.outcomes()[0];
        let (reported, policy) = item(header(response.headers(), "ratelimit-policy"));
        prop_assert_eq!((reported.as_str(), policy("q")), (name.as_str(), Some(units.into())));
        prop_assert_eq!(policy("w"), Some(seconds(quota.period())));
        let (reported, fields) = item(header(response.headers(), "ratelimit"));
        prop_assert_eq!(reported, name);
        let (next, time) = (seconds(outcome.next_after()), fields("t").unwrap_or(0));
        let left = i64::from(outcome.remaining());
        prop_assert_eq!(fields("r"), Some(left));
        if !decision.is_allowed() {
            prop_assert_eq!(time, if left == 0 { next } else { 0 });
            return Ok(());
        }
        // `r` per `t` is at most `q` per `w`, and `t` is no longer than that needs.
        let (used, window) = (left * policy("w").expect("a window"), i64::from(units));
        prop_assert!(time >= next && used <= time * window);
        prop_assert!(time == next || used > (time - 1) * window);
    }
}

/// The units left may exceed the limit. A rendered value is cached for the life of the service.
#[tokio::test]
async fn carried_over_units_are_reported_exactly() {
    let quota = Quota::per_second(200)
        .with_algorithm(Algorithm::FixedWindow { carry_over: 200, paced: false });
    for (family, of) in [
        (Headers::RateLimit, (|r| format!(r#""api";r={r};t=2"#)) as fn(u32) -> String),
        (Headers::Draft07, |r| format!("limit=200, remaining={r}, reset=2")),
    ] {
        let clock = FakeClock::new();
        let rule = Rule::new("api", Everyone, quota);
        let layer = RateLimitLayer::rules(rule, clock.store(64)).headers(family);
        let mut service = layer.layer(Strict::default());
        ask(&mut service, get("/")).await;
        clock.advance(Duration::from_secs(1));
        for remaining in [398, 397, 396] {
            let response = ask(&mut service, get("/")).await;
            assert_eq!(header(response.headers(), "ratelimit"), of(remaining));
        }
    }
}

/// Each thread keeps fields that were sent twice. The quotas of two layers have the same numbers.
#[tokio::test]
async fn fields_that_are_kept_equal_those_of_the_first_response() {
    let families =
        [Headers::RateLimit, Headers::Draft07, Headers::Draft06, Headers::XRateLimitDelta];
    let inner = [&[][..], &[("x-app", "1")], &[("ratelimit-remaining", "0"), ("x-app", "1")]];
    for (family, inner) in families.into_iter().flat_map(|it| inner.map(|inner| (it, inner))) {
        let clock = FakeClock::new();
        let mut services = ["api", "web"].map(|name| {
            let rule = Rule::new(name, HeaderKey::new("x-key"), quota("2/h"));
            let respond = move |_: Request<()>| {
                let response = answered(inner);
                async { Ok::<_, Infallible>(response) }
            };
            let layer = RateLimitLayer::rules(rule, clock.store(64)).headers(family);
            layer.layer(service_fn(respond))
        });
        let mut first = None;
        for key in ["alice", "bob", "carol", "dave"] {
            let mut sent = [Vec::new(), Vec::new()];
            for at in [0, 1, 0, 1, 0, 1] {
                let (service, sent) = (&mut services[at], &mut sent[at]);
                let response = ask(service, with(&[("x-key", key)])).await;
                let others = ["retry-after", "content-type", "cache-control", "x-app"];
                sent.extend(others.map(|name| format!("{:?}", response.headers().get(name))));
                sent.extend(limits(response.headers()));
            }
            assert_eq!(sent[0] != sent[1], family == Headers::RateLimit, "{family:?}: {sent:?}");
            assert_eq!(&sent, first.get_or_insert(sent.clone()), "{family:?}");
        }
    }
}

/// A denied request, and the numbers of its fields.
struct Denied {
    used: u32,
    cost: u32,
    left: u32,
    /// The seconds until the next unit, only if no unit is left.
    t: Option<u32>,
    retry_after: &'static str,
    reset: u32,
}

const DENIALS: [Denied; 5] = [
    Denied { used: 5, cost: 1, left: 0, t: Some(12), retry_after: "12", reset: 12 },
    Denied { used: 5, cost: 2, left: 0, t: Some(12), retry_after: "24", reset: 12 },
    Denied { used: 3, cost: 4, left: 2, t: None, retry_after: "24", reset: 24 },
    Denied { used: 0, cost: 9, left: 5, t: None, retry_after: "", reset: 0 },
    Denied { used: 3, cost: 9, left: 2, t: None, retry_after: "", reset: 0 },
];

impl Denied {
    /// Returns the fields of a family, without those of the policy.
    fn fields(&self, family: Headers) -> Vec<String> {
        let Self { left, reset, .. } = *self;
        let triplet = |x: &str| {
            [("limit", 5), ("remaining", left), ("reset", reset)]
                .map(|(name, n)| format!("{x}ratelimit-{name}: {n}"))
                .to_vec()
        };
        match family {
            Headers::RateLimit => {
                let t = self.t.map_or(String::new(), |t| format!(";t={t}"));
                vec![format!("ratelimit: \"api\";r={left}{t}")]
            }
            Headers::Draft07 => {
                vec![format!("ratelimit: limit=5, remaining={left}, reset={reset}")]
            }
            Headers::Draft06 => triplet(""),
            Headers::XRateLimit | Headers::XRateLimitDelta => triplet("x-"),
            _ => Vec::new(),
        }
    }
}

/// Makes the default response, with a field of its own.
fn with_own_field(why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<String> {
    let mut response: Response<String> = TooManyRequests::new().reject(why, head);
    response.headers_mut().insert("x-own", "1".parse().expect("a value"));
    response
}

/// Makes a response that drops the fields and the status of the default one.
fn rebuilt(why: &Rejection<'_>, head: &RequestHead<'_>) -> Response<String> {
    Response::new(Reject::<String>::reject(&TooManyRequests::new(), why, head).into_body())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// Takes the last of these lines, a time of day, and checks that it is this time after now, rounded up.
fn check_unix_time(lines: &mut Vec<String>, after: u32, asked: Duration) {
    let line = lines.pop().expect("a reset");
    let reset: u64 = line.rsplit(' ').next().expect("a value").parse().expect("a number");
    let after = Duration::from_secs(after.into());
    assert!(Duration::from_secs(reset) >= asked + after, "{reset} is too early");
    assert!(Duration::from_secs(reset - 1) < now() + after, "{reset} is too late");
}

/// Every family, with every kind of response: text, problem+json, gRPC, responses of a `Reject`, and the
/// fields of a limiter.
#[tokio::test]
async fn a_denial_reports_the_units_that_are_left() {
    const FIVE: Quota = Quota::per_minute(5);
    for family in FAMILIES {
        for denied in DENIALS {
            let layer = || {
                let store = FakeClock::new().store(64);
                let limiter = Limiter::named("api", store.clone());
                drop(limiter.charge(Key::everyone(), &FIVE, denied.used).now());
                let cost = Cost::from_fn(move |_| denied.cost);
                let rule = Rule::new("api", Everyone, FIVE).cost(cost);
                RateLimitLayer::rules(rule, store).headers(family)
            };
            let mut grpc = Request::post("/shop.Cart/Buy").version(http::Version::HTTP_2);
            let fields = grpc.headers_mut().expect("fields");
            fields.insert("content-type", "application/grpc".parse().expect("a value"));
            let grpc = grpc.body(()).expect("a request");
            let json = with(&[("accept", "application/problem+json")]);
            let mut written = HeaderMap::new();
            let limiter = Limiter::named("api", FakeClock::new().store(64));
            drop(limiter.charge("key", &FIVE, denied.used).now());
            let decision = limiter.take("key", &FIVE, denied.cost).now();
            let asked = now();
            family.write(&decision, &FIVE, &mut written);
            let rejected = async |words: Words| {
                let layer = layer().reject(reject_fn(words));
                answer(&layer, get("/")).await.headers().clone()
            };
            let all = [
                ("text/plain; charset=utf-8", answer(&layer(), get("/")).await.headers().clone()),
                ("application/problem+json", answer(&layer(), json).await.headers().clone()),
                ("application/grpc", answer(&layer(), grpc).await.headers().clone()),
                ("text/plain; charset=utf-8", rejected(with_own_field).await),
                ("text/plain; charset=utf-8", rejected(rebuilt).await),
                ("", written),
            ];
            for (kind, headers) in all {
                let case = format!("{family:?}, {kind}, {} of {}", denied.cost, denied.left);
                let (mut lines, mut expected) = (limits(&headers), denied.fields(family));
                lines.retain(|line| !line.starts_with("ratelimit-policy"));
                if family == Headers::XRateLimit {
                    check_unix_time(&mut lines, denied.reset, asked);
                    expected.pop();
                }
                assert_eq!(lines, expected, "{case}");
                assert_eq!(header(&headers, "retry-after"), denied.retry_after, "{case}");
                assert_eq!(header(&headers, "content-type"), kind, "{case}");
            }
        }
    }
}

/// The fields of `OpenAI`, which clients of language models read.
mod by_unit {
    use super::*;

    const REQUESTS: Quota = Quota::per_minute(60);
    const TOKENS: Quota = Quota::per_minute(150_000).with_unit("tokens");

    fn fields(headers: &HeaderMap, unit: &str) -> [String; 3] {
        ["limit", "remaining", "reset"]
            .map(|part| header(headers, &format!("x-ratelimit-{part}-{unit}")).to_owned())
    }

    #[tokio::test]
    async fn the_reset_is_a_text_of_hours_minutes_and_seconds_or_of_milliseconds() {
        for (text, owed, reset) in [
            ("1/120ms", 1, "120ms"),
            ("1/999ms", 1, "999ms"),
            ("1/999999us", 1, "1s"),
            ("1/1001ms", 1, "2s"),
            ("1/min", 1, "1m0s"),
            ("6/h", 4, "40m0s"),
            ("1/h", 1, "1h0m0s"),
            ("1/day", 1, "24h0m0s"),
        ] {
            let layer = owing(&[quota(text)], owed).headers(Headers::ByUnit);
            let response = answer(&layer, get("/")).await;
            let reset_field = header(response.headers(), "x-ratelimit-reset-requests");
            if response.status() != StatusCode::OK {
                assert_eq!(reset_field, reset, "{text}");
            }
        }
    }

    #[tokio::test]
    async fn the_tighter_quota_of_a_unit_stays_and_lists_are_appended() {
        let layer = || owing(&[quota("10/s")], 0).headers(Headers::ByUnit);
        let inner = [
            ("ratelimit", "\"inner\";r=1"),
            ("x-ratelimit-limit-requests", "5"),
            ("x-ratelimit-remaining-requests", "1"),
            ("x-ratelimit-reset-requests", "7s"),
        ];
        let kept = beside(&layer(), &inner).await;
        assert_eq!(fields(&kept, "requests"), ["5", "1", "7s"]);
        let lists: Vec<_> = kept.get_all("ratelimit").iter().collect();
        assert_eq!(lists, ["\"inner\";r=1", "\"api\";r=9;t=1"]);
        let wider =
            [("x-ratelimit-remaining-requests", "50"), ("x-ratelimit-limit-requests", "99")];
        let replaced = beside(&layer(), &wider).await;
        assert_eq!(fields(&replaced, "requests"), ["10", "9", "100ms"]);
    }

    #[tokio::test]
    async fn each_unit_has_fields_beside_the_lists() {
        let rules = (
            Rule::new("requests", Everyone, REQUESTS),
            Rule::new("tokens", Everyone, TOKENS).cost(16),
        );
        let layer =
            RateLimitLayer::rules(rules, FakeClock::new().store(64)).headers(Headers::ByUnit);
        let response = answer(&layer, get("/")).await;
        let headers = response.headers();
        assert_eq!(fields(headers, "requests"), ["60", "59", "1s"]);
        assert_eq!(fields(headers, "tokens"), ["150000", "149984", "7ms"]);
        assert_eq!(header(headers, "ratelimit"), r#""requests";r=59;t=59"#);
        assert_eq!(header(headers, "ratelimit-policy"), r#""requests";q=60;w=60"#);
    }

    #[tokio::test]
    async fn only_tokens_have_no_lists_and_a_plain_rejection() {
        let layer = owing(&[TOKENS], 150_000).headers(Headers::ByUnit);
        let response = answer(&layer, get("/")).await;
        let headers = response.headers();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(fields(headers, "tokens"), ["150000", "0", "1m0s"]);
        assert_eq!((header(headers, "ratelimit"), header(headers, "ratelimit-policy")), ("", ""));
        assert_eq!(header(headers, "retry-after"), "1");
        assert_eq!(header(headers, "content-type"), "text/plain; charset=utf-8");
    }
}

/// An adaptive limit follows the latency, so it is no policy.
#[tokio::test]
async fn an_adaptive_limit_has_no_policy() {
    use tower_sluice::{middleware::HoldUntil, rule::Adaptive};

    let limit = Adaptive::gradient().initial(8);
    let rules = (
        Rule::new("overload", Everyone, limit.plan()),
        Rule::new("calls", Everyone, Quota::per_minute(6)),
    );
    let layer = RateLimitLayer::rules(rules, LocalStore::with_capacity(16));
    let (policy, state, status, _) = reported(&layer.hold_until(HoldUntil::Head)).await;
    assert_eq!((policy.as_str(), status), (r#""calls";q=6;w=60"#, 200));
    assert_eq!(state, r#""overload";r=7, "calls";r=5;t=50"#);
}
