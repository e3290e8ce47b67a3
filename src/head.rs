//! Borrowed heads of requests and responses.

use http::{
    Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, Version, request::Parts,
};

/// Head of a request: everything except the body.
///
/// Borrowed from a [`Request`] or from [`Parts`] without a copy.
///
/// ```
/// use http::Request;
/// use tower_sluice::{KeyExtractor, RequestHead, key::HeaderKey};
///
/// let request = Request::get("/").header("x-api-key", "k-1").body(())?;
/// let head = RequestHead::from(&request);
/// assert_eq!(head.path(), "/");
/// let key = HeaderKey::new("x-api-key").extract(&head);
/// assert_eq!(key, Ok(Some("k-1".into())));
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    uri: &'a Uri,
    /// The HTTP version.
    pub version: Version,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The values that the server and outer layers have inserted.
    pub extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    /// Returns the target (URI), as the outermost router received it.
    ///
    /// A nested axum router removes its prefix from the target of the request. This is the target with
    /// the prefix (axum's `OriginalUri`), so that a path has one meaning in each place of the layer, and
    /// the same as in `by_route`.
    #[must_use]
    pub fn uri(&self) -> &'a Uri {
        #[cfg(feature = "axum")]
        if let Some(original) = self.extensions.get::<axum::extract::OriginalUri>() {
            return &original.0;
        }
        self.uri
    }

    /// Returns the path of the [target](RequestHead::uri), with the prefix of a nested router.
    ///
    /// A client can spell one path in many ways, such as `/a`, `/%61` and `//a`.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.uri().path()
    }
}

impl<'a, B> From<&'a Request<B>> for RequestHead<'a> {
    #[inline]
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl<'a> From<&'a Parts> for RequestHead<'a> {
    fn from(parts: &'a Parts) -> Self {
        Self {
            method: &parts.method,
            uri: &parts.uri,
            version: parts.version,
            headers: &parts.headers,
            extensions: &parts.extensions,
        }
    }
}

impl<'a> From<&RequestHead<'a>> for RequestHead<'a> {
    #[inline]
    fn from(head: &RequestHead<'a>) -> Self {
        *head
    }
}

/// Head of a response: everything except the body.
///
/// Passed to functions that [adjust](crate::RateLimitLayer::adjust) a charge.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The HTTP version.
    pub version: Version,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The values that the service has inserted.
    pub extensions: &'a Extensions,
}

impl<'a, B> From<&'a Response<B>> for ResponseHead<'a> {
    fn from(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            version: response.version(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}

/// Reader of a field value that has quoted strings (RFC 9110, 5.6.4).
#[derive(Default)]
pub(crate) struct Quotes {
    /// `true` within a quoted string.
    pub(crate) is_open: bool,
    is_escaped: bool,
}

impl Quotes {
    /// Reads the next byte. Returns `true` if it is outside of quoted strings, or begins one.
    pub(crate) fn read(&mut self, byte: u8) -> bool {
        let is_outside = !self.is_open;
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = self.is_open,
            b'"' => self.is_open = !self.is_open,
            _ => {}
        }
        is_outside
    }
}
