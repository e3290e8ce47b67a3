//! Rules that would deny every request, and rules that a store does not support.

use std::{num::NonZeroU32, sync::Arc};

use governor::RateLimiter;
use tower_sluice::{
    Cost, Key, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule, StoreExt, key::Everyone,
    store::GovernorStore,
};

const TEN: Quota = Quota::per_second(10);

fn rule(plan: impl Into<Plan>) -> Rule<Everyone> {
    Rule::new("api", Everyone, plan)
}

#[test]
fn a_headroom_that_denies_every_request_fails_to_build() {
    let denied = |rule: Rule<Everyone>| {
        let layer = RateLimitLayer::try_rules(rule, LocalStore::with_capacity(1));
        layer.map(drop).map_err(|wrong| wrong.to_string())
    };
    let text = |cost, headroom| {
        Err(format!(
            "rule api: cost {cost} plus headroom {headroom} is above the quota's limit 10, so every \
             request would be denied; lower the cost or raise the burst"
        ))
    };
    let read = || Cost::from_fn(|_| 1);
    assert_eq!(denied(rule(TEN).cost(5).headroom(6)), text(5, 6));
    assert_eq!(denied(rule(TEN).cost(read()).headroom(10)), text(1, 10));
    for fits in [
        rule(TEN).cost(5).headroom(5),
        rule(TEN.with_soft(1)).cost(5).headroom(6),
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
