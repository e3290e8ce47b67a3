//! Slots in header fields and in files.

use axum::{Router, body::Body, extract::Request, routing::get};
use http::Response;
use tower::ServiceExt;
use tower_sluice::{Headers, LocalStore, Quota, RateLimitLayer, Rule, key::Everyone};

fn rule(plan: impl Into<tower_sluice::Plan>) -> Rule<Everyone> {
    Rule::new("jobs", Everyone, plan)
}

/// Returns the responses to two requests that run at the same time.
async fn two(
    layer: RateLimitLayer<Rule<Everyone>, LocalStore>,
    accept: &str,
) -> [Response<Body>; 2] {
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let mut responses = Vec::new();
    for _ in 0..2 {
        let request = Request::get("/").header("accept", accept).body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await;
        responses.push(response.expect("infallible"));
    }
    responses.try_into().expect("two responses")
}

fn field<'a>(response: &'a Response<Body>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("text"))
}

/// These families know no units, so a client would take slots for requests.
#[tokio::test]
async fn the_older_fields_leave_slots_out() {
    for (family, name, left) in [
        (Headers::Draft07, "ratelimit", "limit=10, remaining=9, reset=3240"),
        (Headers::Draft06, "ratelimit-remaining", "9"),
        (Headers::XRateLimitDelta, "x-ratelimit-reset", "3240"),
    ] {
        let quotas = [Quota::concurrent(1), Quota::per_hour(10)];
        let layer = RateLimitLayer::rules(rule(quotas), LocalStore::new());
        let [first, second] = two(layer.headers(family), "*/*").await;
        assert_eq!(field(&first, name), left, "{family:?}");
        assert!(["10;w=3600", ""].contains(&field(&first, "ratelimit-policy")), "{family:?}");
        // The rate did not deny the request.
        let names = second.headers().keys().map(|name| name.as_str());
        let names: Vec<_> = names.filter(|name| name.contains("ratelimit")).collect();
        assert_eq!((names, field(&second, "retry-after")), (vec![], "1"), "{family:?}");
    }
}

#[test]
fn slots_are_read_from_files() {
    #[derive(Debug, serde::Deserialize, serde::Serialize, PartialEq)]
    struct Limits {
        exports: Quota,
        jobs: tower_sluice::rule::Quotas,
    }

    let text = "exports = \"5 concurrent\"\n\
                jobs = [\"100/min\", { concurrent = 3, soft = 2, name = \"running\" }]\n";
    let limits: Limits = toml::from_str(text).expect("limits");
    assert_eq!(limits.exports, Quota::concurrent(5));
    let running = Quota::concurrent(3).with_soft(2).with_name("running");
    assert_eq!(limits.jobs.as_ref(), [Quota::per_minute(100), running]);
    let again: Limits = toml::from_str(&toml::to_string(&limits).expect("text")).expect("limits");
    assert_eq!(again, limits);
    for (wrong, why) in [
        ("{ concurrent = 3, units = 5 }", "exclude each other"),
        ("{ concurrent = 3, algorithm = \"gcra\" }", "is set on a concurrent quota"),
        ("{ concurrent = 0 }", "concurrent is \"0\"; give at least 1"),
        ("{ concurrent = 3, blocked = true }", "exclude each other"),
        (
            "{ units = 3, period = \"1s\", algorithm = \"concurrent\" }",
            "unknown variant `concurrent`",
        ),
    ] {
        let text = format!("exports = {wrong}\njobs = []\n");
        let error = toml::from_str::<Limits>(&text).expect_err(wrong).to_string();
        assert!(error.contains(why), "{wrong}: {error}");
    }
}
