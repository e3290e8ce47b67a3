//! Measures the limit that each quota needs.
//!
//! A second store charges each quota with the highest possible limit. The smallest sufficient limit
//! is the maximum number of units in use at one time. It assumes that no other quota limits a
//! request. With shared accounts, it may be too large, but never too small.

use std::time::Duration;

use tower_sluice::{
    Algorithm, LocalStore, Quota, StoreExt,
    rule::{RuleInfo, RuleName},
    store::Charge,
};

/// The maximum number of measured quotas. Further quotas of plans are ignored.
const MAX_QUOTAS: usize = 1_024;
/// The longest time in which an account may refill, in nanoseconds: ten years.
const MAX_REFILL: u128 = 10 * 365 * 86_400 * 1_000_000_000;
/// The maximum units of a sliding log.
const MAX_LOG_UNITS: u32 = 10_000;

/// Smallest limit with which a quota limits no request: its burst at the given rate, or the units
/// of a window. At least the cost plus the headroom of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallestBurst {
    pub(crate) rule: RuleName,
    index: usize,
    pub(crate) given: Quota,
    most: Option<u64>,
}

impl SmallestBurst {
    /// Returns the quota with the smallest sufficient limit.
    ///
    /// Returns `None` if no limit is sufficient or the smallest limit is unknown:
    ///
    /// - The trace needs more units than a quota can have.
    /// - The quota is blocked, concurrent, or a window that carries over.
    /// - The quota is a paced window, and the trace needs two units at the start of a window.
    pub(crate) fn quota(&self) -> Option<Quota> {
        with_limit(self.given, u32::try_from(self.most?).ok()?)
    }
}

pub(super) struct Measure {
    pub(super) store: LocalStore,
    pub(super) found: Vec<SmallestBurst>,
}

impl Measure {
    pub(super) fn new(store: LocalStore, infos: &[RuleInfo<'_>]) -> Self {
        let of = |info: &RuleInfo<'_>| {
            let alone = match info.cost.unwrap_or(1) {
                0 => 1,
                cost => u64::from(cost) + u64::from(info.headroom.unwrap_or(0)),
            };
            let (rule, quotas) = (info.name, info.quotas.unwrap_or_default().to_vec());
            let least = move |(index, given): (usize, Quota)| {
                let most = is_countable(&given).then_some(alone);
                SmallestBurst { rule, index, given, most }
            };
            quotas.into_iter().enumerate().map(least)
        };
        Self { store, found: infos.iter().flat_map(of).collect() }
    }

    /// Records the charges of a request at `now`. Those of one rule and key are alternatives to the first.
    pub(super) fn note(&mut self, charges: &[Charge<'_>], now: Duration) {
        for (at, charge) in charges.iter().enumerate().filter(|(_, charge)| charge.cost > 0) {
            let is_same = |other: &Charge<'_>| other.rule == charge.rule && other.key == charge.key;
            if charges[..at].iter().any(is_same) {
                continue;
            }
            let wide: Vec<_> = charge.quotas.iter().map(widest).collect();
            for (index, given) in charge.charged_quotas() {
                let Self { store, found } = self;
                let Some(least) = entry(found, charge, index, given) else { continue };
                let Some(most) = least.most else { continue };
                let alone = Charge::new(charge.rule, charge.key, &wide).with_quota_index(index);
                let ask = alone.with_cost(charge.cost).with_headroom(charge.headroom);
                let decision = store.take(&[ask]).now();
                let outcome = decision.outcomes().first().filter(|_| decision.is_allowed());
                let needs = outcome.map(|it| u64::from(it.limit() - it.remaining()));
                let needs = needs.map(|used| used + u64::from(charge.headroom));
                let needs = needs.and_then(|units| paced(given, units, now));
                least.most = needs.map(|units| most.max(units));
            }
        }
    }
}

fn entry<'a>(
    found: &'a mut Vec<SmallestBurst>,
    charge: &Charge<'_>,
    index: usize,
    given: &Quota,
) -> Option<&'a mut SmallestBurst> {
    let rule = charge.rule;
    let is_it = |it: &SmallestBurst| it.rule == rule && it.index == index && it.given == *given;
    let at = found.iter().position(is_it).unwrap_or(found.len());
    if at == found.len() && at < MAX_QUOTAS {
        let most = is_countable(given).then_some(1);
        found.push(SmallestBurst { rule, index, given: *given, most });
    }
    found.get_mut(at)
}

/// Returns `true` if the number of used units does not depend on the limit.
fn is_countable(quota: &Quota) -> bool {
    let lends = match quota.algorithm() {
        Algorithm::FixedWindow { carry_over, .. } => carry_over > 0,
        _ => false,
    };
    !lends && quota.algorithm() != Algorithm::Concurrent && quota.limit() > 0
}

/// Returns this quota with the highest possible limit, but no soft units or pacing.
fn widest(quota: &Quota) -> Quota {
    let saturate = |units: u128| u32::try_from(units).unwrap_or(u32::MAX);
    let period = quota.period().as_nanos().max(1);
    let refills = MAX_REFILL / quota.interval().as_nanos().max(1);
    let plain = |units| Quota::new(units, quota.period());
    let wide = match quota.algorithm() {
        Algorithm::Gcra => plain(quota.units()).and_then(|it| it.try_with_burst(saturate(refills))),
        Algorithm::TokenBucket => {
            let most = refills.min(u128::from(quota.units()) * (MAX_REFILL / period));
            let wide = plain(quota.units()).and_then(|it| it.try_with_burst(saturate(most)));
            wide.and_then(|wide| wide.try_with_algorithm(Algorithm::TokenBucket))
        }
        Algorithm::SlidingLog => plain(MAX_LOG_UNITS.min(saturate(period)))
            .and_then(|wide| wide.try_with_algorithm(Algorithm::SlidingLog)),
        Algorithm::FixedWindow { .. } => plain(saturate(period))
            .and_then(|wide| wide.try_with_algorithm(Algorithm::fixed_window())),
        other => plain(saturate(period)).and_then(|wide| wide.try_with_algorithm(other)),
    };
    // A quota that cannot be widened is not counted, or has the highest limit.
    wide.unwrap_or(*quota)
}

/// Returns this quota with another burst, or with other units of a window.
fn with_limit(quota: Quota, limit: u32) -> Option<Quota> {
    match quota.algorithm() {
        Algorithm::Gcra | Algorithm::TokenBucket => quota.try_with_burst(limit),
        algorithm => Quota::new(limit, quota.period())
            .and_then(|quota| quota.try_with_algorithm(algorithm))
            .and_then(|changed| changed.try_with_soft(quota.soft())),
    }
    .ok()
}

/// Returns the smallest limit with which `last` units are available at `now`.
///
/// A paced window makes its units available at even intervals. For other quotas, the limit is
/// `last`.
fn paced(quota: &Quota, last: u64, now: Duration) -> Option<u64> {
    if !matches!(quota.algorithm(), Algorithm::FixedWindow { paced: true, .. }) || last <= 1 {
        return Some(last);
    }
    let period = quota.period().as_nanos();
    let since = now.as_nanos() % period;
    let before = u128::from(last - 1) * period;
    let units = before.checked_add(since.checked_sub(1)?)? / since;
    u64::try_from(units).ok().map(|units| units.max(last))
}
