//! Finds probable mistakes in settings, before the first request.

use std::{slice, time::Duration};

use super::{Finding, Lint, dominated};
use crate::{
    headers::{Headers, Item},
    middleware::queue::Bounds,
    quota::{Algorithm, Quota},
    rule::{LivePlan, Quotas, RuleInfo, RuleName},
};

/// The settings of a layer that the lints check.
pub(crate) struct Knobs {
    pub(crate) headers: Headers,
    pub(crate) queue: Bounds,
    /// `true` if the layer can adjust charges.
    pub(crate) settles: bool,
    /// The minimum final charge of a request, if set.
    pub(crate) adjusted: Option<u32>,
}

/// Returns the lint findings for these rules.
pub(crate) fn find(infos: &[RuleInfo<'_>], knobs: &Knobs) -> Vec<Finding> {
    let live: Vec<Option<Quotas>> =
        infos.iter().map(|info| info.live.map(LivePlan::quotas)).collect();
    let infos: Vec<RuleInfo<'_>> =
        infos.iter().zip(&live).map(|(info, live)| resolved(info, live.as_ref())).collect();
    let mut found = Vec::new();
    for info in &infos {
        let of_key = |text: &String| Finding::of(Lint::KeyExtractor, info.name, text);
        found.extend(info.key_lints.iter().map(of_key));
        found.extend(cost_above_limit(info));
        found.extend(paced_cost(info));
        found.extend(nobody_waits(info, knobs));
        found.extend(adjustment_above_max_debt(info, knobs));
        found.extend(dominated_quotas(info, knobs));
    }
    found.extend(unnamed_quotas(&infos, knobs.headers));
    found.extend(other_methods(&infos));
    found
}

/// Replaces a live plan with its current quotas.
fn resolved<'a>(info: &RuleInfo<'a>, live: Option<&'a Quotas>) -> RuleInfo<'a> {
    RuleInfo { quotas: info.quotas.or(live.map(Quotas::charged)), ..info.clone() }
}

fn dominated_quotas(info: &RuleInfo<'_>, knobs: &Knobs) -> Vec<Finding> {
    let quotas = info.quotas.unwrap_or_default();
    let label = |at: usize| match quotas[at].name() {
        Some(name) => format!("quota {} ({name:?}), {}", at + 1, quotas[at]),
        None => format!("quota {}, {}", at + 1, quotas[at]),
    };
    let only_alike = knobs.settles || info.queues;
    let finding = |(loose, tight)| {
        let (loose, tight) = (label(loose), label(tight));
        let text = format!(
            "{loose}, never denies a request that {tight}, allows, so it has no effect; lower its \
             units or remove it"
        );
        Finding::of(Lint::DominatedQuota, info.name, &text)
    };
    dominated::pairs(quotas, only_alike).into_iter().map(finding).collect()
}

fn cost_above_limit(info: &RuleInfo<'_>) -> Option<Finding> {
    let quotas = info.live.and(info.quotas)?;
    let need = info.least_need();
    let limits = quotas.iter().filter(|quota| !quota.is_blocked()).map(Quota::raised_limit);
    let limit = limits.min().filter(|limit| need > u64::from(*limit))?;
    let text = format!(
        "{} is above the current limit {limit} of its live plan, so every request is denied \
         until the plan is replaced; lower the cost or raise the burst",
        need_text(info)
    );
    Some(Finding::of(Lint::CostAboveLimit, info.name, &text))
}

fn need_text(info: &RuleInfo<'_>) -> String {
    match info.headroom {
        Some(headroom) if headroom > 0 => format!("cost plus headroom {}", info.least_need()),
        _ => format!("cost {}", info.least_need()),
    }
}

fn paced_cost(info: &RuleInfo<'_>) -> Option<Finding> {
    let need = info.least_need();
    if need < 2 || info.queues {
        return None;
    }
    let quotas = info.quotas.unwrap_or_default().iter().filter(|quota| !quota.is_blocked());
    let mut paced = quotas.filter_map(|quota| Some((quota, rest_of_window(quota, need)?)));
    let (quota, rest) = paced.find(|(_, rest)| *rest < Duration::from_secs(1))?;
    let text = format!(
        "{} fits only in the last {rest:?} of each window of the paced quota {quota}, so a client \
         that waits for Retry-After, in whole seconds, can be denied forever; use Algorithm::Gcra, \
         max_wait or a longer window",
        need_text(info)
    );
    Some(Finding::of(Lint::PacedCost, info.name, &text))
}

/// Returns the time from the release of unit number `need` to the end of a paced window.
fn rest_of_window(quota: &Quota, need: u64) -> Option<Duration> {
    let Algorithm::FixedWindow { paced: true, .. } = quota.counted_by() else { return None };
    let parts = (u64::from(quota.units()) + 1).checked_sub(need).filter(|parts| *parts > 0)?;
    Some(quota.period() * u32::try_from(parts).ok()? / quota.units())
}

fn nobody_waits(info: &RuleInfo<'_>, knobs: &Knobs) -> Option<Finding> {
    let knob = match knobs.queue {
        _ if !info.queues => return None,
        Bounds { all: 0, .. } => "max_waiters",
        Bounds { per_key: Some(0), .. } => "max_waiters_per_key",
        _ => return None,
    };
    let text = format!(
        "max_wait has no effect, because {knob} of the layer is 0; raise {knob} or remove max_wait"
    );
    Some(Finding::of(Lint::NobodyWaits, info.name, &text))
}

/// The ratio of two rates above which [`Lint::OtherMethods`] reports a route.
const MAX_RATE_RATIO: u128 = 10;
/// The maximum number of routes that a finding names.
const MAX_NAMED_ROUTES: usize = 3;

fn other_methods(infos: &[RuleInfo<'_>]) -> Vec<Finding> {
    let looser = |other: &RuleInfo<'_>| {
        let left = |info: &&RuleInfo<'_>| {
            info.instead_of == Some(other.name)
                && info.leaves_methods
                && is_much_faster(other.quotas, info.quotas)
        };
        let routes: Vec<_> = infos.iter().filter(left).map(|info| info.name).collect();
        let names = routes.iter().take(MAX_NAMED_ROUTES).map(|name| format!("{name:?}"));
        let names: Vec<_> = names.collect();
        let more = match routes.len().saturating_sub(MAX_NAMED_ROUTES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!(
            "this rule charges other methods of the routes {}{more} at more than ten times their \
             rate; if a handler serves several methods, limit its path with any_method",
            names.join(", ")
        );
        (!routes.is_empty()).then(|| Finding::of(Lint::OtherMethods, other.name, &text))
    };
    infos.iter().filter_map(looser).collect()
}

/// Returns `true` if the rate of `loose` is more than [`MAX_RATE_RATIO`] times the rate of `tight`.
fn is_much_faster(loose: Option<&[Quota]>, tight: Option<&[Quota]>) -> bool {
    let (Some(loose), Some(tight)) = (loose, tight) else { return false };
    let faster = |loose: &Quota, tight: &Quota| {
        let per = |units: &Quota, period: &Quota| {
            let units = if units.is_blocked() { 0 } else { units.units() };
            u128::from(units) * u128::from(period.period_nanos())
        };
        per(loose, tight) > per(tight, loose) * MAX_RATE_RATIO
    };
    !tight.is_empty() && loose.iter().all(|loose| tight.iter().any(|tight| faster(loose, tight)))
}

fn adjustment_above_max_debt(info: &RuleInfo<'_>, knobs: &Knobs) -> Option<Finding> {
    let (adjusted, cost) = (u64::from(knobs.adjusted?), info.cost?.max(1));
    let quotas = info.quotas.unwrap_or_default().iter();
    // Slots are not adjusted.
    let mut quotas = quotas.filter(|quota| !quota.is_blocked() && !quota.is_concurrent());
    let spent = |quota: &Quota| u64::from(quota.limit() / cost) * adjusted;
    let quota = quotas.find(|quota| spent(quota) > quota.late_limit())?;
    let (limit, debt) = (quota.limit(), quota.max_debt_units());
    let text = format!(
        "cost {cost} becomes {adjusted} without an adjustment; quota {quota} allows {} such \
         requests at once, and charges at most its limit {limit} and max_debt {debt} of their {} \
         units; raise the cost, or max_debt to {}",
        limit / cost,
        spent(quota),
        spent(quota) - u64::from(limit)
    );
    Some(Finding::of(Lint::AdjustmentAboveMaxDebt, info.name, &text))
}

fn unnamed_quotas(infos: &[RuleInfo<'_>], headers: Headers) -> Option<Finding> {
    if matches!(headers, Headers::RateLimit | Headers::None) {
        return None;
    }
    let names = names_per_request(infos);
    let several = names.len() > 1;
    several.then(|| {
        let text = format!(
            "headers: {headers:?} reports one quota without its name, and a request is charged \
             under {} ({}), so a client cannot identify the quota; use Headers::RateLimit or \
             Headers::None",
            names.len(),
            names.join(", ")
        );
        Finding { lint: Lint::UnnamedQuotas, rule: None, text }
    })
}

/// Returns the longest list of quota names that one request can have.
fn names_per_request(infos: &[RuleInfo<'_>]) -> Vec<String> {
    let group = |info: &RuleInfo<'_>| info.instead_of.unwrap_or(info.name);
    let sent = infos.iter().filter(|info| !info.report_only);
    let mut groups: Vec<(RuleName, Vec<String>)> = Vec::new();
    for info in sent {
        let names = match info.quotas {
            // At least one quota is assumed.
            None => vec![info.name.to_string()],
            Some(_) => Item::named(slice::from_ref(info))
                .iter()
                .map(|item| item.name().to_owned())
                .collect(),
        };
        match groups.iter_mut().find(|(known, _)| *known == group(info)) {
            // Only one rule of a group charges a request.
            Some((_, longest)) if longest.len() >= names.len() => {}
            Some((_, longest)) => *longest = names,
            None => groups.push((group(info), names)),
        }
    }
    groups.into_iter().flat_map(|(_, names)| names).map(|name| format!("{name:?}")).collect()
}
