//! Clones of a layer and its services, which share one limit.

use std::convert::Infallible;

use tower_sluice::{
    Algorithm, LivePlan, LocalStore, Plan, Quota, RateLimitLayer, Rule, Store, key::Everyone,
};

const TEN: Quota = Quota::per_hour(10);

fn rule(name: &str, plan: impl Into<Plan>) -> Rule<Everyone> {
    Rule::new(name, Everyone, plan)
}

/// Returns the error for another layer of the rule `login` on this store.
fn denial<S>(store: S, plan: impl Into<Plan>) -> Option<String>
where
    S: Store<Error = Infallible>,
{
    let layer = RateLimitLayer::try_rules(rule("login", plan), store);
    layer.err().map(|wrong| wrong.to_string())
}

/// Different window lengths would be unsafe: a request under the short one would end the account,
/// and free a key that is exhausted under the long one.
#[test]
fn other_quotas_under_one_name_fail_to_build() {
    const TEXT: &str = "the store cannot do this: rule login has different quotas in another layer on \
                        this store, and both would charge the same accounts; rename one, or give \
                        each layer its own store";
    let store = LocalStore::with_capacity(64);
    let windows = TEN.with_algorithm(Algorithm::SlidingLog);
    assert_eq!(denial(store.clone(), TEN), None);
    for other in [&[Quota::per_second(10)][..], &[windows], &[TEN.with_burst(9)], &[TEN, windows]] {
        assert_eq!(denial(store.clone(), other), Some(TEXT.into()), "{other:?}");
    }
    assert_eq!(denial(store.clone(), TEN), None, "a layer that failed to build does not count");
    assert_eq!(denial(store, &LivePlan::new(windows)), None, "live plans are not compared");
    assert_eq!(denial(LocalStore::with_capacity(64), windows), None);
}

#[test]
fn a_layer_that_fails_to_build_registers_no_quotas() {
    let (store, named) =
        (LocalStore::with_capacity(16), |units| Quota::per_hour(units).with_name("x"));
    let clash = (rule("login", named(5)), rule("other", named(9)));
    let wrong =
        RateLimitLayer::try_rules(clash, store.clone()).err().map(|wrong| wrong.to_string());
    assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains("are called \"x\"")), "{wrong:?}");
    assert_eq!(denial(store, Quota::per_hour(6)), None);
}
