//! Unread body of a rejected request, over HTTP/1.
//!
//! A server that answers while a client still sends closes the connection, and the client or proxy
//! may see a broken connection instead of the rejection. The layer therefore reads the rest of the
//! body first, or announces the close.

use std::{
    any::{Any, TypeId, type_name},
    convert::Infallible,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Version,
    header::{CONNECTION, CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING, UPGRADE},
};
use http_body::Body;
use http_body_util::{
    Empty, Full,
    combinators::{BoxBody, UnsyncBoxBody},
};
use tokio::{runtime::Handle, time::timeout};
use tower::BoxError;

use crate::log::{log_once, warn};

/// The longest time for which a layer may read a body.
const MAX_TIME: Duration = Duration::from_secs(60);

/// The settings by which a layer reads the bodies of rejected requests.
#[derive(Clone)]
pub(crate) struct DrainConfig {
    bounds: DrainBounds,
    /// A [`Read`] for each known type of bodies, the newest first.
    readers: Vec<Arc<dyn Any + Send + Sync>>,
}

/// The most of one body that is read.
#[derive(Clone, Copy)]
struct DrainBounds {
    bytes: u64,
    time: Duration,
}

/// A function that reads a body within bounds.
type Read<B> = Box<dyn Fn(B, DrainBounds) -> Drain + Send + Sync>;

/// A body that is read. The result is `true` at its end, and `false` if a part remains unread.
pub(super) type Drain = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A response that waits for the rest of the request's body.
pub(super) struct Draining<P> {
    pub(super) response: P,
    pub(super) reading: Drain,
}

impl<C> Draining<Response<C>> {
    /// Completes once the body is read. If a part of it stays unread, the response announces the close.
    pub(super) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_read = ready!(self.reading.as_mut().poll(cx));
        if !is_read {
            close(&mut self.response);
        }
        Poll::Ready(())
    }
}

/// Announces that the server closes the connection after this response.
pub(super) fn close<C>(response: &mut Response<C>) {
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
}

impl Default for DrainConfig {
    fn default() -> Self {
        let mut config = Self {
            bounds: DrainBounds {
                bytes: 64 * 1_024,
                time: Duration::from_secs(1),
            },
            readers: Vec::new(),
        };
        config.add_boxed::<Infallible>();
        config.add_boxed::<io::Error>();
        config.add_boxed::<BoxError>();
        #[cfg(feature = "tonic")]
        config.add::<tonic::body::Body>();
        #[cfg(feature = "axum")]
        config.add_axum();
        config
    }
}

impl DrainConfig {
    #[track_caller]
    pub(super) fn set_bounds(&mut self, bytes: u64, time: Duration) {
        let is_valid = bytes == 0 || !time.is_zero() && time <= MAX_TIME;
        assert!(
            is_valid,
            "drain: {time:?}; give more than 0 s and at most {MAX_TIME:?}"
        );
        self.bounds = DrainBounds { bytes, time };
    }

    pub(super) fn set_reader<B: 'static, D>(
        &mut self,
        body_of: impl Fn(B) -> D + Send + Sync + 'static,
    ) where
        D: Body + Send + 'static,
    {
        let read: Read<B> = Box::new(move |body, bounds| Box::pin(read(body_of(body), bounds)));
        self.readers.insert(0, Arc::new(read));
    }

    fn add<B: Body + Send + 'static>(&mut self) {
        self.set_reader(|body: B| body);
    }

    #[cfg(feature = "axum")]
    fn add_axum(&mut self) {
        use http_body_util::Limited;
        self.add_boxed::<axum::Error>();
        self.add_boxed::<hyper::Error>();
        self.add::<Limited<hyper::body::Incoming>>();
        self.add::<Limited<axum::body::Body>>();
        self.add::<hyper::body::Incoming>();
        self.add::<axum::body::Body>();
    }

    /// Adds the boxed bodies of http-body-util with errors of the type `E`.
    fn add_boxed<E: 'static>(&mut self) {
        self.add::<BoxBody<Bytes, E>>();
        self.add::<UnsyncBoxBody<Bytes, E>>();
    }

    /// Reads the rest of a body that [may be unread](may_be_unread), or returns `None` if it must stay unread.
    #[cold]
    #[inline(never)]
    pub(super) fn read<B: 'static>(&self, request: Request<B>) -> Option<Drain> {
        if !self.may_read(&request) {
            return None;
        }
        let mut readers = self.readers.iter();
        let reader: Option<&Read<B>> = readers.find_map(|reader| reader.downcast_ref());
        let Some(read) = reader else {
            warn_of_unknown_body(type_name::<B>());
            return None;
        };
        // The head may hold what the server or outer layers have inserted.
        Some(read(request.into_body(), self.bounds))
    }

    /// Returns `false` for a body that is too long by its headers, or that the client would not send
    /// unless the server reads it, or whose bytes may be of another protocol.
    fn may_read<B>(&self, request: &Request<B>) -> bool {
        let headers = request.headers();
        let is_plain = *request.method() != Method::CONNECT
            && !headers.contains_key(EXPECT)
            && !headers.contains_key(UPGRADE);
        let most = self.bounds.bytes;
        is_plain && most > 0 && declared_length(headers).is_none_or(|length| length <= most)
    }
}

/// Returns `true` if the server may not have received all of the body of a request.
#[inline]
pub(super) fn may_be_unread<B: 'static>(request: &Request<B>) -> bool {
    !is_in_memory::<B>() && request.version() < Version::HTTP_2 && has_body(request.headers())
}

/// Returns `true` if an HTTP/1 request with these headers has a body.
#[inline]
fn has_body(headers: &HeaderMap) -> bool {
    let has_length = headers
        .get(CONTENT_LENGTH)
        .is_some_and(|length| length != "0");
    has_length || headers.contains_key(TRANSFER_ENCODING)
}

/// Returns the length of a body, or `None` if its headers do not declare one.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns `true` if a body of this type has left the connection already.
#[inline]
fn is_in_memory<B: 'static>() -> bool {
    let types = [
        TypeId::of::<()>(),
        TypeId::of::<Bytes>(),
        TypeId::of::<String>(),
        TypeId::of::<Vec<u8>>(),
        TypeId::of::<Empty<Bytes>>(),
        TypeId::of::<Full<Bytes>>(),
    ];
    types.contains(&TypeId::of::<B>())
}

/// Reads a body within bounds.
async fn read(body: impl Body, bounds: DrainBounds) -> bool {
    let mut reading = pin!(read_to_end(body, bounds.bytes));
    // A body that has arrived needs no timer.
    let polled = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
    match polled {
        Poll::Ready(is_read) => is_read,
        Poll::Pending if Handle::try_current().is_err() => false,
        Poll::Pending => timeout(bounds.time, reading).await.unwrap_or(false),
    }
}

/// Reads a body of at most this number of bytes, and drops each frame at once.
async fn read_to_end(body: impl Body, most: u64) -> bool {
    let mut body = pin!(body);
    let mut left = most;
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(frame) = frame else { return false };
        // An empty frame counts as well, so the number of frames is bounded.
        let bytes = frame.data_ref().map_or(1, |data| data.remaining().max(1));
        match left.checked_sub(bytes as u64) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

/// Logs the first type of body that the layer cannot read.
fn warn_of_unknown_body(name: &str) {
    log_once!(warn!(
            target: "tower_sluice::lint",
            lint = "unread_body",
            "a rejected request has a body of the type {name}, which the layer cannot read, so its \
             connection is closed, and a proxy may answer 502 instead; call \
             RateLimitLayer::drain_with (logged once)"
    ));
}
