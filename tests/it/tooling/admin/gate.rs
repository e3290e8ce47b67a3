//! Authentication, and the parsing of request bodies.

use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::{Router, body::Body, middleware::from_fn};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower_sluice::admin::Admin;

use super::{
    OPERATOR, denied, done, look, of, operators, send, site, users, visits, watched, with,
};

const ROUTES: [&str; 13] = [
    "",
    "/page",
    "/page.js",
    "/style.css",
    "/api/layers",
    "/api/health",
    "/api/peek",
    "/api/reset",
    "/api/block",
    "/api/unblock",
    "/api/switch",
    "/api/nothing",
    "/no/such/file.js",
];

/// Mounts the routes at `/admin` in every way that axum has. Each app comes with the path of its
/// router, and a flag for the path with a trailing slash.
fn mounted() -> Vec<(Router, &'static str, bool)> {
    let mut admin = Admin::new();
    let _layer = admin.watch("api", users());
    let with = |mount: &dyn Fn(Router) -> Router| {
        let stack = ServiceBuilder::new().layer(from_fn(operators));
        [admin.router(from_fn(operators)), admin.router(stack)].map(mount)
    };
    let nested = with(&|router| Router::new().nest("/admin", router));
    let served = with(&|router| Router::new().nest_service("/admin", router));
    let deep = with(&|router| Router::new().nest("/admin", Router::new().nest("/x", router)));
    let nested = nested.map(|router| (router, "/admin", false));
    let served = served.map(|router| (router, "/admin", true));
    let deep = deep.map(|router| (router, "/admin/x", false));
    nested.into_iter().chain(served).chain(deep).collect()
}

async fn ask(app: &Router, method: &Method, path: &str, operator: bool) -> super::Said {
    let mut request = Request::builder().method(method).uri(path);
    if operator {
        request = request.header(OPERATOR.0, OPERATOR.1);
    }
    let body = json!({ "layer": "api", "on": false }).to_string();
    let request = request.header("content-type", "application/json").body(body.into());
    send(app, request.expect("a request")).await
}

#[tokio::test]
async fn every_path_is_behind_the_guard() {
    let methods =
        [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS];
    for (app, base, slash) in mounted() {
        for route in ROUTES {
            for method in &methods {
                let said = ask(&app, method, &format!("{base}{route}"), false).await;
                assert_eq!(said.status, StatusCode::UNAUTHORIZED, "{method} {route}: {said:?}");
                assert_eq!(said.text, "", "{method} {route}");
                assert_eq!(said.header("cache-control"), "no-store");
            }
        }
        // axum's `nest` leaves this path to the outer router, which has no such route
        let said = ask(&app, &Method::GET, &format!("{base}/"), false).await;
        let outside = if slash { StatusCode::UNAUTHORIZED } else { StatusCode::NOT_FOUND };
        assert!(said.status == outside && said.text.is_empty(), "{said:?}");
        let layers = ask(&app, &Method::GET, &format!("{base}/api/layers"), true).await;
        assert_eq!(layers.json()["layers"][0]["on"], true, "the toggle is unchanged");
    }
}

#[tokio::test]
async fn the_page_works_below_any_path() {
    for (app, base, slash) in mounted() {
        for path in [base.to_owned(), format!("{base}/")] {
            let said = ask(&app, &Method::GET, &path, true).await;
            if path.ends_with('/') && !slash {
                assert_eq!(said.status, StatusCode::NOT_FOUND, "{path}");
                continue;
            }
            assert_eq!(said.status, StatusCode::TEMPORARY_REDIRECT, "{path}: {said:?}");
            let to = said.header("location").strip_prefix("./").expect("a relative path");
            let folder = path.rsplit_once('/').expect("a path").0;
            let page = ask(&app, &Method::GET, &format!("{folder}/{to}"), true).await;
            assert_eq!(page.status, StatusCode::OK, "{path} to {to}");
            assert!(page.text.contains("<!doctype html>"));
        }
    }
}

#[tokio::test]
async fn files_load_nothing_from_other_hosts_and_write_only_text() {
    let app = watched(users());
    for (file, kind) in [("page", "html"), ("page.js", "javascript"), ("style.css", "css")] {
        let said = ask(&app, &Method::GET, &format!("/admin/{file}"), true).await;
        assert_eq!(said.header("content-type"), format!("text/{kind}; charset=utf-8"));
        assert_eq!(said.header("cache-control"), "no-store");
        assert_eq!(said.header("x-content-type-options"), "nosniff");
        let policy = said.header("content-security-policy");
        for part in ["default-src 'none'", "script-src 'self';", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        let forbidden = ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("];
        let elsewhere = ["http:", "https:", "src=\"/", "href=\"/", "url(", "@import", "style=\""];
        for word in forbidden.into_iter().chain(elsewhere) {
            assert!(!said.text.contains(word), "{file}: {word}");
        }
    }
}

#[tokio::test]
async fn only_bodies_that_no_form_can_send_are_read() {
    let app = watched(users());
    let body = json!({ "layer": "api", "on": false }).to_string();
    let send = async |kind: Option<&str>| {
        let mut request = Request::post("/admin/api/switch").header(OPERATOR.0, OPERATOR.1);
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        send(&app, request.body(Body::from(body.clone())).expect("a request")).await
    };
    let forms = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
    let others = ["text/json", "application/jsonp", ""];
    for kind in forms.into_iter().chain(others).map(Some).chain([None]) {
        let said = send(kind).await;
        assert_eq!(said.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind:?}");
        assert!(said.text.contains("Expected request with `Content-Type: application/json`"));
        assert_eq!(look(&app, "layers").await["layers"][0]["on"], true, "{kind:?}");
    }
    assert_eq!(send(Some("Application/JSON; charset=utf-8")).await.status, StatusCode::OK);
    assert_eq!(look(&app, "layers").await["layers"][0]["on"], false);
}

#[tokio::test]
async fn invalid_bodies_report_the_field_the_value_and_the_fix() {
    let app = watched(users());
    let block = |time: Value| with(of("alice"), "for", time);
    for (route, body, status, said) in [
        ("switch", json!({}), 400, "missing field `layer`"),
        ("switch", json!({ "layer": "api" }), 400, "give on for a layer, or report_only for"),
        (
            "switch",
            json!({ "layer": "api", "rule": "user", "on": false }),
            400,
            "give on for a layer, or report_only for",
        ),
        (
            "switch",
            json!({ "layer": "api", "on": 1 }),
            400,
            "on: invalid type: integer `1`, expected a boolean",
        ),
        (
            "switch",
            json!({ "layer": 7, "on": true }),
            400,
            "layer: invalid type: integer `7`, expected a string",
        ),
        (
            "switch",
            json!({ "layer": "app", "on": true }),
            404,
            "layer is \"app\"; api/layers has the names of each layer",
        ),
        (
            "switch",
            with(of("a"), "on", true),
            400,
            "unknown field `key`, expected one of `layer`, `rule`",
        ),
        ("switch", json!({ "layr": "api" }), 400, "unknown field `layr`, expected one of `layer`"),
        ("switch", json!("api"), 400, "invalid type: string \"api\", expected struct"),
        ("switch", json!([]), 400, "invalid length 0"),
        (
            "switch",
            json!({ "layer": "api", "rule": "ip", "report_only": true }),
            404,
            "rule is \"ip\"; api/layers has the names of each rule",
        ),
        ("peek", json!({ "layer": "api", "rule": "user" }), 400, "give either a key, as"),
        ("peek", json!({ "layer": "api", "key": "a" }), 400, "missing field `rule`"),
        ("peek", of(7), 400, "key is 7: "),
        ("peek", of(json!({ "bytes": "/w" })), 400, "key is {\"bytes\":\"/w\"}; give text"),
        (
            "peek",
            with(of("a"), "for", "1min"),
            400,
            "for is the time of a block, as \"10min\"; only a block has one",
        ),
        ("peek", with(of("a"), "quotas", "5/x"), 400, "period is \"x\""),
        ("block", of("a"), 400, "for is the time of a block, as \"10min\"; only a block has one"),
        ("block", block(json!(10)), 400, "for: invalid type: integer `10`, expected a string"),
        ("block", block(json!("10")), 400, "for is \"10\"; end it with one of ns, us"),
        (
            "block",
            block(json!("0s")),
            400,
            "for is the time of a block, as \"10min\"; only a block has one",
        ),
        ("block", block(json!("20000day")), 400, "give at most ten years"),
        (
            "unblock",
            block(json!("1s")),
            400,
            "for is the time of a block, as \"10min\"; only a block has one",
        ),
    ] {
        let detail = denied(&app, route, &body, status).await;
        assert!(detail.contains(said), "{route} {body}: {detail}");
    }
}

#[tokio::test]
async fn invalid_json_long_bodies_and_unknown_paths_give_a_problem_response() {
    let app = watched(users());
    let post = async |path: &str, body: String| {
        let request = Request::post(path).header(OPERATOR.0, OPERATOR.1);
        let request = request.header("content-type", "application/json").body(body.into());
        send(&app, request.expect("a request")).await
    };
    let broken = post("/admin/api/switch", "{\"layer\"".into()).await;
    assert_eq!(broken.status, StatusCode::BAD_REQUEST);
    assert!(broken.text.contains("Failed to parse the request body as JSON"), "{broken:?}");
    let twice = "{\"layer\":\"api\",\"layer\":\"api\",\"on\":true}";
    let twice = post("/admin/api/switch", twice.into()).await;
    assert!(twice.text.contains("duplicate field `layer`"), "{twice:?}");
    let long = post("/admin/api/peek", of("x".repeat(16 * 1024)).to_string()).await;
    assert_eq!(long.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(long.text.contains("length limit exceeded"), "{long:?}");
    let deep = post("/admin/api/peek", "[".repeat(10_000)).await;
    assert_eq!(deep.status, StatusCode::BAD_REQUEST);
    let nested = format!("{{\"key\":{}{}}}", "[".repeat(8_000), "]".repeat(8_000));
    assert_eq!(post("/admin/api/peek", nested).await.status, StatusCode::BAD_REQUEST);

    for (method, path, status) in [
        (Method::GET, "/admin/api/nothing", StatusCode::NOT_FOUND),
        (Method::GET, "/admin/api/peek", StatusCode::NOT_FOUND),
        (Method::DELETE, "/admin/api/layers", StatusCode::NOT_FOUND),
    ] {
        let said = ask(&app, &method, path, true).await;
        assert_eq!(
            (said.status, said.header("content-type")),
            (status, "application/problem+json")
        );
    }
}

#[tokio::test]
async fn operators_are_not_limited_by_the_watched_layers() {
    let mut admin = Admin::new();
    let layer = admin.watch("api", users());
    let app = site(layer, &admin);
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    for _ in 0..10 {
        done(&app, "peek", &of("alice")).await;
    }
}

#[test]
fn invalid_layer_names_panic_with_the_fix() {
    let mut admin = Admin::new();
    let mut said = |name: &str| {
        let watched = catch_unwind(AssertUnwindSafe(|| drop(admin.watch(name, users()))));
        watched.err().map_or_else(String::new, |text| *text.downcast().expect("a text"))
    };
    assert_eq!(said("api-v1.2_~"), "");
    assert!(said("api-v1.2_~").contains("another layer has the name \"api-v1.2_~\"; give another"));
    assert!(said("").contains("give 1 to 64 characters"));
    assert!(said("\u{e9}").contains("is not printable ASCII"));
    assert!(said(&"x".repeat(65)).contains("65 characters; give at most 64"));
    assert_eq!(said(&"x".repeat(64)), "");
}
