//! The calls of each client as the server saw them, independent of the client's own report.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::HeaderMap;
use serde::Serialize;

/// The header field, or metadata, with the name of a client.
pub(crate) const CLIENT: &str = "x-client";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Call {
    path: String,
    status: u16,
    /// In milliseconds since the server started.
    asked: f64,
    answered: f64,
    retry_after: Option<f64>,
    grpc_status: Option<f64>,
    pushback: Option<f64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    start: Instant,
    calls: Arc<Mutex<HashMap<String, Vec<Call>>>>,
}

impl Seen {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), calls: Arc::default() }
    }

    /// Returns the calls of this client, in order of arrival.
    pub(crate) fn of(&self, client: &str) -> Vec<Call> {
        self.calls.lock().expect("calls").get(client).cloned().unwrap_or_default()
    }

    pub(crate) fn forget(&self, client: &str) {
        self.calls.lock().expect("calls").remove(client);
    }

    fn millis(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1_000.0
    }
}

/// A layer outside the limiter that records every call.
pub(crate) async fn note(State(seen): State<Seen>, request: Request, next: Next) -> Response {
    let client = text(request.headers(), CLIENT).unwrap_or_default().to_owned();
    let (path, asked) = (request.uri().path().to_owned(), seen.millis());
    let response = next.run(request).await;
    let number = |name| text(response.headers(), name)?.parse().ok();
    let call = Call {
        path,
        status: response.status().as_u16(),
        asked,
        answered: seen.millis(),
        retry_after: number("retry-after"),
        grpc_status: number("grpc-status"),
        pushback: number("grpc-retry-pushback-ms"),
    };
    seen.calls.lock().expect("calls").entry(client).or_default().push(call);
    response
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
