//! The Redis store and the embedded store return equal numbers for any sequence of operations.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use proptest::{collection::vec, prelude::*, test_runner::Config};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, RedisStore, Store, StoreExt,
    decision::Outcome,
    rule::RuleName,
    store::Charge,
    testing::{FakeClock, Subject},
};

use crate::{
    servers::{Flavour, Server},
    support::{random::rows, regressions::keeping},
};

/// An operation on rules and keys, given by their indices.
#[derive(Clone, Debug)]
enum Step {
    /// A time that passes, in parts of the longest period.
    Pass(u64, u64),
    Take(Vec<Demand>),
    /// Requests at once, each given by its index, possibly more than once.
    Burst(Vec<Vec<Demand>>, Vec<usize>),
    Adjustment(Demand, i64),
    /// Undoes an earlier decision.
    Undo(usize, Option<u32>),
    Reset(Demand),
    Block(Demand, u64),
    Unblock(Demand),
}

#[derive(Clone, Debug)]
struct Demand {
    rule: usize,
    key: u32,
    cost: u32,
    headroom: u32,
    max_wait: u64,
    report_only: bool,
    only: Option<usize>,
}

fn quota() -> impl Strategy<Value = Quota> {
    let micros = prop_oneof![
        Just(60_u64),
        (20..100_u64).prop_map(|n| n * 60),
        (1..60_u64).prop_map(|n| n * 60_000)
    ];
    let numbers = (1..12_u32, micros, 0..7_u32, 1..16_u32, 0..5_u32, 0..1_000_u64);
    (numbers, any::<[u8; 4]>()).prop_filter_map(
        "no quota",
        |(numbers, [kind, start, soft, debt])| {
            let (units, micros, buckets, burst, more, odd) = numbers;
            let nanos = if kind % 6 == 0 { micros * 1_000 + odd } else { micros * 1_000 };
            let quota = Quota::new(units, Duration::from_nanos(nanos)).ok()?;
            let quota = match kind % 6 {
                0 => quota.try_with_burst(burst).ok()?,
                1 => quota
                    .try_with_burst(burst)
                    .ok()?
                    .try_with_algorithm(Algorithm::TokenBucket)
                    .ok()?,
                2 => {
                    let paced = start % 2 == 0;
                    let window = Algorithm::FixedWindow { carry_over: more, paced };
                    quota.try_with_algorithm(window).ok()?
                }
                #[cfg(feature = "calendar")]
                3 if start % 6 == 0 => {
                    let start = ["1970-01-01T02:30[Europe/Berlin]", "1970-01-31[UTC]"];
                    let start = start[usize::from(soft % 2)].parse().expect("an anchor");
                    let quota =
                        if more > 2 { Quota::per_month(units) } else { Quota::per_day(units) };
                    quota.anchored_at(&start)
                }
                3 => quota.try_with_algorithm(Algorithm::AnchoredWindow).ok()?,
                4 => {
                    let buckets = [1, 2, 3, 4, 5, 6, 10][buckets as usize];
                    quota.try_with_algorithm(Algorithm::SlidingWindow { buckets }).ok()?
                }
                _ => quota.try_with_algorithm(Algorithm::SlidingLog).ok()?,
            };
            let quota =
                if start % 3 == 0 { quota.try_with_initial(more).unwrap_or(quota) } else { quota };
            let quota = match debt % 3 {
                0 => quota.try_with_max_debt(u32::from(debt % 37)).ok()?,
                _ => quota,
            };
            Some(if soft % 3 == 0 {
                quota.try_with_soft(u32::from(soft % 5)).unwrap_or(quota)
            } else {
                quota
            })
        },
    )
}

fn asked() -> impl Strategy<Value = Demand> {
    let cost = prop_oneof![1 => Just(0), 6 => 1..4_u32, 2 => 4..20_u32];
    let headroom = prop_oneof![4 => Just(0), 1 => 1..4_u32];
    let max_wait = prop_oneof![2 => Just(0), 1 => 1..3_000_000_u64];
    let whose = (0..3_usize, 0..2_u32, prop::bool::weighted(0.1));
    let only = prop::option::weighted(0.1, 0..3_usize);
    (whose, cost, headroom, max_wait, only).prop_map(|asked| {
        let ((rule, key, report_only), cost, headroom, max_wait, only) = asked;
        Demand { rule, key, cost, headroom, max_wait, report_only, only }
    })
}

/// The charges of a request.
fn request() -> impl Strategy<Value = Vec<Demand>> {
    vec(asked(), 1..5).prop_map(|mut all| {
        // A rule has one key and one mode in a request.
        for at in 0..all.len() {
            let Demand { rule, key, report_only, .. } = all[at];
            for asked in all.iter_mut().filter(|asked| asked.rule == rule) {
                (asked.key, asked.report_only) = (key, report_only);
            }
        }
        all
    })
}

/// The requests of a burst, some of them equal.
fn order() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![4 => vec(0..100_usize, 2..16), 1 => vec(0..100_usize, 16..60)]
}

fn step() -> impl Strategy<Value = Step> {
    let parts = prop_oneof![Just(0), 0..20_u64, 0..60_u64, 100..130_u64];
    prop_oneof![
        4 => (parts, prop_oneof![Just(0), 1..2_000_u64]).prop_map(|(n, more)| Step::Pass(n, more)),
        8 => request().prop_map(Step::Take),
        2 => (vec(request(), 1..10), order()).prop_map(|(requests, order)| {
            let order = order.iter().map(|at| at % requests.len()).collect();
            Step::Burst(requests, order)
        }),
        2 => (asked(), -12..12_i64).prop_map(|(asked, units)| Step::Adjustment(asked, units)),
        1 => (0..20_usize, prop::option::of(0..4_u32)).prop_map(|(at, units)| Step::Undo(at, units)),
        1 => asked().prop_map(Step::Reset),
        1 => (asked(), 0..3_000_000_u64).prop_map(|(asked, time)| Step::Block(asked, time)),
        1 => asked().prop_map(Step::Unblock),
    ]
}

struct Both<'a> {
    runtime: &'a Runtime,
    redis: RedisStore,
    local: LocalStore,
}

impl Both<'_> {
    /// Takes from both stores, each after a peek that must have the same result.
    fn take(&self, charges: &[Charge<'_>]) -> (Decision, Decision) {
        let peek = self.local.peek(charges).now();
        let local = self.local.take(charges).now();
        assert_eq!(parts(&peek), parts(&local), "a peek at {charges:?}");
        let (peek, redis) = self
            .runtime
            .block_on(async { (self.redis.peek(charges).await, self.redis.take(charges).await) });
        let (peek, redis) = (peek.expect("redis peeks"), redis.expect("redis decides"));
        assert_eq!(parts(&peek), parts(&redis), "a peek by Redis at {charges:?}");
        (local, redis)
    }

    /// Sends all requests at once, behind other callers, so that they wait for a batch.
    fn at_once(&self, requests: &[Vec<Charge<'_>>]) -> Vec<Decision> {
        let (windows, names) = ([shared_quota()], (0..DIRECT).map(Key::from).collect::<Vec<_>>());
        let other = RuleName::new("other").expect("a name");
        let others: Vec<_> = names.iter().map(|key| [Charge::new(other, key, &windows)]).collect();
        let tasks = || self.runtime.metrics().num_alive_tasks();
        let decisions = self.runtime.block_on(async {
            let before = tasks();
            let others = join_all(others.iter().map(|one| self.redis.take(one).into_future()));
            let takes = requests.iter().map(|all| self.redis.take(all).into_future());
            let (_, decisions) = tokio::join!(biased; others, join_all(takes));
            while tasks() > before {
                yield_now().await;
            }
            decisions
        });
        decisions.into_iter().map(|decision| decision.expect("redis decides")).collect()
    }
}

/// Half of the time after which a batch that was not sent no longer counts.
const PAUSE: Duration = Duration::from_millis(50);
/// The number of callers that make a call each before others wait.
const DIRECT: u32 = 16;

/// Returns the quota of an account that all requests of a burst charge.
fn shared_quota() -> Quota {
    Quota::per_day(1_000_000).with_algorithm(Algorithm::fixed_window())
}

/// Returns all parts of a decision except its source. The overage and the wait of a denial are
/// void.
fn parts(decision: &Decision) -> impl PartialEq + std::fmt::Debug {
    let passed = decision.is_allowed();
    let (overage, wait) = (passed && decision.is_overage(), decision.wait());
    let passed_over: Vec<_> = decision.outcomes().iter().map(Outcome::is_passed_over).collect();
    (passed, overage, wait, decision.retry_after(), rows(decision), passed_over)
}

#[test]
fn random_sequences_give_equal_decisions() {
    give_equal_decisions(Flavour::Redis, 1_000);
    give_equal_decisions(Flavour::Valkey, 200);
}

fn give_equal_decisions(flavour: Flavour, cases: u32) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Server::start(flavour, &[]));
    let subject =
        runtime.block_on(RedisStore::connect(server.url()).into_future()).expect("a store");
    let names = ["a", "b", "c"].map(|name| RuleName::new(name).expect("a name"));
    let keys = [Key::from("one"), Key::from("two")];
    let (shared, shared_key) = ([shared_quota()], Key::everyone());
    let shared_rule = RuleName::new("shared").expect("a name");
    let shared_charge = Charge::new(shared_rule, &shared_key, &shared);

    let sequence = (vec(vec(quota(), 1..4), 3), vec(step(), 1..40));
    let config = Config { cases, ..keeping(file!()) };
    proptest!(config, |((rules, steps) in sequence)| {
        let (clock, mut subject) = (FakeClock::new(), subject.clone());
        let both = Both { runtime: &runtime, redis: subject.open(), local: clock.store(1_024) };
        let longest = rules.iter().flatten().map(Quota::period).max().expect("a quota");
        let charge = |asked: &Demand| {
            let Demand { rule, key, cost, headroom, max_wait, report_only, only } = *asked;
            let charge = Charge::new(names[rule], &keys[key as usize], &rules[rule]);
            let charge = only.map_or(charge, |place| charge.with_quota_index(place % rules[rule].len()));
            let charge = charge.with_cost(cost).with_headroom(headroom);
            let patient = charge.with_max_wait(Duration::from_nanos(max_wait));
            let charge = if both.local.supports(&[patient]).is_ok() { patient } else { charge };
            charge.with_report_only(report_only)
        };
        // Equal requests have equal demands on equal accounts.
        let question = |all: &[Demand]| {
            let mut accounts: Vec<(usize, u32, bool, BTreeMap<usize, (u32, u32, u64)>)> = Vec::new();
            for asked in all {
                let can_wait = {
                    let charge = Charge::new(names[asked.rule], &keys[0], &rules[asked.rule]);
                    let len = rules[asked.rule].len();
                    let charge = asked.only.map_or(charge, |at| charge.with_quota_index(at % len));
                    let charge = charge.with_cost(asked.cost).with_headroom(asked.headroom);
                    let patient = charge.with_max_wait(Duration::from_nanos(asked.max_wait));
                    both.local.supports(&[patient]).is_ok()
                };
                let max_wait = if can_wait { asked.max_wait } else { 0 };
                let own = (asked.rule, asked.key);
                if !accounts.iter().any(|known| (known.0, known.1) == own) {
                    accounts.push((own.0, own.1, asked.report_only, BTreeMap::new()));
                }
                let known = accounts.iter_mut().find(|known| (known.0, known.1) == own);
                let known = known.expect("it was added");
                known.2 &= asked.report_only;
                let len = rules[asked.rule].len();
                for at in (0..len).filter(|at| asked.only.is_none_or(|only| only % len == *at)) {
                    let demand = known.3.entry(at).or_insert((0, 0, u64::MAX));
                    demand.0 += asked.cost;
                    (demand.1, demand.2) = (demand.1.max(asked.headroom), demand.2.min(max_wait));
                }
            }
            accounts
        };
        let mut taken: Vec<(Vec<Demand>, Decision, Decision)> = Vec::new();
        for step in &steps {
            match step {
                Step::Pass(parts, more) => {
                    let parts = u32::try_from(*parts).expect("small");
                    clock.advance(longest * parts / 100 + Duration::from_nanos(*more));
                    subject.set(clock.now());
                }
                Step::Take(all) => {
                    let charges: Vec<_> = all.iter().map(charge).collect();
                    let (local, redis) = both.take(&charges);
                    prop_assert_eq!(parts(&local), parts(&redis), "{:?}", step);
                    if local.is_allowed() {
                        taken.push((all.clone(), local, redis));
                    }
                }
                Step::Burst(requests, order) => {
                    let charges = |at: &usize| {
                        let own = requests[*at].iter().map(charge);
                        own.chain([shared_charge]).collect::<Vec<_>>()
                    };
                    let start = Instant::now();
                    let redis = both.at_once(&order.iter().map(charges).collect::<Vec<_>>());
                    // After a pause of the process, a second batch may have been sent.
                    if start.elapsed() > PAUSE {
                        return Ok(());
                    }
                    let questions: Vec<_> = order.iter().map(|at| question(&requests[*at])).collect();
                    let mut one_by_one: Vec<_> = (0..order.len()).collect();
                    one_by_one.sort_by_key(|at| {
                        questions.iter().position(|other| *other == questions[*at])
                    });
                    for at in one_by_one {
                        let local = both.local.take(&charges(&order[at])).now();
                        prop_assert_eq!(parts(&local), parts(&redis[at]), "{} of {:?}", at, step);
                    }
                }
                Step::Adjustment(asked, units) => {
                    let charge = charge(asked);
                    let local = both.local.adjust(&charge, -*units).now();
                    let redis = both.runtime.block_on(both.redis.adjust(&charge, -*units).into_future());
                    prop_assert_eq!(rows(&local), rows(&redis.expect("redis settles")), "{:?}", step);
                }
                Step::Undo(which, units) if *which < taken.len() => {
                    let (all, local, redis) = taken.remove(*which);
                    let charges: Vec<_> = all.iter().map(charge).collect();
                    both.local.undo(&charges, &local, *units);
                    // A server that sees the script for the first time needs two calls, so that the
                    // next operation waits.
                    both.runtime.block_on(async {
                        let tasks = || both.runtime.metrics().num_alive_tasks();
                        let before = tasks();
                        both.redis.undo(&charges, &redis, *units);
                        while tasks() > before {
                            yield_now().await;
                        }
                    });
                }
                Step::Undo(..) => {}
                Step::Reset(asked) => {
                    let charge = charge(asked);
                    let local = both.local.reset(&charge).now();
                    let redis = both.runtime.block_on(both.redis.reset(&charge).into_future());
                    prop_assert_eq!(rows(&local), rows(&redis.expect("redis resets")), "{:?}", step);
                    // Either store may void receipts of other accounts, and not the same ones.
                    let own = |it: &Demand| asked.only.is_none() && (it.rule, it.key) == (asked.rule, asked.key);
                    taken.retain(|(all, ..)| all.iter().all(own));
                    clock.advance(Duration::from_micros(1));
                    subject.set(clock.now());
                }
                Step::Block(asked, time) => {
                    let (charge, time) = (charge(asked), Duration::from_nanos(*time));
                    let _ = both.local.block(&charge, time).now();
                    let blocked = both.runtime.block_on(both.redis.block(&charge, time).into_future());
                    prop_assert!(blocked.is_ok());
                }
                Step::Unblock(asked) => {
                    let _ = both.local.unblock(&charge(asked)).now();
                    let done = both.runtime.block_on(both.redis.unblock(&charge(asked)).into_future());
                    prop_assert!(done.is_ok());
                }
            }
        }
    });
}
