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
use tower_rate_limiter::RateLimitFields as Fields;
use tower_sluice::{
    Headers, LivePlan, LocalStore, PeerIp, Plan, Quota, RateLimitLayer, key::HeaderKey,
    rule::Adaptive,
};

use crate::floor::FloorLayer;

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
    Floor,
    FloorTold,
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
    LimiterGcra,
    LimiterGcraTold,
    LimiterWindowTold,
    RateNet,
    RateNetTold,
    RateTierTold,
    ThrottleKitTold,
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
    pub const ALL: [Self; 19] = [
        Self::Bare,
        Self::Floor,
        Self::FloorTold,
        Self::Governor,
        Self::Ours,
        Self::RateNet,
        Self::AxumGovernor,
        Self::LimiterGcra,
        Self::GovernorTold,
        Self::OursTold,
        Self::OursFull,
        Self::OursThree,
        Self::OursLive,
        Self::OursTwo,
        Self::RateNetTold,
        Self::LimiterGcraTold,
        Self::LimiterWindowTold,
        Self::RateTierTold,
        Self::ThrottleKitTold,
    ];

    /// The subjects that take less than a microsecond.
    pub const FAST: [Self; 10] = [
        Self::Bare,
        Self::Floor,
        Self::FloorTold,
        Self::Governor,
        Self::Ours,
        Self::RateNet,
        Self::GovernorTold,
        Self::OursTold,
        Self::OursFull,
        Self::RateNetTold,
    ];

    /// This crate's forms beside tower_governor.
    pub const OWN: [Self; 10] = [
        Self::Bare,
        Self::Floor,
        Self::FloorTold,
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
            Self::Floor => "the floor",
            Self::FloorTold => "the floor, 2 fields",
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
            Self::LimiterGcra => "tower-rate-limiter, GCRA",
            Self::LimiterGcraTold => "tower-rate-limiter, GCRA, 2 fields",
            Self::LimiterWindowTold => "tower-rate-limiter, window, 2 fields",
            Self::RateNet => "rate-net",
            Self::RateNetTold => "rate-net, 3 fields",
            Self::RateTierTold => "tower-rate-tier, 3 fields, key in a header",
            Self::ThrottleKitTold => "throttle-kit, 2 fields",
        }
    }

    /// Returns the floor to which this subject is compared.
    pub fn floor(self) -> Self {
        if self.title().contains("fields") { Self::FloorTold } else { Self::Floor }
    }

    pub fn named(title: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.title() == title)
    }

    /// Returns a runner for a service limited by `x-api-key`, for crates with a suitable extractor,
    /// or with one that takes a few lines to write.
    pub fn by_text(self, limit: Limit) -> Option<Runner> {
        let setup = Setup::new(limit);
        let all = match self {
            Self::Bare => runners(&tower::layer::util::Identity::new(), setup),
            Self::Governor => runners(&tower_governor_by_text(limit), setup),
            Self::Ours => runners(&ours_by_text(limit), setup),
            Self::RateTierTold => runners(&rate_tier(limit), setup),
            _ => return None,
        };
        all.into_iter().next()
    }

    /// Returns runners of one limited service, one per thread.
    pub fn runners(self, setup: Setup) -> Vec<Runner> {
        let limit = setup.limit;
        match self {
            Self::Bare => runners(&tower::layer::util::Identity::new(), setup),
            Self::Floor => runners(&floor(limit, false), setup),
            Self::FloorTold => runners(&floor(limit, true), setup),
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
            Self::LimiterGcra => runners(&limiter_gcra(limit, Fields::Disabled), setup),
            Self::LimiterGcraTold => runners(&limiter_gcra(limit, Fields::Draft11), setup),
            Self::LimiterWindowTold => runners(&limiter_window(limit), setup),
            Self::RateNet => runners(&rate_net(setup, false), setup),
            Self::RateNetTold => runners(&rate_net(setup, true), setup),
            Self::RateTierTold => runners(&rate_tier(limit), setup),
            Self::ThrottleKitTold => runners(&throttle_kit(limit), setup),
        }
    }
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ample => "ample",
            Self::One => "one",
            Self::Slow => "slow",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Self::Ample, Self::One, Self::Slow].into_iter().find(|limit| limit.name() == name)
    }

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

fn floor(limit: Limit, has_fields: bool) -> FloorLayer {
    let (burst, interval) = limit.parts();
    FloorLayer::new(burst, interval, has_fields)
}

fn ours_by_text(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let quota = Quota::new(1, interval).expect("a quota").with_burst(burst);
    let store = LocalStore::with_capacity(1_000_000);
    RateLimitLayer::new(HeaderKey::new("x-api-key"), quota, store).headers(Headers::None)
}

/// `x-api-key` as a key of tower_governor.
#[derive(Clone, Debug)]
struct ApiKey;

impl tower_governor::key_extractor::KeyExtractor for ApiKey {
    type Key = String;

    fn name(&self) -> &'static str {
        "api key"
    }

    fn extract<T>(&self, request: &Request<T>) -> Result<String, tower_governor::GovernorError> {
        let key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
        key.map(str::to_owned).ok_or(tower_governor::GovernorError::UnableToExtractKey)
    }

    fn key_name(&self, key: &String) -> Option<String> {
        Some(key.clone())
    }
}

fn tower_governor_by_text(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let mut config = tower_governor::governor::GovernorConfigBuilder::default();
    config.period(interval).burst_size(burst);
    let config = config.key_extractor(ApiKey).finish();
    tower_governor::GovernorLayer::<_, _, Body>::new(config.expect("a configuration"))
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

fn limiter_gcra(limit: Limit, fields: Fields) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let quota = tower_rate_limiter::GcraQuota::new(1, interval, burst).expect("a quota");
    tower_rate_limiter::RateLimitLayer::builder(tower_rate_limiter::IpKeyExtractor::new())
        .with_policy(tower_rate_limiter::MemoryGcra::new(quota))
        .rate_limit_fields(fields)
        .build()
        .expect("a layer")
}

fn limiter_window(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, _) = limit.parts();
    let store = tower_rate_limiter::MemoryStore::new();
    let window = Duration::from_secs(3600);
    let policy = tower_rate_limiter::FixedWindow::new(store, burst.into(), window);
    tower_rate_limiter::RateLimitLayer::builder(tower_rate_limiter::IpKeyExtractor::new())
        .with_policy(policy.expect("a policy"))
        .build()
        .expect("a layer")
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

/// Limits by a header field, because it sees nothing else.
fn rate_tier(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let quota = tower_rate_tier::Quota::with_window(burst, interval * burst);
    let tiers = tower_rate_tier::RateTier::builder().tier("one", quota).default_tier("one").build();
    tower_rate_tier::TierLimitLayer::new(tiers).identifier_fn(|headers| {
        let key = headers.get("x-api-key")?.to_str().ok()?;
        Some(tower_rate_tier::TierIdentity::new(key, "one"))
    })
}

/// Uses intervals in whole milliseconds.
fn throttle_kit(limit: Limit) -> impl Layer<Hello, Service: Limited> {
    let (burst, interval) = limit.parts();
    let interval = interval.max(Duration::from_millis(1));
    let quota = throttle_kit::Quota::from_parts(interval, burst);
    throttle_kit::RateLimitLayer::new(quota, throttle_kit::InMemoryBackend::new())
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
