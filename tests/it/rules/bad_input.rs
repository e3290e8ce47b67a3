//! Requests and calls with invalid or unusual values. `rules::messages` has the messages of settings.

use http::{HeaderMap, StatusCode};
use tower_sluice::{
    AccessList, ClientIp, Cost, LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
    middleware::Counters,
};

use crate::support::{answer, get, with};

const TEN: Quota = Quota::per_second(10);

fn store() -> LocalStore {
    LocalStore::with_capacity(16)
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

#[cfg(feature = "redis")]
mod redis {
    use std::fmt::Debug;
    use tower_sluice::RedisStore;

    fn error<T: Debug, E: ToString>(result: Result<T, E>) -> String {
        result.expect_err("nonsense").to_string()
    }

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
}
