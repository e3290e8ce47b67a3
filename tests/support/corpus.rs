//! Answers in every family of header fields, with the numbers that clients should read in them.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, StatusCode};
use serde::Serialize;
use tower_sluice::{
    Headers, Key, Limiter, Quota, RateLimitLayer, Rule, key::Everyone, rule::RuleName,
    testing::FakeClock,
};

use crate::support::{answer, get, quota};

/// One answer. The numbers were computed by hand.
#[derive(Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) family: &'static str,
    pub(crate) status: u16,
    pub(crate) policies: Vec<Policy>,
    /// The first limit is the decisive one: older families report only this one.
    pub(crate) limits: Vec<Limit>,
    pub(crate) retry_after: Option<u64>,
    /// The time of the answer, in Unix time.
    pub(crate) made: u64,
    #[serde(skip)]
    pub(crate) headers: HeaderMap,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Policy {
    pub(crate) name: &'static str,
    pub(crate) q: u64,
    pub(crate) w: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) r: u64,
    /// Absent if no unit is due, or beside the denial of another quota.
    pub(crate) t: Option<u64>,
}

const FAMILIES: [(&str, Headers); 5] = [
    ("ratelimit", Headers::RateLimit),
    ("draft07", Headers::Draft07),
    ("draft06", Headers::Draft06),
    ("x", Headers::XRateLimit),
    ("x-delta", Headers::XRateLimitDelta),
];

/// The name of a quota on the wire, and its q, w, r and t. A t of 0 is absent.
type Told = (&'static str, u64, u64, u64, u64);

/// A rule's name, its quotas, the units in debt, the cost of a request, and the reported values of
/// each quota.
type Row<'a> = (&'a str, &'a [Quota], u32, u32, &'a [Told]);

/// Returns every row in every family.
pub(crate) async fn corpus() -> Vec<Case> {
    let punctuation = r##"~`!@#$%^&*()_-+={[}]|\:;"'<,>.?/"##;
    let long = "x".repeat(64).leak();
    let odd = [
        quota("5/10s").with_name("a, \"b\";r=9;t=\\"),
        quota("1000/h").with_name(" say  \"hi\", \\o/ "),
    ];
    let rows: [Row<'_>; 11] = [
        ("default", &[quota("5/s burst 10")], 0, 1, &[("default", 10, 2, 9, 2)]),
        ("full", &[quota("10/s")], 0, 0, &[("full", 10, 1, 10, 1)]),
        (r#"a"b\c"#, &[quota("10/s")], 0, 1, &[(r#"a"b\c"#, 10, 1, 9, 1)]),
        (punctuation, &[quota("1000/h")], 387, 1, &[(punctuation, 1000, 3600, 612, 2204)]),
        (" two  words ", &[quota("5/s")], 0, 1, &[(" two  words ", 5, 1, 4, 1)]),
        (long, &[quota("3/s")], 0, 1, &[(long, 3, 1, 2, 1)]),
        (
            "api",
            &[quota("5/10s"), quota("1000/h")],
            1,
            1,
            &[("api-10s", 5, 10, 3, 6), ("api-1h", 1000, 3600, 998, 3593)],
        ),
        (
            "odd",
            &odd,
            1,
            1,
            &[("a, \"b\";r=9;t=\\", 5, 10, 3, 6), (" say  \"hi\", \\o/ ", 1000, 3600, 998, 3593)],
        ),
        (
            "denied",
            &[quota("5/5s"), quota("1000/h")],
            6,
            1,
            &[("denied-5s", 5, 5, 0, 2), ("denied-1h", 1000, 3600, 994, 0)],
        ),
        (
            "wide",
            &[quota("4294967295/min")],
            0,
            1,
            &[("wide", 4_294_967_295, 60, 4_294_967_294, 60)],
        ),
        ("slow", &[quota("1/3650day")], 1, 1, &[("slow", 1, 315_360_000, 0, 315_360_000)]),
    ];
    let mut cases = Vec::new();
    for row in rows {
        for (family, headers) in FAMILIES {
            cases.push(case(family, headers, row).await);
        }
    }
    cases
}

async fn case(family: &'static str, headers: Headers, row: Row<'_>) -> Case {
    let (name, quotas, owed, cost, items) = row;
    let (store, name) = (FakeClock::new().store(64), RuleName::new(name).expect("a name"));
    drop(Limiter::named(name.as_str(), store.clone()).charge(Key::everyone(), &quotas, owed).now());
    let rule = Rule::new(name.as_str(), Everyone, quotas).cost(cost);
    let layer = RateLimitLayer::rules(rule, store).headers(headers);
    let made = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let (head, _) = answer(&layer, get("/")).await.into_parts();
    let denied = head.status == StatusCode::TOO_MANY_REQUESTS;
    let limit = |&(name, _, _, r, t): &Told| Limit { name, r, t: (t > 0).then_some(t) };
    let limits: Vec<_> = items.iter().map(limit).collect();
    Case {
        family,
        status: head.status.as_u16(),
        policies: items.iter().map(|&(name, q, w, ..)| Policy { name, q, w }).collect(),
        retry_after: limits[0].t.filter(|_| denied),
        limits,
        made,
        headers: head.headers,
    }
}
