//! Three rules in one decision, which charge all accounts or none, under many threads.

use std::{sync::Barrier, thread, time::Duration};

use futures::FutureExt;
use http::{Request, StatusCode};
use tower::{Layer, Service, ServiceExt};
use tower_sluice::{
    Algorithm, Cost, Key, LocalStore, Quota, RateLimitLayer, Rule, StoreExt,
    key::{Everyone, ExtensionKey},
    store::Charge,
    testing::FakeClock,
};

use crate::support::{Strict, driven::limiter};

const THREADS: u32 = 8;
/// Calls of all threads together.
const DECISIONS: u32 = if cfg!(debug_assertions) { 40_000 } else { 1_000_000 };
const ADDRESSES: u32 = 64;
const USERS: u32 = 96;

/// The keys and the cost of a call.
#[derive(Clone, Copy)]
struct Call {
    address: u32,
    user: u32,
    cost: u32,
}

/// The units that each account was charged.
#[derive(Clone)]
struct Charged {
    addresses: Vec<u32>,
    users: Vec<u32>,
    site: u32,
}

impl Charged {
    fn none() -> Self {
        let (addresses, users) = (vec![0; ADDRESSES as usize], vec![0; USERS as usize]);
        Self { addresses, users, site: 0 }
    }

    fn add(&mut self, call: Call) {
        self.addresses[call.address as usize] += call.cost;
        self.users[call.user as usize] += call.cost;
        self.site += call.cost;
    }

    fn and(mut self, other: &Self) -> Self {
        self.addresses.iter_mut().zip(&other.addresses).for_each(|(sum, more)| *sum += more);
        self.users.iter_mut().zip(&other.users).for_each(|(sum, more)| *sum += more);
        self.site += other.site;
        self
    }
}

/// Returns calls that compete: a few addresses and users occur far more often than the others.
fn calls(thread: u32) -> impl Iterator<Item = Call> {
    let mut random = u64::from(thread) + 1;
    let mut next = move |below: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u32::try_from(random >> 33).expect("31 bits") % below
    };
    (0..DECISIONS / THREADS).map(move |_| {
        let (few, some) = (1 + next(ADDRESSES), 1 + next(USERS));
        Call { address: next(few), user: next(some), cost: 1 + next(3) }
    })
}

/// Returns the units charged to the account.
fn charged(store: &LocalStore, rule: &str, key: impl Into<Key>, quotas: &[Quota]) -> Vec<u128> {
    let look = limiter(rule, store.clone()).peek(key, quotas).now();
    let outcomes = look.outcomes().iter().zip(quotas);
    outcomes.map(|(o, q)| o.reset_after().as_nanos() / q.interval().as_nanos()).collect()
}

#[test]
fn threads_charge_all_three_rules_or_none_and_never_exceed_a_limit() {
    // during the test each of the three rules denies some calls
    let address = [Quota::per_hour(DECISIONS / 40)];
    let user = [Quota::per_hour(DECISIONS / 50), Quota::per_day(DECISIONS / 60)];
    let site = [Quota::per_hour(DECISIONS / 2)];
    let cost = Cost::from_fn(|head| head.extensions.get::<Call>().expect("a call").cost);
    let rules = (
        Rule::new("address", ExtensionKey::by(|call: &Call| call.address), address)
            .cost(cost.clone()),
        Rule::new("user", ExtensionKey::by(|call: &Call| call.user), user).cost(cost.clone()),
        Rule::new("site", Everyone, site).cost(cost),
    );
    let store = FakeClock::new().store(4_096);
    let layer = RateLimitLayer::rules(rules, store.clone());

    let start = Barrier::new(THREADS as usize);
    let run = |thread| {
        let mut service = layer.layer(Strict::default());
        let (mut charged, mut denied) = (Charged::none(), 0);
        start.wait();
        for call in calls(thread) {
            let request = Request::builder().extension(call).body(()).expect("a request");
            let ready = ServiceExt::<Request<()>>::ready(&mut service);
            let ready = ready.now_or_never().expect("ready").expect("infallible");
            let answer = ready.call(request).now_or_never().expect("at once").expect("infallible");
            match answer.status() {
                StatusCode::OK => charged.add(call),
                _ => denied += 1,
            }
        }
        (charged, denied)
    };
    let done: Vec<(Charged, u32)> = thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || run(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let denied: u32 = done.iter().map(|(_, denied)| denied).sum();
    let sum = done.iter().fold(Charged::none(), |sum, (charged, _)| sum.and(charged));

    // each account holds exactly the charges of its allowed calls, and never more than its limit
    for (at, admitted) in (0_u32..).zip(&sum.addresses) {
        assert_eq!(
            charged(&store, "address", at, &address),
            [u128::from(*admitted)],
            "address {at}"
        );
        assert!(*admitted <= address[0].limit());
    }
    for (at, admitted) in (0_u32..).zip(&sum.users) {
        assert_eq!(charged(&store, "user", at, &user), [u128::from(*admitted); 2], "user {at}");
        assert!(*admitted <= user[1].limit());
    }
    assert_eq!(charged(&store, "site", Key::everyone(), &site), [u128::from(sum.site)]);
    assert_eq!(sum.addresses.iter().sum::<u32>(), sum.site);
    assert_eq!(sum.users.iter().sum::<u32>(), sum.site);
    assert!(sum.site <= site[0].limit());

    // each of the three rules denied something
    let spent = |accounts: &[u32], limit: u32| accounts.iter().filter(|n| **n + 3 > limit).count();
    assert!(spent(&sum.addresses, address[0].limit()) > 0);
    assert!(spent(&sum.users, user[1].limit()) > 0);
    assert!(sum.site + 3 > site[0].limit() && denied > 0, "{} of {DECISIONS}", sum.site);
    assert_eq!(store.stats().overflowed, 0, "there was room");
}

/// An account that starts with less than its limit fills from its first contact on, even if that
/// request is denied because of another account. A request that can never pass is not a contact.
#[test]
fn a_temporary_denial_opens_accounts_and_a_permanent_one_does_not() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let cold = Quota::per_hour(10).with_burst(20).with_algorithm(algorithm).with_initial(0);
        let other = Quota::per_hour(2);
        for (cost, after_an_hour) in [(2, Some(10)), (3, Some(0))] {
            let (clock, key) = (FakeClock::new(), Key::from("a"));
            let store = clock.store(64);
            let charges =
                [("cold", &cold, 1), ("other", &other, cost)].map(|(rule, quota, cost)| {
                    Charge::new(rule.parse().expect("a name"), &key, quota.as_ref()).with_cost(cost)
                });
            assert!(!store.take(&charges).now().is_allowed());
            clock.advance(Duration::from_secs(3_600));
            let look = store.take(&[charges[0].with_cost(0)]).now();
            assert_eq!(look.remaining(), after_an_hour, "{algorithm:?}, {cost}");
        }
    }
}
