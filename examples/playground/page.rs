//! The page: five files, embedded in the program.

use axum::{Router, http::header, response::IntoResponse, routing::get};

const CONTENT: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                       img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                       frame-ancestors 'none'";

pub(crate) fn router() -> Router {
    Router::new()
        .route("/", file("text/html; charset=utf-8", include_str!("page.html")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_str!("page.js")))
        .route("/presets.js", file("text/javascript; charset=utf-8", include_str!("presets.js")))
        .route("/timeline.js", file("text/javascript; charset=utf-8", include_str!("timeline.js")))
        .route("/style.css", file("text/css; charset=utf-8", include_str!("style.css")))
}

fn file(kind: &'static str, text: &'static str) -> axum::routing::MethodRouter {
    let fields = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another program may use this address tomorrow.
        (header::CACHE_CONTROL, "no-store"),
    ];
    get(async move || (fields, text).into_response())
}
