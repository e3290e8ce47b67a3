//! Decisions outside HTTP, on the accounts that a layer uses.

use std::time::Duration;

use tower_sluice::{
    Key, Limiter, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    decision::Source,
    key::{Everyone, HeaderKey},
    rule::RuleName,
    testing::FakeClock,
};

use crate::support::{Broken, Gated, answer, get, with};

const FIVE: Quota = Quota::per_second(5);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn named(name: &str, store: &LocalStore) -> Limiter<LocalStore> {
    Limiter::named(name, store.clone())
}

#[test]
fn take_charges_the_whole_cost_or_nothing() {
    let limiter = Limiter::named("default", store());
    let first = limiter.take("alice", &FIVE, 3).now();
    assert_eq!((first.is_allowed(), first.remaining()), (true, Some(2)));
    assert_eq!(first.retry_after(), Some(Duration::ZERO));
    let second = limiter.take("alice", &FIVE, 3).now();
    assert_eq!((second.is_allowed(), second.remaining()), (false, Some(2)));
    assert_eq!(second.retry_after(), Some(Duration::from_millis(200)));
    let never = limiter.take("alice", &FIVE, 6).now();
    assert_eq!((never.is_allowed(), never.retry_after()), (false, None));
    assert!(limiter.take("bob", &FIVE, 5).now().is_allowed());
}

#[test]
fn peek_charges_nothing_and_opens_no_account() {
    let store = store();
    let limiter = Limiter::named("default", store.clone());
    for _ in 0..9 {
        let look = limiter.peek("alice", &FIVE).now();
        assert_eq!((look.is_allowed(), look.remaining()), (true, Some(5)));
    }
    assert_eq!(store.stats().active, 0);
    drop(limiter.take("alice", &FIVE, 5).now());
    let look = limiter.peek("alice", &FIVE).now();
    assert_eq!((look.is_allowed(), look.remaining()), (true, Some(0)));
    assert_eq!(look.outcomes()[0].next_after(), Duration::from_millis(200));
    assert_eq!(look.outcomes()[0].reset_after(), Duration::from_secs(1));
}

#[test]
fn reset_clears_one_account() {
    let store = store();
    let (limiter, other) = (named("a", &store), named("b", &store));
    for limiter in [&limiter, &other] {
        drop(limiter.take("alice", &FIVE, 5).now());
        drop(limiter.take("bob", &FIVE, 5).now());
    }
    assert_eq!(limiter.reset("alice", &FIVE).now().remaining(), Some(5));
    let left =
        |limiter: &Limiter<LocalStore>, key: &str| limiter.peek(key, &FIVE).now().remaining();
    assert_eq!((left(&limiter, "alice"), left(&limiter, "bob")), (Some(5), Some(0)));
    assert_eq!((left(&other, "alice"), left(&other, "bob")), (Some(0), Some(0)));
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

#[tokio::test]
async fn the_layer_of_an_extractor_and_the_plain_limiter_are_both_called_default() {
    let store = store();
    let layer = RateLimitLayer::new(Everyone, FIVE, store.clone());
    answer(&layer, get("/")).await;
    assert_eq!(
        Limiter::named("default", store.clone()).peek(Key::everyone(), &FIVE).now().remaining(),
        Some(4)
    );
    let named = Limiter::named(RuleName::default().as_str(), store);
    assert_eq!(named.peek(Key::everyone(), &FIVE).now().remaining(), Some(4));
}

#[tokio::test]
async fn answers_of_any_store_are_awaited() {
    let limiter = Limiter::named("default", Gated::open(store()));
    let taken = limiter.take("alice", &FIVE, 2).await;
    assert_eq!(taken.remaining(), Some(3));
    let adjusted = limiter.refund("alice", &FIVE, 1).await;
    assert_eq!(adjusted.remaining(), Some(4));
    let boxed = Limiter::named("default", store().boxed());
    assert_eq!(boxed.take("alice", &FIVE, 2).await.remaining(), Some(3));
    for broken in [Broken::Now, Broken::Later] {
        let error = Limiter::named("default", broken)
            .try_take("alice", &FIVE, 1)
            .await
            .expect_err("an outage");
        assert!(error.to_string().contains("down"));
        let open = Limiter::named("default", broken.fail_open()).take("alice", &FIVE, 1).await;
        assert_eq!(open.source(), Source::FailedOpen);
    }
}
