//! A request that needs more than one slot does not wait, on any store.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, StatusCode};
use tokio::time::timeout;
use tower_sluice::{
    Cost, Decision, Limiter, Quota, RateLimitLayer, RequestHead, Rule,
    key::HeaderKey,
    limiter::NotReady,
    middleware::HoldUntil,
    rule::{Adaptive, RuleName, Rules},
    store::DynStore,
};

use super::{answer, with};

pub(crate) type AnyStore = Arc<DynStore<Infallible>>;

const MAX_WAIT: Duration = Duration::from_secs(2 * 3_600);
/// Far below the wait, and far above the time of an answer.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Returns ten slots of each kind.
fn ten_slots() -> [Quota; 3] {
    let adaptive = Adaptive::aimd(Duration::from_secs(1)).max(10).initial(10);
    let adaptive = adaptive.plan().quotas().as_ref()[0];
    [Quota::concurrent(10), Quota::concurrent(8).with_soft(2), adaptive]
}

/// A client of a store, with rules of its own.
struct Client<'a> {
    what: String,
    /// A part of the names of its rules.
    name: &'a str,
    store: &'a AnyStore,
}

const KEY: &str = "alice";

impl Client<'_> {
    /// Returns a rule whose requests wait, and have the cost of a header field.
    fn rule(&self, name: &str, quotas: &[Quota], field: &'static str) -> Rule<HeaderKey> {
        let cost = Cost::from_fn(move |head: &RequestHead<'_>| {
            head.headers[field].to_str().ok().and_then(|text| text.parse().ok()).expect("a number")
        });
        let name = format!("{name}{}", self.name);
        let rule = Rule::new(&name, HeaderKey::new("x-key"), quotas.to_vec());
        rule.cost(cost).max_wait(MAX_WAIT)
    }

    /// Returns the status of a request for a number of slots. The request is answered at once.
    async fn asks<K: Rules>(&self, rules: K, slots: u32) -> StatusCode {
        let layer = RateLimitLayer::rules(rules, self.store.clone()).hold_until(HoldUntil::Head);
        let slots = slots.to_string();
        let request: Request<()> = with(&[("x-key", KEY), ("x-slots", &slots), ("x-units", "1")]);
        let response = timeout(AT_ONCE, answer(&layer, request)).await;
        response.unwrap_or_else(|_| panic!("{}: it waits", self.what)).status()
    }

    fn limiter(&self, rule: &str) -> Limiter<AnyStore> {
        let rule = RuleName::new(&format!("{rule}{}", self.name)).expect("a name");
        Limiter::named(rule.as_str(), self.store.clone())
    }

    /// Waits for slots with a limiter, which answers at once.
    async fn until_ready(
        &self,
        rule: &str,
        quotas: &[Quota],
        slots: u32,
    ) -> Result<Decision, NotReady<Infallible>> {
        let limiter = self.limiter(rule);
        let ready = timeout(AT_ONCE, limiter.until_ready(KEY, quotas, slots)).await;
        ready.unwrap_or_else(|_| panic!("{}: it waits", self.what))
    }
}

/// Checks requests for ten slots, of which one is held.
async fn by_slots(client: &Client<'_>, slots: Quota) {
    let what = &client.what;
    let rule = || client.rule("slots", &[slots], "x-slots");
    let running = client.limiter("slots").take(KEY, &slots, 1).await;
    assert!(running.is_allowed(), "{what}");
    assert_ne!(client.asks(rule(), 10).await, StatusCode::OK, "{what}");
    assert_eq!(client.asks(rule(), 1).await, StatusCode::OK, "{what}: others run");
    let ready = client.until_ready("slots", &[slots], 10).await;
    assert_eq!(ready.err(), Some(NotReady::UnknownWait), "{what}");
    let limiter = client.limiter("slots");
    let throttled = timeout(AT_ONCE, limiter.throttle(KEY, &slots, async { 7 })).await;
    assert_eq!(throttled, Ok(Ok(7)), "{what}: others run");
    drop(running);
}

/// Checks requests for ten slots that are free, with a rate that a request has used up.
async fn by_a_rate(client: &Client<'_>, slots: Quota) {
    let what = &client.what;
    let both = [slots, Quota::per_hour(10)];
    let rule = || client.rule("both", &both, "x-slots");
    assert_eq!(client.asks(rule(), 10).await, StatusCode::OK, "{what}");
    assert_ne!(client.asks(rule(), 10).await, StatusCode::OK, "{what}, rate");
    let ready = client.until_ready("both", &both, 10).await;
    assert_eq!(ready.err(), Some(NotReady::UnknownWait), "{what}, rate");
}

/// Checks the same with the rate in a rule of its own, which has another cost.
async fn by_another_rule(client: &Client<'_>, slots: Quota) {
    let what = &client.what;
    let rate = [Quota::per_hour(1)];
    let rules = || (client.rule("all", &[slots], "x-slots"), client.rule("rate", &rate, "x-units"));
    assert_eq!(client.asks(rules(), 10).await, StatusCode::OK, "{what}");
    assert_ne!(client.asks(rules(), 10).await, StatusCode::OK, "{what}, rule of a rate");
}

/// Asks for several slots in each way that may wait, under each kind of slots.
pub(crate) async fn never_wait(name: &str, store: AnyStore) {
    for (at, slots) in ten_slots().into_iter().enumerate() {
        let what = format!("{name}, {slots:?}");
        let client = Client { what, name: &format!("{at}"), store: &store };
        by_slots(&client, slots).await;
        by_a_rate(&client, slots).await;
        by_another_rule(&client, slots).await;
    }
}
