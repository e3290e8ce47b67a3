//! Batched decisions, which equal sequential ones.

use std::{cell::Cell, collections::HashSet, pin::pin, time::Duration};

use futures::{future::join_all, poll};
use proptest::{collection::vec, prelude::*, test_runner::Config};
use tokio::{
    runtime::{Builder, Runtime},
    task::{JoinSet, yield_now},
    time::Instant,
};
use tower_sluice::{
    Decision, Key, LocalStore, Quota, RedisStore, Store, StoreExt,
    rule::RuleName,
    store::{Answer, Charge},
    testing::{FakeClock, Subject},
};

use crate::{
    accounts::{Account, connect, rule},
    fated::Fated,
    servers::{Flavour, Server},
    support::{random::rows, regressions::keeping},
};

const DAY: Duration = Duration::from_secs(86_400);

fn slow(units: u32) -> Quota {
    Quota::new(units, DAY).expect("a quota")
}

/// A caller whose call makes later callers wait.
fn first_caller() -> Account {
    Account::new("first", slow(1_000_000))
}

/// A charge of a rule and a key, given by their indices.
#[derive(Clone, Debug, PartialEq)]
struct Demand {
    rule: usize,
    key: usize,
    cost: u32,
    headroom: u32,
    max_wait: u64,
}

/// An event between two batches.
#[derive(Clone, Debug)]
enum Event {
    Pass(u64),
    Adjustment(Demand, i64),
    Block(Demand, u64),
    Unblock(Demand),
    Reset(Demand),
}

fn quota() -> impl Strategy<Value = Quota> {
    (1..12_u32, 1..60_000_u64, 0..1_000_u64, 1..30_u32, 0..4_u32).prop_filter_map(
        "no quota",
        |(units, micros, odd, burst, soft)| {
            let nanos = micros * 1_000 * u64::from(units) + odd;
            let quota = Quota::new(units, Duration::from_nanos(nanos)).ok()?;
            let quota = quota.try_with_burst(burst).ok()?;
            Some(if soft > 2 { quota.try_with_soft(soft).unwrap_or(quota) } else { quota })
        },
    )
}

fn asked() -> impl Strategy<Value = Demand> {
    let cost = prop_oneof![6 => 1..3_u32, 1 => 3..40_u32];
    let headroom = prop_oneof![8 => Just(0), 1 => 1..3_u32];
    let max_wait = prop_oneof![8 => Just(0), 1 => 1..3_000_000_u64];
    (0..3_usize, 0..4_usize, cost, headroom, max_wait).prop_map(
        |(rule, key, cost, headroom, max_wait)| Demand { rule, key, cost, headroom, max_wait },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..3_000_000_u64).prop_map(Event::Pass),
        2 => (asked(), -12..12_i64).prop_map(|(asked, units)| Event::Adjustment(asked, units)),
        1 => (asked(), 0..3_000_000_u64).prop_map(|(asked, time)| Event::Block(asked, time)),
        1 => asked().prop_map(Event::Unblock),
        1 => asked().prop_map(Event::Reset),
    ]
}

/// Requests with one to three rules, and the order in which they are sent, possibly more than once.
fn batch() -> impl Strategy<Value = Vec<Vec<Demand>>> {
    (vec(vec(asked(), 1..4), 1..10), vec(0..100_usize, 1..60)).prop_map(|(mut kinds, order)| {
        for all in &mut kinds {
            // A request names each rule once.
            let mut rules = HashSet::new();
            all.retain(|asked| rules.insert(asked.rule));
        }
        order.iter().map(|n| kinds[n % kinds.len()].clone()).collect()
    })
}

/// Returns all parts of a decision except its source. The overage and the wait of a denial are
/// void.
fn parts(decision: &Decision) -> impl PartialEq + std::fmt::Debug + use<> {
    let passed = decision.is_allowed();
    let (overage, wait) = (passed && decision.is_overage(), decision.wait());
    (passed, overage, wait, decision.retry_after(), rows(decision))
}

struct Both<'a> {
    runtime: &'a Runtime,
    redis: RedisStore,
    local: LocalStore,
    rules: &'a [Vec<Quota>],
    names: &'a [RuleName],
    keys: &'a [Key],
}

impl Both<'_> {
    fn charge(&self, asked: &Demand) -> Charge<'_> {
        let Demand { rule, key, cost, headroom, max_wait } = *asked;
        let charge = Charge::new(self.names[rule], &self.keys[key], &self.rules[rule]);
        let charge = charge.with_cost(cost).with_headroom(headroom);
        let patient = charge.with_max_wait(Duration::from_nanos(max_wait));
        if self.queues(asked) { patient } else { charge }
    }

    fn charges(&self, all: &[Demand]) -> Vec<Charge<'_>> {
        all.iter().map(|asked| self.charge(asked)).collect()
    }

    fn queues(&self, asked: &Demand) -> bool {
        let charge = Charge::new(self.names[asked.rule], &self.keys[0], &self.rules[asked.rule]);
        self.local.supports(&[charge.with_max_wait(Duration::from_nanos(1))]).is_ok()
    }

    /// Returns the order in which a batch is decided: equal requests are adjacent, at the position
    /// of the first.
    fn order(&self, batch: &[Vec<Demand>]) -> Vec<usize> {
        let plain = |all: &Vec<Demand>| {
            // A request that cannot queue has no maximum wait.
            let max_wait = |asked| if self.queues(asked) { asked.max_wait } else { 0 };
            all.iter().map(|asked| Demand { max_wait: max_wait(asked), ..*asked }).collect()
        };
        let plain: Vec<Vec<_>> = batch.iter().map(plain).collect();
        let mut order: Vec<_> = (0..batch.len()).collect();
        order.sort_by_key(|at| plain.iter().position(|other| *other == plain[*at]));
        order
    }

    /// Sends all requests at once, behind another caller.
    fn at_once(&self, batch: &[Vec<Demand>]) -> Vec<Decision> {
        self.runtime.block_on(async {
            let first_caller = first_caller();
            let first = first_caller.passes(&self.redis);
            let takes = batch.iter().map(|all| self.redis.take(&self.charges(all)).into_future());
            let (_, decisions) = tokio::join!(biased; first, join_all(takes));
            decisions.into_iter().map(|decision| decision.expect("a decision")).collect()
        })
    }

    fn handle(&self, what: &Event) {
        let block_on = |answer: Answer<<RedisStore as Store>::Future>| {
            let _ = self.runtime.block_on(answer.into_future()).expect("a change");
        };
        match what {
            Event::Pass(_) => {}
            Event::Adjustment(asked, units) => {
                let charge = self.charge(asked);
                let _ = self.local.adjust(&charge, -*units).now();
                block_on(self.redis.adjust(&charge, -*units));
            }
            Event::Block(asked, nanos) => {
                let (charge, time) = (self.charge(asked), Duration::from_nanos(*nanos));
                let _ = self.local.block(&charge, time).now();
                block_on(self.redis.block(&charge, time));
            }
            Event::Unblock(asked) => {
                let _ = self.local.unblock(&self.charge(asked)).now();
                block_on(self.redis.unblock(&self.charge(asked)));
            }
            Event::Reset(asked) => {
                let _ = self.local.reset(&self.charge(asked)).now();
                block_on(self.redis.reset(&self.charge(asked)));
            }
        }
    }
}

fn decide_as_one_by_one(flavour: Flavour, cases: u32) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Server::start(flavour, &[]));
    let subject =
        runtime.block_on(RedisStore::connect(server.url()).into_future()).expect("a store");
    let names = ["a", "b", "c"].map(rule);
    let keys = [0, 1, 2, 3].map(|n: u32| Key::from(n));
    let rules = || vec(vec(quota(), 1..4), 3);
    let steps = || vec((batch(), vec(event(), 0..3)), 1..8);
    let config = Config { cases, ..keeping(file!()) };
    let before = runtime.block_on(server.script_calls());
    let (asked, rounds) = (Cell::new(0), Cell::new(0_u32));
    proptest!(config, |((rules, steps) in (rules(), steps()))| {
        let (clock, mut subject) = (FakeClock::new(), subject.clone());
        let both = Both {
            runtime: &runtime, redis: subject.open(), local: clock.store(1_024),
            rules: &rules, names: &names, keys: &keys,
        };
        subject.set(clock.now());
        // Once the server has learned the scripts, it answers calls in their order.
        let warm = vec![vec![Demand { rule: 0, key: 0, cost: 1, headroom: 0, max_wait: 0 }]; 2];
        let _ = both.at_once(&warm);
        both.handle(&Event::Reset(warm[0][0].clone()));
        for (batch, events) in &steps {
            let redis = both.at_once(batch);
            for at in both.order(batch) {
                let local = both.local.take(&both.charges(&batch[at])).now();
                prop_assert_eq!(parts(&local), parts(&redis[at]), "{} of {:?}", at, batch);
            }
            asked.set(asked.get() + batch.len());
            rounds.set(rounds.get() + 1);
            for what in events {
                if let Event::Pass(nanos) = what {
                    clock.advance(Duration::from_nanos(*nanos));
                    subject.set(clock.now());
                }
                both.handle(what);
            }
        }
    });
    let more = runtime.block_on(server.script_calls()) - before;
    let (asked, rounds) = (asked.get(), rounds.get());
    assert!(asked > 20 * rounds as usize, "{asked} requests in {rounds} rounds");
    // The first caller, a batch, and the events before and between batches.
    assert!(more < rounds * 8 + cases * 40, "{more} calls in {rounds} rounds");
}

#[test]
fn random_batches_decide_as_one_by_one() {
    for flavour in Flavour::ALL {
        decide_as_one_by_one(flavour, 200);
    }
}

#[tokio::test]
async fn a_lone_decision_is_one_call_and_others_share_the_next() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let accounts: Vec<_> = (0..16).map(|n| Account::new(format!("{n}"), slow(1_000))).collect();
    // The server then has the script.
    assert!(accounts[0].passes(&store).await);
    let before = server.script_calls().await;
    for _ in 0..50 {
        assert!(accounts[0].passes(&store).await);
    }
    assert_eq!(server.script_calls().await - before, 50);
    let before = server.script_calls().await;
    for _ in 0..10 {
        join_all(accounts.iter().map(|account| account.passes(&store))).await;
    }
    // The first is alone at first. Callers that share a call and ask again at once share the next one,
    // too, unless the machine stops for longer than the interval between them.
    let made = server.script_calls().await - before;
    assert!((2 + 9..20).contains(&made), "{made} calls");
}

#[tokio::test]
async fn a_caller_that_leaves_while_waiting_is_not_charged() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let (first_caller, one) = (first_caller(), Account::new("one", slow(100)));
    let mut first = pin!(first_caller.passes(&store));
    assert!(poll!(&mut first).is_pending());
    let mut waiting: Vec<_> = (0..50).map(|_| Some(Box::pin(one.take(&store, 1)))).collect();
    for caller in waiting.iter_mut().flatten() {
        assert!(poll!(caller).is_pending());
    }
    for (caller, n) in waiting.iter_mut().zip(0..) {
        if n == 0 || n == 49 || n % 3 == 0 {
            *caller = None;
        }
    }
    let (_, taken) = tokio::join!(first, join_all(waiting.into_iter().flatten()));
    let left: Vec<_> =
        taken.iter().map(|one| one.as_ref().expect("a decision").remaining()).collect();
    let staid = u32::try_from(left.len()).expect("few");
    assert_eq!(left, (0..staid).map(|n| Some(99 - n)).collect::<Vec<_>>());
    assert_eq!(one.left(&store).await, 100 - staid);
}

/// Otherwise, those that wait would look for a call only after 5 ms.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_call_starts_the_next_one() {
    const CALL: Duration = Duration::from_millis(1);
    let store = RedisStore::with_connection(Fated::down(CALL)).lazy().expect("a store");
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let (store, account) = (store.clone(), Account::new("a", slow(10)));
        calls.spawn(async move { account.take(&store, 1).await.is_err() });
        for _ in 0..9 {
            yield_now().await;
        }
    }
    // Two calls of equal requests are in flight at the same time.
    assert_eq!(calls.join_all().await, [true; 3]);
    assert!(start.elapsed() <= 3 * CALL, "{:?}", start.elapsed());
}
