//! Response bodies, whose type the layer does not change.
//!
//! A slot can still be held until a body ends.

use std::{
    convert::Infallible,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use axum::{Router, routing::get};
use bytes::Bytes;
use futures::{FutureExt, Stream, stream};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, util::MapResponseLayer};
use tower_sluice::{Headers, LocalStore, Quota, RateLimitLayer, Rule, key::Everyone};

use crate::support::frames;

pin_project! {
    /// A body that drops a guard when it ends, fails, or is dropped.
    struct WithGuard<B, G> {
        #[pin]
        body: B,
        guard: Option<G>,
    }
}

impl<B: Body, G> Body for WithGuard<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let polled = this.body.poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            *this.guard = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that keeps its type while it holds a guard: one line per type that erases its contents.
trait HoldGuard: Sized {
    fn hold<G: Send + 'static>(self, guard: G) -> Self;
}

impl HoldGuard for axum::body::Body {
    fn hold<G: Send + 'static>(self, guard: G) -> Self {
        Self::new(WithGuard { body: self, guard: Some(guard) })
    }
}

impl HoldGuard for tonic::body::Body {
    fn hold<G: Send + 'static>(self, guard: G) -> Self {
        Self::new(WithGuard { body: self, guard: Some(guard) })
    }
}

impl<E: 'static> HoldGuard for UnsyncBoxBody<Bytes, E> {
    fn hold<G: Send + 'static>(self, guard: G) -> Self {
        Self::new(WithGuard { body: self, guard: Some(guard) })
    }
}

fn limit() -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    RateLimitLayer::new(Everyone, Quota::per_hour(1_000), LocalStore::with_capacity(16))
}

fn one_slot() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

/// Takes a slot for each response. A real limit takes it before the call; its end is the same.
fn hold_slot<B: HoldGuard>(
    slots: &Arc<Semaphore>,
) -> MapResponseLayer<impl Fn(Response<B>) -> Response<B> + Clone + use<B>> {
    let slots = slots.clone();
    MapResponseLayer::new(move |response: Response<B>| {
        let slot: OwnedSemaphorePermit = slots.clone().try_acquire_owned().expect("a free slot");
        response.map(|body| body.hold(slot))
    })
}

/// Adds a layer that must leave the types of responses and errors unchanged.
fn add<Q, S, L>(layer: &L, service: S) -> L::Service
where
    S: Service<Q>,
    L: Layer<S, Service: Service<Q, Response = S::Response, Error = S::Error>>,
{
    layer.layer(service)
}

fn get_root() -> Request<axum::body::Body> {
    Request::new(axum::body::Body::empty())
}

/// Returns the allocations of one request to `/`, from the call to the end of the response body.
fn allocations(app: Router) -> u64 {
    // `axum::serve` does this too. Otherwise axum builds the layers again for each request.
    let mut app: Router = app.with_state(());
    let mut serve = || {
        let request = get_root();
        let info = allocation_counter::measure(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let Poll::Ready(Ok(response)) = pin!(app.call(request)).poll(&mut cx) else {
                panic!("everything is ready");
            };
            let body = response.into_body().collect().now_or_never().expect("a short body");
            assert_eq!(body.expect("no error").to_bytes(), "hello");
        });
        info.count_total
    };
    // The first requests also create values that are kept.
    let counts = [(); 5].map(|()| serve());
    counts[4]
}

#[test]
fn only_a_changed_body_type_costs_every_response_an_allocation() {
    let app = || Router::new().route("/", get(async || "hello"));
    let quiet = || limit().headers(Headers::None);
    let as_it_is = || MapResponseLayer::new(|response: Response<axum::body::Body>| response);
    let changed = || {
        let wrap = |body| WithGuard { body, guard: None::<OwnedSemaphorePermit> };
        let change = move |response: Response<axum::body::Body>| response.map(wrap);
        ServiceBuilder::new().layer(MapResponseLayer::new(change)).layer(quiet())
    };
    let held = ServiceBuilder::new().layer(hold_slot(&one_slot())).layer(quiet());

    let bare = allocations(app().layer(as_it_is()));
    assert_eq!(allocations(app().layer(quiet())), bare, "the layer adds none");
    assert_eq!(allocations(app().layer(changed())), bare + 1, "another type is boxed again");
    assert_eq!(allocations(app().layer(held)), bare + 1, "the body of a held slot");

    let two = allocations(app().layer(as_it_is()).layer(as_it_is()));
    assert_eq!(allocations(app().layer(quiet()).layer(quiet())), two);
    assert_eq!(allocations(app().layer(changed()).layer(changed())), two + 2, "one for each layer");
}

/// A router whose body sends these frames.
fn streaming<S, E>(frames: impl Fn() -> S + Clone + Send + Sync + 'static) -> Router
where
    S: Stream<Item = Result<Frame<Bytes>, E>> + Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let handler = move || {
        let body = axum::body::Body::new(StreamBody::new(frames()));
        async move { Response::new(body) }
    };
    Router::new().route("/", get(handler))
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn an_axum_body_holds_a_slot_until_its_last_frame() {
    let sent = || {
        let frames = [data("a"), data("b"), Frame::trailers(HeaderMap::new())];
        stream::iter(frames.map(Ok::<_, Infallible>))
    };
    let slots = one_slot();
    let layers = ServiceBuilder::new().layer(hold_slot(&slots)).layer(limit()).into_inner();
    let whole = [("data", 0), ("data", 0), ("trailers", 0), ("end", 1)];

    let app = add::<Request<axum::body::Body>, _, _>(&layers, streaming(sent));
    let mut response = app.oneshot(get_root()).await.expect("infallible");
    assert_eq!(frames(response.body_mut(), || slots.available_permits()).await, whole);

    let app = streaming(sent).layer(layers);
    let mut response = app.oneshot(get_root()).await.expect("infallible");
    assert!(response.headers().contains_key("ratelimit"));
    assert_eq!(frames(response.body_mut(), || slots.available_permits()).await, whole);
}

#[tokio::test]
async fn a_failed_or_dropped_body_releases_its_slot() {
    let slots = one_slot();
    let fails = || stream::iter([Ok(data("a")), Err(io::Error::other("broken")), Ok(data("b"))]);
    let app = streaming(fails).layer(hold_slot(&slots));
    let mut response = app.oneshot(get_root()).await.expect("infallible");
    assert_eq!(
        frames(response.body_mut(), || slots.available_permits()).await,
        [("data", 0), ("error", 1)]
    );

    let endless = || stream::repeat_with(|| Ok::<_, Infallible>(data("a")));
    let app = streaming(endless).layer(hold_slot(&slots));
    let response = app.oneshot(get_root()).await.expect("infallible");
    let (_, mut body) = response.into_parts();
    assert_eq!(slots.available_permits(), 0, "the head is gone, the body is not");
    assert!(body.frame().await.expect("a frame").is_ok());
    assert_eq!(slots.available_permits(), 0);
    drop(body);
    assert_eq!(slots.available_permits(), 1);
}
