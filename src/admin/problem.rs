//! Errors as problem+json (RFC 9457).

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use serde_json::json;

/// An error response: a status, and a sentence that describes the fix.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// Creates an error for an invalid body.
    pub(super) fn body(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Creates an error for a missing field.
    pub(super) fn missing(field: &str, fix: &str) -> Self {
        Self::body(format!("{field} is missing; add it, as {fix}"))
    }

    /// Creates an error for an unknown value of `field`.
    pub(super) fn unknown<'a>(
        field: &str,
        value: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<_> = known.map(|name| format!("{name:?}")).collect();
        let fix = match known.is_empty() {
            true => format!("no {field} exists"),
            false => format!("give one of {}", known.join(", ")),
        };
        Self::new(StatusCode::NOT_FOUND, format!("{field} is {value:?}; {fix}"))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail } = self;
        let title = status.canonical_reason().unwrap_or("Problem");
        let text = json!({
            "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail,
        });
        let kind = HeaderValue::from_static("application/problem+json");
        (status, [(CONTENT_TYPE, kind)], text.to_string()).into_response()
    }
}
