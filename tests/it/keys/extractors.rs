//! Key extractors, and requests without a key.

use std::sync::Arc;

use http::Request;
use tower_sluice::{
    AccessList, ClientIp, Key, KeyExtractor, LocalStore, Quota, RateLimitLayer, Rule,
    key::{BearerKey, Everyone, ExtensionKey, HeaderKey, KeyError, MethodKey},
    key_fn,
};

use crate::support::{answer, get, header, status, with};

const USER: &str = "x-user";

fn user() -> HeaderKey {
    HeaderKey::new(USER)
}

#[expect(clippy::needless_pass_by_value, reason = "callers create the request in place")]
fn key(of: impl KeyExtractor, request: Request<()>) -> Result<Option<Key>, KeyError> {
    of.extract(&tower_sluice::RequestHead::from(&request))
}

fn named(user: &str) -> Request<()> {
    with(&[(USER, user)])
}

/// A custom extractor that does not check its keys.
#[derive(Clone, Copy)]
struct Unchecked;

impl KeyExtractor for Unchecked {
    fn extract(&self, head: &tower_sluice::RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        Ok(Some(head.headers.get(USER).map_or_else(|| Key::from(""), Key::from)))
    }
}

/// Returns an extractor of each kind, with a request that has `value` where the extractor reads.
fn readers(value: &str) -> Vec<(&'static str, Box<dyn KeyExtractor + Send + Sync>, Request<()>)> {
    let escaped = value.replace(' ', "%20").replace('\t', "%09");
    let mut text = get("/");
    text.extensions_mut().insert(value.to_owned());
    let mut whole = get("/");
    whole.extensions_mut().insert(Key::from(value));
    let after = |text: &str, prefix: &str| text.strip_prefix(prefix).map(str::to_owned);
    let decode = |text: &str| text.replace("%20", " ").replace("%09", "\t");
    let header = move |name: &'static str, prefix: &'static str| {
        key_fn(move |head| after(head.headers.get(name)?.to_str().ok()?, prefix))
    };
    let uri = |uri: String| Request::get(uri).body(()).expect("a request");
    vec![
        ("header", Box::new(user()), named(value)),
        ("reference", Box::new(Box::leak(Box::new(user())) as &HeaderKey), named(value)),
        ("arc", Box::new(Arc::new(user())), named(value)),
        ("metadata", Box::new(HeaderKey::new("client-id")), with(&[("client-id", value)])),
        ("value", Box::new(key_fn(|head| head.headers.get(USER).cloned())), named(value)),
        (
            "bytes",
            Box::new(key_fn(|head| Some(Key::from(head.headers.get(USER)?.as_bytes())))),
            named(value),
        ),
        ("token", Box::new(BearerKey), with(&[("authorization", &format!("Bearer {value}"))])),
        (
            "bearer",
            Box::new(header("authorization", "Bearer ")),
            with(&[("authorization", &format!("Bearer {value}"))]),
        ),
        ("cookie", Box::new(header("cookie", "id=")), with(&[("cookie", &format!("id={value}"))])),
        (
            "query",
            Box::new(key_fn(move |head| head.uri().query().map(decode))),
            uri(format!("/?{escaped}")),
        ),
        (
            "path",
            Box::new(key_fn(move |head| Some(decode(&head.path()[1..])))),
            uri(format!("/{escaped}")),
        ),
        ("extension", Box::new(ExtensionKey::by(|text: &String| text.clone())), text),
        ("key", Box::new(ExtensionKey::<Key>::new()), whole),
        ("tuple", Box::new((MethodKey, user())), named(value)),
        ("tuple of custom", Box::new((Unchecked, Everyone)), named(value)),
        ("nested tuple", Box::new((Everyone, (MethodKey, user()))), named(value)),
        ("or", Box::new(HeaderKey::new("x-none").or(user())), named(value)),
        ("custom or", Box::new(Unchecked.or(Unchecked)), named(value)),
        ("hops", Box::new(ClientIp::hops(1)), with(&[("x-forwarded-for", value)])),
    ]
}

#[tokio::test]
async fn a_blank_value_is_a_missing_key_of_every_extractor() {
    for value in ["", " ", " \t "] {
        for at in 0..readers(value).len() {
            let reader = || readers(value).swap_remove(at);
            let (name, extractor, request) = reader();
            let found = key(&extractor, request);
            assert!(found.is_err_and(|error| error.is_missing()), "{name} of {value:?}");
            let (_, extractor, request) = reader();
            assert_eq!(key(extractor.or(Everyone), request), Ok(Some(Key::everyone())), "{name}");
        }
    }
    // An operator's list with an empty entry is no list of everybody without a key.
    let status = async |at: usize, custom: bool| {
        let (_, extractor, request) = readers("").swap_remove(at);
        let blank = [Key::from(""), Key::from(" ")];
        let allow = if custom {
            AccessList::keys(Unchecked, blank)
        } else {
            AccessList::keys(extractor, blank)
        };
        let site = RateLimitLayer::new(Everyone, Quota::blocked(), LocalStore::with_capacity(1));
        status(&site.allow(allow), request).await
    };
    for at in 0..readers("").len() {
        assert_eq!(status(at, false).await, 403, "{}", readers("")[at].0);
    }
    assert_eq!(status(0, true).await, 403);
}

/// A part of a tuple, with its answer.
struct Part(Result<Option<Key>, KeyError>);

impl KeyExtractor for Part {
    fn extract(&self, _: &tower_sluice::RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        self.0.clone()
    }
}

/// The worst part of a tuple decides, in any order: unusable, then exempt, then missing.
#[test]
fn the_answer_of_a_tuple_does_not_depend_on_the_order_of_its_parts() {
    let answers = [
        Err(KeyError::unusable(http::StatusCode::BAD_REQUEST, "sent twice")),
        Ok(None),
        Err(KeyError::missing("header")),
        Ok(Some(Key::from("alice"))),
    ];
    let part = |at: usize| Part(answers[at].clone());
    for first in 0..answers.len() {
        for second in 0..answers.len() {
            let worst = first.min(second);
            let found = key((part(first), part(second)), get("/"));
            let of_three = key((part(3), part(first), part(second)), get("/"));
            if worst == 3 {
                assert!(found.is_ok_and(|key| key.is_some()));
                continue;
            }
            assert_eq!([found, of_three], [(); 2].map(|()| answers[worst].clone()));
        }
    }
}

#[tokio::test]
async fn errors_and_debug_output_do_not_contain_the_key() {
    const SECRET: &str = "hunter2-hunter2";
    let rule = Rule::new("user", user(), Quota::per_hour(1)).max_key_len(SECRET.len());
    let layer = RateLimitLayer::rules(rule.clone(), LocalStore::with_capacity(64));
    let layer = layer.expose_decision();
    let mut shown = vec![
        format!("{:?}", key(user(), named(SECRET))),
        format!("{:?}", key((user(), MethodKey), named(SECRET))),
        format!("{rule:?} {layer:?}"),
    ];
    let long = format!("{SECRET}!");
    let requests = [
        named(SECRET),
        named(SECRET),
        named(&long),
        with(&[(USER, SECRET), (USER, SECRET)]),
        with(&[(USER, SECRET), ("accept", "application/json")]),
    ];
    for (request, status) in requests.into_iter().zip([200, 429, 400, 400, 429]) {
        let response = answer(&layer, request).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(header(response.headers(), USER), "");
        shown.push(format!("{response:?} {:?}", response.extensions()));
        shown.push(format!("{:?}", response.extensions().get::<tower_sluice::Decision>()));
        let service = tower::Layer::layer(&layer, crate::support::Strict::default());
        shown.push(format!("{service:?}"));
    }
    assert!(shown.iter().all(|text| !text.contains("hunter2")), "{shown:#?}");
}
