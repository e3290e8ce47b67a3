//! The servers: a handler that needs CPU time, behind each crate's limit. A request beyond the limit
//! is shed with 503 at once.

use std::{
    hint::black_box,
    io::Read,
    net::Ipv4Addr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use axum::{
    BoxError, Router,
    error_handling::HandleErrorLayer,
    http::{StatusCode, Uri},
};
use tokio::{net::TcpListener, task::spawn_blocking};
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_acc::ConcurrencyLimitLayer;
use tower_resilience_adaptive::AdaptiveLimiterLayer;
use tower_sluice::{LocalStore, RateLimitLayer, key::Everyone, rule::Adaptive};

/// The threads that work. More requests wait for one of them.
const WORKERS: usize = 4;
/// The mean work of a request. It takes a few milliseconds.
const MEAN_STEPS: f64 = 5_000_000.0;
/// The latency above which a limit by AIMD falls.
const TOO_SLOW: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Bare,
    Fixed,
    Gradient,
    Aimd,
    AccVegas,
    AccGradient,
    AccAimd,
    ResilienceVegas,
    ResilienceGradient,
    ResilienceAimd,
}

/// Sheds the requests that a layer of limits makes wait.
macro_rules! shed {
    ($app:expr, $layer:expr) => {
        $app.layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(async |_: BoxError| StatusCode::SERVICE_UNAVAILABLE))
                .load_shed()
                .layer($layer),
        )
    };
}

impl Subject {
    pub const ALL: [Self; 10] = [
        Self::Bare,
        Self::Fixed,
        Self::Gradient,
        Self::Aimd,
        Self::AccVegas,
        Self::AccGradient,
        Self::AccAimd,
        Self::ResilienceVegas,
        Self::ResilienceGradient,
        Self::ResilienceAimd,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Bare => "no limit",
            Self::Fixed => "tower, 8 at a time",
            Self::Gradient => "tower-sluice, gradient",
            Self::Aimd => "tower-sluice, aimd",
            Self::AccVegas => "tower-acc, Vegas",
            Self::AccGradient => "tower-acc, Gradient2",
            Self::AccAimd => "tower-acc, AIMD",
            Self::ResilienceVegas => "tower-resilience, Vegas",
            Self::ResilienceGradient => "tower-resilience, Gradient2",
            Self::ResilienceAimd => "tower-resilience, AIMD",
        }
    }

    pub fn named(title: &str) -> Self {
        Self::ALL.into_iter().find(|subject| subject.title() == title).expect("a subject")
    }

    /// Returns the server. All limits start at 20, and may fall to 1.
    fn app(self) -> Router {
        // One service for all paths, because a layer of limits has a limit for each service.
        let app = Router::new().fallback(answer);
        let ours = |limit: Adaptive| RateLimitLayer::new(Everyone, limit.plan(), LocalStore::new());
        match self {
            Self::Bare => app,
            Self::Fixed => shed!(app, GlobalConcurrencyLimitLayer::new(8)),
            Self::Gradient => app.layer(ours(Adaptive::gradient())),
            Self::Aimd => app.layer(ours(Adaptive::aimd(TOO_SLOW))),
            Self::AccVegas => {
                shed!(app, ConcurrencyLimitLayer::new(tower_acc::Vegas::default()))
            }
            Self::AccGradient => {
                let limit = tower_acc::Gradient2::builder().initial_limit(20).min_limit(1);
                shed!(app, ConcurrencyLimitLayer::new(limit.build()))
            }
            Self::AccAimd => {
                let limit = tower_acc::Aimd::builder().initial_limit(20).min_limit(1);
                shed!(app, ConcurrencyLimitLayer::new(limit.timeout(TOO_SLOW).build()))
            }
            Self::ResilienceVegas => {
                let limit = tower_resilience_adaptive::Vegas::builder().initial_limit(20);
                shed!(app, AdaptiveLimiterLayer::new(limit.build().expect("valid")))
            }
            Self::ResilienceGradient => {
                let limit = tower_resilience_adaptive::Gradient2::builder().initial_limit(20);
                shed!(app, AdaptiveLimiterLayer::new(limit.build().expect("valid")))
            }
            Self::ResilienceAimd => {
                let limit = tower_resilience_adaptive::Aimd::builder().initial_limit(20);
                let limit = limit.min_limit(1).latency_threshold(TOO_SLOW).build();
                shed!(app, AdaptiveLimiterLayer::new(limit.expect("valid")))
            }
        }
    }
}

/// Works for an exponentially distributed time on one of the workers.
async fn work() {
    static REQUESTS: AtomicU64 = AtomicU64::new(1);
    let mut random = REQUESTS.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    random ^= random >> 31;
    random = random.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
    let steps = (-(1.0 - unit).ln() * MEAN_STEPS) as u64;
    let sum = spawn_blocking(move || {
        (0..steps).fold(random, |sum, step| black_box(sum ^ step).rotate_left(5))
    });
    black_box(sum.await.expect("no panic"));
}

async fn answer(uri: Uri) -> (StatusCode, Vec<u8>) {
    work().await;
    match uri.path() {
        "/large" => (StatusCode::OK, vec![b'x'; 4 << 20]),
        "/broken" => (StatusCode::SERVICE_UNAVAILABLE, Vec::new()),
        _ => (StatusCode::OK, b"done".to_vec()),
    }
}

/// Runs the child process: prints its port, and serves until its standard input ends.
pub fn serve(subject: Subject) {
    // The server stops however the parent ends.
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(WORKERS).build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        println!("{}", listener.local_addr().expect("it is bound").port());
        // Builds the services now. Otherwise, axum builds them for each connection, and so a limit.
        let app = subject.app().with_state(());
        axum::serve(listener, app).await.expect("it serves");
    });
}
