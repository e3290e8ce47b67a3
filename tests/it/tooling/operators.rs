//! Operations on one key: read, reset, block and unblock.
//!
//! A block ends at its time and leaves no debt.

use std::{convert::Infallible, error::Error, time::Duration};

use http::StatusCode;
use tower::Layer;
use tower_sluice::{
    Decision, Key, Limiter, LivePlan, LocalStore, Quota, RateLimitLayer, Rule, Store, StoreExt,
    decision::{Outcome, Source},
    key::HeaderKey,
    middleware::{Adjustment, ChargeHandle, Overcommit},
    rule::RuleName,
    store::{BlockError, CannotFail, Charge},
    testing::FakeClock,
};

use crate::support::{
    Broken, Gated, Strict, ask,
    driven::{handler, left, limiter, millis, secs},
    header, with,
};

const FIVE: Quota = Quota::per_hour(5);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn store() -> LocalStore {
    FakeClock::new().store(64)
}

fn layer<S: Store<Error: CannotFail>>(store: S) -> RateLimitLayer<Rule<HeaderKey>, S> {
    RateLimitLayer::rules(Rule::new("user", HeaderKey::new("x-user"), FIVE), store)
}

async fn take<S: Store<Error = Infallible>>(limiter: &Limiter<S>, key: &str) -> Decision {
    limiter.take(key, &FIVE, 1).await
}

/// Returns all values of an account.
async fn look<S: Store<Error = Infallible>>(limiter: &Limiter<S>, key: &str) -> String {
    let decision = limiter.peek(key, &FIVE).await;
    let outcome = &decision.outcomes()[0];
    assert!(decision.is_allowed() && decision.wait().is_zero());
    format!("{} {:?} {:?}", outcome.remaining(), outcome.reset_after(), outcome.next_after())
}

#[test]
fn a_short_block_of_one_key_does_not_end_a_long_block_of_another() {
    let clock = FakeClock::new();
    let limiter = Limiter::named("default", clock.store(64));
    drop(limiter.block("alice", secs(60)).now().expect("room"));
    drop(limiter.block("bob", secs(5)).now().expect("room"));
    clock.advance(secs(6));
    assert!(!limiter.take("alice", &FIVE, 1).now().is_allowed());
    assert!(limiter.take("bob", &FIVE, 1).now().is_allowed());
}

async fn blocks_exactly<S: Store<Error = Infallible>>(clock: &FakeClock, store: S) {
    let limiter = Limiter::named("default", store);
    drop(take(&limiter, "alice").await);
    drop(take(&limiter, "alice").await);
    let before = look(&limiter, "alice").await;
    assert!(limiter.block("alice", secs(30)).await.expect("infallible").is_allowed());
    for _ in 0..5 {
        let denied = take(&limiter, "alice").await;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(secs(30))));
        assert!(take(&limiter, "bob").await.is_allowed());
    }
    assert_eq!(look(&limiter, "alice").await, before, "a look is allowed, and it is no debt");
    clock.advance(secs(30) - NANOSECOND);
    assert_eq!(take(&limiter, "alice").await.retry_after(), Some(NANOSECOND));
    clock.advance(NANOSECOND);
    let after = take(&limiter, "alice").await;
    assert_eq!((after.is_allowed(), after.remaining()), (true, Some(2)));
    // another block replaces the time, be it longer or shorter
    for seconds in [10, 60, 5] {
        drop(limiter.block("alice", secs(seconds)).await.expect("infallible"));
        assert_eq!(take(&limiter, "alice").await.retry_after(), Some(secs(seconds)));
    }
    clock.advance(secs(5));
    assert!(take(&limiter, "alice").await.is_allowed());
    // and a block can be removed
    drop(limiter.block("alice", secs(60)).await.expect("infallible"));
    drop(limiter.unblock("alice").await);
    drop(limiter.unblock("nobody").await);
    assert_eq!(take(&limiter, "alice").await.remaining(), Some(0));
    drop(limiter.block("alice", Duration::ZERO).await.expect("infallible"));
    drop(limiter.reset("alice", &FIVE).await);
    assert_eq!(take(&limiter, "alice").await.remaining(), Some(4));
}

#[test]
fn only_an_error_of_the_store_is_the_source_of_another() {
    let down = || std::io::Error::other("down");
    let source = |error: BlockError<std::io::Error>| error.source().map(ToString::to_string);
    assert_eq!(source(BlockError::Store(down())), Some("down".to_owned()));
    assert_eq!(source(BlockError::Full), None);
    assert_eq!(source(BlockError::Unavailable), None);
}

#[tokio::test]
async fn a_block_ends_at_its_time_and_leaves_no_debt_on_every_store() {
    let clock = FakeClock::new();
    let store = || clock.store(64);
    blocks_exactly(&clock, store()).await;
    blocks_exactly(&clock, std::sync::Arc::new(store())).await;
    blocks_exactly(&clock, store().boxed()).await;
    blocks_exactly(&clock, store().fail_open()).await;
    blocks_exactly(&clock, store().fail_closed()).await;
    blocks_exactly(&clock, Gated::open(store()).fail_open().boxed()).await;
    blocks_exactly(&clock, Gated::open(store()).boxed().fail_closed()).await;
}

#[tokio::test]
async fn a_failing_store_reports_whether_the_block_holds() {
    for broken in [Broken::Now, Broken::Later] {
        assert!(Limiter::named("default", broken).try_block("alice", secs(1)).await.is_err());
        let open = Limiter::named("default", broken.fail_open()).block("alice", secs(1)).await;
        assert_eq!(open.map(drop), Err(BlockError::Unavailable));
        let closed = Limiter::named("default", broken.fail_closed()).block("alice", secs(1)).await;
        assert_eq!(closed.map(drop), Err(BlockError::Unavailable));
    }
}

#[test]
fn a_block_of_one_key_of_one_rule_denies_all_charges_of_its_requests() {
    let store = store();
    let (user, site) = (limiter("user", store.clone()), limiter("site", store.clone()));
    drop(user.block("alice", secs(30)).now().expect("room"));
    assert!(site.take("alice", &FIVE, 1).now().is_allowed());
    let [name, other] = ["user", "site"].map(|name| RuleName::new(name).expect("a name"));
    let (alice, quotas) = (Key::from("alice"), [FIVE, Quota::per_day(20)]);
    let charges = [Charge::new(other, &alice, &quotas[..1]), Charge::new(name, &alice, &quotas)];
    let denied = store.take(&charges).now();
    assert_eq!((denied.is_allowed(), denied.retry_after()), (false, Some(secs(30))));
    assert_eq!(denied.binding().map(Outcome::rule), Some(name));
    assert_eq!(left(&store, "site", "alice", &FIVE), 4, "nothing was charged");
    drop(site.block("alice", secs(40)).now().expect("room"));
    assert_eq!(store.take(&charges).now().retry_after(), Some(secs(40)), "the longest of both");
}

#[test]
fn a_permanent_block_ends_with_unblock() {
    let (clock, forever) = (FakeClock::new(), Duration::MAX);
    let limiter = Limiter::named("default", clock.store(64));
    drop(limiter.block("alice", forever).now().expect("room"));
    clock.advance(100 * 365 * secs(86_400));
    assert!(!limiter.take("alice", &FIVE, 1).now().is_allowed());
    drop(limiter.unblock("alice").now());
    assert!(limiter.take("alice", &FIVE, 1).now().is_allowed());
}

#[tokio::test]
async fn a_blocked_request_gets_429_with_the_exact_wait() {
    async fn denies<S: Store<Error = Infallible> + Clone>(clock: &FakeClock, store: S) {
        let inner = Strict::default();
        let calls = inner.calls();
        let mut service = layer(store.clone()).layer(inner);
        let mut as_user = async |name| ask(&mut service, with(&[("x-user", name)])).await;
        drop(
            limiter("user", store).block("alice", secs(2) - millis(500)).await.expect("infallible"),
        );
        let denied = as_user("alice").await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(denied.headers(), "retry-after"), "2");
        assert_eq!(header(denied.headers(), "ratelimit"), r#""user";r=0;t=2"#);
        assert_eq!(denied.body(), "Access is blocked; retry in 2 s.\n");
        assert_eq!(as_user("bob").await.status(), StatusCode::OK);
        clock.advance(millis(1_500));
        let after = as_user("alice").await;
        assert_eq!(header(after.headers(), "ratelimit"), r#""user";r=4;t=2880"#);
        assert_eq!(calls(), 2);
    }
    let clock = FakeClock::new();
    denies(&clock, clock.store(64)).await;
    denies(&clock, Gated::open(clock.store(64))).await;
    denies(&clock, clock.store(64).fail_closed()).await;
}

#[tokio::test]
async fn a_handler_can_block_the_key_of_its_request_with_or_without_a_charge() {
    let store = store();
    let inner = handler(|request| {
        let attack = request.headers().contains_key("x-attack");
        let reserved: &ChargeHandle = request.extensions().get().expect("a reservation");
        if attack {
            reserved.block(secs(30)).expect("room");
        }
        200
    });
    let layer =
        layer(store.clone()).expose_charge(Adjustment::Keep).overcommit(Overcommit::when(|| true));
    let mut service = layer.layer(inner);
    drop(limiter("user", store.clone()).take("mallory", &FIVE, 5).now());
    for name in ["eve", "mallory"] {
        let mut status = async |more| {
            let request = with(&[("x-user", name), more]);
            ask(&mut service, request).await.status()
        };
        assert_eq!(status(("x-polite", "1")).await, StatusCode::OK);
        assert_eq!(status(("x-attack", "1")).await, StatusCode::OK);
        assert_eq!(status(("x-polite", "1")).await, StatusCode::TOO_MANY_REQUESTS, "{name}");
    }
    let other = ask(&mut service, with(&[("x-user", "bob")])).await;
    assert_eq!(other.status(), StatusCode::OK);
    assert_eq!(left(&store, "user", "eve", &FIVE), 3);
}

#[tokio::test]
async fn a_blocked_key_is_denied_under_a_plan_without_quotas_too() {
    let (store, live) = (store(), LivePlan::new([]));
    let rule = Rule::new("user", HeaderKey::new("x-user"), &live);
    let mut service = RateLimitLayer::rules(rule, store.clone()).layer(Strict::default());
    drop(limiter("user", store).block("alice", secs(30)).now().expect("room"));
    let denied = ask(&mut service, with(&[("x-user", "alice")])).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(denied.headers(), "retry-after"), "30");
    assert_eq!(ask(&mut service, with(&[("x-user", "bob")])).await.status(), StatusCode::OK);
}

#[test]
fn a_flood_of_blocks_is_bounded_and_reports_which_blocks_hold() {
    let clock = FakeClock::new();
    let store = clock.store(4_000);
    let limiter = Limiter::named("default", store.clone());
    let flood = |from: u64| {
        let block = |key: &u64| limiter.block(*key, secs(60)).now().is_ok();
        (from..from + 20_000).filter(block).collect::<Vec<_>>()
    };
    let held = flood(0);
    let slots = store.stats().slots;
    assert!((slots / 16..=slots).contains(&held.len()), "{} blocks", held.len());
    assert_eq!(flood(20_000).len(), 0, "there is no room left");
    assert_eq!(store.stats().active, 0, "a block takes no account's place");
    let blocked = |key: &u64| !limiter.take(*key, &FIVE, 1).now().is_allowed();
    assert!(held.iter().all(blocked));
    let others = (100_000..100_100).filter(|key| blocked(key)).count();
    assert_eq!(others, 0);
    clock.advance(secs(60));
    assert_eq!(held.iter().filter(|key| blocked(key)).count(), 0);
    clock.advance(NANOSECOND);
    assert_eq!(flood(200_000).len(), held.len(), "and all the room is there again");
}

/// Returns a store of the smallest size with a full table of blocks, and a key that is not blocked.
fn full_of_blocks() -> (LocalStore, u64) {
    let store = store();
    let blocks = limiter("user", store.clone());
    let mut keys = 0..10_000_u64;
    let free = keys.find(|key| blocks.block(*key, secs(60)).now().is_err());
    (store, free.expect("the table has an end"))
}

#[tokio::test]
async fn a_full_table_of_blocks_denies_the_block_through_every_wrapper() {
    async fn denies<S: Store>(store: S, key: u64) {
        let name = RuleName::new("user").expect("a name");
        let denied = match store.block(&Charge::new(name, &Key::from(key), &[]), secs(60)).await {
            Ok(decision) => decision,
            Err(_) => panic!("a full table is a decision"),
        };
        assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Overflow));
        let Err(BlockError::Full) =
            Limiter::named(name.as_str(), store).try_block(key, secs(60)).await
        else {
            panic!("the key is not blocked, and the limiter reports no error");
        };
    }
    let (full, key) = full_of_blocks();
    let full = || full.clone();
    denies(full(), key).await;
    denies(std::sync::Arc::new(full()), key).await;
    denies(full().boxed(), key).await;
    denies(full().fail_open(), key).await;
    denies(full().fail_closed(), key).await;
    denies(full().timeout(secs(1)), key).await;
    denies(full().breaker(), key).await;
    denies(full().deny_cache(), key).await;
    denies(full().leases(5), key).await;
    denies(full().fallback(store(), 1), key).await;
    denies(Gated::open(full()).fail_closed(), key).await;
    denies(Broken::Now.fallback(full(), 1), key).await;
    denies(Broken::Later.fallback(full(), 1), key).await;
    let limited = limiter("user", full());
    assert!(limited.take(key, &FIVE, 1).now().is_allowed(), "the key is not blocked");
    let blocked = full().stats().blocked;
    assert!(limited.block(0_u64, secs(90)).now().is_ok(), "a blocked key may be blocked again");
    assert_eq!(full().stats().blocked, blocked);
    drop(limited.unblock(0_u64).now());
    assert_eq!(full().stats().blocked, blocked - 1);
}

#[tokio::test]
async fn a_handler_gets_an_error_if_its_block_finds_no_room() {
    let (store, key) = full_of_blocks();
    let inner = handler(move |request| {
        let reserved: &ChargeHandle = request.extensions().get().expect("a reservation");
        match reserved.block(secs(30)) {
            Ok(()) => 200,
            Err(BlockError::Full) => 507,
            Err(_) => 500,
        }
    });
    let rule = Rule::new("user", key_of(key), FIVE);
    let layer = RateLimitLayer::rules(rule, store).expose_charge(Adjustment::Keep);
    let answered = ask(&mut layer.layer(inner), with(&[])).await;
    assert_eq!(answered.status(), StatusCode::INSUFFICIENT_STORAGE);
}

fn key_of(key: u64) -> impl tower_sluice::KeyExtractor {
    tower_sluice::key_fn(move |_| Some(key))
}

/// The documented size: room for one block per eight keys of the capacity. The sets of the table
/// fill unevenly, so some blocks, less than one in a hundred, find no room earlier.
#[test]
fn there_is_room_for_a_block_for_every_eight_keys_of_the_capacity() {
    for keys in [8_000, 131_072] {
        let store = LocalStore::with_capacity(keys);
        let limiter = Limiter::named("default", store.clone());
        let blocks = keys as u64 / 8;
        let denied = (0..blocks).filter(|key| limiter.block(*key, secs(60)).now().is_err()).count();
        assert!(denied * 100 <= keys / 8, "{denied} of {blocks} blocks were denied");
        assert_eq!(store.stats().blocked, keys / 8 - denied);
    }
}

#[test]
fn reset_clears_an_account_and_keeps_its_block() {
    let limiter = Limiter::named("default", store());
    drop(limiter.take("alice", &FIVE, 5).now());
    drop(limiter.block("alice", secs(30)).now().expect("room"));
    assert_eq!(limiter.reset("alice", &FIVE).now().remaining(), Some(5));
    assert!(!limiter.take("alice", &FIVE, 1).now().is_allowed());
    drop(limiter.unblock("alice").now());
    assert_eq!(limiter.take("alice", &FIVE, 1).now().remaining(), Some(4));
}
