//! Fair shares of the limit of one rule.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use super::{
    Applies, Cost, Quotas, Rule, RuleInfo, RuleName, Rules,
    choice::{Candidates, Choice},
    rules::{Bypass, Then, append_charge, append_choice, sealed::Sealed},
    sharers::{Clients, Sharers},
};
#[cfg(feature = "testing")]
use crate::store::Clock;
use crate::{
    key::{Everyone, Key, KeyExtractor, RequestHead},
    log::warn,
    quota::Quota,
    store::{Charge, literal},
};

/// The default number of clients with a share of their own.
const CLIENTS: usize = 1_024;
const MAX_CLIENTS: usize = 1 << 20;
/// The part of the burst that clients beyond their share leave for others, in percent.
const RESERVE: u64 = 30;

/// Rule whose limit is shared fairly by the clients that use it, created by
/// [`Rule::fair_by`](crate::Rule::fair_by).
#[derive(Clone)]
#[must_use]
pub struct FairRule<K> {
    pool: Rule<Everyone>,
    /// The key of a client. The other settings are those of the pool.
    share: Rule<K>,
    sharers: Sharers,
}

impl Rule<Everyone> {
    /// Shares the limit of the rule, the *pool*, among the clients that use it.
    ///
    /// A client with the [weight](FairRule::weight) *w* has the share *w / W* of the rate, where *W* is the sum of the
    /// weights of the clients that were admitted recently, and of the one that asks. A client counts for
    /// half a second to a second after an admission. A request that uses nothing of the pool, because it
    /// is denied or costs nothing, changes no share of others.
    /// A request within the share of its client needs only a unit of the pool.
    /// Other requests may use what is left, but leave 30 % of the burst for clients within their shares.
    /// No client can take the limit from the others, and an idle share is used by them.
    ///
    /// ```
    /// use tower_sluice::{Cost, LocalStore, Quota, RateLimitLayer, Rule, key::{Everyone, HeaderKey}};
    ///
    /// #[derive(Clone)]
    /// struct Paid;
    ///
    /// // 1,000 requests per second for all. Paying customers have four times the share of others.
    /// let weight = Cost::from_fn(|head| if head.extensions.get::<Paid>().is_some() { 4 } else { 1 });
    /// let site = Rule::new("site", Everyone, Quota::per_second(1_000).with_burst(200))
    ///     .fair_by(HeaderKey::new("x-api-key")).weight(weight);
    /// let layer = RateLimitLayer::rules(site, LocalStore::new());
    /// ```
    ///
    /// The share is an account of its own, under the name of the rule and `.share`, with the burst of
    /// half a second. It is charged together with the pool, in the same decision, or passed over. The
    /// pool never exceeds its own limit. A denied client returns when the pool has more than the
    /// reserve or, if that is earlier, when both the share and the pool fit. Batches, leases and a
    /// [`DenyCache`](crate::store::DenyCache) apply as to any rule. Every store can do this.
    ///
    /// | setting | meaning |
    /// |---|---|
    /// | [`cost`](Rule::cost), [`headroom`](Rule::headroom), [`report_only`](Rule::report_only) | as without shares; the cost is charged to both. A trial also charges the share of a request that the pool would deny |
    /// | [`on_missing_key`](Rule::on_missing_key) | for requests without a client: rejected by default; with `Share`, one share for all of them; with `Skip`, charged to the pool as a client beyond its share |
    /// | a key that is [not one client's](Key::is_client), such as that of a proxy | one share for all such requests, with the weight 1 |
    /// | weight 0 | charged to the pool as a client beyond its share |
    /// | [`LivePlan`](super::LivePlan), [`Plan::from_fn`](super::Plan::from_fn) | shares follow the quota; while there is not exactly one GCRA quota without `initial`, there are no shares |
    ///
    /// Header fields describe the pool. Metrics, spans and explanations also have the rule of the
    /// shares. Adjustments change the share with the pool, if it was charged.
    ///
    /// # Limitations
    ///
    /// - **A client that may choose its key can have many shares.** Use a key that was verified, or an
    ///   address. See [`max_clients`](FairRule::max_clients).
    /// - **A network of many addresses has a share for each one that is admitted.** An IPv6 /48 contains
    ///   65,536 networks of /64: 500 of them that together ask for ten times the limit leave other clients
    ///   18 % of their requests. With [`ipv6_prefix(48)`](crate::PeerIp::ipv6_prefix) as the key, others
    ///   keep all.
    /// - **A new client has its share at once, but needs a unit of the pool, which a flood of many clients
    ///   leaves empty.** If as many clients flood as the limit has units a second, a third of 50 new
    ///   clients is admitted in the first second; if a tenth as many do, all are. Requests that are
    ///   denied cannot count for a client: invented keys would take shares.
    /// - Each process knows only its own clients. If it knows half of them, shares are twice as large,
    ///   and clients beyond their fair share compete with others for the pool.
    /// - A client with a share is denied like anyone else once the pool and its reserve are used up.
    /// - Requests are not served in any order, and nobody waits.
    /// - A share of much less than one request per second refills slowly, also after other clients have
    ///   left. Until it has refilled, its client uses what others leave.
    /// - A request beyond its share needs two calls to the store, unless the first shows that the pool is
    ///   used up. Any other request needs one. The time of a [`Timeout`](crate::store::Timeout) applies to
    ///   each.
    /// - It has no [penalty](crate::RateLimitLayer::penalty). The queue of a
    ///   [`RetryAfter`](crate::middleware::RetryAfter) spreads the retries of each client, but not those
    ///   of different clients.
    /// - In an outage, a [`Fallback`](crate::store::Fallback) has its part of the pool, and shares of it.
    ///
    /// # Panics
    ///
    /// Panics if the plan is fixed, and not one GCRA quota without `initial` units and with a burst of at
    /// least 4; if the key [is never that of a client](KeyExtractor::can_be_client); if the rule has
    /// [`max_wait`](Rule::max_wait) or [`if_no_key`](Rule::if_no_key); or if its name is longer than 58
    /// bytes.
    #[track_caller]
    pub fn fair_by<K: KeyExtractor>(self, key: K) -> FairRule<K> {
        self.check_pool();
        let name = self.name;
        assert!(
            key.can_be_client(),
            "rule {name}: fair_by a key that is never that of one client; use one such as PeerIp or \
             ClientIp"
        );
        let share = literal(name.share_name());
        let share = Rule::named(share, key, Quotas::from(&[][..]))
            .on_missing_key(self.on_missing_key)
            .max_key_len(self.max_key_len)
            .report_only(self.report_only.clone());
        let sharers = Sharers {
            pool: name,
            share: share.name,
            weight: Cost::from(1),
            clients: Arc::new(Clients::new(OnceLock::new(), CLIENTS)),
        };
        FairRule {
            pool: self,
            share,
            sharers,
        }
    }

    /// Panics if the limit of the rule cannot have shares.
    #[track_caller]
    fn check_pool(&self) {
        let name = self.name;
        if let Some(quotas) = self.plan.fixed() {
            let count = quotas.len();
            let Some(quota) = pool(quotas) else {
                panic!(
                    "rule {name}: fair_by with {count} quotas; give the rule one quota with the algorithm \
                     Gcra and without initial, and the others to another rule"
                );
            };
            let burst = quota.limit();
            assert!(
                u64::from(burst) * RESERVE >= 100,
                "rule {name}: fair_by with a burst of {burst}, of which no unit can be left for others; \
                 give it at least 4"
            );
        }
        assert!(
            self.max_wait.is_none(),
            "rule {name}: max_wait with fair_by; remove one of them"
        );
        assert!(
            self.if_no_key.is_none(),
            "rule {name}: if_no_key with fair_by; use on_missing_key, or another rule"
        );
    }
}

impl<K> FairRule<K> {
    /// Sets the weight of a client, as a number or from the head of its request. Defaults to 1.
    ///
    /// A request with the weight 0 is charged to the pool as a client beyond its share.
    pub fn weight(self, weight: impl Into<Cost>) -> Self {
        Self {
            sharers: Sharers {
                weight: weight.into(),
                ..self.sharers
            },
            ..self
        }
    }

    /// Sets the number of clients that have a share of their own, rounded up to a power of two. Defaults
    /// to 1,024.
    ///
    /// All further clients have one share together, with the weight 1. The log warns once. Near the
    /// limit, a few clients find no entry and belong to them earlier. A client keeps its entry for ten
    /// seconds after an admitted request, so invented keys can take at most the entries that are free. An
    /// entry takes 24 bytes.
    ///
    /// Clones from before this call keep their clients.
    ///
    /// # Panics
    ///
    /// Panics if the number is 0 or above 1,048,576.
    #[track_caller]
    pub fn max_clients(self, clients: usize) -> Self {
        assert!(
            (1..=MAX_CLIENTS).contains(&clients),
            "rule {}: max_clients is {clients}; give 1 to {MAX_CLIENTS}",
            self.pool.name
        );
        let clock = self.sharers.clients.clock.clone();
        self.with_clients(Clients::new(clock, clients))
    }

    /// Uses another clock.
    #[cfg(feature = "testing")]
    pub(crate) fn on(self, clock: Clock) -> Self {
        let entries = self.sharers.clients.capacity();
        self.with_clients(Clients::new(clock.into(), entries))
    }

    fn with_clients(self, clients: Clients) -> Self {
        let sharers = Sharers {
            clients: Arc::new(clients),
            ..self.sharers
        };
        Self { sharers, ..self }
    }
}

/// Returns the quota of a pool that can have shares.
fn pool(quotas: &[Quota]) -> Option<&Quota> {
    match quotas {
        [quota] if quota.is_gcra() && quota.initial().is_none() => Some(quota),
        _ => None,
    }
}

/// Returns the units of a pool that clients beyond their share leave for others.
fn reserve(quota: &Quota) -> u32 {
    let reserve = u64::from(quota.limit()) * RESERVE / 100;
    u32::try_from(reserve).unwrap_or(u32::MAX)
}

impl<K: KeyExtractor> FairRule<K> {
    /// Calls `then` with the charges of a client, which is `None` if it has no share.
    fn append_own(
        &self,
        head: &RequestHead<'_>,
        client: Option<&Key>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) {
        let everyone = Key::everyone();
        self.pool.with_charge(head, &everyone, |charge| {
            let Some(quota) = pool(charge.quotas) else {
                return append_charge(charge, before, then);
            };
            let beyond = charge.with_headroom(charge.headroom.saturating_add(reserve(quota)));
            let weight = self.sharers.weight.of(head);
            let Some(client) = client.filter(|_| weight > 0) else {
                return append_charge(&beyond, before, then);
            };
            let share = self.sharers.clients.share(client, weight);
            if let Some(entries) = share.full {
                warn_of_full_table(self.pool.name, entries);
            }
            let others = Key::unidentified();
            let key = if share.has_entry { client } else { &others };
            let quotas = [quota.client_share(share.weight, share.sum, charge.cost)];
            // Never report-only: a share that does not fit must lead to the second list.
            let share = Charge::new(self.share.name, key, &quotas).with_cost(charge.cost);
            // The share with the pool, or the pool alone.
            let choice = Choice::new(before.charges.len(), [2, 1]);
            append_choice(&[share, *charge, beyond], Some(choice), before, then);
        });
    }
}

impl<K: KeyExtractor> Sealed for FairRule<K> {
    fn append_charges(
        &self,
        head: &RequestHead<'_>,
        before: Candidates<'_, '_>,
        then: &mut Then<'_>,
    ) -> Result<(), Bypass> {
        let applies = self.pool.applies_to(head);
        if applies == Applies::Skip {
            then(before);
            return Ok(());
        }
        let found = self.share.extractor.extract(head);
        let mut made = None;
        let client = self.share.key(&found, &mut made, applies);
        let client = client.map_err(Clone::clone)?;
        self.append_own(head, client, before, then);
        Ok(())
    }
}

impl<K: KeyExtractor> Rules for FairRule<K> {
    fn info<'a>(&'a self, infos: &mut Vec<RuleInfo<'a>>) {
        self.share.info(infos);
        if let Some(share) = infos.last_mut() {
            share.quotas = None;
            share.cost = self.pool.cost.fixed();
            share.share_of = Some(self.pool.name);
            share.sharers = Some(&self.sharers);
        }
        self.pool.info(infos);
        if let Some(pool) = infos.last_mut() {
            pool.has_reserve = true;
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for FairRule<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pool,
            share,
            sharers,
        } = self;
        let mut debug = f.debug_struct("FairRule");
        debug.field("pool", pool).field("key", &share.extractor);
        debug.field("weight", &sharers.weight).finish()
    }
}

#[cold]
fn warn_of_full_table(rule: RuleName, entries: usize) {
    warn!(
        target: "tower_sluice::lint",
        lint = "fair_shares_used_up",
        "rule {rule} had more clients than its {entries} entries, so some have one share together: raise \
         max_clients or, if clients may choose their key, use one that was verified, because each key \
         has a share"
    );
}
