//! Measures the limit that each quota needs.
//!
//! A second store charges each quota with the highest possible limit. The smallest sufficient limit
//! is the maximum number of units in use at one time.

use smallvec::SmallVec;

use crate::{
    decision::Outcome,
    quota::{Algorithm, Quota},
    rule::{RuleInfo, RuleName},
    store::{Charge, LocalStore, Stats, StoreExt},
};

/// Smallest limit with which a quota limits no request of a trace.
///
/// With this limit, every request is allowed immediately and without overage. See
/// [`least`](super::least) for an example.
///
/// The limit of a window is its units. The limit of any other algorithm is its burst, at the
/// configured rate. The smallest limit is at least the cost plus the headroom of one request.
///
/// The result assumes that no other quota limits a request. If the
/// [capacity](super::Simulator::capacity) was too small, the result may be too large; see
/// [`least_stats`](super::Simulator::least_stats).
#[derive(Clone, Copy, Debug)]
pub struct SmallestBurst {
    rule: RuleName,
    place: usize,
    given: Quota,
    most: Option<u64>,
}

impl SmallestBurst {
    /// Returns the rule of the quota.
    #[must_use]
    pub fn rule(&self) -> RuleName {
        self.rule
    }

    /// Returns the index of the quota in its rule, from 0.
    #[must_use]
    pub fn quota_index(&self) -> usize {
        self.place
    }

    /// Returns the quota as configured.
    pub fn given(&self) -> Quota {
        self.given
    }

    /// Returns the quota with the smallest sufficient limit.
    ///
    /// Returns `None` if no limit is sufficient or the smallest limit is unknown:
    ///
    /// - The trace needs more units than a quota can have.
    /// - The quota is [blocked](Quota::blocked).
    /// - The quota has [`initial`](Quota::with_initial) units.
    /// - The quota is a window that [carries over](crate::Algorithm::carry_over).
    /// - The quota is a [paced](crate::Algorithm::paced) window, and the trace needs two units at
    ///   the start of a window.
    #[must_use = "this returns the found quota and changes nothing"]
    pub fn quota(&self) -> Option<Quota> {
        let units = u32::try_from(self.most?).ok()?;
        self.given.with_limit(units).ok()
    }
}

/// The maximum number of measured quotas. Further quotas of plans are ignored.
const MOST_QUOTAS: usize = 1_024;

pub(super) struct Measure {
    store: LocalStore,
    found: Vec<SmallestBurst>,
}

impl Measure {
    /// Creates a measurement. The initial value of each limit is the cost plus headroom of a
    /// request.
    pub(super) fn new(store: LocalStore, infos: &[RuleInfo<'_>]) -> Self {
        let of = |info: &RuleInfo<'_>| {
            let (rule, alone) = (info.name, info.min_need().max(1));
            let quotas = info.quotas.unwrap_or_default().to_vec();
            let least = move |(place, given): (usize, Quota)| {
                let most = is_countable(&given).then_some(alone);
                SmallestBurst { rule, place, given, most }
            };
            quotas.into_iter().enumerate().map(least)
        };
        Self { store, found: infos.iter().flat_map(of).collect() }
    }

    /// Records the charges of a request at `now`.
    pub(super) fn note(&mut self, charges: &[Charge<'_>], now: u64) {
        for charge in charges.iter().filter(|charge| charge.cost() > 0) {
            let wide: SmallVec<[Quota; 4]> = charge.quotas().iter().map(Quota::widest).collect();
            for (place, given) in charge.charged_quotas() {
                let Self { store, found } = self;
                let Some(least) = entry(found, charge, place, given) else { continue };
                if least.most.is_none() {
                    continue;
                }
                let alone = Charge::new(charge.rule(), charge.key(), &wide).with_quota_index(place);
                let ask = alone.with_cost(charge.cost()).with_headroom(charge.headroom());
                let decision = store.take(&[ask]).now();
                let owed = decision.outcomes().first().filter(|_| decision.is_allowed());
                let needs = owed.map(Outcome::owed).and_then(|owed| u64::try_from(owed).ok());
                let needs = needs.map(|owed| owed + u64::from(charge.headroom()));
                let needs = needs.and_then(|units| paced(given, units, now));
                least.most = needs.and_then(|units| least.most.map(|most| most.max(units)));
            }
        }
    }

    pub(super) fn least(&self) -> Vec<SmallestBurst> {
        self.found.clone()
    }

    pub(super) fn stats(&self) -> Stats {
        self.store.stats_without_gauges()
    }
}

fn entry<'a>(
    found: &'a mut Vec<SmallestBurst>,
    charge: &Charge<'_>,
    place: usize,
    given: &Quota,
) -> Option<&'a mut SmallestBurst> {
    let rule = charge.rule();
    let is_it = |it: &SmallestBurst| it.rule == rule && it.place == place && it.given == *given;
    let at = found.iter().position(is_it).unwrap_or(found.len());
    if at == found.len() && at < MOST_QUOTAS {
        let most = is_countable(given).then_some(1);
        found.push(SmallestBurst { rule, place, given: *given, most });
    }
    found.get_mut(at)
}

/// Returns `true` if the number of used units does not depend on the limit.
fn is_countable(quota: &Quota) -> bool {
    let lends = match quota.algorithm() {
        Algorithm::FixedWindow { carry_over, .. } => carry_over > 0,
        _ => false,
    };
    !lends && !quota.is_concurrent() && !quota.is_blocked() && quota.initial().is_none()
}

/// Returns the smallest limit with which `last` units are available at `now`.
///
/// A paced window makes its units available at even intervals. For other quotas, the limit is
/// `last`.
fn paced(quota: &Quota, last: u64, now: u64) -> Option<u64> {
    if !matches!(quota.algorithm(), Algorithm::FixedWindow { paced: true, .. }) || last <= 1 {
        return Some(last);
    }
    let (period, since) = (u128::from(quota.period_nanos()), now % quota.period_nanos());
    let before = u128::from(last - 1) * period;
    let units = before.checked_add(u128::from(since).checked_sub(1)?)? / u128::from(since);
    u64::try_from(units).ok().map(|units| units.max(last))
}
