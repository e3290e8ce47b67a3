//! A rule may be skipped, exempt or required per request; who has no identity is treated as the
//! rule says. What no rule applies to asks no store.

mod support;

use http::{Request, StatusCode};
use support::{
    answer,
    driven::{Counting, left},
    get, with,
};
use tower_sluice::{
    Key, KeyError, KeyExtractor, LocalStore, Missing, Mode, Quota, RateLimitLayer, Rule, Rules,
    key::{Everyone, Header},
    testing::FakeClock,
};

const ONE: Quota = Quota::per_hour(1);

/// A layer of these rules, and how often its store was asked.
fn layer<K: Rules>(rules: K) -> (RateLimitLayer<K, Counting<LocalStore>>, impl Fn() -> usize) {
    let store = Counting::new(FakeClock::new().store(64));
    (RateLimitLayer::rules(rules, store.clone()), move || store.takes())
}

async fn status<K: Rules>(
    layer: &RateLimitLayer<K, Counting<LocalStore>>,
    request: Request<()>,
) -> u16 {
    answer(layer, request).await.status().as_u16()
}

/// The mode that a request names for the rule it names it for.
fn told<K>(rule: Rule<K>, name: &'static str) -> Rule<K> {
    rule.mode(move |parts| match parts.headers.get(name).map(http::HeaderValue::as_bytes) {
        Some(b"skip") => Mode::Skip,
        Some(b"exempt") => Mode::Exempt,
        Some(b"require") => Mode::Require,
        _ => Mode::Charge,
    })
}

#[tokio::test]
async fn a_skipped_rule_leaves_the_others_and_an_exempt_one_leaves_none() {
    let quota = Quota::per_hour(10);
    let rules = (
        told(Rule::new("first", Everyone, quota), "x-first"),
        told(Rule::new("second", Everyone, quota), "x-second"),
        vec![told(Rule::new("third", Everyone, quota), "x-third")],
    );
    let local = FakeClock::new().store(64);
    let counting = Counting::new(local.clone());
    let layer = RateLimitLayer::rules(rules, counting.clone());
    let left =
        || ["first", "second", "third"].map(|name| left(&local, name, Key::everyone(), &quota));
    assert_eq!(status(&layer, get("/")).await, 200);
    assert_eq!(left(), [9, 9, 9]);
    assert_eq!(status(&layer, with(&[("x-second", "skip")])).await, 200);
    assert_eq!(left(), [8, 9, 8]);
    let all = [("x-first", "skip"), ("x-second", "skip"), ("x-third", "skip")];
    assert_eq!((status(&layer, with(&all)).await, counting.takes()), (200, 2));
    for name in ["x-first", "x-second", "x-third"] {
        assert_eq!(status(&layer, with(&[(name, "exempt")])).await, 200);
        let other = if name == "x-first" { "x-third" } else { "x-first" };
        assert_eq!(status(&layer, with(&[(other, "skip"), (name, "exempt")])).await, 200);
    }
    assert_eq!((left(), counting.takes()), ([8, 9, 8], 2), "what came before is discarded");
}

#[tokio::test]
async fn a_request_that_a_later_rule_exempts_needs_no_key_for_an_earlier_one() {
    let (layer, takes) = layer((
        Rule::new("user", Header::new("x-user"), ONE),
        Rule::new("site", Everyone, ONE).mode(|parts| match parts.uri.path() {
            "/health" => Mode::Exempt,
            _ => Mode::Charge,
        }),
    ));
    assert_eq!((status(&layer, get("/health")).await, takes()), (200, 0));
    assert_eq!((status(&layer, get("/")).await, takes()), (400, 0));
}

/// A user's name; `x-user: -` says that the rule is not for this request.
#[derive(Clone, Debug)]
struct User;

impl KeyExtractor for User {
    fn extract(&self, parts: &http::request::Parts) -> Result<Option<Key>, KeyError> {
        match parts.headers.get("x-user").map(http::HeaderValue::as_bytes) {
            None => Err(KeyError::missing("user")),
            Some(b"-") => Ok(None),
            Some(name) => Ok(Some(String::from_utf8_lossy(name).as_ref().into())),
        }
    }
}

#[tokio::test]
async fn who_has_no_identity_is_treated_as_the_rule_says_unless_one_is_required() {
    let teapot = StatusCode::IM_A_TEAPOT;
    // (policy, nothing sent, blank, not applicable), then the same where an identity is required
    let table = [
        (Missing::default(), [400, 400, 200], [400, 400, 400]),
        (Missing::Reject(teapot), [418, 418, 200], [418, 418, 418]),
        (Missing::Skip, [200, 200, 200], [400, 400, 400]),
        (Missing::Share, [200, 200, 200], [400, 400, 400]),
    ];
    for (missing, charged, required) in table {
        for (mode, expected) in [("charge", charged), ("require", required)] {
            let rule = Rule::new("user", User, Quota::per_hour(100)).missing(missing);
            let (layer, takes) = layer(told(rule, "x-mode"));
            let mode = ("x-mode", mode);
            let requests = [vec![mode], vec![mode, ("x-user", " ")], vec![mode, ("x-user", "-")]];
            for (request, expected) in requests.iter().zip(expected) {
                let before = takes();
                assert_eq!(
                    status(&layer, with(request)).await,
                    expected,
                    "{missing:?} {request:?}"
                );
                let asked = missing == Missing::Share
                    && expected == 200
                    && request.last() != Some(&("x-user", "-"));
                assert_eq!(takes() - before, usize::from(asked), "{missing:?} {request:?}");
            }
            assert_eq!(status(&layer, with(&[mode, ("x-user", "alice")])).await, 200);
        }
    }
}
