//! Lints for settings that are probably a mistake, with the rule, the value and the fix.
//!
//! A lint that reports a quota without effect is proved here: for any charges, the decisions are
//! those of the other quota alone.
//!
//! Lints that need running requests are tested in `tests/logs/lints.rs`.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use governor::RateLimiter;
use http::Method;
use proptest::prelude::*;
use tower_sluice::{
    Algorithm, ClientIp, Cost, Decision, Headers, Key, KeyExtractor, Limiter, LivePlan, LocalStore,
    PeerIp, Plan, Quota, RateLimitLayer, Rule, StoreExt, by_route,
    key::{Everyone, HeaderKey},
    lint::{Finding, Lint},
    middleware::Adjustment,
    rule::{Quotas, RuleName, Rules},
    store::{Charge, GovernorStore},
    testing::FakeClock,
};

use crate::support::{quota, regressions::keeping};

const TEN: Quota = Quota::per_second(10);
const SECOND: Duration = Duration::from_secs(1);

fn rule(plan: impl Into<Plan>) -> Rule<Everyone> {
    Rule::new("api", Everyone, plan)
}

fn layer<K: Rules>(rules: K) -> RateLimitLayer<K, LocalStore> {
    RateLimitLayer::rules(rules, LocalStore::with_capacity(1))
}

fn texts(found: &[Finding]) -> Vec<String> {
    found.iter().map(ToString::to_string).collect()
}

fn lints<K: Rules>(rules: K) -> Vec<String> {
    texts(&layer(rules).lints())
}

#[test]
fn a_quota_that_never_denies_is_named_with_the_one_that_does() {
    let found = layer(rule([TEN, Quota::per_minute(600).named("minute")])).lints();
    assert_eq!(found.len(), 1);
    let api = RuleName::new("api").expect("a name");
    assert_eq!((found[0].lint(), found[0].rule()), (Lint::DominatedQuota, Some(api)));
    assert_eq!(
        found[0].to_string(),
        "rule api: quota 2 (\"minute\"), 600/min, never denies a request that quota 1, 10/s, allows, \
         so it has no effect; lower its units or remove it"
    );
    assert_eq!(found[0].lint().to_string(), "dominated_quota");
}

#[test]
fn each_quota_is_reported_once_and_the_later_of_two_equal_ones() {
    let (day, equal) = (Quota::per_day(900_000), TEN.named("again"));
    let found = lints(rule([day, TEN, equal, Quota::per_minute(60)]));
    let heads: Vec<_> = found.iter().map(|text| text.split(" allows").next()).collect();
    assert_eq!(
        heads,
        [
            Some("rule api: quota 1, 900000/day, never denies a request that quota 2, 10/s,"),
            Some("rule api: quota 3 (\"again\"), 10/s, never denies a request that quota 2, 10/s,"),
        ]
    );
}

/// A quota as text, with the algorithm that counts it.
fn counted((text, by): (&str, Algorithm)) -> Quota {
    quota(text).try_algorithm(by).expect("counted")
}

const GCRA: Algorithm = Algorithm::Gcra;
const BUCKET: Algorithm = Algorithm::TokenBucket;
const FIXED: Algorithm = Algorithm::fixed_window();
const ANCHORED: Algorithm = Algorithm::AnchoredWindow;
const LOG: Algorithm = Algorithm::SlidingLog;

const fn sliding(buckets: u32) -> Algorithm {
    Algorithm::SlidingWindow { buckets }
}

/// Returns `true` if the second of these two never denies.
fn is_dominated(tight: Quota, loose: Quota) -> bool {
    let found = lints(rule([tight.named("tight"), loose.named("loose")]));
    found.iter().any(|text| text.starts_with("rule api: quota 2 (\"loose\")"))
}

#[test]
fn the_lint_has_the_same_edge_as_the_algorithms() {
    // the stricter quota, one that never denies beside it, and one that just does
    for (tight, never, denies) in [
        (("10/s", GCRA), ("600/min", GCRA), ("599/min", GCRA)),
        (("10/s burst 20", GCRA), ("36000/h burst 20", GCRA), ("36000/h burst 19", GCRA)),
        (("3/s burst 9", GCRA), ("180/min burst 9", GCRA), ("179/min burst 9", GCRA)),
        (("10/s burst 20", BUCKET), ("10/s burst 25", BUCKET), ("10/s burst 19", BUCKET)),
        (("100/h", FIXED), ("100/min", FIXED), ("99/min", FIXED)),
        (("10/min", FIXED), ("600/h", FIXED), ("599/h", FIXED)),
        (("10/min", FIXED), ("30/90s", FIXED), ("29/90s", FIXED)),
        (("10/min", ANCHORED), ("10/min", ANCHORED), ("9/min", ANCHORED)),
        (("10/min", sliding(6)), ("10/min", sliding(6)), ("9/min", sliding(6))),
        (("10/min", LOG), ("10/s", LOG), ("9/s", LOG)),
        (("10/min", LOG), ("10/min", FIXED), ("9/min", FIXED)),
        (("10/min", LOG), ("10/min", GCRA), ("10/min burst 9", GCRA)),
        (("10/min", FIXED), ("10/min burst 20", GCRA), ("10/min burst 19", GCRA)),
        (("10/min", FIXED), ("20/min", LOG), ("19/min", LOG)),
        (("10/min", sliding(5)), ("10/min burst 12", GCRA), ("10/min burst 11", GCRA)),
        (("10/s", GCRA), ("610/min", LOG), ("608/min", LOG)),
        (("10/s", GCRA), ("609/min", FIXED), ("608/min", FIXED)),
        (("10/s", GCRA), ("600/min burst 609", BUCKET), ("600/min burst 608", BUCKET)),
        (("10/s", BUCKET), ("10/s burst 20", GCRA), ("10/s burst 19", GCRA)),
        (("10/min", LOG), ("20/min", sliding(60)), ("19/min", sliding(60))),
        (("10/min", LOG), ("10/59s", sliding(59)), ("10/min", sliding(60))),
    ] {
        assert!(is_dominated(counted(tight), counted(never)), "{tight:?} {never:?}");
        assert!(!is_dominated(counted(tight), counted(denies)), "{tight:?} {denies:?}");
    }
}

/// Each of them denies sometimes, as the sequence beside it shows.
#[test]
fn quotas_that_only_seem_less_strict_are_not_reported() {
    for (tight, loose) in [
        // 6 at 0 s, 5 right before 2 s, 9 at 2 s: full in between, but the larger one is not
        (("5/s burst 10", BUCKET), ("6/s burst 10", BUCKET)),
        // 60 right before 60 s, and at 60 s
        (("60/min", BUCKET), ("1/s burst 60", BUCKET)),
        // 1 at 0 s, 9 at 55 s, 10 at 60 s: another window has begun by then
        (("10/min", ANCHORED), ("10/50s", ANCHORED)),
        (("10/min", ANCHORED), ("10/min", FIXED)),
        (("10/min", FIXED), ("10/min", ANCHORED)),
        (("10/min", FIXED), ("10/min", GCRA)),
        // 10 at 59 s and at 60 s
        (("10/min", FIXED), ("10/min", LOG)),
        (("10/min", FIXED), ("11/50s", FIXED)),
        // with another number of buckets, another share leaves the window
        (("10/min", sliding(1)), ("10/min", sliding(2))),
        (("10/min", sliding(2)), ("10/min", sliding(1))),
        (("10/min", LOG), ("10/min", sliding(60))),
        (("10/s", GCRA), ("600/min", LOG)),
        (("10/s", BUCKET), ("10/s", GCRA)),
    ] {
        assert!(!is_dominated(counted(tight), counted(loose)), "{tight:?} {loose:?}");
    }
    let bucket = Quota::per_second(5).burst(10).algorithm(BUCKET);
    assert!(!is_dominated(bucket.initial(0), bucket), "it is full earlier, and has another grid");
    let (soft, hour) = (Quota::per_minute(10).algorithm(FIXED).soft(1), Quota::per_hour(659));
    assert!(!is_dominated(soft, hour.algorithm(FIXED)), "overage in each of sixty windows");
    assert!(is_dominated(soft, Quota::per_hour(660).algorithm(FIXED)));
}

#[test]
fn overage_carry_over_and_initial_units_are_considered() {
    let minute = Quota::per_minute(600);
    assert!(is_dominated(TEN.soft(590), minute));
    assert!(!is_dominated(TEN.soft(591), minute), "overage allows more");
    assert!(is_dominated(TEN.soft(591), minute.soft(1)));
    assert!(!is_dominated(TEN, minute.burst(9).soft(600)), "it marks overage");
    assert!(is_dominated(TEN.initial(0), minute));
    assert!(is_dominated(TEN, minute.initial(600)));
    assert!(!is_dominated(TEN, minute.initial(599)), "idle, it would begin lower");
    let lends = Quota::per_minute(10).algorithm(FIXED.carry_over(5));
    assert!(is_dominated(lends, counted(("900/h", FIXED))));
    assert!(!is_dominated(lends, counted(("899/h", FIXED))), "carried-over units pass too");
    assert!(!is_dominated(
        counted(("10/min", FIXED)),
        Quota::per_minute(11).algorithm(FIXED.paced())
    ));
    assert!(is_dominated(Quota::blocked(), TEN) && !is_dominated(TEN, Quota::blocked()));
}

#[test]
fn with_refunds_only_quotas_that_count_alike_are_compared() {
    let dominated = || rule([TEN, Quota::per_minute(600)]);
    let alike = || rule([TEN.named("one"), TEN.named("other")]);
    assert_eq!(layer(dominated()).adjust(|_| Adjustment::Refund).lints(), []);
    assert_eq!(layer(dominated()).expose_charge().lints(), []);
    assert_eq!(layer(dominated().max_wait(SECOND)).lints(), []);
    assert_eq!(layer(alike()).adjust(|_| Adjustment::Refund).lints().len(), 1);
    assert_eq!(layer(alike().max_wait(SECOND)).lints().len(), 1);
}

/// Values of a quota, so small that many pairs are at an edge.
type Numbers = (Algorithm, u64, u32, u32, u32, Option<u32>);

fn numbers() -> impl Strategy<Value = Numbers> {
    let algorithm = prop_oneof![
        3 => Just(GCRA),
        3 => Just(BUCKET),
        2 => Just(FIXED),
        1 => (1..9_u32).prop_map(|lent| FIXED.carry_over(lent)),
        1 => Just(FIXED.paced()),
        2 => Just(ANCHORED),
        1 => Just(sliding(1)),
        1 => Just(sliding(2)),
        1 => Just(sliding(3)),
        2 => Just(LOG),
    ];
    let period = prop::sample::select(vec![6_u64, 12, 18, 24, 30, 60, 72, 90, 120, 360]);
    let units = prop_oneof![3 => 1..8_u32, 1 => 1..40_u32];
    let burst = prop_oneof![3 => 1..20_u32, 1 => 1..60_u32];
    let soft = prop_oneof![3 => Just(0), 1 => 1..10_u32];
    let initial = prop_oneof![4 => Just(None), 1 => (0..10_u32).prop_map(Some)];
    (algorithm, period, units, burst, soft, initial)
}

fn quota_of(
    (algorithm, period, units, burst, soft, initial): Numbers,
    scale: u64,
) -> Option<Quota> {
    let quota = Quota::new(units, Duration::from_nanos(period * scale)).ok()?;
    let quota = match algorithm {
        GCRA | BUCKET => quota.try_burst(burst).ok()?,
        _ => quota,
    };
    let quota = quota.try_algorithm(algorithm).ok()?.try_soft(soft).ok()?;
    initial.map_or(Some(quota), |initial| quota.try_initial(initial).ok())
}

/// Two quotas that share some of their values.
fn pair() -> impl Strategy<Value = [Quota; 2]> {
    let scale = prop::sample::select(vec![1_u64, 7, 1_000_000_000]);
    let common = prop::array::uniform6(prop::bool::weighted(0.6));
    (numbers(), numbers(), common, scale).prop_filter_map("valid", |(one, other, common, scale)| {
        let [algorithm, period, units, burst, soft, initial] = common;
        let second = (
            if algorithm { one.0 } else { other.0 },
            if period { one.1 } else { other.1 },
            if units { one.2 } else { other.2 },
            if burst { one.3 } else { other.3 },
            if soft { one.4 } else { other.4 },
            if initial { one.5 } else { other.5 },
        );
        Some([quota_of(one, scale)?, quota_of(second, scale)?])
    })
}

/// A time, in sixths of one of the periods and a nanosecond more or less; a cost, in sixths of a
/// limit and some units more; and a headroom.
type Step = ((bool, u64, i64), (u32, u32), u32);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sixths = prop_oneof![4 => Just(0), 4 => 0..8_u64, 1 => 0..40_u64];
    let time = (any::<bool>(), sixths, -1..2_i64);
    let cost = (prop_oneof![2 => Just(0), 1 => 0..7_u32], 0..4_u32);
    let headroom = prop_oneof![4 => Just(0), 1 => 0..10_u32];
    prop::collection::vec((time, cost, headroom), 400)
}

/// Returns the parts of a decision that do not depend on the number of quotas.
fn said(decision: &Decision) -> (bool, bool, Option<Duration>) {
    (decision.is_allowed(), decision.is_overage(), decision.retry_after())
}

/// Plays the steps on both quotas and on `tight` alone, and compares the decisions.
fn play(quotas: [Quota; 2], tight: Quota, steps: &[Step]) -> Result<(), TestCaseError> {
    let (clock, key, name) = (FakeClock::new(), Key::from("alice"), RuleName::default());
    let (both, alone) = (clock.store(16), clock.store(16));
    clock.advance(Duration::from_secs(1_000_003));
    for ((first, sixths, more), (share, units), headroom) in steps {
        let period = quotas[usize::from(*first)].period();
        let nanos = u64::try_from(period.as_nanos()).expect("fits") / 6 * sixths;
        clock.advance(Duration::from_nanos(nanos.saturating_add_signed(*more)));
        let cost = tight.limit() * share / 6 + units;
        let charge =
            |quotas| Charge::new(name, &key, quotas).with_cost(cost).with_headroom(*headroom);
        let (one, two) =
            (both.take(&[charge(&quotas)]).now(), alone.take(&[charge(&[tight])]).now());
        prop_assert_eq!(said(&one), said(&two), "{:?}: cost {} at {:?}", quotas, cost, clock.now());
    }
    Ok(())
}

/// Returns the index of the quota that, by the lint, never denies.
fn loose(quotas: [Quota; 2]) -> Option<usize> {
    let names = [quotas[0].named("first"), quotas[1].named("second")];
    // a quota in which a cost of 1 never fits is an error
    let layer = RateLimitLayer::try_rules(rule(names), LocalStore::with_capacity(1)).ok()?;
    let found = layer.lints();
    assert!(found.len() < 2, "one of two denies: {found:?}");
    let text = found.first()?.to_string();
    Some(usize::from(text.starts_with("rule api: quota 2")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, max_global_rejects: 1_000_000, ..keeping(file!()) })]

    /// Five hundred pairs with a quota that, by the lint, never denies, with four hundred charges
    /// each.
    #[test]
    fn a_quota_that_is_reported_never_to_deny_never_denies(
        (quotas, loose) in pair().prop_filter_map("one dominates", |quotas| Some((quotas, loose(quotas)?))),
        steps in steps(),
    ) {
        play(quotas, quotas[1 - loose], &steps)?;
    }
}

#[test]
fn a_cost_above_the_current_live_plan_is_found() {
    let live = LivePlan::new(TEN);
    let one = layer(rule(&live).cost(11));
    assert_eq!(
        texts(&one.lints()),
        ["rule api: cost 11 is above the current limit 10 of its live plan, so every request is \
          denied until the plan is replaced; lower the cost or raise the burst"]
    );
    let leaves = layer(rule(&live).cost(5).headroom(6)).lints();
    assert_eq!(leaves[0].lint(), Lint::CostAboveLimit);
    assert!(
        texts(&leaves)[0].starts_with("rule api: cost plus headroom 11 is above the current limit")
    );
    live.replace(TEN.burst(11));
    assert_eq!(one.lints(), []);
    live.replace([TEN, Quota::per_minute(600)]);
    assert_eq!(one.lints().len(), 2, "cost, and a quota that never denies");
    live.replace(Quota::blocked());
    assert_eq!(one.lints(), [], "a blocked quota is intended");
}

#[test]
fn a_headroom_that_denies_every_request_fails_to_build() {
    let denied = |rule: Rule<Everyone>| {
        let layer = RateLimitLayer::try_rules(rule, LocalStore::with_capacity(1));
        layer.map(drop).map_err(|wrong| wrong.to_string())
    };
    let text = |cost, headroom| {
        Err(format!(
            "rule api: cost {cost} and headroom {headroom} are together above the quota's limit 10, \
             so every request would be denied; lower the headroom or raise the burst"
        ))
    };
    let read = || Cost::from_fn(|_| 1);
    assert_eq!(denied(rule(TEN).cost(5).headroom(6)), text(5, 6));
    assert_eq!(denied(rule(TEN).cost(read()).headroom(10)), text(1, 10));
    for fits in [
        rule(TEN).cost(5).headroom(5),
        rule(TEN.soft(1)).cost(5).headroom(6),
        rule(TEN).cost(0).headroom(11),
        rule(TEN).headroom(Cost::from_fn(|_| 11)),
        rule(Quota::blocked()).headroom(11),
        rule(&LivePlan::new(TEN)).headroom(11),
    ] {
        assert_eq!(denied(fits), Ok(()));
    }
}

#[test]
fn quotas_that_a_governor_limiter_does_not_support_fail_to_build() {
    let ten = governor::Quota::per_second(NonZeroU32::new(10).expect("above 0"));
    let limiter = Arc::new(RateLimiter::<Key, _, _>::keyed(ten));
    let denied = |rule: Rule<Everyone>| {
        let store = GovernorStore::new(limiter.clone()).fail_open();
        RateLimitLayer::try_rules(rule, store).map(drop).map_err(|wrong| wrong.to_string())
    };
    let headroom =
        Err("the store cannot do this: a governor limiter does not support headroom or \
                        max_wait; use LocalStore"
            .to_owned());
    assert_eq!(denied(rule(TEN)), Ok(()));
    assert_eq!(denied(rule(TEN).headroom(1)), headroom);
    assert_eq!(denied(rule(TEN).headroom(Cost::from_fn(|_| 0))), headroom);
    assert_eq!(
        denied(rule(TEN).report_only(true)),
        Err("the store cannot do this: a governor limiter does not support report-only \
             charges; use RateLimitLayer::report_only, or LocalStore"
            .to_owned())
    );
}

#[test]
fn header_families_that_do_not_distinguish_quotas_report_one_that_does() {
    let rules = || {
        let user = Rule::new("user", Everyone, [Quota::per_second(5), Quota::per_day(900)]);
        (Rule::new("ip", PeerIp::new(), TEN), user)
    };
    for (family, name) in [
        (Headers::Draft07, "Draft07"),
        (Headers::Draft06, "Draft06"),
        (Headers::XRateLimit, "XRateLimit"),
        (Headers::XRateLimitDelta, "XRateLimitDelta"),
    ] {
        let found = layer(rules()).headers(family).lints();
        assert_eq!((found[0].lint(), found[0].rule()), (Lint::UnnamedQuotas, None));
        assert_eq!(
            texts(&found),
            [format!(
                "headers: {name} reports one quota without its name, and a request is charged under 3 \
                 (\"ip\", \"user-1s\", \"user-1day\"), so a client cannot identify the quota; use \
                 Headers::RateLimit or Headers::None"
            )]
        );
        assert_eq!(layer(rule(TEN)).headers(family).lints(), [], "one quota needs no name");
        let (ip, user) = rules();
        assert_eq!(
            layer((ip, user.report_only(true))).headers(family).lints(),
            [],
            "clients see one"
        );
    }
    for family in [Headers::RateLimit, Headers::None] {
        assert_eq!(layer(rules()).headers(family).lints(), []);
    }
}

#[test]
fn one_route_is_charged_and_at_least_one_of_the_chosen_quotas() {
    let routes = |quotas: Quotas| by_route([(Method::GET, "/a", quotas)], TEN);
    let family = Headers::XRateLimit;
    assert_eq!(layer(routes(TEN.into())).headers(family).lints(), []);
    let two = layer(routes([TEN, Quota::per_day(900)].into())).headers(family).lints();
    assert!(texts(&two)[0].contains("under 2 (\"GET /a-1s\", \"GET /a-1day\")"), "{two:?}");
    let beside = (Rule::new("site", Everyone, Quota::per_second(99)), routes(TEN.into()));
    let beside = layer(beside).headers(family).lints();
    assert!(texts(&beside)[0].contains("under 2 (\"site\", \"GET /a\")"), "{beside:?}");

    let chosen = || rule(Plan::from_fn(|_, _| TEN.into()));
    assert_eq!(layer(chosen()).headers(family).lints(), []);
    let beside = layer((chosen(), Rule::new("site", Everyone, TEN))).headers(family).lints();
    assert!(texts(&beside)[0].contains("under 2 (\"api\", \"site\")"), "{beside:?}");
}

#[test]
fn other_methods_of_a_route_with_a_much_higher_limit_are_found() {
    let minute = Quota::per_minute;
    let post = |quota: Quota| by_route([(Method::POST, "/login", quota)], TEN);
    let found = layer(post(minute(5))).lints();
    let other = RuleName::new("other").expect("a name");
    assert_eq!((found[0].lint(), found[0].rule()), (Lint::OtherMethods, Some(other)));
    assert_eq!(
        texts(&found),
        ["rule other: this rule charges other methods of the routes \"POST /login\" at more than \
          ten times their rate; if a handler serves several methods, limit its path with any_method"]
    );
    assert_eq!(lints(post(minute(59))).len(), 1);
    assert_eq!(lints(post(minute(60))), [""; 0], "ten times is not much looser");
    assert_eq!(lints(post(minute(5)).any_method("/login", minute(5))), [""; 0]);
    assert_eq!(lints(post(minute(5)).any_method("/other", minute(5))).len(), 1);
    assert_eq!(lints(by_route([(Method::POST, "/login", [])], TEN)), [""; 0], "unlimited");
    assert_eq!(lints(by_route([(Method::POST, "/login", Quota::blocked())], TEN)).len(), 1);
    assert_eq!(lints(by_route([(Method::GET, "/a", minute(5))], [])).len(), 1);
    assert_eq!(lints(by_route([(Method::GET, "/a", minute(5))], Quota::blocked())), [""; 0]);
    assert_eq!(lints(by_route([(Method::POST, "/shop.Cart/Buy", minute(5))], TEN)), [""; 0]);

    let many = (0..5).map(|n| (Method::GET, format!("/{n}"), minute(1)));
    let many = lints(by_route(many, TEN));
    assert_eq!(many.len(), 1);
    assert!(
        many[0].contains("routes \"GET /0\", \"GET /1\", \"GET /2\" and 2 more at"),
        "{many:?}"
    );
    let meant = layer(post(minute(5))).allow_lint(Lint::OtherMethods);
    assert_eq!(meant.lints(), []);
}

#[test]
fn a_queue_of_size_zero_is_found() {
    let waits = || layer(rule(TEN).max_wait(SECOND));
    assert_eq!(waits().lints(), []);
    assert_eq!(layer(rule(TEN)).max_waiters(0).lints(), []);
    let found = waits().max_waiters(0).lints();
    assert_eq!(found[0].lint(), Lint::NobodyWaits);
    assert_eq!(
        texts(&found),
        ["rule api: max_wait has no effect, because max_waiters of the layer is 0; raise \
          max_waiters or remove max_wait"]
    );
    assert_eq!(
        texts(&waits().max_waiters_per_key(0).lints()),
        ["rule api: max_wait has no effect, because max_waiters_per_key of the layer is 0; raise \
          max_waiters_per_key or remove max_wait"]
    );
    assert_eq!(waits().max_waiters_per_key(1).lints(), []);
}

#[test]
fn probably_unintended_trusted_networks_are_found() {
    const NOBODY: &str = "rule api: ClientIp::behind trusts no network, so its header is never \
                          read and each peer is the client; give the networks of the proxies, or \
                          use PeerIp";
    let of =
        |networks: &[&str]| Rule::new("api", ClientIp::behind(networks).expect("networks"), TEN);
    let found = layer(of(&[])).lints();
    assert_eq!(texts(&found), [NOBODY]);
    assert_eq!((found[0].lint(), found[0].lint().name()), (Lint::KeyExtractor, "key_extractor"));
    assert_eq!(
        lints(of(&["10.0.0.0", "203.0.113.9", "2001:db8:5::"])),
        [
            "rule api: ClientIp::behind trusts the single address 10.0.0.0, which looks like a \
             network address; give the network's prefix length, as in 10.0.0.0/8, or write 10.0.0.0/32 for \
             one proxy",
            "rule api: ClientIp::behind trusts the single address 2001:db8:5::, which looks like \
             a network address; give the network's prefix length, as in 2001:db8:5::/48, or write \
             2001:db8:5::/128 for one proxy",
        ]
    );
    assert_eq!(lints(of(&["10.0.0.0/8", "10.0.0.0/32", "10.0.0.7", "2001:db8:5::/48"])), [""; 0]);
    assert_eq!(lints(Rule::new("api", ClientIp::hops(1), TEN)), [""; 0]);
    assert_eq!(layer(of(&[])).allow_lint(Lint::KeyExtractor).lints(), []);
}

#[test]
fn an_extractor_inside_others_is_checked_too() {
    let nobody = || ClientIp::behind([""; 0]).expect("no networks");
    let count = |found: Vec<String>| found.len();
    assert_eq!(count(lints(Rule::new("api", HeaderKey::new("x-user").or(nobody()), TEN))), 1);
    assert_eq!(count(lints(Rule::new("api", (nobody(), Everyone), TEN))), 1);
    assert_eq!(count(lints(Rule::new("api", (Everyone, nobody(), nobody()), TEN))), 2);
    assert_eq!(count(lints(Rule::new("api", (Everyone, Everyone, nobody(), Everyone), TEN))), 1);
    let boxed: Box<dyn KeyExtractor> = Box::new(nobody());
    assert_eq!(count(lints(Rule::new("api", boxed, TEN))), 1);
    assert_eq!(count(lints(Rule::new("api", Arc::new(nobody()), TEN))), 1);
    assert_eq!(count(lints(Rule::new("api", &nobody(), TEN))), 1);
    let routes = [(Method::GET, "/a", TEN), (Method::GET, "/b", TEN)];
    let found = lints(by_route(routes, TEN).each(nobody()));
    assert!(found.len() == 1 && found[0].starts_with("rule other: "), "once: {found:?}");
}

#[test]
fn an_adjustment_that_may_exceed_the_debt_is_found() {
    let reserves = |quota, cost, adjusted| {
        layer(rule(quota).cost(cost)).expose_charge_at_least(adjusted).lints()
    };
    let found = reserves(TEN, 2, 5);
    assert_eq!(found[0].lint(), Lint::AdjustmentAboveMaxDebt);
    assert_eq!(
        texts(&found),
        ["rule api: cost 2 becomes 5 without an adjustment; quota 10/s allows 5 such requests at \
          once, and charges at most its limit 10 and max_debt 10 of their 25 units; raise the cost, \
          or max_debt to 15"]
    );
    assert_eq!(reserves(TEN.max_debt(15), 2, 5), []);
    assert_eq!(reserves(TEN.max_debt(14), 2, 5).len(), 1);
    assert_eq!(reserves(TEN, 5, 5), [], "the first charge is not debt");
    assert_eq!(reserves(TEN, 10, 20), []);
    assert_eq!(reserves(TEN, 10, 21).len(), 1);
    assert_eq!(reserves(TEN, 2, 0), []);
    assert_eq!(reserves(TEN.max_debt(0), 10, 11).len(), 1);
    assert_eq!(layer(rule(TEN)).expose_charge().lints(), []);
    let per_request = rule(TEN).cost(Cost::from_fn(|_| 1));
    assert_eq!(layer(per_request).expose_charge_at_least(99).lints(), [], "not judged");
}

#[test]
fn a_lint_can_be_allowed_by_its_kind() {
    let two = [TEN, Quota::per_minute(600)];
    let kinds = |found: &[Finding]| found.iter().map(Finding::lint).collect::<Vec<_>>();
    let layer = layer(rule(two)).headers(Headers::XRateLimit);
    assert_eq!(kinds(&layer.lints()), [Lint::DominatedQuota, Lint::UnnamedQuotas]);
    let layer = layer.allow_lint(Lint::DominatedQuota);
    assert_eq!(kinds(&layer.clone().lints()), [Lint::UnnamedQuotas]);
    let layer = layer.headers(Headers::Draft06).max_waiters(9);
    assert_eq!(kinds(&layer.lints()), [Lint::UnnamedQuotas], "regardless of later settings");
    assert_eq!(layer.allow_lint(Lint::UnnamedQuotas).lints(), []);
}

#[test]
fn documented_examples_have_no_lints() {
    let by_key = [Quota::per_second(5).burst(20), Quota::per_day(10_000)];
    let rules = (Rule::new("ip", PeerIp::new(), Quota::per_second(20)), rule(by_key));
    assert_eq!(lints(rules), [""; 0]);
    assert_eq!(RateLimitLayer::per_ip(TEN).lints(), []);
    assert_eq!(lints(rule([])), [""; 0]);
}

const PACED: Algorithm = Algorithm::fixed_window().paced();

/// Sends a request until it is allowed, each time after `Retry-After`. Returns `true` if one of ten
/// requests is allowed.
fn serves_an_obedient_client(quota: Quota, cost: u32, start: Duration) -> bool {
    let clock = FakeClock::new();
    clock.advance(start);
    let limiter = Limiter::new(clock.store(16));
    (0..10).any(|_| {
        let decision = limiter.take("me", &quota, cost).now();
        let wait = decision.retry_after().unwrap_or_default();
        let part = u64::from(wait.subsec_nanos() > 0);
        clock.advance(Duration::from_secs(wait.as_secs() + part));
        decision.is_allowed()
    })
}

#[test]
fn a_cost_that_an_obedient_client_may_never_fit_into_a_paced_window() {
    let found = layer(rule(TEN.algorithm(PACED)).cost(5)).lints();
    assert_eq!(found[0].lint(), Lint::PacedCost);
    assert_eq!(
        texts(&found),
        [
            "rule api: cost 5 fits only in the last 600ms of each window of the paced quota 10/s, so \
          a client that waits for Retry-After, in whole seconds, can be denied forever; use \
          Algorithm::Gcra, max_wait or a longer window"
        ]
    );
    assert!(!serves_an_obedient_client(TEN.algorithm(PACED), 5, SECOND));
    let queued = rule(TEN.algorithm(PACED)).cost(5).max_wait(SECOND);
    assert_eq!(layer(queued).lints(), []);
    assert_eq!(layer(rule(TEN).cost(5)).lints(), []);

    for (units, seconds) in [(10, 1), (1, 1), (10, 2), (60, 60), (100, 60), (7, 10)] {
        let quota = Quota::new(units, seconds * SECOND).expect("a quota").algorithm(PACED);
        for cost in 1..=units {
            let served = (0..40).all(|at| {
                serves_an_obedient_client(quota, cost, Duration::from_millis(100_000 + 251 * at))
            });
            let found = layer(rule(quota).cost(cost)).lints();
            assert!(served || found.len() == 1, "{quota}, cost {cost}: {found:?}");
        }
    }
}
