//! Authentication of operators.

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse,
    routing::Route,
};
use tower::{Layer, Service};

use crate::key::RequestHead;

/// Guard that authenticates requests to an [`Admin`](super::Admin).
///
/// There is deliberately no guard that allows every request.
pub struct Guard(Box<dyn FnOnce(Router) -> Router + Send>);

impl Guard {
    /// Creates a guard from a function that checks the head of each request.
    ///
    /// If the function returns an error, the error is the response, for example 401 or 403.
    ///
    /// Compare secrets in constant time, as `examples/admin.rs` does.
    ///
    /// ```
    /// use axum::http::{StatusCode, header};
    /// use tower_sluice::admin::Guard;
    ///
    /// # let knows = |_: &axum::http::HeaderValue| false;
    /// let guard = Guard::from_fn(move |head| match head.headers.get(header::AUTHORIZATION) {
    ///     Some(credentials) if knows(credentials) => Ok(()),
    ///     _ => Err((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic")])),
    /// });
    /// ```
    pub fn from_fn<F, E>(admits: F) -> Self
    where
        F: Fn(&RequestHead<'_>) -> Result<(), E> + Send + Sync + 'static,
        E: IntoResponse + 'static,
    {
        let admits = Arc::new(admits);
        Self::layer(middleware::from_fn(move |request: Request, next: Next| {
            let rejection =
                admits(&RequestHead::from(&request)).err().map(IntoResponse::into_response);
            async move {
                match rejection {
                    Some(response) => response,
                    None => next.run(request).await,
                }
            }
        }))
    }

    /// Creates a guard from a Tower layer, or from several layers in a `ServiceBuilder`.
    ///
    /// The layer wraps all routes. A request that the layer does not forward never reaches the
    /// router.
    ///
    /// ```
    /// use axum::{extract::Request, http::StatusCode, middleware::{self, Next}};
    /// use tower_sluice::admin::Guard;
    ///
    /// Guard::layer(middleware::from_fn(async |request: Request, next: Next| {
    ///     // replace this with a lookup in a table of sessions
    ///     match request.headers().contains_key("cookie") {
    ///         true => Ok(next.run(request).await),
    ///         false => Err(StatusCode::UNAUTHORIZED),
    ///     }
    /// }));
    /// ```
    pub fn layer<L>(layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: Service<Request> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request>>::Response: IntoResponse + 'static,
        <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
        <L::Service as Service<Request>>::Future: Send + 'static,
    {
        Self(Box::new(move |router| router.layer(layer)))
    }

    pub(super) fn wrap(self, router: Router) -> Router {
        (self.0)(router)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(..)")
    }
}
