//! Looks for what is legal and probably a mistake, in what is known of rules before any request.

use std::slice;

use super::{Finding, Lint, dominated};
use crate::{
    headers::{Headers, Item},
    name::RuleName,
    quota::Quota,
    rule::{LivePlan, Quotas, Shape},
    waiters::Bounds,
};

/// What a layer has set that decides what its rules come to.
pub(crate) struct Knobs {
    pub(crate) headers: Headers,
    pub(crate) queue: Bounds,
    /// Whether charges are changed after the response.
    pub(crate) settles: bool,
    /// Units that a request without an adjustment is charged in the end, where that is fixed.
    pub(crate) adjusted: Option<u32>,
}

/// Looks for what is legal and probably a mistake, live plans as they are now.
pub(crate) fn find(shapes: &[Shape<'_>], knobs: &Knobs) -> Vec<Finding> {
    let live: Vec<Option<Quotas>> =
        shapes.iter().map(|shape| shape.live.map(LivePlan::quotas)).collect();
    let shapes: Vec<Shape<'_>> =
        shapes.iter().zip(&live).map(|(shape, live)| as_now(shape, live.as_ref())).collect();
    let mut found = Vec::new();
    for shape in &shapes {
        let of_key = |text: &String| Finding::of(Lint::KeyExtractor, shape.name, text);
        found.extend(shape.key_lints.iter().map(of_key));
        found.extend(cost_above_limit(shape));
        found.extend(nobody_waits(shape, knobs));
        found.extend(adjustment_above_max_debt(shape, knobs));
        found.extend(dominated_quotas(shape, knobs));
    }
    found.extend(unnamed_quotas(&shapes, knobs.headers));
    found.extend(other_methods(&shapes));
    found
}

/// The shape with the quotas that its live plan has now.
fn as_now<'a>(shape: &Shape<'a>, live: Option<&'a Quotas>) -> Shape<'a> {
    Shape { quotas: shape.quotas.or(live.map(Quotas::charged)), ..shape.clone() }
}

fn dominated_quotas(shape: &Shape<'_>, knobs: &Knobs) -> Vec<Finding> {
    let quotas = shape.quotas.unwrap_or_default();
    let told = |at: usize| match quotas[at].name() {
        Some(name) => format!("quota {} ({name:?}), {}", at + 1, quotas[at]),
        None => format!("quota {}, {}", at + 1, quotas[at]),
    };
    let only_alike = knobs.settles || shape.queues;
    let finding = |(loose, tight)| {
        let (loose, tight) = (told(loose), told(tight));
        let text = format!(
            "{loose}, never refuses what {tight}, admits, so that it limits nothing; lower its \
             units, or drop it"
        );
        Finding::of(Lint::DominatedQuota, shape.name, &text)
    };
    dominated::pairs(quotas, only_alike).into_iter().map(finding).collect()
}

fn cost_above_limit(shape: &Shape<'_>) -> Option<Finding> {
    let quotas = shape.live.and(shape.quotas)?;
    let need = shape.least_need();
    let limits = quotas.iter().filter(|quota| !quota.is_blocked()).map(Quota::raised_limit);
    let limit = limits.min().filter(|limit| need > u64::from(*limit))?;
    let what = match shape.headroom {
        Some(headroom) if headroom > 0 => format!("cost and headroom of {need}"),
        _ => format!("cost {need}"),
    };
    let text = format!(
        "{what} is above the limit {limit} that its live plan has now, so that every request is \
         refused until it is replaced; lower the cost or raise the burst"
    );
    Some(Finding::of(Lint::CostAboveLimit, shape.name, &text))
}

fn nobody_waits(shape: &Shape<'_>, knobs: &Knobs) -> Option<Finding> {
    let knob = match knobs.queue {
        _ if !shape.queues => return None,
        Bounds { all: 0, .. } => "max_waiters",
        Bounds { per_key: Some(0), .. } => "max_waiters_per_key",
        _ => return None,
    };
    let text = format!(
        "it has a max_wait, and the layer's {knob} is 0, so that nobody waits; raise {knob}, or drop \
         max_wait"
    );
    Some(Finding::of(Lint::NobodyWaits, shape.name, &text))
}

/// The highest ratio of the rates of `other` and of a route that is no finding.
const MUCH_LOOSER: u128 = 10;
/// The number of routes that one finding names.
const NAMED: usize = 3;

fn other_methods(shapes: &[Shape<'_>]) -> Vec<Finding> {
    let looser = |other: &Shape<'_>| {
        let left = |shape: &&Shape<'_>| {
            shape.instead_of == Some(other.name)
                && shape.leaves_methods
                && is_much_faster(other.quotas, shape.quotas)
        };
        let routes: Vec<_> = shapes.iter().filter(left).map(|shape| shape.name).collect();
        let names: Vec<_> = routes.iter().take(NAMED).map(|name| format!("{name:?}")).collect();
        let more = match routes.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!(
            "other methods of the routes of {}{more} are charged by this rule, at more than ten \
             times their rate; where a handler answers several methods, limit its path by \
             any_method",
            names.join(", ")
        );
        (!routes.is_empty()).then(|| Finding::of(Lint::OtherMethods, other.name, &text))
    };
    shapes.iter().filter_map(looser).collect()
}

/// Returns `true` if the first allow much more than the second in the long run. Both are known.
fn is_much_faster(loose: Option<&[Quota]>, tight: Option<&[Quota]>) -> bool {
    let (Some(loose), Some(tight)) = (loose, tight) else { return false };
    let faster = |loose: &Quota, tight: &Quota| {
        let per = |units: &Quota, period: &Quota| {
            let units = if units.is_blocked() { 0 } else { units.units() };
            u128::from(units) * u128::from(period.period_nanos())
        };
        per(loose, tight) > per(tight, loose) * MUCH_LOOSER
    };
    !tight.is_empty() && loose.iter().all(|loose| tight.iter().any(|tight| faster(loose, tight)))
}

fn adjustment_above_max_debt(shape: &Shape<'_>, knobs: &Knobs) -> Option<Finding> {
    let (adjusted, cost) = (u64::from(knobs.adjusted?), shape.cost?.max(1));
    let quotas = shape.quotas.unwrap_or_default().iter().filter(|quota| !quota.is_blocked());
    let spent = |quota: &Quota| u64::from(quota.limit() / cost) * adjusted;
    let quota = quotas.into_iter().find(|quota| spent(quota) > quota.late_limit())?;
    let (limit, debt) = (quota.limit(), quota.max_debt_units());
    let text = format!(
        "a request reserves {cost} and is charged {adjusted} in the end, which is {} for the {} that \
         quota {quota} admits at once, and late charges stop at its limit {limit} and max_debt {debt}; \
         raise the cost, or max_debt to {}",
        spent(quota),
        limit / cost,
        spent(quota) - u64::from(limit)
    );
    Some(Finding::of(Lint::AdjustmentAboveMaxDebt, shape.name, &text))
}

fn unnamed_quotas(shapes: &[Shape<'_>], headers: Headers) -> Option<Finding> {
    if matches!(headers, Headers::Draft11 | Headers::None) {
        return None;
    }
    let names = told_together(shapes);
    let several = names.len() > 1;
    several.then(|| {
        let text = format!(
            "headers: {headers:?} tells the numbers of one quota without its name, and a request is \
             charged under {} ({}), so that a client cannot tell whose it reads; use \
             Headers::Draft11, or Headers::None",
            names.len(),
            names.join(", ")
        );
        Finding { lint: Lint::UnnamedQuotas, rule: None, text }
    })
}

/// The names of the quotas that clients are told of one request, at most.
fn told_together(shapes: &[Shape<'_>]) -> Vec<String> {
    let group = |shape: &Shape<'_>| shape.instead_of.unwrap_or(shape.name);
    let told = shapes.iter().filter(|shape| !shape.report_only);
    let mut groups: Vec<(RuleName, Vec<String>)> = Vec::new();
    for shape in told {
        let names = match shape.quotas {
            // how many is not known; at least one
            None => vec![shape.name.to_string()],
            Some(_) => Item::named(slice::from_ref(shape))
                .iter()
                .map(|item| item.name().to_owned())
                .collect(),
        };
        match groups.iter_mut().find(|(known, _)| *known == group(shape)) {
            // of these only one is charged
            Some((_, most)) if most.len() >= names.len() => {}
            Some((_, most)) => *most = names,
            None => groups.push((group(shape), names)),
        }
    }
    groups.into_iter().flat_map(|(_, names)| names).map(|name| format!("{name:?}")).collect()
}
