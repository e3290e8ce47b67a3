//! The subjects: each crate's layer around a service that answers immediately, keyed by the peer's
//! address if possible.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    net::SocketAddr,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use axum::{body::Body, extract::ConnectInfo};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use tower::{Layer, Service};
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_sluice::{
    Headers, LivePlan, LocalStore, PeerIp, Plan, Quota, RateLimitLayer, rule::Adaptive,
};

/// Serves requests in sequence.
pub type Runner = Box<dyn FnMut(Vec<Request<Body>>) -> Served + Send>;

/// The result of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Nanoseconds per request.
    pub nanos: f64,
    pub admitted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Bare,
    Governor,
    GovernorTold,
    Ours,
    OursTold,
    /// A burst of 100 that is usually full, so that the values of the fields repeat.
    OursFull,
    OursThree,
    OursLive,
    OursAdaptive,
    OursTwo,
    AxumGovernor,
    RateNet,
    RateNetTold,
}

/// The conditions under which a subject serves.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub limit: Limit,
    pub threads: usize,
    /// `true` if each request has a clone of the service, as in axum.
    cloned: bool,
    /// `true` if the service's response has fields of its own.
    fields: bool,
    /// The accounts for which there is space, for this crate and rate-net.
    capacity: u32,
}

impl Setup {
    pub const fn new(limit: Limit) -> Self {
        Self { limit, threads: 1, cloned: false, fields: false, capacity: 1_000_000 }
    }

    pub const fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    pub const fn cloned(self) -> Self {
        Self { cloned: true, ..self }
    }

    pub const fn with_fields(self) -> Self {
        Self { fields: true, ..self }
    }

    pub const fn with_capacity(self, capacity: u32) -> Self {
        Self { capacity, ..self }
    }
}

/// The limit of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A limit that cannot be exhausted.
    Ample,
    /// One request, and the next an hour later.
    One,
    /// One request at once and one per hour, so that all accounts of a test are in debt at its end.
    Slow,
}

impl Subject {
    /// The subjects that can be exhausted.
    pub const ALL: [Self; 12] = [
        Self::Bare,
        Self::Governor,
        Self::Ours,
        Self::RateNet,
        Self::AxumGovernor,
        Self::GovernorTold,
        Self::OursTold,
        Self::OursFull,
        Self::OursThree,
        Self::OursLive,
        Self::OursTwo,
        Self::RateNetTold,
    ];

    /// The subjects that take less than a microsecond.
    pub const FAST: [Self; 8] = [
        Self::Bare,
        Self::Governor,
        Self::Ours,
        Self::RateNet,
        Self::GovernorTold,
        Self::OursTold,
        Self::OursFull,
        Self::RateNetTold,
    ];

    /// This crate's forms beside tower_governor.
    pub const OWN: [Self; 8] = [
        Self::Bare,
        Self::Governor,
        Self::GovernorTold,
        Self::RateNet,
        Self::Ours,
        Self::OursLive,
        Self::OursAdaptive,
        Self::OursTwo,
    ];

    /// Returns the name of the crate, with the number of header fields that it adds.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "no layer",
            Self::Governor => "tower_governor",
            Self::GovernorTold => "tower_governor, 2 fields",
            Self::Ours => "tower-sluice",
            Self::OursTold => "tower-sluice, 2 fields",
            Self::OursFull => "tower-sluice, 2 fields, burst 100",
            Self::OursThree => "tower-sluice, 3 fields",
            Self::OursLive => "tower-sluice, live plan",
            Self::OursAdaptive => "tower-sluice, adaptive slots",
            Self::OursTwo => "tower-sluice, two limits",
            Self::AxumGovernor => "axum-governor",
            Self::RateNet => "rate-net",
            Self::RateNetTold => "rate-net, 3 fields",
        }
    }

    pub fn named(title: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.title() == title)
    }

    /// Returns runners of one limited service, one per thread.
    pub fn runners(self, setup: Setup) -> Vec<Runner> {
        let limit = setup.limit;
        match self {
            Self::Bare => runners(&tower::layer::util::Identity::new(), setup),
            Self::Governor => runners(&tower_governor(limit), setup),
            Self::GovernorTold => runners(&tower_governor_told(limit), setup),
            Self::Ours => runners(&ours(setup, Headers::None), setup),
            Self::OursTold => runners(&ours(setup, Headers::RateLimit), setup),
            Self::OursFull => {
                runners(&ours_of(full(limit), setup).headers(Headers::RateLimit), setup)
            }
            Self::OursThree => runners(&ours(setup, Headers::XRateLimit), setup),
            Self::OursLive => runners(&ours_of(&LivePlan::new(quota(limit)), setup), setup),
            // Limits the running requests of all clients, of which there are too few to be denied.
            Self::OursAdaptive => runners(&ours_of(Adaptive::gradient().plan(), setup), setup),
            Self::OursTwo => {
                let (burst, interval) = limit.parts();
                let other = Quota::new(1, 2 * interval).expect("a quota").with_burst(burst);
                runners(&ours_of([quota(limit), other.with_name("other")], setup), setup)
            }
            Self::AxumGovernor => runners(&axum_governor(limit), setup),
            Self::RateNet => runners(&rate_net(setup, false), setup),
            Self::RateNetTold => runners(&rate_net(setup, true), setup),
        }
    }
}

impl Limit {
    /// Returns the burst, and the time of one request.
    fn parts(self) -> (u32, Duration) {
        match self {
            // The largest numbers that all subjects can count.
            Self::Ample => (u32::MAX / 4, Duration::from_micros(1)),
            Self::One => (1, Duration::from_secs(3600)),
            Self::Slow => (1, Duration::from_secs(3600)),
        }
    }

    fn governor(self) -> governor::Quota {
        let (burst, interval) = self.parts();
        let quota = governor::Quota::with_period(interval).expect("a period");
        quota.allow_burst(burst.try_into().expect("above 0"))
    }
}

type Ours = RateLimitLayer<tower_sluice::Rule<PeerIp>, LocalStore>;

fn ours(setup: Setup, headers: Headers) -> Ours {
    ours_of(quota(setup.limit), setup).headers(headers)
}

fn ours_of(plan: impl Into<Plan>, setup: Setup) -> Ours {
    // Space for a million accounts, if they are counted.
    let store = match setup.limit {
        Limit::Slow => LocalStore::with_capacity(setup.capacity as usize),
        _ => LocalStore::new(),
    };
    RateLimitLayer::new(PeerIp::new(), plan, store).headers(Headers::None)
}

fn quota(limit: Limit) -> Quota {
    let (burst, interval) = limit.parts();
    Quota::new(1, interval).expect("a quota").with_burst(burst)
}

/// Returns a quota with a burst of 100 that every nanosecond fills, if the limit is ample.
fn full(limit: Limit) -> Quota {
    match limit {
        Limit::Ample => Quota::new(1, Duration::from_nanos(1)).expect("a quota").with_burst(100),
        _ => quota(limit),
    }
}

fn tower_governor(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let mut config = tower_governor::governor::GovernorConfigBuilder::default();
    config.period(interval).burst_size(burst);
    let config = config.key_extractor(PeerIpKeyExtractor).finish();
    tower_governor::GovernorLayer::<_, _, Body>::new(config.expect("a configuration"))
}

fn tower_governor_told(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let mut config = tower_governor::governor::GovernorConfigBuilder::default();
    config.period(interval).burst_size(burst);
    let config = config.key_extractor(PeerIpKeyExtractor).use_headers().finish();
    tower_governor::GovernorLayer::<_, _, Body>::new(config.expect("a configuration"))
}

fn axum_governor(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(axum_governor::extractor::PeerIp::default())
        .expect_connect_info()
        .quota_default(limit.governor().into())
        .finish();
    axum_governor::GovernorLayer::new(config.expect("a configuration"))
}

/// Reads axum's address, for which it has no extractor.
fn rate_net(setup: Setup, fields: bool) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = setup.limit.parts();
    let eviction = rate_net::Eviction::capacity(setup.capacity as usize);
    let limiter = rate_net::RateLimiter::builder().quota(1, interval).burst(burst);
    let limiter = limiter.eviction(eviction).build();
    let key = |request: &rate_net::tower::RequestInfo<'_>| {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
        Some(rate_net::Key::ip_prefix(peer.0.ip(), 32, 64))
    };
    rate_net::tower::RateLimitLayer::new(limiter, key).with_headers_on_success(fields)
}

/// A layer's service, of which each thread has a clone.
pub trait Limited:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static
{
}

impl<S> Limited for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static
{
}

/// An inner service that answers immediately.
#[derive(Clone)]
pub struct Hello {
    fields: HeaderMap,
}

impl Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let mut response = Response::new(Body::empty());
        if !self.fields.is_empty() {
            response.headers_mut().clone_from(&self.fields);
        }
        ready(Ok(response))
    }
}

/// Returns fields that a response often has.
fn fields() -> HeaderMap {
    let fields = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_LENGTH, "2"),
        (header::CACHE_CONTROL, "private"),
        (header::VARY, "accept-encoding"),
        (header::ETAG, "\"1\""),
    ];
    fields.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect()
}

fn runners<L: Layer<Hello, Service: Limited>>(layer: &L, setup: Setup) -> Vec<Runner> {
    let hello = Hello { fields: if setup.fields { fields() } else { HeaderMap::new() } };
    let service = layer.layer(hello);
    (0..setup.threads).map(|_| runner(service.clone(), setup.cloned)).collect()
}

fn runner(mut service: impl Limited, cloned: bool) -> Runner {
    Box::new(move |requests| {
        let (count, mut admitted) = (requests.len(), 0);
        let start = Instant::now();
        for request in requests {
            let response = if cloned {
                serve(&mut service.clone(), request)
            } else {
                serve(&mut service, request)
            };
            admitted += usize::from(response.status().is_success());
        }
        Served { nanos: start.elapsed().as_nanos() as f64 / count as f64, admitted }
    })
}

#[inline]
fn serve(service: &mut impl Limited, request: Request<Body>) -> Response<Body> {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    match pin!(service.call(black_box(request))).poll(&mut cx) {
        Poll::Ready(Ok(response)) => response,
        Poll::Pending => panic!("a local limiter has nothing to wait for"),
    }
}
