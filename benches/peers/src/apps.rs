//! The subjects: each crate's layer around one service, configured as its documentation advises for
//! the server's place.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use axum_governor::extractor as theirs;
use http::{HeaderName, Request, Response};
use ipnet::IpNet;
use tower::{Layer, Service, service_fn, util::BoxCloneSyncService};
use tower_governor::key_extractor::{PeerIpKeyExtractor, SmartIpKeyExtractor};
use tower_sluice::{AccessList, ClientIp, KeyExtractor, LocalStore, PeerIp, Quota, RateLimitLayer};

pub type App = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

const TRUSTED: &str = "10.0.0.0/8";
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Ours,
    Smart,
    Plain,
    AxumGovernor,
}

/// The place of the server, which determines the trusted addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Clients connect directly.
    Direct,
    /// A proxy in 10.0.0.0/8 appends the client to `X-Forwarded-For`.
    ForwardedFor,
    /// A proxy appends the client to `Forwarded`.
    Forwarded,
    /// A proxy overwrites `X-Real-IP`.
    RealIp,
}

/// A burst, and one more request per `interval`.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub burst: u32,
    pub interval: Duration,
}

/// The limit of every account, unless a row has another.
pub const THREE: Limit = Limit { burst: 3, interval: Duration::from_secs(1200) };

impl Peer {
    pub const ALL: [Self; 4] = [Self::Ours, Self::Smart, Self::Plain, Self::AxumGovernor];

    pub fn title(self) -> &'static str {
        match self {
            Self::Ours => "tower-sluice",
            Self::Smart => "tower_governor, smart",
            Self::Plain => "tower_governor, peer",
            Self::AxumGovernor => "axum-governor",
        }
    }

    /// Returns a server limited by address; `None` if the documentation advises against it.
    pub fn app(self, place: Place, limit: Limit) -> Option<App> {
        let smart = axum_governor::extractor::SmartIp::new();
        Some(match (self, place) {
            (Self::Ours, Place::Direct) => ours(PeerIp::new(), limit),
            (Self::Ours, Place::ForwardedFor) => ours(behind(), limit),
            (Self::Ours, Place::Forwarded) => ours(behind().forwarded(), limit),
            (Self::Ours, Place::RealIp) => ours(behind().header(REAL_IP), limit),
            (Self::Smart, Place::Direct) => return None,
            (Self::Smart, _) => tower_governor(SmartIpKeyExtractor, limit),
            (Self::Plain, _) => tower_governor(PeerIpKeyExtractor, limit),
            (Self::AxumGovernor, Place::Direct) => axum_governor(theirs::PeerIp::default(), limit),
            (Self::AxumGovernor, _) => {
                let trusted: IpNet = TRUSTED.parse().expect("a network");
                axum_governor(smart.with_trusted_proxies([trusted]), limit)
            }
        })
    }
}

fn behind() -> ClientIp {
    ClientIp::behind([TRUSTED]).expect("a network")
}

/// Puts the layer around a service that answers 200 to everything.
pub fn around<L>(layer: &L) -> App
where
    L: Layer<App>,
    L::Service: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    L::Service: Clone + Send + Sync + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
{
    let hello = service_fn(async |_: Request<Body>| Ok(Response::new(Body::empty())));
    BoxCloneSyncService::new(layer.layer(BoxCloneSyncService::new(hello)))
}

pub fn ours<K>(extractor: K, limit: Limit) -> App
where
    K: KeyExtractor + Send + Sync + 'static,
{
    around(&RateLimitLayer::new(extractor, quota(limit), LocalStore::new()))
}

pub fn quota(limit: Limit) -> Quota {
    Quota::new(1, limit.interval).expect("a quota").with_burst(limit.burst)
}

pub fn tower_governor<K>(extractor: K, limit: Limit) -> App
where
    K: tower_governor::key_extractor::KeyExtractor + Send + Sync + 'static,
    K::Key: Send + Sync + 'static,
{
    let config = tower_governor::governor::GovernorConfigBuilder::default()
        .period(limit.interval)
        .burst_size(limit.burst)
        .key_extractor(extractor)
        .finish();
    around(&tower_governor::GovernorLayer::new(config.expect("a configuration")))
}

pub fn axum_governor<K: theirs::KeyExtractor>(extractor: K, limit: Limit) -> App {
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(extractor)
        .expect_connect_info()
        .quota_default(their_quota(limit))
        .finish();
    around(&axum_governor::GovernorLayer::new(config.expect("a configuration")))
}

/// Limits clients behind the proxies, and allows the proxies' own requests, as health checks.
pub fn ours_allowing_proxies() -> App {
    let list = AccessList::client_networks(behind(), [TRUSTED]).expect("a network");
    around(&RateLimitLayer::new(behind(), quota(THREE), LocalStore::new()).allow(list))
}

/// Does the same with axum-governor, whose list compares the address of the peer.
pub fn axum_governor_allowing_proxies() -> App {
    let trusted: IpNet = TRUSTED.parse().expect("a network");
    let config = axum_governor::GovernorConfigBuilder::default()
        .with_extractor(theirs::SmartIp::new().with_trusted_proxies([trusted]))
        .expect_connect_info()
        .quota_default(their_quota(THREE))
        .whitelist_ips([trusted])
        .finish();
    around(&axum_governor::GovernorLayer::new(config.expect("a configuration")))
}

pub fn their_quota(limit: Limit) -> axum_governor::Quota {
    let quota = governor::Quota::with_period(limit.interval).expect("a period");
    quota.allow_burst(limit.burst.try_into().expect("above 0")).into()
}
