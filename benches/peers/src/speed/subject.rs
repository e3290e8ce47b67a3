//! The subjects: each crate's layer around a service that answers immediately, keyed by the peer's
//! address if possible.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use axum::body::Body;
use http::{Request, Response};
use tower::{Layer, Service};
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_rate_limiter::RateLimitFields as Fields;
use tower_sluice::{Headers, LocalStore, PeerIp, Quota, RateLimitLayer, key::HeaderKey};

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
    OursThree,
    AxumGovernor,
    LimiterGcra,
    LimiterGcraTold,
    LimiterWindowTold,
    RateTierTold,
    ThrottleKitTold,
}

/// The limit of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A limit that cannot be exhausted.
    Ample,
    /// One request, and the next an hour later.
    One,
    /// One request at once and one per minute: a million accounts are in debt while memory is read.
    Slow,
}

impl Subject {
    pub const ALL: [Self; 12] = [
        Self::Bare,
        Self::Governor,
        Self::Ours,
        Self::AxumGovernor,
        Self::LimiterGcra,
        Self::GovernorTold,
        Self::OursTold,
        Self::OursThree,
        Self::LimiterGcraTold,
        Self::LimiterWindowTold,
        Self::RateTierTold,
        Self::ThrottleKitTold,
    ];

    /// Returns the name of the crate, with the number of header fields that it adds.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "no layer",
            Self::Governor => "tower_governor",
            Self::GovernorTold => "tower_governor, 2 fields",
            Self::Ours => "tower-sluice",
            Self::OursTold => "tower-sluice, 2 fields",
            Self::OursThree => "tower-sluice, 3 fields",
            Self::AxumGovernor => "axum-governor",
            Self::LimiterGcra => "tower-rate-limiter, GCRA",
            Self::LimiterGcraTold => "tower-rate-limiter, GCRA, 2 fields",
            Self::LimiterWindowTold => "tower-rate-limiter, window, 2 fields",
            Self::RateTierTold => "tower-rate-tier, 3 fields, key in a header",
            Self::ThrottleKitTold => "throttle-kit, 2 fields",
        }
    }

    pub fn named(title: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.title() == title)
    }

    /// Returns a runner for a service limited by `x-api-key`, for crates with a suitable extractor,
    /// or with one that takes a few lines to write.
    pub fn by_text(self, limit: Limit) -> Option<Runner> {
        let all = match self {
            Self::Bare => runners(&tower::layer::util::Identity::new(), 1),
            Self::Governor => runners(&tower_governor_by_text(limit), 1),
            Self::Ours => runners(&ours_by_text(limit), 1),
            Self::RateTierTold => runners(&rate_tier(limit), 1),
            _ => return None,
        };
        all.into_iter().next()
    }

    /// Returns runners of one limited service, one per thread.
    pub fn runners(self, limit: Limit, threads: usize) -> Vec<Runner> {
        match self {
            Self::Bare => runners(&tower::layer::util::Identity::new(), threads),
            Self::Governor => runners(&tower_governor(limit), threads),
            Self::GovernorTold => runners(&tower_governor_told(limit), threads),
            Self::Ours => runners(&ours(limit, Headers::None), threads),
            Self::OursTold => runners(&ours(limit, Headers::RateLimit), threads),
            Self::OursThree => runners(&ours(limit, Headers::XRateLimit), threads),
            Self::AxumGovernor => runners(&axum_governor(limit), threads),
            Self::LimiterGcra => runners(&limiter_gcra(limit, Fields::Disabled), threads),
            Self::LimiterGcraTold => runners(&limiter_gcra(limit, Fields::Draft11), threads),
            Self::LimiterWindowTold => runners(&limiter_window(limit), threads),
            Self::RateTierTold => runners(&rate_tier(limit), threads),
            Self::ThrottleKitTold => runners(&throttle_kit(limit), threads),
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
            Self::Slow => (1, Duration::from_secs(60)),
        }
    }

    fn governor(self) -> governor::Quota {
        let (burst, interval) = self.parts();
        let quota = governor::Quota::with_period(interval).expect("a period");
        quota.allow_burst(burst.try_into().expect("above 0"))
    }
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

fn ours(limit: Limit, headers: Headers) -> RateLimitLayer<tower_sluice::Rule<PeerIp>, LocalStore> {
    let (burst, interval) = limit.parts();
    let quota = Quota::new(1, interval).expect("a quota").with_burst(burst);
    // Space for a million accounts, if they are counted.
    let store = match limit {
        Limit::Slow => LocalStore::with_capacity(1_000_000),
        _ => LocalStore::new(),
    };
    RateLimitLayer::new(PeerIp::new(), quota, store).headers(headers)
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
pub struct Hello;

impl Service<Request<Body>> for Hello {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(Body::empty())))
    }
}

fn runners<L: Layer<Hello, Service: Limited>>(layer: &L, threads: usize) -> Vec<Runner> {
    let service = layer.layer(Hello);
    (0..threads).map(|_| runner(service.clone())).collect()
}

fn runner(mut service: impl Limited) -> Runner {
    Box::new(move |requests| {
        let (count, mut admitted) = (requests.len(), 0);
        let start = Instant::now();
        for request in requests {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(service.poll_ready(&mut cx).is_ready());
            match pin!(service.call(black_box(request))).poll(&mut cx) {
                Poll::Ready(Ok(response)) => {
                    admitted += usize::from(response.status().is_success())
                }
                Poll::Pending => panic!("a local limiter has nothing to wait for"),
            }
        }
        Served { nanos: start.elapsed().as_nanos() as f64 / count as f64, admitted }
    })
}
