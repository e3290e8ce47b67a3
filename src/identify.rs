//! Asynchronous lookup of a request's identity, before the limiter.
//!
//! A [`KeyExtractor`](crate::KeyExtractor) is synchronous. For a lookup that needs an `await`, such
//! as a session in a database, place an [`IdentifyLayer`] outside the limiter. The layer inserts
//! the identity into the extensions of the request. The rule reads the identity with
//! [`ExtensionKey`](crate::key::ExtensionKey).
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_sluice::{LocalStore, Quota, RateLimitLayer, identify::IdentifyLayer, key::ExtensionKey};
//!
//! #[derive(Clone)]
//! struct User { id: u64 }
//!
//! async fn session(token: Option<String>) -> Option<User> {
//!     // query the session store
//!     token.map(|token| User { id: token.len() as u64 })
//! }
//!
//! let layers = ServiceBuilder::new()
//!     .layer(IdentifyLayer::from_fn(|head| {
//!         let cookie = head.headers.get("cookie").and_then(|value| value.to_str().ok());
//!         session(cookie.map(str::to_owned))
//!     }))
//!     .layer(RateLimitLayer::new(
//!         ExtensionKey::by(|user: &User| user.id),
//!         Quota::per_minute(60),
//!         LocalStore::new(),
//!     ));
//! ```
//!
//! An `IdentifyLayer` inside the limiter has no effect. The log reports this mistake once
//! (`no_identity` in [`lint`](crate::lint)).
//!
//! A request without an identity is forwarded. The rule then applies its
//! [`OnMissingKey`](crate::rule::OnMissingKey) policy.
//!
//! # Limitations
//!
//! - Lookups are not limited. If a lookup is expensive, limit requests by address outside this
//!   layer.
//! - During a lookup, the request holds a permit of each inner concurrency limit. Set a timeout for
//!   the lookup.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, request::Parts};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use crate::key::{Anonymous, RequestHead};

/// Looks up the identity of a request.
pub trait Identify {
    /// The identity, which is inserted into the extensions of the request.
    type Identity: Clone + Send + Sync + 'static;
    /// The future of a lookup. It returns the head of the request and the identity, if any.
    type Future: Future<Output = (Parts, Option<Self::Identity>)>;

    /// Looks up the identity of a request. The future also returns the head of the request.
    fn identify(&self, parts: Parts) -> Self::Future;
}

/// Layer that inserts the [`Identity`](Identify::Identity) of a request into its extensions.
///
/// See the [module](self) for an example.
#[derive(Debug)]
#[must_use]
pub struct IdentifyLayer<F>(Arc<F>);

impl<F, Fut, T> IdentifyLayer<IdentifyFn<F>>
where
    F: Fn(&RequestHead<'_>) -> Fut,
    Fut: Future<Output = Option<T>>,
    T: Clone + Send + Sync + 'static,
{
    /// Creates a layer that looks up identities with an asynchronous function.
    pub fn from_fn(f: F) -> Self {
        Self::new(IdentifyFn(f))
    }
}

impl<F: Identify> IdentifyLayer<F> {
    /// Creates a layer that looks up identities with `identify`.
    pub fn new(identify: F) -> Self {
        Self(Arc::new(identify))
    }
}

impl<F> Clone for IdentifyLayer<F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I, F> Layer<I> for IdentifyLayer<F> {
    type Service = IdentifyService<I, F>;

    fn layer(&self, inner: I) -> Self::Service {
        IdentifyService { inner, identify: self.0.clone() }
    }
}

/// Service of an [`IdentifyLayer`].
#[derive(Debug)]
pub struct IdentifyService<I, F> {
    inner: I,
    identify: Arc<F>,
}

impl<I: Clone, F> Clone for IdentifyService<I, F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), identify: self.identify.clone() }
    }
}

impl<I, F, B> Service<Request<B>> for IdentifyService<I, F>
where
    I: Service<Request<B>> + Clone,
    F: Identify,
{
    type Response = I::Response;
    type Error = I::Error;
    type Future = IdentifyFuture<I, F::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let fresh = self.inner.clone();
        let ready = mem::replace(&mut self.inner, fresh);
        let found = self.identify.identify(parts);
        IdentifyFuture { state: IdentifyState::Identifying { found, waiting: Some((ready, body)) } }
    }
}

pin_project! {
    /// Future of an [`IdentifyService`].
    #[must_use = "futures do nothing unless polled"]
    pub struct IdentifyFuture<I, F, B>
    where
        I: Service<Request<B>>,
    {
        #[pin]
        state: IdentifyState<I, F, B, I::Future>,
    }
}

pin_project! {
    #[project = IdentifyStateProj]
    enum IdentifyState<I, F, B, R> {
        Identifying { #[pin] found: F, waiting: Option<(I, B)> },
        Running { #[pin] future: R },
    }
}

impl<I, F, B, T> Future for IdentifyFuture<I, F, B>
where
    I: Service<Request<B>>,
    F: Future<Output = (Parts, Option<T>)>,
    T: Clone + Send + Sync + 'static,
{
    type Output = Result<I::Response, I::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let future = match state.as_mut().project() {
                IdentifyStateProj::Running { future } => return future.poll(cx),
                IdentifyStateProj::Identifying { found, waiting } => {
                    let (mut parts, identity) = ready!(found.poll(cx));
                    match identity {
                        Some(identity) => drop(parts.extensions.insert(identity)),
                        None => drop(parts.extensions.insert(Anonymous::<T>::new())),
                    }
                    let Some((mut inner, body)) = waiting.take() else {
                        panic!("`IdentifyFuture` polled after completion");
                    };
                    inner.call(Request::from_parts(parts, body))
                }
            };
            state.set(IdentifyState::Running { future });
        }
    }
}

impl<I: Service<Request<B>>, F, B> fmt::Debug for IdentifyFuture<I, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyFuture").finish_non_exhaustive()
    }
}

/// [`Identify`] of [`IdentifyLayer::from_fn`].
#[derive(Clone, Copy)]
pub struct IdentifyFn<F>(F);

impl<F> fmt::Debug for IdentifyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdentifyFn({})", std::any::type_name::<F>())
    }
}

impl<F, Fut, T> Identify for IdentifyFn<F>
where
    F: Fn(&RequestHead<'_>) -> Fut,
    Fut: Future<Output = Option<T>>,
    T: Clone + Send + Sync + 'static,
{
    type Identity = T;
    type Future = IdentifyFnFuture<Fut>;

    fn identify(&self, parts: Parts) -> Self::Future {
        IdentifyFnFuture { found: (self.0)(&RequestHead::from(&parts)), parts: Some(parts) }
    }
}

pin_project! {
    /// Future of an [`IdentifyFn`].
    pub struct IdentifyFnFuture<F> {
        #[pin]
        found: F,
        parts: Option<Parts>,
    }
}

impl<F, T> Future for IdentifyFnFuture<F>
where
    F: Future<Output = Option<T>>,
{
    type Output = (Parts, Option<T>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let identity = ready!(this.found.poll(cx));
        match this.parts.take() {
            Some(parts) => Poll::Ready((parts, identity)),
            None => panic!("`IdentifyFnFuture` polled after completion"),
        }
    }
}

impl<F> fmt::Debug for IdentifyFnFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentifyFnFuture").finish_non_exhaustive()
    }
}

#[cfg(feature = "axum")]
pub use self::extract::FromParts;

#[cfg(feature = "axum")]
mod extract {
    use std::{fmt, marker::PhantomData};

    use axum::extract::FromRequestParts;
    use http::request::Parts;

    use super::{Identify, IdentifyLayer};
    use crate::store::BoxFuture;

    /// [`Identify`] that runs the axum extractor `E`.
    ///
    /// Created by [`IdentifyLayer::extractor`].
    pub struct FromParts<E, S> {
        state: S,
        extractor: PhantomData<fn() -> E>,
    }

    impl IdentifyLayer<()> {
        /// Creates a layer that looks up identities with the axum extractor `E`.
        ///
        /// A request that the extractor rejects is forwarded without an identity. A handler with
        /// the same extractor still rejects the request.
        ///
        /// ```
        /// use axum::{extract::FromRequestParts, http::{StatusCode, request::Parts}};
        /// use tower_sluice::identify::IdentifyLayer;
        ///
        /// #[derive(Clone)]
        /// struct User(u64);
        ///
        /// impl<S: Send + Sync> FromRequestParts<S> for User {
        ///     type Rejection = StatusCode;
        ///
        ///     async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        ///         parts.headers.get("x-user").map(|_| Self(7)).ok_or(StatusCode::UNAUTHORIZED)
        ///     }
        /// }
        ///
        /// let layer = IdentifyLayer::extractor::<User, _>(());
        /// ```
        pub fn extractor<E, S>(state: S) -> IdentifyLayer<FromParts<E, S>>
        where
            E: FromRequestParts<S> + Clone + Send + Sync + 'static,
            S: Clone + Send + Sync + 'static,
        {
            IdentifyLayer::new(FromParts { state, extractor: PhantomData })
        }
    }

    impl<E, S> Identify for FromParts<E, S>
    where
        E: FromRequestParts<S> + Clone + Send + Sync + 'static,
        S: Clone + Send + Sync + 'static,
    {
        type Identity = E;
        type Future = BoxFuture<(Parts, Option<E>)>;

        fn identify(&self, mut parts: Parts) -> Self::Future {
            let state = self.state.clone();
            Box::pin(async move {
                let found = E::from_request_parts(&mut parts, &state).await.ok();
                (parts, found)
            })
        }
    }

    impl<E, S> fmt::Debug for FromParts<E, S> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "FromParts({})", std::any::type_name::<E>())
        }
    }
}
