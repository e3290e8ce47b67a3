//! A custom store.
//!
//! `cargo run --example own_store`
#![allow(clippy::print_stdout)]

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{
    Answer, Charge, Decision, Key, Outcome, PeerIp, Quota, RateLimitLayer, RuleName, Source, Store,
    store::Never,
};

/// A fixed number of requests per key, without refill: the smallest possible store.
#[derive(Default)]
struct Punchcards(Mutex<HashMap<(RuleName, Key), u32>>);

type Answered = Answer<Never<Result<Decision, Infallible>>>;

impl Punchcards {
    /// Checks every card first, then changes all or none.
    fn punch(&self, charges: &[Charge<'_>], change: fn(u32, u32) -> u32) -> Answered {
        let mut cards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |cards: &HashMap<_, u32>, c: &Charge<'_>| {
            cards.get(&(c.rule(), c.key().clone())).copied().unwrap_or(0)
        };
        let limit = |c: &Charge<'_>| c.quotas().first().map_or(0, Quota::limit);
        let fits =
            charges.iter().all(|c| used(&cards, c) + c.units() <= limit(c) || c.units() == 0);
        let mut decision = if fits { Decision::allow() } else { Decision::deny() };
        for charge in charges {
            let card = cards.entry((charge.rule(), charge.key().clone())).or_default();
            if fits {
                *card = change(*card, charge.units());
            }
            let left = limit(charge).saturating_sub(*card);
            let retry = fits.then_some(Duration::ZERO); // a full card never empties
            let none = Duration::ZERO;
            let outcome = Outcome::new(charge.rule(), 0, limit(charge), left, none, none, retry);
            decision = decision.outcome(outcome);
        }
        Answer::Now(Ok(decision.from_source(Source::Other("punchcards"))))
    }
}

impl Store for Punchcards {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn take(&self, charges: &[Charge<'_>]) -> Answered {
        self.punch(charges, u32::saturating_add)
    }

    fn settle(&self, charge: &Charge<'_>, units: i64) -> Answered {
        let units = units.unsigned_abs().try_into().unwrap_or(u32::MAX);
        self.punch(&[charge.cost(units)], u32::saturating_sub)
    }

    fn reset(&self, charge: &Charge<'_>) -> Answered {
        self.settle(charge, i64::from(u32::MAX))
    }

    fn block(&self, charge: &Charge<'_>, _: Duration) -> Answered {
        let limit = charge.quotas().first().map_or(0, Quota::limit);
        self.punch(&[charge.cost(limit)], u32::saturating_add)
    }

    fn unblock(&self, charge: &Charge<'_>) -> Answered {
        self.reset(charge)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_day(3), Punchcards::default());
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    let address: SocketAddr = "203.0.113.9:4711".parse()?;
    for _ in 0..5 {
        let request = Request::get("/").extension(address).body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        println!("{} {:?}", response.status(), response.headers().get("ratelimit"));
    }
    Ok(())
}
