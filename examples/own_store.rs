//! A custom store.
//!
//! `cargo run -p dev --example own_store`
#![allow(clippy::print_stdout)]

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, http::Request, routing::get};
use tower::ServiceExt;
use tower_sluice::{
    Algorithm, Decision, Key, PeerIp, Quota, RateLimitLayer, Store,
    decision::{Outcome, Source},
    rule::RuleName,
    store::{Answer, Charge, Context, Never, Op, Unsupported},
};

/// A fixed number of units per key and quota, without refill: a small store.
pub(crate) struct Punchcards {
    state: Mutex<State>,
    now: Box<dyn Fn() -> Duration + Send + Sync>,
}

#[derive(Default)]
struct State {
    used: HashMap<Card, u32>,
    blocked_until: HashMap<(RuleName, Key), Duration>,
}

/// The rule, the key and the index of the quota.
type Card = (RuleName, Key, usize);

/// Returns the cards of the charges, each with its charge and its quota.
fn cards<'a>(charges: &'a [Charge<'a>]) -> impl Iterator<Item = (Card, &'a Charge<'a>, &'a Quota)> {
    charges.iter().flat_map(|charge| {
        let card = |index| (charge.rule, charge.key.clone(), index);
        charge.charged_quotas().map(move |(index, quota)| (card(index), charge, quota))
    })
}

impl Punchcards {
    /// Creates a store with a clock, so that a test can use its own.
    pub(crate) fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { state: Mutex::default(), now: Box::new(now) }
    }
}

impl State {
    fn used(&self, card: &Card) -> u32 {
        self.used.get(card).copied().unwrap_or(0)
    }

    /// Checks every card first, then changes all or none. A peek returns the result, and changes
    /// nothing.
    fn take(&mut self, charges: &[Charge<'_>], now: Duration, peeks: bool) -> Decision {
        if let Some(denial) = self.deny_blocked(charges, now) {
            return denial;
        }
        // A call may name one card several times.
        let mut costs: HashMap<Card, u32> = HashMap::new();
        for (card, charge, _) in cards(charges) {
            let cost = costs.entry(card).or_default();
            *cost = cost.saturating_add(charge.cost);
        }
        let fits = |(card, charge, quota): (Card, &Charge<'_>, &Quota)| {
            let need = u64::from(self.used(&card)) + u64::from(costs[&card]);
            let most = u64::from(quota.limit()) + u64::from(quota.soft());
            charge.cost == 0 || need + u64::from(charge.headroom) <= most
        };
        let fits: Vec<bool> = cards(charges).map(fits).collect();
        let allowed = fits.iter().all(|fits| *fits);
        if allowed && !peeks {
            for (card, cost) in &costs {
                let used = self.used.entry(card.clone()).or_default();
                *used = used.saturating_add(*cost);
            }
        }
        let mut decision = if allowed { Decision::allow() } else { Decision::deny() };
        for ((card, charge, quota), fits) in cards(charges).zip(fits) {
            let peeked = if allowed && peeks { costs[&card] } else { 0 };
            let used = self.used(&card).saturating_add(peeked);
            let outcome = Outcome::full(card.0, card.2, quota.limit())
                .with_remaining(quota.limit().saturating_sub(used))
                // A full card never empties.
                .with_retry_after(fits.then_some(Duration::ZERO));
            if allowed && charge.cost > 0 && used > quota.limit() {
                decision = decision.with_overage();
            }
            decision = decision.with_outcome(outcome);
        }
        decision
    }

    fn deny_blocked(&self, charges: &[Charge<'_>], now: Duration) -> Option<Decision> {
        let left = |charge: &Charge<'_>| {
            let until = self.blocked_until.get(&(charge.rule, charge.key.clone()))?;
            Some((charge.rule, until.checked_sub(now).filter(|left| !left.is_zero())?))
        };
        let charging = charges.iter().filter(|charge| charge.cost > 0);
        let (rule, left) = charging.filter_map(left).max_by_key(|(_, left)| *left)?;
        let block = Outcome::full(rule, 0, 1).with_remaining(0).with_retry_after(Some(left));
        Some(Decision::deny().with_outcome(block).with_blocked())
    }

    /// Changes the cards of one charge, and returns their state.
    fn change(
        &mut self,
        charge: &Charge<'_>,
        now: Duration,
        change: impl Fn(u32, &Quota) -> u32,
    ) -> Decision {
        for (card, _, quota) in cards(&[*charge]) {
            let used = self.used.entry(card).or_default();
            *used = change(*used, quota);
        }
        self.take(&[charge.with_cost(0)], now, false)
    }
}

impl Store for Punchcards {
    type Error = Infallible;
    type Future = Never<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, _: &Context<'_>) -> Answer<Self::Future> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (self.now)();
        let blocked = |charge: &Charge<'_>| (charge.rule, charge.key.clone());
        let decision = match op {
            Op::Take(charges) => state.take(charges, now, false),
            Op::Peek(charges) => state.take(charges, now, true),
            Op::Adjust(charge, units) => state.change(charge, now, |used, quota| {
                // A late charge stops at twice the limit.
                let most = i64::from(quota.limit()) * 2;
                let used = i64::from(used).saturating_add(units).clamp(0, most);
                u32::try_from(used).unwrap_or(u32::MAX)
            }),
            Op::Reset(charge) => state.change(charge, now, |_, _| 0),
            Op::Block(charge, time) => {
                state.blocked_until.insert(blocked(charge), now.saturating_add(time));
                state.take(&[charge.with_cost(0)], now, false)
            }
            Op::Unblock(charge) => {
                state.blocked_until.remove(&blocked(charge));
                state.take(&[charge.with_cost(0)], now, false)
            }
            _ => Decision::deny().with_source(Source::Unsupported),
        };
        Answer::Now(Ok(decision.with_source(Source::Other("punchcards"))))
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (card, charge, _) in cards(charges).filter(|_| taken.is_allowed()) {
            let units = units.unwrap_or(u32::MAX).min(charge.cost);
            let used = state.used.entry(card).or_default();
            *used = used.saturating_sub(units);
        }
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        if charges.iter().any(|charge| !charge.max_wait.is_zero()) {
            return Err(Unsupported::new("max_wait, because cards have no refill; remove it"));
        }
        let mut quotas = charges.iter().flat_map(|charge| charge.quotas);
        if quotas.any(|quota| quota.algorithm() == Algorithm::Concurrent) {
            return Err(Unsupported::new("slots, because cards are not returned; use LocalStore"));
        }
        if charges.iter().any(|charge| charge.report_only) {
            return Err(Unsupported::new("report-only rules; use LocalStore"));
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let opened = Instant::now();
    let store = Punchcards::new(move || opened.elapsed());
    let layer = RateLimitLayer::new(PeerIp::new(), Quota::per_day(3), store);
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    let address: SocketAddr = "203.0.113.9:4711".parse()?;
    for _ in 0..5 {
        let request = Request::get("/").extension(address).body(Body::empty())?;
        let response = app.clone().oneshot(request).await?;
        println!("{} {:?}", response.status(), response.headers().get("ratelimit"));
    }
    Ok(())
}
