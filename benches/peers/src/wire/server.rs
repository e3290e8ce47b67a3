//! The servers: a handler that answers a word, inside each crate's layer, configured as its
//! documentation advises and keyed by the peer's address.

use std::{
    io::Read,
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::Duration,
};

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tower_governor::{
    GovernorLayer, governor::GovernorConfigBuilder, key_extractor::PeerIpKeyExtractor,
};
use tower_sluice::{Headers, LocalStore, PeerIp, Quota, RateLimitLayer, Rule};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Bare,
    Ours,
    OursTold,
    Governor,
    GovernorTold,
}

/// The limit of the single client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A limit that cannot be exhausted.
    Ample,
    /// One request, and the next an hour later.
    One,
}

impl Subject {
    pub const ALL: [Self; 5] =
        [Self::Bare, Self::Ours, Self::OursTold, Self::Governor, Self::GovernorTold];

    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "no layer",
            Self::Ours => "tower-sluice, no fields",
            Self::OursTold => "tower-sluice, as it comes",
            Self::Governor => "tower_governor, as it comes",
            Self::GovernorTold => "tower_governor, 2 fields",
        }
    }

    pub fn named(title: &str) -> Self {
        Self::ALL.into_iter().find(|subject| subject.title() == title).expect("a subject")
    }

    fn app(self, limit: Limit) -> Router {
        let bare = Router::new().route("/", get(async || "hello"));
        match self {
            Self::Bare => bare,
            Self::Ours => bare.layer(ours(limit).headers(Headers::None)),
            Self::OursTold => bare.layer(ours(limit)),
            Self::Governor => {
                let config = governor(limit).finish().expect("a configuration");
                bare.layer(GovernorLayer::new(config))
            }
            Self::GovernorTold => {
                let config = governor(limit).use_headers().finish().expect("a configuration");
                bare.layer(GovernorLayer::new(config))
            }
        }
    }
}

impl Limit {
    pub const ALL: [Self; 2] = [Self::Ample, Self::One];

    pub fn title(self) -> &'static str {
        match self {
            Self::Ample => "all admitted",
            Self::One => "all denied",
        }
    }

    pub fn named(title: &str) -> Self {
        Self::ALL.into_iter().find(|limit| limit.title() == title).expect("a limit")
    }

    /// Returns the burst, and the time of one request.
    fn parts(self) -> (u32, Duration) {
        match self {
            Self::Ample => (u32::MAX / 4, Duration::from_micros(1)),
            Self::One => (1, Duration::from_secs(3600)),
        }
    }
}

fn ours(limit: Limit) -> RateLimitLayer<Rule<PeerIp>, LocalStore> {
    let (burst, interval) = limit.parts();
    RateLimitLayer::per_ip(Quota::new(1, interval).expect("a quota").with_burst(burst))
}

type Config = GovernorConfigBuilder<PeerIpKeyExtractor, governor::middleware::NoOpMiddleware>;

fn governor(limit: Limit) -> Config {
    let (burst, interval) = limit.parts();
    let mut config = GovernorConfigBuilder::default();
    config.period(interval).burst_size(burst);
    config
}

/// Runs the child process: prints its port, and serves until its standard input ends.
pub fn serve(subject: Subject, limit: Limit) {
    // The server stops however the parent ends.
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        println!("{}", listener.local_addr().expect("it is bound").port());
        let app = subject.app(limit).into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).await.expect("it serves");
    });
}
