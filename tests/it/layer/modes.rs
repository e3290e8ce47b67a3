//! Rules that are skipped or required per request, and policies for a missing key.

use http::{Request, StatusCode};
use tower_sluice::{
    Key, KeyExtractor, LocalStore, Quota, RateLimitLayer, RequestHead, Rule,
    key::{Everyone, HeaderKey, KeyError},
    rule::{Applies, OnMissingKey, Rules},
    testing::FakeClock,
};

use crate::support::{
    answer,
    driven::{Counting, left},
    get, with,
};

const ONE: Quota = Quota::per_hour(1);

/// Returns a layer with these rules and a counter of its store calls.
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

/// Lets the header `name` of a request choose the mode of the rule.
fn with_mode_header<K>(rule: Rule<K>, name: &'static str) -> Rule<K> {
    rule.applies(move |head| match head.headers.get(name).map(http::HeaderValue::as_bytes) {
        Some(b"skip") => Applies::Skip,
        Some(b"require") => Applies::Require,
        _ => Applies::Charge,
    })
}

#[tokio::test]
async fn a_skipped_rule_keeps_the_others() {
    let quota = Quota::per_hour(10);
    let rules = (
        with_mode_header(Rule::new("first", Everyone, quota), "x-first"),
        with_mode_header(Rule::new("second", Everyone, quota), "x-second"),
        vec![with_mode_header(Rule::new("third", Everyone, quota), "x-third")],
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
    assert_eq!(left(), [8, 9, 8]);
}

#[tokio::test]
async fn a_request_that_every_rule_skips_needs_no_key() {
    let applies = |head: &RequestHead<'_>| match head.path() {
        "/health" => Applies::Skip,
        _ => Applies::Charge,
    };
    let (layer, takes) = layer((
        Rule::new("user", HeaderKey::new("x-user"), ONE).applies(applies),
        Rule::new("site", Everyone, ONE).applies(applies),
    ));
    assert_eq!((status(&layer, get("/health")).await, takes()), (200, 0));
    assert_eq!((status(&layer, get("/")).await, takes()), (400, 0));
}

/// A user's name; `x-user: -` means that the rule does not apply to this request.
#[derive(Clone, Debug)]
struct User;

impl KeyExtractor for User {
    fn extract(&self, head: &tower_sluice::RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        match head.headers.get("x-user").map(http::HeaderValue::as_bytes) {
            None => Err(KeyError::missing("user")),
            Some(b"-") => Ok(None),
            Some(name) => Ok(Some(String::from_utf8_lossy(name).as_ref().into())),
        }
    }
}

#[tokio::test]
async fn a_missing_key_follows_the_policy_of_the_rule_except_if_required() {
    let teapot = StatusCode::IM_A_TEAPOT;
    // (policy, nothing sent, blank, not applicable), then these cases where a key is required
    let table = [
        (OnMissingKey::default(), [400, 400, 200], [400, 400, 400]),
        (OnMissingKey::Reject(teapot), [418, 418, 200], [418, 418, 418]),
        (OnMissingKey::Skip, [200, 200, 200], [400, 400, 400]),
        (OnMissingKey::Share, [200, 200, 200], [400, 400, 400]),
    ];
    for (missing, charged, required) in table {
        for (mode, expected) in [("charge", charged), ("require", required)] {
            let rule = Rule::new("user", User, Quota::per_hour(100)).on_missing_key(missing);
            let (layer, takes) = layer(with_mode_header(rule, "x-mode"));
            let mode = ("x-mode", mode);
            let requests = [vec![mode], vec![mode, ("x-user", " ")], vec![mode, ("x-user", "-")]];
            for (request, expected) in requests.iter().zip(expected) {
                let before = takes();
                assert_eq!(
                    status(&layer, with(request)).await,
                    expected,
                    "{missing:?} {request:?}"
                );
                let asked = missing == OnMissingKey::Share
                    && expected == 200
                    && request.last() != Some(&("x-user", "-"));
                assert_eq!(takes() - before, usize::from(asked), "{missing:?} {request:?}");
            }
            assert_eq!(status(&layer, with(&[mode, ("x-user", "alice")])).await, 200);
        }
    }
}
