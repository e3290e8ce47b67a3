//! The floor: a layer that does only what each layer must do. It reads the address of the peer and the
//! clock, and charges one account in a table of locked sets. With fields, it clones a prepared map and
//! renders one number into it.
//!
//! It may drop accounts in use, cannot be configured, and does not tell one algorithm from another, so
//! it is faster than any honest limiter. It shows how much of a cost could be saved.

use std::{
    fmt::Write,
    hash::BuildHasher,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo};
use foldhash::fast::RandomState;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use parking_lot::Mutex;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

/// The number of sets of four accounts.
const SETS: usize = 1 << 16;
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

#[derive(Clone)]
pub struct FloorLayer(Arc<Table>);

#[derive(Clone)]
pub struct Floor<S> {
    inner: S,
    table: Arc<Table>,
}

/// The accounts, and what is the same for all requests.
struct Table {
    sets: Box<[Mutex<Set>]>,
    random: RandomState,
    clock: quanta::Clock,
    interval: u64,
    burst: u64,
    /// The fields with a placeholder, if there are fields.
    fields: Option<HeaderMap>,
}

#[derive(Default)]
struct Set {
    ids: [u64; 4],
    instants: [u64; 4],
}

/// The units left, or the wait of a denial.
struct Decision {
    left: u64,
    wait: Option<u64>,
}

impl FloorLayer {
    pub fn new(burst: u32, interval: Duration, has_fields: bool) -> Self {
        let interval = u64::try_from(interval.as_nanos()).expect("a short interval");
        let fields = [(RATELIMIT, "0"), (POLICY, "\"default\";q=1;w=1")];
        let fields = fields.map(|(name, text)| (name, HeaderValue::from_static(text)));
        Self(Arc::new(Table {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            random: RandomState::default(),
            clock: quanta::Clock::new(),
            interval,
            burst: interval * u64::from(burst),
            fields: has_fields.then(|| fields.into_iter().collect()),
        }))
    }
}

impl<S> Layer<S> for FloorLayer {
    type Service = Floor<S>;

    fn layer(&self, inner: S) -> Floor<S> {
        Floor { inner, table: self.0.clone() }
    }
}

impl Table {
    #[inline]
    fn charge(&self, peer: SocketAddr) -> Decision {
        let id = self.random.hash_one(peer.ip()).max(1);
        let now = self.clock.delta_as_nanos(0, self.clock.raw());
        let mut set = self.sets[(id >> 48) as usize % SETS].lock();
        let place = set.ids.iter().position(|known| *known == id).unwrap_or_else(|| set.claim(id));
        let before = set.instants[place].max(now);
        let after = before + self.interval;
        if after - now > self.burst {
            return Decision { left: 0, wait: Some(after - now - self.burst) };
        }
        set.instants[place] = after;
        Decision { left: (self.burst - (after - now)) / self.interval, wait: None }
    }

    /// Returns the fields of a response.
    fn fields(&self, decision: &Decision) -> Option<HeaderMap> {
        let mut fields = self.fields.clone()?;
        let seconds = (decision.wait.unwrap_or(0) + self.interval).div_ceil(1_000_000_000);
        let mut text = String::with_capacity(40);
        write!(text, "\"default\";r={};t={seconds}", decision.left).ok()?;
        if let Some(field) = fields.values_mut().next() {
            *field = HeaderValue::try_from(text).ok()?;
        }
        Some(fields)
    }
}

impl Set {
    /// Gives the place of the account that is full first to a new one.
    #[cold]
    fn claim(&mut self, id: u64) -> usize {
        let place = (0..4).min_by_key(|place| self.instants[*place]).unwrap_or(0);
        self.ids[place] = id;
        self.instants[place] = 0;
        place
    }
}

impl<S> Service<Request<Body>> for Floor<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = FloorFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().expect("an address").0;
        let decision = self.table.charge(peer);
        if decision.wait.is_some() {
            return FloorFuture::Denied { decision, table: self.table.clone() };
        }
        if self.table.fields.is_none() {
            return FloorFuture::Admitted { future: self.inner.call(request) };
        }
        let fields = self.table.fields(&decision);
        FloorFuture::Told { future: self.inner.call(request), fields }
    }
}

pin_project! {
    #[project = Step]
    pub enum FloorFuture<F> {
        Admitted { #[pin] future: F },
        Told { #[pin] future: F, fields: Option<HeaderMap> },
        Denied { decision: Decision, table: Arc<Table> },
    }
}

impl<F, E> Future for FloorFuture<F>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            Step::Admitted { future } => future.poll(cx),
            Step::Told { future, fields } => {
                let mut response = ready!(future.poll(cx))?;
                let fields = fields.take().unwrap_or_default();
                if response.headers().is_empty() {
                    *response.headers_mut() = fields;
                } else {
                    response.headers_mut().extend(fields);
                }
                Poll::Ready(Ok(response))
            }
            Step::Denied { decision, table } => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                if let Some(fields) = table.fields(decision) {
                    *response.headers_mut() = fields;
                }
                let seconds = decision.wait.unwrap_or(0).div_ceil(1_000_000_000);
                response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
                Poll::Ready(Ok(response))
            }
        }
    }
}
