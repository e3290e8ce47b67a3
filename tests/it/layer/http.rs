//! Rejections as HTTP responses, and requests that pass without a charge.

use std::time::Duration;

use http::{
    Method, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
};
use tower_sluice::{
    Cost, Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, TooManyRequests, key::Everyone,
    testing::FakeClock,
};

use crate::support::{answer, get, header, lines, with};

const JSON: (&str, &str) = ("accept", "application/problem+json");

/// Five per five seconds and a thousand per hour, with two seconds until the next unit.
fn example() -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    let quotas = [
        "5/5s".parse::<Quota>().expect("a quota").with_name("burst"),
        Quota::per_hour(1_000).with_name("hour"),
    ];
    let clock = FakeClock::new();
    let store = clock.store(64);
    drop(Limiter::named("default", store.clone()).charge(Key::everyone(), &quotas, 389).now());
    clock.advance(Duration::from_secs(4));
    RateLimitLayer::new(Everyone, quotas, store)
}

/// One request per hour, which is used up.
fn spent() -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    let (quota, store) = (Quota::per_hour(1), FakeClock::new().store(64));
    assert!(
        Limiter::named("default", store.clone())
            .take(Key::everyone(), &quota, 1)
            .now()
            .is_allowed()
    );
    RateLimitLayer::new(Everyone, quota, store)
}

#[tokio::test]
async fn problem_json_equals_the_example_byte_for_byte() {
    let response = answer(&example(), with(&[JSON])).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let expected = [
        "cache-control: no-store",
        "content-type: application/problem+json",
        "ratelimit-policy: \"burst\";q=5;w=5, \"hour\";q=1000;w=3600",
        "ratelimit: \"burst\";r=0;t=2, \"hour\";r=612",
        "retry-after: 2",
    ];
    assert_eq!(lines(response.headers()), expected);
    let body = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Quota Exceeded","status":429,"#,
        r#""detail":"Quota exhausted; retry in 2 s.","violated-policies":["burst"]}"#
    );
    assert_eq!((response.body().as_str(), body.len()), (body, 183));
}

#[tokio::test]
async fn any_name_is_valid_json() {
    let name = r#"a "quoted" \ name"#;
    let store = FakeClock::new().store(64);
    let layer = RateLimitLayer::new(Everyone, Quota::blocked().with_name(name), store);
    let response = answer(&layer, with(&[JSON])).await;
    let json: serde_json::Value = serde_json::from_str(response.body()).expect("JSON");
    assert_eq!(json["violated-policies"], serde_json::json!([name]));
}

#[tokio::test]
async fn a_block_violates_no_policy() {
    let store = FakeClock::new().store(64);
    let blocks = Limiter::named("default", store.clone());
    drop(blocks.block(Key::everyone(), Duration::from_secs(60)).await.expect("room"));
    let layer = RateLimitLayer::new(Everyone, Quota::per_hour(9), store);
    let response = answer(&layer, with(&[JSON])).await;
    let json: serde_json::Value = serde_json::from_str(response.body()).expect("JSON");
    assert_eq!(
        (json["title"].as_str(), json.get("violated-policies")),
        (Some("Abnormal Usage Detected"), None)
    );
}

#[tokio::test]
async fn json_is_sent_to_clients_that_accept_it_by_name() {
    let layer = spent();
    let json = async |accept: &[&str]| {
        let accept: Vec<_> = accept.iter().map(|line| ("accept", *line)).collect();
        let response = answer(&layer, with(&accept)).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        response.headers()[CONTENT_TYPE] == "application/problem+json"
    };
    for yes in [
        &["application/json"][..],
        &["application/problem+json"],
        &["Application/JSON"],
        &["text/html, application/json;q=0.001"],
        &["application/json; charset=utf-8; q=0.2"],
        &["application/json;q=0, application/problem+json"],
        &["text/html", "application/json"],
    ] {
        assert!(json(yes).await, "{yes:?}");
    }
    for no in [
        &["*/*"][..],
        &["application/*"],
        &["text/plain"],
        &["application/json;q=0"],
        &["application/json; Q=0.000, */*"],
        &["application/json;q=high"],
        &["application/jsonlines"],
        &[""],
    ] {
        assert!(!json(no).await, "{no:?}");
    }
}

#[tokio::test]
async fn head_has_the_headers_of_get_and_no_body() {
    for accept in ["*/*", "application/json"] {
        let ask = async |method: Method| {
            let mut request = with(&[("accept", accept)]);
            *request.method_mut() = method;
            answer(&example(), request).await
        };
        let (get, mut head) = (ask(Method::GET).await, ask(Method::HEAD).await);
        assert_eq!((head.status(), head.body().as_str()), (get.status(), ""));
        let length = head.headers_mut().remove(CONTENT_LENGTH).expect("content-length");
        assert_eq!(length.to_str().expect("text"), get.body().len().to_string());
        assert_eq!(lines(head.headers()), lines(get.headers()));
    }
}

/// The member `detail` has what differs between two problems of a type.
#[tokio::test]
async fn each_problem_type_has_one_title() {
    let problem = async |layer: &RateLimitLayer<Rule<Everyone>, LocalStore>| {
        let response = answer(layer, with(&[JSON])).await;
        let json: serde_json::Value = serde_json::from_str(response.body()).expect("JSON");
        assert_eq!(json["status"], response.status().as_u16());
        let kind = json["type"].as_str().expect("a type").rsplit('#').next().expect("a name");
        let wait = header(response.headers(), "retry-after");
        let text = |member: &str| json[member].as_str().expect("text").to_owned();
        format!("{} {kind} {} {} {wait}", json["status"], text("title"), text("detail"))
    };
    let store = FakeClock::new().store(64);
    let limiter = Limiter::named("default", store.clone());
    let wait = Duration::from_secs(60);
    drop(limiter.block(Key::everyone(), wait).now().expect("room for a block"));
    let blocked = RateLimitLayer::new(Everyone, Quota::per_hour(1), store);
    let costly = Rule::new("api", Everyone, Quota::per_hour(1)).cost(Cost::from_fn(|_| 9));
    let costly = RateLimitLayer::rules(costly, LocalStore::with_capacity(16));
    let zero = RateLimitLayer::new(Everyone, Quota::blocked(), LocalStore::with_capacity(16));
    let table = [
        (&spent(), "429 quota-exceeded Quota Exceeded Quota exhausted; retry in 3600 s. 3600"),
        (
            &costly,
            "429 quota-exceeded Quota Exceeded This request costs more than its quota ever \
             allows. ",
        ),
        (&zero, "403 quota-exceeded Quota Exceeded Access is blocked. "),
        (
            &blocked,
            "429 abnormal-usage-detected Abnormal Usage Detected Access is blocked; retry in 60 s. \
             60",
        ),
    ];
    for (layer, expected) in table {
        assert_eq!(problem(layer).await, expected);
    }
    let text = answer(&blocked, get("/")).await;
    assert_eq!(text.body(), "Access is blocked; retry in 60 s.\n");
    for layer in [blocked, zero] {
        let hidden = layer.reject(TooManyRequests::new().blocked_status(StatusCode::NOT_FOUND));
        assert_eq!(answer(&hidden, get("/")).await.status(), StatusCode::NOT_FOUND);
    }
}
