//! Key extractors, and requests without a key.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderValue, Request, StatusCode};
use tower_sluice::{
    AccessList, ClientIp, Key, KeyExtractor, LocalStore, PeerIp, Quota, RateLimitLayer, Rule,
    key::{BearerKey, Everyone, ExtensionKey, HeaderKey, KeyError, MethodKey},
    key_fn,
    rule::OnMissingKey,
};

use crate::support::{answer, get, header, lines, with};

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

/// Allows one request per hour for each user.
fn hourly(missing: OnMissingKey) -> RateLimitLayer<Rule<HeaderKey>, LocalStore> {
    let rule = Rule::new("user", user(), Quota::per_hour(1)).on_missing_key(missing);
    RateLimitLayer::rules(rule, LocalStore::with_capacity(64))
}

async fn status<K: tower_sluice::rule::Rules>(
    layer: &RateLimitLayer<K, LocalStore>,
    request: Request<()>,
) -> u16 {
    answer(layer, request).await.status().as_u16()
}

#[test]
fn a_header_is_a_key_byte_for_byte() {
    assert_eq!(key(user(), named("alice")), Ok(Some("alice".into())));
    assert_ne!(key(user(), named("alice")), key(user(), named("Alice")));
    assert_ne!(key(user(), named("alice")), key(user(), named("a lice")));
    let mut request = get("/");
    let opaque = HeaderValue::from_bytes(b"\xff\xfe").expect("opaque bytes");
    request.headers_mut().insert(USER, opaque);
    assert_eq!(key(user(), request), Ok(Some(b"\xff\xfe"[..].into())));
}

#[test]
fn a_site_is_the_first_48_bits_of_an_ipv6_address() {
    let site = |address: &str| {
        let address: IpAddr = address.parse().expect("an address");
        let mut request = get("/");
        request.extensions_mut().insert(SocketAddr::from((address, 4711)));
        key(PeerIp::new().ipv6_prefix(48), request)
    };
    assert!(matches!(site("2001:db8:1::1"), Ok(Some(_))));
    assert_eq!(site("2001:db8:1::1"), site("2001:db8:1:ffff::2"));
    assert_ne!(site("2001:db8:1::1"), site("2001:db8:0::1"));
    assert_ne!(site("192.0.2.1"), site("192.0.2.2"));
}

#[test]
fn white_space_around_a_header_is_not_part_of_the_key() {
    for spelling in [" alice", "alice ", "\talice \t ", "alice"] {
        assert_eq!(key(user(), named(spelling)), Ok(Some("alice".into())), "{spelling:?}");
        let of_value = key_fn(|head| head.headers.get(USER).cloned());
        assert_eq!(key(of_value, named(spelling)), Ok(Some("alice".into())), "{spelling:?}");
    }
}

#[tokio::test]
async fn absent_empty_and_blank_headers_are_missing() {
    for request in [|| get("/"), || named(""), || named(" \t ")] {
        let unauthorized = OnMissingKey::Reject(StatusCode::UNAUTHORIZED);
        assert_eq!(status(&hourly(OnMissingKey::default()), request()).await, 400);
        assert_eq!(status(&hourly(unauthorized), request()).await, 401);
        let skip = hourly(OnMissingKey::Skip);
        for _ in 0..3 {
            let response = answer(&skip, request()).await;
            assert_eq!((response.status(), lines(response.headers())), (StatusCode::OK, vec![]));
        }
    }
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

#[tokio::test]
async fn requests_without_a_key_can_share_one_account() {
    let layer = hourly(OnMissingKey::Share);
    assert_eq!(status(&layer, get("/")).await, 200);
    for request in [get("/"), named(""), named("  ")] {
        assert_eq!(status(&layer, request).await, 429);
    }
    assert_eq!(
        status(&layer, named("alice")).await,
        200,
        "a client with this key has another account"
    );
}

#[tokio::test]
async fn a_header_sent_twice_is_rejected_under_every_policy() {
    for missing in [OnMissingKey::default(), OnMissingKey::Skip, OnMissingKey::Share] {
        let twice = with(&[(USER, "alice"), (USER, "bob")]);
        assert_eq!(status(&hourly(missing), twice).await, 400, "{missing:?}");
    }
}

#[tokio::test]
async fn keys_that_are_too_long_are_rejected_under_every_policy() {
    let long = |bytes: usize| named(&"k".repeat(bytes));
    for missing in [OnMissingKey::default(), OnMissingKey::Skip, OnMissingKey::Share] {
        let layer = hourly(missing);
        assert_eq!(status(&layer, long(1_024)).await, 200, "{missing:?}");
        assert_eq!(status(&layer, long(1_025)).await, 400, "{missing:?}");
    }
    let rule = Rule::new("user", user(), Quota::per_hour(1)).max_key_len(8);
    let layer = RateLimitLayer::rules(rule, LocalStore::with_capacity(64));
    assert_eq!(status(&layer, long(8)).await, 200);
    assert_eq!(status(&layer, long(9)).await, 400);
}

#[test]
fn or_uses_the_second_extractor_if_the_first_finds_no_key() {
    let either = || user().or(HeaderKey::new("x-guest")).or(Everyone);
    assert_eq!(key(either(), named("alice")), Ok(Some("alice".into())));
    for user in [&[][..], &[(USER, "")], &[(USER, "  ")]] {
        let guest = [user, &[("x-guest", "7")]].concat();
        assert_eq!(key(either(), with(&guest)), Ok(Some("7".into())));
        assert_eq!(key(either(), with(user)), Ok(Some(Key::everyone())));
    }
    let twice = key(either(), with(&[(USER, "alice"), (USER, "bob")]));
    assert!(!twice.expect_err("an error of the first stays an error").is_missing());
    assert!(key(user().or(user()), get("/")).expect_err("no key").is_missing());
}

#[test]
fn a_tuple_makes_one_key_of_all_its_parts() {
    let of = |a: &str, b: &str| {
        let request = with(&[("a", a), ("b", b)]);
        key((HeaderKey::new("a"), HeaderKey::new("b")), request).expect("a key").expect("applies")
    };
    assert_eq!(of("x", "y"), of("x", "y"));
    for other in [of("y", "x"), of("x", "z"), of("xy", "z"), of("x,", "y")] {
        assert_ne!(of("x", "y"), other);
    }
    assert_ne!(of("ab", "c"), of("a", "bc"));
    let three = || (MethodKey, user(), Everyone);
    let four = || (MethodKey, user(), Everyone, Everyone);
    assert_ne!(key(three(), named("alice")), key(three(), named("bob")));
    assert_ne!(key(four(), named("alice")), key(four(), named("bob")));
    assert_ne!(key(three(), named("alice")), key(four(), named("alice")));
}

#[test]
fn invented_methods_share_one_key() {
    let of = |method: &str| {
        let method = http::Method::from_bytes(method.as_bytes()).expect("a method");
        let request = Request::builder().method(method).body(()).expect("a request");
        key(MethodKey, request).expect("a key").expect("applies")
    };
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    for method in known {
        assert_eq!(of(method), method.into());
    }
    for made_up in ["X", "XYZZY", "get", "Get", "GETT", "PURGE", "other", &"LONG".repeat(1_000)] {
        assert_eq!(of(made_up), "other".into(), "{made_up:.20}");
    }
}

#[test]
fn a_tuple_with_a_missing_part_is_missing() {
    for request in [get("/"), named(""), named(" ")] {
        let missing = key((MethodKey, user()), request).expect_err("half a key");
        assert!(missing.is_missing());
    }
    assert_eq!(key((MethodKey, Nobody), get("/")), Ok(None), "a tuple does not apply in part");
}

/// An extractor whose rule never applies.
#[derive(Clone, Copy)]
struct Nobody;

impl KeyExtractor for Nobody {
    fn extract(&self, _: &tower_sluice::RequestHead<'_>) -> Result<Option<Key>, KeyError> {
        Ok(None)
    }
}

#[tokio::test]
async fn a_rule_that_does_not_apply_denies_nothing() {
    let store = LocalStore::with_capacity(64);
    let layer = RateLimitLayer::new(Nobody, Quota::blocked(), store);
    assert_eq!(status(&layer, get("/")).await, 200);
    let unlimited =
        RateLimitLayer::rules(Rule::new("default", Everyone, []), LocalStore::with_capacity(64));
    assert_eq!(status(&unlimited, get("/")).await, 200);
}

#[tokio::test]
async fn all_rules_that_apply_are_charged_or_none() {
    let (store, hourly) = (LocalStore::with_capacity(64), Quota::per_hour(2));
    let site = || Rule::new("site", Everyone, hourly);
    let user = |missing| Rule::new("user", user(), hourly).on_missing_key(missing);
    let unsaid = RateLimitLayer::rules((site(), user(OnMissingKey::default())), store.clone());
    for _ in 0..3 {
        assert_eq!(status(&unsaid, get("/")).await, 400, "nothing is charged");
    }
    let skip = RateLimitLayer::rules((user(OnMissingKey::Skip), site()), store);
    let reported = answer(&skip, get("/")).await;
    assert_eq!(header(reported.headers(), "ratelimit"), r#""site";r=1;t=1800"#);
    let reported = answer(&skip, named("alice")).await;
    assert_eq!(header(reported.headers(), "ratelimit"), r#""user";r=1;t=1800, "site";r=0;t=1800"#);
    assert_eq!(status(&skip, get("/")).await, 429);
}

#[test]
fn shared_and_boxed_extractors_are_extractors() {
    let shared: Arc<dyn KeyExtractor + Send + Sync> = Arc::new(user());
    let boxed: Box<dyn KeyExtractor> = Box::new((shared.clone(), MethodKey));
    assert_eq!(key(&shared, named("alice")), key(user(), named("alice")));
    assert_eq!(key(boxed, named("alice")), key((user(), MethodKey), named("alice")));
}

#[test]
fn a_closure_is_an_extractor() {
    let tenant = key_fn(|head| head.uri().query().map(str::to_owned));
    assert_eq!(key(tenant, get("/?acme")), Ok(Some("acme".into())));
    assert!(key(tenant, get("/")).expect_err("no query").is_missing());
}

#[test]
fn an_extension_is_a_key_or_provides_one() {
    #[derive(Clone)]
    struct User {
        id: u64,
    }
    let by_id = || ExtensionKey::by(|user: &User| user.id);
    let mut request = get("/");
    request.extensions_mut().insert(User { id: 7 });
    assert_eq!(key(by_id(), request), Ok(Some(7_u64.into())));
    let mut request = get("/");
    request.extensions_mut().insert(Key::from("alice"));
    assert_eq!(key(ExtensionKey::<Key>::new(), request), Ok(Some("alice".into())));
    assert!(key(by_id(), get("/")).expect_err("no user").is_missing());
}

#[test]
fn methods_are_keys() {
    let post = Request::post("/").body(()).expect("a request");
    assert_eq!(key(MethodKey, get("/")), Ok(Some("GET".into())));
    assert_ne!(key(MethodKey, get("/")), key(MethodKey, post));
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
