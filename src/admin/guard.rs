//! Who may operate.

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    response::IntoResponse,
    routing::Route,
};
use http::request::Parts;
use tower::{Layer, Service};

/// Decides who may use the routes of an [`Admin`](super::Admin). There is no guard that lets
/// everybody in.
pub struct Guard(Box<dyn FnOnce(Router) -> Router + Send>);

impl Guard {
    /// Asks `admits` with the head of each request; what it gives as an error is the answer, for one
    /// 401 or 403.
    ///
    /// Compare secrets in constant time, as `examples/admin.rs` does.
    ///
    /// ```
    /// use axum::http::{StatusCode, header};
    /// use tower_sluice::admin::Guard;
    ///
    /// # let knows = |_: &axum::http::HeaderValue| false;
    /// let guard = Guard::from_fn(move |parts| match parts.headers.get(header::AUTHORIZATION) {
    ///     Some(credentials) if knows(credentials) => Ok(()),
    ///     _ => Err((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic")])),
    /// });
    /// ```
    pub fn from_fn<F, E>(admits: F) -> Self
    where
        F: Fn(&Parts) -> Result<(), E> + Send + Sync + 'static,
        E: IntoResponse + 'static,
    {
        let admits = Arc::new(admits);
        Self::layer(middleware::from_fn(move |request: Request, next: Next| {
            let (parts, body) = request.into_parts();
            let refused = admits(&parts).err().map(IntoResponse::into_response);
            async move {
                match refused {
                    Some(answer) => answer,
                    None => next.run(Request::from_parts(parts, body)).await,
                }
            }
        }))
    }

    /// Lays a layer of tower around all routes: one that authenticates, or several in a
    /// `ServiceBuilder`. It must answer by itself to whom it does not let in.
    ///
    /// ```
    /// use axum::{extract::Request, http::StatusCode, middleware::{self, Next}};
    /// use tower_sluice::admin::Guard;
    ///
    /// Guard::layer(middleware::from_fn(async |request: Request, next: Next| {
    ///     // stands in for a look into a table of sessions
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

    pub(super) fn around(self, router: Router) -> Router {
        (self.0)(router)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard(..)")
    }
}
