//! Alternatives against a model that knows only rules which must all fit: it looks at each alternative
//! on its own, and charges those that the specification names.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Algorithm, Decision, Key, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule, Store,
    StoreExt,
    decision::Outcome,
    key::Everyone,
    middleware::{Adjustment, ChargeHandle, HoldUntil},
    rule::{Alternatives, Applies, Choice, RuleName},
    store::Charge,
    testing::FakeClock,
};

use crate::support::{
    all_algorithms, answer, ask,
    choices::Choosing,
    driven::handler,
    get, header,
    random::{exact_wait, rows},
    regressions::keeping,
    status,
};

fn rule(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

const UNKNOWN: u128 = u128::MAX - 1;
const NEVER: u128 = u128::MAX;

/// Returns the longest wait of some quotas.
fn longest(outcomes: &[Outcome]) -> u128 {
    let wait = |it: &Outcome| match it.retry_after() {
        _ if it.is_estimated() => UNKNOWN,
        Some(wait) => wait.as_nanos(),
        None => NEVER,
    };
    outcomes.iter().map(wait).max().unwrap_or(0)
}

/// Remaining, full, next, retry, and `true` if the rule was passed over.
type Row = (u32, Duration, Duration, Option<Duration>, bool);

#[derive(Debug, PartialEq)]
struct Decided {
    allowed: bool,
    overage: bool,
    wait: Duration,
    retry: Option<Duration>,
    rows: Vec<Row>,
}

impl Decided {
    fn of(decision: &Decision) -> Self {
        let passed_over = decision.outcomes().iter().map(Outcome::is_passed_over);
        let all = rows(decision).into_iter().zip(passed_over);
        Self {
            allowed: decision.is_allowed(),
            overage: decision.is_overage(),
            wait: decision.wait(),
            retry: exact_wait(decision),
            rows: all
                .map(|((left, full, next, retry), over)| (left, full, next, retry, over))
                .collect(),
        }
    }
}

/// Returns a decision with the state of the alternatives that were not asked, which has no wait.
fn seen(
    store: &LocalStore,
    charges: &[Charge<'_>],
    decision: &Decision,
    expected: &Decided,
) -> Decided {
    let mut seen = Decided::of(decision);
    for (at, outcome) in decision.outcomes().iter().enumerate() {
        let is_unknown = outcome.limit() == 0 && outcome.held().is_none();
        if !is_unknown || !outcome.is_passed_over() || at >= expected.rows.len() {
            continue;
        }
        let its = charges.iter().find(|it| it.rule == outcome.rule()).expect("its charge");
        let look = store.peek(&[its.with_cost(0)]).now();
        let (left, full, next, _) = rows(&look)[outcome.quota_index()];
        seen.rows[at] = (left, full, next, expected.rows[at].3, true);
    }
    seen
}

/// Charges plain rules as the specification says. Returns the charges that were made, and the decision
/// on them.
fn model<'a>(
    store: &LocalStore,
    all: &[Charge<'a>],
    groups: &[u8],
) -> (Decided, Option<(Vec<Charge<'a>>, Decision)>) {
    // A report-only rule fits.
    let fits = |at: usize| store.peek(&[all[at]]).now().is_allowed();
    let first = |group: u8| (0..all.len()).find(|at| groups[*at] == group && fits(*at));
    let charged = |at: usize| match groups[at] {
        0 => fits(at).then_some(true),
        group => first(group).map(|first| first == at),
    };
    let made: Option<Vec<bool>> = (0..all.len()).map(charged).collect();
    let left = |charge: &Charge<'_>| store.peek(&[charge.with_cost(0)]).now();
    if let Some(made) = made {
        let looks: Vec<_> = all.iter().map(|charge| rows(&left(charge))).collect();
        let chosen: Vec<_> = all.iter().zip(&made).filter(|it| *it.1).map(|it| *it.0).collect();
        let decision = store.take(&chosen).now();
        let rows_of = |charge: &Charge<'_>| {
            let its = decision.outcomes().iter().zip(rows(&decision));
            its.filter(|(it, _)| it.rule() == charge.rule).map(|it| it.1).collect::<Vec<_>>()
        };
        let all = all.iter().zip(&made).zip(looks).flat_map(|((charge, made), looks)| {
            let rows = if *made { rows_of(charge) } else { looks };
            rows.into_iter().map(|(left, full, next, retry)| (left, full, next, retry, !*made))
        });
        let result = Decided {
            allowed: true,
            overage: decision.is_overage(),
            wait: decision.wait(),
            retry: Some(Duration::ZERO),
            rows: all.collect(),
        };
        return (result, Some((chosen, decision)));
    }
    // The waits of a denial are those of callers that do not queue.
    let denials = all.iter().map(|charge| {
        let binding = Charge::new(charge.rule, charge.key, charge.quotas);
        let binding = binding.with_cost(charge.cost).with_headroom(charge.headroom);
        let peek = store.peek(&[binding]).now();
        if peek.is_allowed() { left(charge) } else { peek }
    });
    let denials: Vec<_> = denials.collect();
    let wait = |at: usize| match all[at].report_only {
        true => 0,
        false => longest(denials[at].outcomes()),
    };
    let soonest =
        |group: u8| (0..all.len()).filter(|at| groups[*at] == group).min_by_key(|at| wait(*at));
    let decides = |at: &usize| groups[*at] == 0 || soonest(groups[*at]) == Some(*at);
    let longest = (0..all.len()).filter(decides).map(wait).max().expect("a rule");
    let rows = (0..all.len()).flat_map(|at| {
        let over = !decides(&at);
        rows(&denials[at])
            .into_iter()
            .map(move |(left, full, next, retry)| (left, full, next, retry, over))
    });
    let retry = u64::try_from(longest).ok().map(Duration::from_nanos);
    let (overage, wait) = (false, Duration::ZERO);
    (Decided { allowed: false, overage, wait, retry, rows: rows.collect() }, None)
}

fn quota() -> impl Strategy<Value = Quota> {
    let algorithms: Vec<_> = all_algorithms().collect();
    let kind = 0..=algorithms.len();
    (kind, 1..5_u32, 1..5_u64, 1..6_u32, 0..3_u32).prop_map(
        move |(kind, units, secs, burst, soft)| {
            let Some(algorithm) = algorithms.get(kind) else { return Quota::concurrent(units) };
            let quota = Quota::new(units, Duration::from_secs(secs)).expect("a quota");
            let quota = match algorithm {
                Algorithm::Gcra | Algorithm::TokenBucket => quota.with_burst(burst),
                _ => quota,
            };
            let quota = quota.with_algorithm(*algorithm);
            if soft == 1 { quota.try_with_soft(soft).unwrap_or(quota) } else { quota }
        },
    )
}

#[derive(Clone, Debug)]
struct AskedRule {
    group: u8,
    quotas: Vec<Quota>,
    report_only: bool,
    max_wait: u64,
}

fn asked_rule() -> impl Strategy<Value = AskedRule> {
    let max_wait = prop_oneof![2 => Just(0), 1 => 1..3_000_u64];
    let group = prop_oneof![1 => Just(0), 3 => Just(1), 1 => Just(2)];
    (group, vec(quota(), 1..3), prop::bool::weighted(0.1), max_wait).prop_map(
        |(group, quotas, report_only, max_wait)| AskedRule { group, quotas, report_only, max_wait },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Take(Vec<u32>, u32),
    Undo(usize, Option<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![1 => Just(0), 6 => 1..3_u32, 1 => 3..8_u32];
    let headroom = prop_oneof![4 => Just(0), 1 => 1..3_u32];
    prop_oneof![
        3 => (0..2_500_u64).prop_map(Step::Pass),
        8 => (vec(cost, 5), headroom).prop_map(|(costs, headroom)| Step::Take(costs, headroom)),
        2 => (0..20_usize, prop::option::of(0..4_u32)).prop_map(|(at, units)| Step::Undo(at, units)),
    ]
}

#[test]
fn every_decision_equals_the_model() {
    let (key, names) = (Key::from("me"), ["a", "b", "c", "d", "e"].map(rule));
    let cases = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    let config = proptest::test_runner::Config { cases, ..keeping(file!()) };
    proptest!(config, |(mut rules in vec(asked_rule(), 1..6), steps in vec(step(), 1..40))| {
        rules.sort_by_key(|it| it.group);
        // Beside other rules, the wait of a denial may be longer than the shortest.
        if rules.iter().any(|it| it.group != 1) {
            rules.iter_mut().for_each(|it| it.max_wait = 0);
        }
        let groups: Vec<_> = rules.iter().map(|it| it.group).collect();
        let choice = |group| {
            let start = groups.iter().position(|it| *it == group)?;
            Some(Choice::new(start, groups.iter().filter(|it| **it == group).map(|_| 1)))
        };
        let choices: Vec<_> = [1, 2].into_iter().filter_map(choice).collect();
        let clock = FakeClock::new();
        let (store, reference) = (clock.store(1_024), clock.store(1_024));
        let mut taken = Vec::new();
        for step in steps {
            match step {
                Step::Pass(millis) => clock.advance(Duration::from_millis(millis)),
                Step::Take(costs, headroom) => {
                    let charge = |(at, asked): (usize, &'_ AskedRule)| {
                        let charge = Charge::new(names[at], &key, &rules[at].quotas);
                        let charge = charge.with_cost(costs[at]).with_headroom(headroom);
                        let patient = charge.with_max_wait(Duration::from_millis(asked.max_wait));
                        let charge = if store.supports(&[patient]).is_ok() { patient } else { charge };
                        charge.with_report_only(asked.report_only)
                    };
                    let charges: Vec<_> = rules.iter().enumerate().map(charge).collect();
                    let all = Choosing { charges: charges.clone(), choices: choices.clone() };
                    let peeked = all.peek(&store).decision;
                    let taking = all.take(&store);
                    let (expected, made) = model(&reference, &charges, &groups);
                    let by = |decision| seen(&store, &charges, decision, &expected);
                    prop_assert_eq!(&by(&taking.decision), &expected, "{:?}", charges);
                    prop_assert_eq!(&by(&peeked), &expected, "a peek at {:?}", charges);
                    taken.extend(made.map(|made| (taking.charges, taking.decision, made)));
                }
                Step::Undo(at, units) if at < taken.len() => {
                    let (charges, decision, (made, its)) = taken.remove(at);
                    store.undo(&charges, &decision, units);
                    reference.undo(&made, &its, units);
                }
                Step::Undo(..) => {}
            }
        }
    });
}

const MINUTE: Duration = Duration::from_secs(60);

/// Three units per minute from the plan, and two per hour from the credits.
fn plan_or_credits() -> Alternatives {
    let plan = Rule::new("plan", Everyone, Quota::per_minute(3));
    plan.or(Rule::new("credits", Everyone, Quota::per_hour(2)))
}

#[tokio::test]
async fn the_fields_describe_the_alternative_that_was_charged_or_is_available_first() {
    let clock = FakeClock::new();
    let layer = RateLimitLayer::rules(plan_or_credits(), clock.store(64));
    let mut seen = Vec::new();
    for _ in 0..6 {
        let answer = answer(&layer, get("/")).await;
        let text = |name| header(answer.headers(), name).to_owned();
        seen.push((answer.status().as_u16(), text("ratelimit"), text("ratelimit-policy")));
        if answer.status() == 429 {
            assert_eq!(text("retry-after"), "20");
        }
    }
    let plan = |left, time| format!("\"plan\";r={left};t={time}");
    let (three, two) = ("\"plan\";q=3;w=60".to_owned(), "\"credits\";q=2;w=3600".to_owned());
    assert_eq!(seen[0], (200, plan(2, 40), three.clone()));
    assert_eq!(seen[3], (200, "\"credits\";r=1;t=1800".to_owned(), two));
    assert_eq!(seen[5], (429, plan(0, 20), three));
}

#[tokio::test]
async fn a_refund_goes_to_the_alternative_that_was_charged_also_after_the_plan_changed() {
    let (store, live) = (FakeClock::new().store(64), LivePlan::new(Quota::per_minute(1)));
    let credits = Quota::per_hour(9);
    let rules = Rule::new("plan", Everyone, &live).or(Rule::new("credits", Everyone, credits));
    let layer = RateLimitLayer::rules(rules, store.clone()).expose_charge(Adjustment::Keep);
    // By the time until the account is full, which a debt lengthens.
    let used = |name, quota: Quota| {
        let (everyone, quotas) = (Key::everyone(), [quota]);
        let look = store.take(&[Charge::new(rule(name), &everyone, &quotas).with_cost(0)]).now();
        look.outcomes()[0].reset_after().as_nanos() / quota.interval().as_nanos()
    };
    let handle = |change: fn(&ChargeHandle)| {
        let (layer, live) = (layer.clone(), live.clone());
        async move {
            let handle = handler(move |request| {
                live.replace(Quota::per_minute(4));
                change(request.extensions().get().expect("a handle"));
                200
            });
            ask(&mut tower::Layer::layer(&layer, handle), get("/")).await;
            (used("plan", Quota::per_minute(4)), used("credits", credits))
        }
    };
    assert_eq!(answer(&layer, get("/")).await.status(), 200);
    // The plan is exhausted, so that the credits are charged, until the handler replaces the plan. One
    // unit of the old plan then counts as four.
    assert_eq!(handle(|charge| charge.adjust_to(4)).await, (4, 4));
    live.replace(Quota::per_minute(1));
    assert_eq!(handle(|charge| charge.adjust_to(0)).await, (4, 4));
    live.replace(Quota::per_minute(1));
    let rule = |charge: &ChargeHandle| charge.adjust_rule_to("plan", 3).expect("a rule");
    assert_eq!(handle(rule).await, (4, 5), "the plan was not charged");
}

#[tokio::test(start_paused = true)]
async fn an_alternative_of_chosen_slots_does_not_wait_for_them() {
    let (store, slots) = (FakeClock::new().store(64), [Quota::concurrent(1)]);
    let chosen = Plan::from_fn(|_, _| Quota::concurrent(1).into());
    let rules = Rule::new("slots", Everyone, chosen).max_wait(MINUTE);
    let credits = Rule::new("credits", Everyone, Quota::per_hour(1))
        .applies(|head| if head.path() == "/free" { Applies::Skip } else { Applies::Charge });
    let rules = rules.or(credits);
    let layer = RateLimitLayer::rules(rules, store.clone()).hold_until(HoldUntil::Head);
    let key = Key::everyone();
    let _held = store.take(&[Charge::new(rule("slots"), &key, &slots)]).now();
    let start = tokio::time::Instant::now();
    assert_eq!(status(&layer, get("/")).await, 200, "by the credits");
    assert_eq!(status(&layer, get("/")).await, 429);
    assert_eq!(status(&layer, get("/free")).await, 429, "the only one that applies");
    assert_eq!(start.elapsed(), Duration::ZERO);
}
