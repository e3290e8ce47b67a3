//! Bodies of rejected requests: over HTTP/1 the rest is read first, or the connection is closed.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::FutureExt;
use http::{Method, Request, Response, StatusCode, Version, header::CONNECTION, request::Builder};
use http_body_util::{
    BodyExt, Empty, Full, Limited,
    combinators::{BoxBody, UnsyncBoxBody},
};
use hyper::body::{Body, Frame};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    time::{Instant, advance},
};
use tower::{BoxError, Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};
use tower_sluice::{
    AccessList, Decision, Key, LocalStore, PeerIp, Quota, RateLimitLayer, RequestHead, Rule, Store,
    StoreExt, TooManyRequests,
    key::{Everyone, HeaderKey},
    middleware::HoldUntil,
    reject::{Reject, RejectFn, Rejection, reject_fn},
    rule::Rules,
    store::{CannotFail, DynStore},
};

use crate::support::{
    Gated,
    driven::limiter,
    shaky::{Mood, Shaky},
};

const HOURLY: Quota = Quota::per_hour(1);
const ONE: Quota = Quota::concurrent(1);
const BOUND: usize = 64 * 1_024;
const HTTP_1: [Version; 2] = [Version::HTTP_10, Version::HTTP_11];

type Respond = fn(&Rejection<'_>, &RequestHead<'_>) -> Response<Full<Bytes>>;
type Limit =
    RateLimitLayer<Arc<dyn Rules + Send + Sync>, Arc<DynStore<Infallible>>, RejectFn<Respond>>;

/// A way to reject a request.
struct Way {
    name: &'static str,
    status: u16,
    limit: Limit,
    /// Held while the request is rejected.
    held: Option<Decision>,
}

fn way<K, S>(name: &'static str, status: u16, layer: RateLimitLayer<K, S>) -> Way
where
    K: Rules + Send + Sync + 'static,
    S: Store<Error = Infallible, Future: 'static> + Send + Sync + 'static,
{
    let default: Respond = |why, head| TooManyRequests::new().reject(why, head);
    Way { name, status, limit: layer.boxed().reject(reject_fn(default)), held: None }
}

fn teapot(_: &Rejection<'_>, _: &RequestHead<'_>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::IM_A_TEAPOT;
    response
}

fn rule(quota: Quota) -> Rule<Everyone> {
    Rule::new("api", Everyone, quota)
}

/// Returns a store of which the only request per hour is made.
fn spent_store() -> LocalStore {
    let store = LocalStore::with_capacity(64);
    drop(limiter("api", store.clone()).take(Key::everyone(), &HOURLY, 1).now());
    store
}

fn failing(
    mood: Mood,
) -> RateLimitLayer<Rule<Everyone>, impl Store<Error = Infallible> + Send + Sync> {
    let store = Shaky::new(LocalStore::with_capacity(64));
    store.set_mood(mood);
    RateLimitLayer::rules(rule(HOURLY), store.fail_closed())
}

/// Returns all ways. The first is a quota.
fn ways() -> Vec<Way> {
    let store = || LocalStore::with_capacity(64);
    let limit = |quota| RateLimitLayer::rules(rule(quota), store());
    let spent = || RateLimitLayer::rules(rule(HOURLY), spent_store());
    let costly = rule(Quota::per_hour(2)).cost(tower_sluice::Cost::from_fn(|_| 3));
    let blocked = store();
    let minute = Duration::from_secs(60);
    drop(limiter("api", blocked.clone()).block(Key::everyone(), minute).now().expect("room"));
    let patient = rule(HOURLY).max_wait(Duration::from_secs(7_200));
    let slots = store();
    let held = limiter("api", slots.clone()).take(Key::everyone(), &ONE, 1).now();
    let slot = RateLimitLayer::rules(rule(ONE).max_wait(Duration::from_secs(1)), slots);
    let no_key = RateLimitLayer::new(HeaderKey::new("x-id"), HOURLY, store());
    vec![
        way("a quota", 429, spent()),
        way("a cost", 429, RateLimitLayer::rules(costly, store())),
        way("a blocked quota", 403, limit(Quota::blocked())),
        way("a blocked key", 429, RateLimitLayer::rules(rule(HOURLY), blocked)),
        way("a deny list", 403, limit(HOURLY).deny(AccessList::from_fn(|_| true))),
        way("no key", 400, no_key),
        way("no peer", 500, RateLimitLayer::new(PeerIp::new(), HOURLY, store())),
        way("a store that fails", 503, failing(Mood::Failing)),
        way("a store that fails later", 503, failing(Mood::FailingSoon)),
        way("a later answer", 429, RateLimitLayer::rules(rule(HOURLY), Gated::open(spent_store()))),
        way("a full queue", 429, RateLimitLayer::rules(patient, spent_store()).max_waiters(0)),
        Way { held: Some(held), ..way("the end of a wait", 429, slot.hold_until(HoldUntil::Head)) },
        way("a body that holds no slot", 503, limit(ONE)),
        Way {
            limit: spent().boxed().reject(reject_fn(teapot as Respond)),
            ..way("a response of its own", 418, spent())
        },
    ]
}

/// Returns the response of the layer around a service that must not be called, and that holds one of
/// the permits while it is ready.
async fn ask<K, S, R, B>(
    layer: RateLimitLayer<K, S, R>,
    request: Request<B>,
    permits: &Arc<Semaphore>,
) -> Response<Full<Bytes>>
where
    K: Rules,
    S: Store<Error: CannotFail>,
    R: Reject<Full<Bytes>>,
    B: 'static,
{
    let inner = service_fn(async |_: Request<B>| -> Result<Response<Full<Bytes>>, Infallible> {
        panic!("a rejected request was served")
    });
    let inner = ConcurrencyLimit::with_semaphore(inner, permits.clone());
    let mut service = layer.drain_with(|body: Own| body.0).layer(inner);
    service.ready().await.expect("ready").call(request).await.expect("a response")
}

/// A body that records its use.
struct Probe {
    steps: VecDeque<Step>,
    seen: Arc<Seen>,
}

#[derive(Clone, Copy)]
enum Step {
    Data(usize),
    Fail,
    Stall,
}

struct Seen {
    permits: Arc<Semaphore>,
    /// The free permits of the inner service during the first read.
    free: AtomicUsize,
    is_read: AtomicBool,
    bytes: AtomicUsize,
    frames: AtomicUsize,
    /// The frames that exist.
    alive: AtomicUsize,
    most_alive: AtomicUsize,
    is_dropped: AtomicBool,
}

/// The data of a frame.
struct Data(Arc<Seen>, Vec<u8>);

impl AsRef<[u8]> for Data {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, SeqCst);
    }
}

impl Probe {
    fn new(steps: impl IntoIterator<Item = Step>) -> (Self, Arc<Seen>) {
        let seen = Arc::new(Seen {
            permits: Arc::new(Semaphore::new(1)),
            free: AtomicUsize::new(0),
            is_read: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
            frames: AtomicUsize::new(0),
            alive: AtomicUsize::new(0),
            most_alive: AtomicUsize::new(0),
            is_dropped: AtomicBool::new(false),
        });
        (Self { steps: steps.into_iter().collect(), seen: seen.clone() }, seen)
    }
}

impl Body for Probe {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let seen = self.seen.clone();
        if !seen.is_read.swap(true, SeqCst) {
            seen.free.store(seen.permits.available_permits(), SeqCst);
        }
        match self.steps.front().copied() {
            None => Poll::Ready(None),
            Some(Step::Stall) => Poll::Pending,
            Some(Step::Fail) => Poll::Ready(Some(Err("broken".into()))),
            Some(Step::Data(bytes)) => {
                self.steps.pop_front();
                seen.frames.fetch_add(1, SeqCst);
                seen.bytes.fetch_add(bytes, SeqCst);
                let alive = seen.alive.fetch_add(1, SeqCst) + 1;
                seen.most_alive.fetch_max(alive, SeqCst);
                let data = Data(seen, vec![b'x'; bytes]);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(data)))))
            }
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.seen.is_dropped.store(true, SeqCst);
    }
}

/// A body that only `drain_with` makes known.
struct Own(Probe);

/// A body that is not known, and no `Body`.
struct Unknown(#[expect(dead_code, reason = "it is dropped")] Probe);

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The whole body is read, and the connection remains open.
    Read,
    /// Nothing is read, and the connection is closed.
    Closed,
    /// Nothing is read, and the connection remains open.
    Left,
}

fn post<B>(body: B) -> Request<B> {
    Request::post("/").header("content-length", "300").body(body).expect("a request")
}

fn is_closed<C>(response: &Response<C>) -> bool {
    response.headers().get(CONNECTION).is_some_and(|value| value == "close")
}

/// Rejects requests with bodies of one kind in each way.
async fn all_ways<B: 'static>(end: End, body: fn(Probe) -> B) {
    for Way { name, status, limit, held } in ways() {
        let case = format!("{name}, {}", std::any::type_name::<B>());
        let (probe, seen) = Probe::new([Step::Data(100); 3]);
        let response = ask(limit, post(body(probe)), &seen.permits).await;
        assert_eq!(response.status(), status, "{case}");
        assert_eq!(is_closed(&response), end == End::Closed, "{case}");
        let bytes = if end == End::Read { 300 } else { 0 };
        assert_eq!(seen.bytes.load(SeqCst), bytes, "{case}");
        if end == End::Read {
            assert_eq!(seen.free.load(SeqCst), 1, "{case}: it holds the inner service");
            assert_eq!(seen.most_alive.load(SeqCst), 1, "{case}: it collects frames");
        }
        assert!(seen.is_dropped.load(SeqCst), "{case}");
        drop(held);
    }
}

/// Rejects requests with boxed bodies that have errors of this type.
async fn all_ways_of_boxed<E: 'static>() {
    fn cannot_fail<E>(error: BoxError) -> E {
        panic_any(error)
    }
    all_ways::<UnsyncBoxBody<Bytes, E>>(End::Read, |it| it.map_err(cannot_fail).boxed_unsync())
        .await;
    all_ways::<BoxBody<Bytes, E>>(End::Read, |it| it.map_err(cannot_fail).boxed()).await;
}

#[tokio::test(start_paused = true)]
async fn known_bodies_are_read_and_dropped_frame_by_frame_after_the_service_is_released() {
    all_ways(End::Read, Own).await;
    all_ways_of_boxed::<BoxError>().await;
    all_ways_of_boxed::<io::Error>().await;
    all_ways_of_boxed::<Infallible>().await;
    #[cfg(feature = "tonic")]
    all_ways(End::Read, tonic::body::Body::new).await;
    all_ways_of_boxed::<axum::Error>().await;
    all_ways_of_boxed::<hyper::Error>().await;
    all_ways(End::Read, axum::body::Body::new).await;
    all_ways(End::Read, |it| Limited::new(axum::body::Body::new(it), BOUND)).await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_body_is_not_read_and_its_connection_is_closed() {
    all_ways(End::Closed, Unknown).await;
    all_ways(End::Closed, |it| it.map_frame(|frame| frame)).await;
}

fn own(steps: impl IntoIterator<Item = Step>) -> (Own, Arc<Seen>) {
    let (probe, seen) = Probe::new(steps);
    (Own(probe), seen)
}

async fn denied<B: 'static>(request: Request<B>, seen: &Seen) -> Response<Full<Bytes>> {
    ask(ways().swap_remove(0).limit, request, &seen.permits).await
}

fn chunked(body: Own) -> Request<Own> {
    Request::post("/").header("transfer-encoding", "chunked").body(body).expect("a request")
}

#[tokio::test(start_paused = true)]
async fn a_body_is_read_up_to_the_bound() {
    for (length, is_read) in [(BOUND, true), (BOUND + 1, false), (usize::MAX, false)] {
        // By its declared length, and by its frames.
        let (body, seen) = own([Step::Data(1)]);
        let request = Request::post("/").header("content-length", length).body(body);
        let response = denied(request.expect("a request"), &seen).await;
        assert_eq!(is_closed(&response), !is_read, "{length} declared");
        assert_eq!(seen.is_read.load(SeqCst), is_read, "{length} declared");

        let frames = length.min(BOUND + 9_000) / 1_000;
        let last = length.min(BOUND + 9_000) % 1_000;
        let steps = [Step::Data(1_000)].repeat(frames).into_iter().chain([Step::Data(last)]);
        let (body, seen) = own(steps);
        let response = denied(chunked(body), &seen).await;
        assert_eq!(is_closed(&response), !is_read, "{length} in chunks");
        let bytes = seen.bytes.load(SeqCst);
        assert!(bytes <= BOUND + 1_000, "{bytes} of {length} were read");
        assert!(bytes == length || !is_read, "{bytes} of {length} were read");
    }
}

/// Neither the head of the request nor an earlier frame is held.
#[tokio::test(start_paused = true)]
async fn a_slow_sender_holds_its_rejection_for_one_second_and_nothing_after_it() {
    let (body, seen) = own([Step::Data(1), Step::Stall]);
    let mut request = chunked(body);
    let held = Arc::new(());
    request.extensions_mut().insert(held.clone());
    let start = Instant::now();
    let mut asking = Box::pin(denied(request, &seen));
    assert!((&mut asking).now_or_never().is_none());
    assert_eq!(Arc::strong_count(&held), 1, "the head is held");
    assert_eq!((seen.frames.load(SeqCst), seen.alive.load(SeqCst)), (1, 0));
    advance(Duration::from_millis(999)).await;
    assert!((&mut asking).now_or_never().is_none());
    assert!(!seen.is_dropped.load(SeqCst));
    assert!(is_closed(&asking.await));
    assert!(start.elapsed() <= Duration::from_millis(1_001), "{:?}", start.elapsed());
    assert!(seen.is_dropped.load(SeqCst), "the body is held");
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_request_says_if_its_body_may_be_read() {
    const LONG: (&str, &str) = ("content-length", "300");
    let table: [(Method, &[(&str, &str)], &[Version], bool); 8] = [
        (Method::POST, &[LONG, ("expect", "100-continue")], &HTTP_1, true),
        (Method::POST, &[LONG, ("expect", "100-Continue")], &HTTP_1, true),
        (Method::POST, &[LONG, ("upgrade", "h2c")], &HTTP_1, true),
        (Method::CONNECT, &[LONG], &HTTP_1, true),
        (Method::POST, &[], &HTTP_1, false),
        (Method::POST, &[("content-length", "0")], &HTTP_1, false),
        (Method::POST, &[LONG], &[Version::HTTP_2, Version::HTTP_3], false),
        (Method::CONNECT, &[LONG], &[Version::HTTP_2, Version::HTTP_3], false),
    ];
    for (method, headers, versions, closes) in table {
        for version in versions {
            let (body, seen) = own([Step::Data(1)]);
            let request = Request::builder().method(&method).version(*version);
            let add =
                |request: Builder, (name, value): &(&str, &str)| request.header(*name, *value);
            let request = headers.iter().fold(request, add).body(body).expect("a request");
            let case = format!("{method} {version:?} {headers:?}");
            assert_eq!(is_closed(&denied(request, &seen).await), closes, "{case}");
            assert!(!seen.is_read.load(SeqCst), "{case}");
        }
    }
}

fn spent() -> RateLimitLayer<Rule<Everyone>, LocalStore> {
    RateLimitLayer::new(Everyone, Quota::blocked(), LocalStore::with_capacity(16))
}

#[tokio::test(start_paused = true)]
async fn both_bounds_can_be_set() {
    let layer = spent().drain(200, Duration::from_millis(50));
    let (body, seen) = own([Step::Data(100), Step::Data(101)]);
    assert!(is_closed(&ask(layer.clone(), chunked(body), &seen.permits).await));
    assert_eq!(seen.bytes.load(SeqCst), 201);

    let start = Instant::now();
    let (body, seen) = own([Step::Data(200), Step::Stall]);
    assert!(is_closed(&ask(layer, chunked(body), &seen.permits).await));
    assert!(start.elapsed() <= Duration::from_millis(51), "{:?}", start.elapsed());

    for request in [chunked, post] {
        let (body, seen) = own([Step::Data(1)]);
        let layer = spent().drain(0, Duration::ZERO);
        assert!(is_closed(&ask(layer, request(body), &seen.permits).await));
        assert!(!seen.is_read.load(SeqCst));
    }
}

#[test]
fn invalid_bounds_panic_with_the_value_and_the_range() {
    for time in [Duration::ZERO, Duration::from_secs(61), Duration::MAX] {
        let ended = catch_unwind(AssertUnwindSafe(|| spent().drain(1, time)));
        let panic = ended.expect_err("a panic");
        let text = panic.downcast_ref::<String>().expect("a text");
        assert_eq!(text, &format!("drain: {time:?}; give more than 0 s and at most 60s"));
    }
}

/// Serves with hyper until the test ends, so bodies are hyper's own.
async fn serve(denials: Arc<Notify>) -> TcpStream {
    let layer = spent().on_decision(move |_: &tower_sluice::middleware::DecisionEvent<'_>| {
        denials.notify_one();
    });
    let service = layer.layer(service_fn(async |_: Request<hyper::body::Incoming>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).await;
    let server = listener.accept().await.expect("a connection").0;
    let service = hyper::service::service_fn(move |request| service.clone().oneshot(request));
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
    tokio::spawn(serving);
    client.expect("a connection")
}

/// Returns the head of the next response, and skips its body.
async fn response(server: &mut BufReader<TcpStream>) -> Vec<String> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        assert_ne!(server.read_line(&mut line).await.expect("a response"), 0, "closed: {head:?}");
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_lowercase());
    }
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a number"));
    server.read_exact(&mut vec![0; length]).await.expect("a body");
    head
}

#[tokio::test]
async fn one_connection_serves_denials_whose_bodies_arrive_after_the_decision() {
    let denials = Arc::new(Notify::new());
    let mut server = BufReader::new(serve(denials.clone()).await);
    for head in ["content-length: 50000\r\n\r\n", "transfer-encoding: chunked\r\n\r\nc350\r\n"] {
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{head}");
        server.write_all(head.as_bytes()).await.expect("written");
        server.write_all(&[b'x'; 20_000]).await.expect("written");
        denials.notified().await;
        server.write_all(&[b'x'; 30_000]).await.expect("written");
        if head.contains("chunked") {
            server.write_all(b"\r\n0\r\n\r\n").await.expect("written");
        }
        let head = response(&mut server).await;
        assert_eq!(head[0], "http/1.1 403 forbidden");
        assert!(!head.iter().any(|line| line.starts_with("connection:")), "{head:?}");
    }
}

#[tokio::test]
async fn a_connection_with_an_unread_body_says_that_it_is_closed() {
    for head in ["content-length: 70000\r\n", "content-length: 5\r\nexpect: 100-continue\r\n"] {
        let mut server = BufReader::new(serve(Arc::default()).await);
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n");
        server.write_all(head.as_bytes()).await.expect("written");
        let head = response(&mut server).await;
        assert_eq!(head[0], "http/1.1 403 forbidden");
        assert!(head.contains(&"connection: close".to_owned()), "{head:?}");
        assert_eq!(server.read(&mut [0]).await.expect("the end"), 0);
    }
}

#[test]
fn a_slow_sender_outside_of_a_runtime_is_not_waited_for() {
    let (body, seen) = own([Step::Data(1), Step::Stall]);
    let response = denied(chunked(body), &seen).now_or_never().expect("a response");
    assert!(is_closed(&response));
}

#[tokio::test(start_paused = true)]
async fn empty_frames_are_bounded_as_well() {
    let (body, seen) = own([Step::Data(0)].repeat(BOUND + 10));
    let response = denied(chunked(body), &seen).await;
    assert!(is_closed(&response));
    assert_eq!(seen.frames.load(SeqCst), BOUND + 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_fails_closes_the_connection() {
    let (body, seen) = own([Step::Data(1), Step::Fail]);
    assert!(is_closed(&denied(chunked(body), &seen).await));
}

/// A body in memory has left the connection. `Request<()>` has no body.
#[tokio::test(start_paused = true)]
async fn bodies_in_memory_change_nothing() {
    all_ways(End::Left, |_| ()).await;
    all_ways(End::Left, |_| Bytes::from_static(b"body")).await;
    all_ways(End::Left, |_| String::from("body")).await;
    all_ways(End::Left, |_| Vec::from(b"body")).await;
    all_ways(End::Left, |_| Empty::<Bytes>::new()).await;
    all_ways(End::Left, |_| Full::new(Bytes::from_static(b"body"))).await;
}
