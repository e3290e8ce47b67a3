//! Bodies of requests to the router, and errors as problem+json (RFC 9457).

use std::{error::Error, time::Duration};

use axum::{
    body::to_bytes,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};
use http_body_util::LengthLimitError;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, json};

use crate::{quota::read_time, rule::Quotas};

/// The maximum length of a body, in bytes.
const MAX_BYTES: usize = 16 * 1024;

/// The fields of a request body. Each route accepts some of them.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object, as { \"layer\": \"api\" }")]
pub(super) struct RequestBody {
    layer: Option<String>,
    pub(super) rule: Option<String>,
    /// The key as JSON.
    key: Option<Value>,
    /// The fingerprint of a listed key.
    fingerprint: Option<String>,
    #[serde(deserialize_with = "quotas")]
    pub(super) quotas: Option<Quotas>,
    #[serde(rename = "for", deserialize_with = "time")]
    time: Option<Duration>,
    on: Option<bool>,
}

/// The key of a request body.
pub(super) enum KeyField<'a> {
    Json(&'a Value),
    Fingerprint(&'a str),
}

impl RequestBody {
    /// Reads the body of a request. Any field outside `known` is an error.
    pub(super) async fn read(request: Request, known: &[&str]) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let why = "Content-Type is not application/json; send JSON with this Content-Type";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
        }
        let bytes = to_bytes(request.into_body(), MAX_BYTES).await.map_err(|error| {
            let long = error.source().is_some_and(|source| source.is::<LengthLimitError>());
            match long {
                true => {
                    let why = format!("the body is longer than {MAX_BYTES} bytes; shorten it");
                    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, why)
                }
                false => Problem::body("the body ended early; send it again"),
            }
        })?;
        let read: Self = serde_json::from_slice(&bytes).map_err(|wrong| {
            Problem::body(if wrong.is_data() {
                wrong.to_string()
            } else {
                format!("the body is not valid JSON: {wrong}; send one object")
            })
        })?;
        let given = [
            ("layer", read.layer.is_some()),
            ("rule", read.rule.is_some()),
            ("key", read.key.is_some()),
            ("fingerprint", read.fingerprint.is_some()),
            ("quotas", read.quotas.is_some()),
            ("for", read.time.is_some()),
            ("on", read.on.is_some()),
        ];
        match given.into_iter().find(|(name, given)| *given && !known.contains(name)) {
            None => Ok(read),
            Some((other, _)) => {
                let fields = list(known);
                let why = format!("field {other:?} is not used by this route; give {fields}");
                Err(Problem::body(why))
            }
        }
    }

    pub(super) fn layer(&self) -> Result<&str, Problem> {
        self.layer.as_deref().ok_or_else(|| Problem::missing("layer", "\"layer\": \"api\""))
    }

    pub(super) fn rule(&self) -> Result<&str, Problem> {
        self.rule.as_deref().ok_or_else(|| Problem::missing("rule", "\"rule\": \"ip\""))
    }

    pub(super) fn key(&self) -> Result<KeyField<'_>, Problem> {
        match (&self.key, &self.fingerprint) {
            (Some(_), Some(_)) => Err(Problem::body("key and fingerprint are given; remove one")),
            (Some(key), None) => Ok(KeyField::Json(key)),
            (None, Some(fingerprint)) => Ok(KeyField::Fingerprint(fingerprint)),
            (None, None) => Err(Problem::missing("key", "\"key\": \"alice\"")),
        }
    }

    pub(super) fn time(&self) -> Result<Duration, Problem> {
        match self.time {
            Some(Duration::ZERO) => {
                Err(Problem::body("for is 0s; give a time above 0s, or unblock the key"))
            }
            Some(time) => Ok(time),
            None => Err(Problem::missing("for", "\"for\": \"10min\"")),
        }
    }

    pub(super) fn on(&self) -> Result<bool, Problem> {
        self.on.ok_or_else(|| Problem::missing("on", "\"on\": true"))
    }
}

fn time<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    read_time("for", &String::deserialize(value)?).map(Some).map_err(D::Error::custom)
}

/// Reads quotas. A quota with a name is an error, because the memory of names is never freed.
fn quotas<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Quotas>, D::Error> {
    let value = Value::deserialize(value)?;
    let named = |value: &Value| value.get("name").is_some();
    if named(&value) || value.as_array().is_some_and(|list| list.iter().any(named)) {
        return Err(D::Error::custom("quotas have a name, which accounts do not use; remove it"));
    }
    Quotas::deserialize(value).map(Some).map_err(D::Error::custom)
}

/// Returns `true` if the content type is JSON, with or without parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// Formats a list as `a, b or c`.
fn list(names: &[&str]) -> String {
    match names {
        [] => "none".into(),
        [one] => (*one).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
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
