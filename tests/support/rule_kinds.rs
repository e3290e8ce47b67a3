//! Every kind of rules, and a service behind each of them.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_sluice::{
    Algorithm, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
    middleware::HoldUntil,
    store::DynStore,
};

use crate::support::ALGORITHMS;

/// The units of an account, and its slots.
const UNITS: u32 = 5;
/// The units of an account that can be leased.
const LEASABLE: u32 = 100;
/// A rate that denies nothing here. It has a unit of its own, so that it is another account.
const AMPLE: u32 = 1_000_000;
/// Ten years: no unit returns, and no window ends.
const PERIOD: Duration = Duration::from_secs(3_650 * 86_400);

pub(crate) type AnyStore = Arc<DynStore<Infallible>>;
pub(crate) type Site = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// A kind of rules, whose key is the header `x-api-key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first kind.
    Slots,
    SlotsAndRate,
    Rate(Algorithm),
    /// A rate with enough units for leases.
    Leasable,
    TwoQuotas,
    TwoRules,
    Or,
    /// A share of a pool of all clients.
    FairBy,
}

impl Kind {
    /// Returns every kind.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = vec![Self::Slots];
        while let Some(next) = all.last().and_then(|last| last.next()) {
            all.push(next);
        }
        all
    }

    /// Returns the kind after this one. A kind that has no place in this order does not compile.
    fn next(self) -> Option<Self> {
        match self {
            Self::Slots => Some(Self::SlotsAndRate),
            Self::SlotsAndRate => Some(Self::Rate(ALGORITHMS[0])),
            Self::Rate(algorithm) => {
                let mut after = ALGORITHMS.into_iter().skip_while(|other| *other != algorithm);
                Some(after.nth(1).map_or(Self::Leasable, Self::Rate))
            }
            Self::Leasable => Some(Self::TwoQuotas),
            Self::TwoQuotas => Some(Self::TwoRules),
            Self::TwoRules => Some(Self::Or),
            Self::Or => Some(Self::FairBy),
            Self::FairBy => None,
        }
    }

    pub(crate) fn has_slots(self) -> bool {
        matches!(self, Self::Slots | Self::SlotsAndRate)
    }

    /// Returns the most requests of a key that may run: at the same time for slots, or at all.
    pub(crate) fn limit(self) -> u32 {
        match self {
            Self::Slots | Self::SlotsAndRate => UNITS,
            Self::Rate(_) | Self::TwoQuotas | Self::TwoRules => UNITS,
            Self::Leasable | Self::FairBy => LEASABLE,
            Self::Or => 2 * UNITS,
        }
    }

    /// Returns a service that counts the requests that run. The responses have the decisions.
    pub(crate) fn site(self, store: AnyStore, runs: Arc<Runs>) -> Site {
        let handler = service_fn(move |request| {
            let runs = runs.clone();
            async move {
                runs.run(self, request).await;
                Ok::<_, Infallible>(Response::new(String::new()))
            }
        });
        let key = || HeaderKey::new("x-api-key");
        let few = rate(UNITS, Algorithm::Gcra);
        let ample = rate(AMPLE, Algorithm::Gcra).with_name("ample").with_unit("calls");
        let slots = Quota::concurrent(UNITS);
        let quotas = match self {
            Self::Slots => vec![slots],
            Self::SlotsAndRate => vec![slots, ample],
            Self::Rate(algorithm) => vec![rate(UNITS, algorithm)],
            Self::Leasable => vec![rate(LEASABLE, Algorithm::Gcra)],
            Self::TwoQuotas => vec![few, ample],
            Self::TwoRules | Self::Or | Self::FairBy => vec![few],
        };
        let rule = Rule::new("api", key(), quotas);
        match self {
            Self::TwoRules => {
                let rules = (rule, Rule::new("site", Everyone, ample));
                let layer = RateLimitLayer::rules(rules, store).expose_decision();
                BoxCloneSyncService::new(layer.layer(handler))
            }
            Self::Or => {
                let rule = rule.or(Rule::new("credits", key(), few));
                let layer = RateLimitLayer::rules(rule, store).expose_decision();
                BoxCloneSyncService::new(layer.layer(handler))
            }
            Self::FairBy => {
                let pool = rate(LEASABLE, Algorithm::Gcra);
                let rule = Rule::new("pool", Everyone, pool).fair_by(key());
                let layer = RateLimitLayer::rules(rule, store).expose_decision();
                BoxCloneSyncService::new(layer.layer(handler))
            }
            _ => {
                let layer = RateLimitLayer::rules(rule, store).expose_decision();
                // A text holds no slot.
                BoxCloneSyncService::new(layer.hold_until(HoldUntil::Head).layer(handler))
            }
        }
    }
}

fn rate(units: u32, algorithm: Algorithm) -> Quota {
    Quota::new(units, PERIOD).expect("a quota").with_algorithm(algorithm)
}

/// The requests of busy keys that ran.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The time for which a request holds its slot.
    hold: Duration,
    all: AtomicU32,
    now: AtomicU32,
    /// The most that ran at the same time.
    most: AtomicU32,
}

impl Runs {
    pub(crate) fn new(hold: Duration) -> Arc<Self> {
        Arc::new(Self { hold, ..Self::default() })
    }

    async fn run(&self, kind: Kind, request: Request<()>) {
        if !request.headers()["x-api-key"].as_bytes().starts_with(b"busy") {
            return;
        }
        self.all.fetch_add(1, Relaxed);
        let now = self.now.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
        if kind.has_slots() {
            sleep(self.hold).await;
        }
        self.now.fetch_sub(1, Relaxed);
    }

    pub(crate) fn all(&self) -> u32 {
        self.all.load(Relaxed)
    }

    /// Returns what the limit bounds.
    pub(crate) fn limited(&self, kind: Kind) -> u32 {
        if kind.has_slots() { self.most.load(Relaxed) } else { self.all() }
    }
}

/// Asks for a response as the client `key`.
pub(crate) async fn respond(site: &Site, key: &str) -> Response<String> {
    let request = Request::get("/").header("x-api-key", key);
    let request = request.body(()).expect("a request");
    let Ok(response) = site.clone().oneshot(request).await;
    response
}

/// The policy for an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    FailOpen,
    FailClosed,
    Fallback,
}

pub(crate) const POLICIES: [Policy; 3] = [Policy::FailOpen, Policy::FailClosed, Policy::Fallback];
