//! Charges that are adjusted although the response is cut short.
//!
//! Examples are a body without an end, a handler that panics, and a client that disconnects.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
};

use axum::{Extension, Router, body::Body, routing::get};
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::timeout,
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::{
    Key, LocalStore, Quota, RateLimitLayer, Rule,
    key::Everyone,
    middleware::{Adjustment, ChargeHandle},
    testing::FakeClock,
};

use crate::support::driven::{left, secs};

/// A request is charged 100 units at first and uses one for each byte of its body.
const TOKENS: Quota = Quota::per_hour(1_000);

type Layered = RateLimitLayer<Rule<Everyone>, LocalStore>;

/// The default for a charge that is not adjusted.
#[derive(Clone, Copy, Debug)]
enum Unsettled {
    Stays,
    IsRefunded,
    IsAtLeast(u32),
}

fn layer(unsettled: Unsettled) -> (Layered, impl Fn() -> u32) {
    let store = FakeClock::new().store(64);
    let rule = Rule::new("tokens", Everyone, TOKENS).cost(100);
    let layer = RateLimitLayer::rules(rule, store.clone());
    let layer = match unsettled {
        Unsettled::Stays => layer.expose_charge(Adjustment::Keep),
        Unsettled::IsRefunded => layer.expose_charge(Adjustment::Refund),
        Unsettled::IsAtLeast(units) => layer.expose_charge(Adjustment::AtLeast(units)),
    };
    (layer, move || left(&store, "tokens", Key::everyone(), &TOKENS))
}

/// A body that holds its charge handle and adjusts the charge at its end, if it reaches the end.
/// Fields drop in this order, so an observer of the drop sees the adjusted charge.
struct Text {
    bytes: usize,
    sent: usize,
    stuck_after: usize,
    reserved: ChargeHandle,
    _gone: Option<oneshot::Sender<()>>,
}

impl Stream for Text {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.sent == self.stuck_after {
            return Poll::Pending;
        }
        if self.sent == self.bytes {
            self.reserved.adjust_to(u32::try_from(self.sent).expect("few"));
            return Poll::Ready(None);
        }
        self.sent += 1;
        Poll::Ready(Some(Ok(Bytes::from_static(b"x"))))
    }
}

fn text(bytes: usize, reserved: ChargeHandle) -> Text {
    Text { bytes, sent: 0, stuck_after: usize::MAX, reserved, _gone: None }
}

fn app(layer: Layered) -> Router {
    let stream =
        async |Extension(reserved): Extension<ChargeHandle>| Body::from_stream(text(30, reserved));
    Router::new().route("/", get(stream)).layer(layer)
}

fn request() -> Request<Body> {
    Request::new(Body::empty())
}

#[tokio::test]
async fn a_body_that_is_read_to_its_end_adjusts_to_its_length() {
    let (layer, left) = layer(Unsettled::Stays);
    let response = app(layer).oneshot(request()).await.expect("infallible");
    assert_eq!(left(), 900, "open while it streams");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!((body.len(), left()), (30, 970));
}

#[tokio::test]
async fn a_body_that_is_cut_at_its_first_byte_adjusts_to_the_default() {
    for (default, expected) in
        [(Unsettled::Stays, 900), (Unsettled::IsRefunded, 1_000), (Unsettled::IsAtLeast(150), 850)]
    {
        let (layer, left) = layer(default);
        let response = app(layer).oneshot(request()).await.expect("infallible");
        let mut body = response.into_body().into_data_stream();
        assert_eq!(body.next().await.expect("a byte").expect("infallible").len(), 1);
        assert_eq!(left(), 900);
        drop(body);
        assert_eq!(left(), expected, "{default:?}");
    }
}

#[tokio::test]
async fn a_response_that_is_never_read_adjusts_to_the_default() {
    let (layer, left) = layer(Unsettled::IsRefunded);
    drop(app(layer).oneshot(request()).await);
    assert_eq!(left(), 1_000);
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_runs_adjusts_to_the_default() {
    for (default, expected) in [(Unsettled::Stays, 900), (Unsettled::IsRefunded, 1_000)] {
        let (layer, left) = layer(default);
        let stuck = service_fn(|request: Request<Body>| async {
            let _request = request;
            std::future::pending::<Result<http::Response<Body>, Infallible>>().await
        });
        let mut running = tokio_test::task::spawn(layer.layer(stuck).oneshot(request()));
        assert!(running.poll().is_pending());
        assert_eq!(left(), 900);
        drop(running);
        assert_eq!(left(), expected, "{default:?}");
    }
}

/// A client that disconnects each time runs no more handlers than a client that stays.
#[tokio::test]
async fn clients_that_disconnect_are_limited_like_others() {
    let (layer, _) = layer(Unsettled::Stays);
    let run = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let runs = run.clone();
    let stuck = service_fn(move |_: Request<Body>| {
        runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        std::future::pending::<Result<http::Response<Body>, Infallible>>()
    });
    let service = layer.layer(stuck);
    for _ in 0..1_000 {
        let mut running = tokio_test::task::spawn(service.clone().oneshot(request()));
        let _ = running.poll();
    }
    assert_eq!(run.load(std::sync::atomic::Ordering::SeqCst), 10);
}

#[tokio::test]
async fn a_handler_that_panics_adjusts_to_the_default() {
    let (layer, left) = layer(Unsettled::IsRefunded);
    let panics = async |Extension(reserved): Extension<ChargeHandle>| -> StatusCode {
        let _reserved = reserved;
        tokio::task::yield_now().await;
        panic!("as the test wants");
    };
    let app = Router::new().route("/", get(panics)).layer(layer.clone());
    let caught = AssertUnwindSafe(app.oneshot(request())).catch_unwind().await;
    assert!(caught.is_err());
    assert_eq!(left(), 1_000);
    // and a handler that panics before it returns a future
    let panics = service_fn(|_: Request<Body>| -> std::future::Ready<Result<_, Infallible>> {
        panic!("as the test wants");
    });
    let mut service = layer.adjust(|_| Adjustment::Charge(1)).layer(panics);
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _: http::Response<Body> =
            service.call(request()).now_or_never().expect("ready").expect("ok");
    }));
    assert!(caught.is_err());
    assert_eq!(left(), 1_000);
}

#[tokio::test]
async fn a_client_that_disconnects_within_a_body_leaves_the_default() {
    let (layer, left) = layer(Unsettled::IsAtLeast(107));
    let (gone, is_gone) = oneshot::channel();
    let gone = std::sync::Arc::new(std::sync::Mutex::new(Some(gone)));
    let stream = async move |Extension(reserved): Extension<ChargeHandle>| {
        let gone = gone.lock().expect("no panic").take();
        Body::from_stream(Text { stuck_after: 1, _gone: gone, ..text(30, reserved) })
    };
    let app = Router::new().route("/", get(stream)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let mut client = TcpStream::connect(address).await.expect("a connection");
    client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("sent");
    let mut said = Vec::new();
    while !said.ends_with(b"1\r\nx\r\n") {
        assert!(client.read_buf(&mut said).await.expect("read") > 0, "the body has begun");
    }
    assert_eq!(left(), 900);
    drop(client);
    assert!(timeout(secs(30), is_gone).await.expect("the server has noticed").is_err());
    assert_eq!(left(), 893);
    server.abort();
}
