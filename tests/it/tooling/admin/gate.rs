//! Authentication, and the parsing of request bodies.

use axum::{Router, body::Body, middleware::from_fn};
use http::{Method, Request, StatusCode};
use serde_json::json;
use tower::ServiceBuilder;
use tower_sluice::admin::Admin;

use super::{OPERATOR, done, look, of, operators, send, site, users, visits, watched};

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
async fn operators_are_not_limited_by_the_watched_layers() {
    let mut admin = Admin::new();
    let layer = admin.watch("api", users());
    let app = site(layer, &admin);
    assert_eq!(visits(&app, "alice", 4).await, [200, 200, 200, 429]);
    for _ in 0..10 {
        done(&app, "peek", &of("alice")).await;
    }
}
