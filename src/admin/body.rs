//! Bodies of requests to the router, and errors as problem+json (RFC 9457).

use std::time::Duration;

use axum::{
    Json,
    extract::rejection::JsonRejection,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header::CONTENT_TYPE};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{quota::read_time, rule::Quotas};

/// An account. Each route uses some of the optional fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccountBody {
    pub(super) layer: String,
    pub(super) rule: String,
    pub(super) key: Option<Value>,
    /// The fingerprint of a listed key.
    pub(super) fingerprint: Option<String>,
    quotas: Option<Value>,
    r#for: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SwitchBody {
    pub(super) layer: String,
    pub(super) on: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReportOnlyBody {
    pub(super) layer: String,
    pub(super) rule: Option<String>,
    pub(super) on: bool,
}

impl AccountBody {
    /// Returns the given quotas. A quota with a name is an error, because the memory of names is never
    /// freed.
    pub(super) fn quotas(&self) -> Result<Option<Quotas>, Problem> {
        let Some(value) = &self.quotas else { return Ok(None) };
        let named = |value: &Value| value.get("name").is_some();
        if named(value) || value.as_array().is_some_and(|list| list.iter().any(named)) {
            let why = "quotas have a name, which accounts do not use; remove it";
            return Err(Problem::body(why));
        }
        Quotas::deserialize(value).map(Some).map_err(|error| Problem::body(error.to_string()))
    }

    /// Returns the time, which only a block has.
    pub(super) fn time(&self, is_block: bool) -> Result<Option<Duration>, Problem> {
        match (&self.r#for, is_block) {
            (None, false) => Ok(None),
            (Some(_), false) => Err(Problem::body("for has no use here; remove it")),
            (None, true) => Err(Problem::body("for is missing; add it, as \"for\": \"10min\"")),
            (Some(text), true) => match read_time("for", text).map_err(Problem::body)? {
                Duration::ZERO => {
                    Err(Problem::body("for is 0s; give a time above 0s, or unblock the key"))
                }
                time => Ok(Some(time)),
            },
        }
    }
}

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

    /// Creates an error for an unknown value of `field`.
    pub(super) fn unknown(field: &str, value: &str, known: &[&str]) -> Self {
        let detail = format!("{field} is {value:?}; give one of {known:?}");
        Self::new(StatusCode::NOT_FOUND, detail)
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        Self::new(status, rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Problem"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        (self.status, [(CONTENT_TYPE, "application/problem+json")], Json(problem)).into_response()
    }
}
