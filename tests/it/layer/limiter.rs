//! Decisions outside HTTP, on the accounts that a layer uses.

use std::time::Duration;

use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule,
    key::{Everyone, HeaderKey},
    testing::FakeClock,
};

use crate::support::{answer, with};

const FIVE: Quota = Quota::per_second(5);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn named(name: &str, store: &LocalStore) -> Limiter<LocalStore> {
    Limiter::named(name, store.clone())
}

#[test]
fn units_are_charged_late_and_refunded() {
    let limiter = Limiter::named("default", store());
    let adjust = |units: i64| {
        let count = u32::try_from(units.unsigned_abs()).unwrap_or(u32::MAX);
        let adjusted = match units {
            ..0 => limiter.refund("alice", &FIVE, count).now(),
            _ => limiter.charge("alice", &FIVE, count).now(),
        };
        assert_eq!(adjusted.remaining(), limiter.peek("alice", &FIVE).now().remaining());
        (adjusted.remaining().expect("one quota"), adjusted.outcomes()[0].reset_after().as_millis())
    };
    assert_eq!(adjust(2), (3, 400));
    assert_eq!(adjust(-1), (4, 200));
    assert_eq!(adjust(-9), (5, 0), "a refund stops at full");
    assert_eq!(adjust(7), (0, 1_400), "a late charge never fails");
    assert_eq!(adjust(i64::MAX), (0, 2_000), "and stops at twice the limit");
}

#[test]
fn several_quotas_are_charged_all_or_none() {
    let (clock, quotas) = (FakeClock::new(), [Quota::per_second(2), Quota::per_hour(3)]);
    let limiter = Limiter::named("default", clock.store(64));
    let take = || {
        let decision = limiter.take("alice", &quotas, 1).now();
        let left: Vec<_> = decision.outcomes().iter().map(|o| o.remaining()).collect();
        (decision.is_allowed(), left, decision.retry_after())
    };
    let passed = Some(Duration::ZERO);
    assert_eq!(take(), (true, vec![1, 2], passed));
    assert_eq!(take(), (true, vec![0, 1], passed));
    assert_eq!(take(), (false, vec![0, 1], Some(Duration::from_millis(500))));
    clock.advance(Duration::from_secs(1));
    assert_eq!(take(), (true, vec![1, 0], passed));
    assert_eq!(take(), (false, vec![1, 0], Some(Duration::from_secs(1_199))));
    drop(limiter.reset("alice", &quotas).now());
    assert_eq!(take(), (true, vec![1, 2], passed), "reset ends the accounts of all quotas");
}

#[tokio::test]
async fn a_layers_rule_of_the_same_name_charges_the_same_account() {
    let store = store();
    let rules = (
        Rule::new("user", HeaderKey::new("x-user"), Quota::per_hour(3)),
        Rule::new("site", Everyone, Quota::per_hour(100)),
    );
    let layer = RateLimitLayer::rules(rules, store.clone());
    let status = async || answer(&layer, with(&[("x-user", "alice")])).await.status().as_u16();
    let (user, site, other) =
        (named("user", &store), named("site", &store), named("other", &store));
    assert_eq!(status().await, 200);
    let three = Quota::per_hour(3);
    assert_eq!(user.take("alice", &three, 2).now().remaining(), Some(0));
    assert_eq!(other.take("alice", &three, 1).now().remaining(), Some(2));
    assert_eq!(status().await, 429);
    let hundred = Quota::per_hour(100);
    assert_eq!(site.peek(Key::everyone(), &hundred).now().remaining(), Some(99));
    drop(user.reset("alice", &three).now());
    assert_eq!(status().await, 200);
}
