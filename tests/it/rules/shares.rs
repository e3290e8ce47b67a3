//! Shares of a pool against a model that knows only charges which must fit.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tower_sluice::{
    Algorithm, Decision, Key, LocalStore, Quota, Store, StoreExt, decision::Outcome,
    rule::RuleName, store::Charge, testing::FakeClock,
};

use crate::support::{choices::Choosing, random::rows, regressions::keeping};

fn rule(name: &str) -> RuleName {
    RuleName::new(name).expect("a name")
}

/// Returns the wait of a denial, or the largest number if it has no end.
fn wait(decision: &Decision) -> u128 {
    decision.retry_after().map_or(u128::MAX, |wait| wait.as_nanos())
}

/// Remaining, full, next, retry, and `true` if the rule was passed over.
type Row = (u32, Duration, Duration, Option<Duration>, bool);

#[derive(Debug, PartialEq)]
struct Decided {
    allowed: bool,
    retry: Option<Duration>,
    rows: Vec<Row>,
}

impl Decided {
    fn of(decision: &Decision) -> Self {
        let all = rows(decision).into_iter().zip(decision.outcomes());
        let row = |((left, full, next, retry), it): (_, &Outcome)| {
            (left, full, next, retry, it.is_passed_over())
        };
        let (allowed, retry) = (decision.is_allowed(), decision.retry_after());
        Self { allowed, retry, rows: all.map(row).collect() }
    }
}

/// The effect of a share and its pool, or of another charge.
struct Effect<'a> {
    charged: Vec<Charge<'a>>,
    /// The wait of each charge, and `true` if it is passed over.
    waits: Vec<(u128, bool)>,
    denies: bool,
}

/// Looks at a share and its pool, each as a charge that must fit.
fn of_share<'a>(store: &LocalStore, share: &Charge<'a>, pool: &Charge<'a>) -> Effect<'a> {
    let plain = |it: &Charge<'a>| Charge::new(it.rule, it.key, it.quotas).with_cost(it.cost);
    let own = plain(share);
    let whole = plain(pool).with_headroom(pool.headroom);
    let spare = plain(pool).with_headroom(pool.headroom + share.headroom);
    let peek = |it: &Charge<'a>| store.peek(&[*it]).now();
    let (by_own, by_whole, by_spare) = (peek(&own), peek(&whole), peek(&spare));
    let charged = match (by_own.is_allowed(), by_whole.is_allowed(), by_spare.is_allowed()) {
        (true, true, _) => vec![own, whole],
        (false, _, true) => vec![spare],
        _ => Vec::new(),
    };
    let pool_wait = match charged.is_empty() {
        true => wait(&by_spare).min(wait(&by_own).max(wait(&by_whole))),
        false => 0,
    };
    let denies = charged.is_empty() && !pool.report_only;
    let waits = vec![(wait(&by_own), charged.len() < 2), (pool_wait, false)];
    Effect { charged, waits, denies }
}

fn of_plain<'a>(store: &LocalStore, it: &Charge<'a>) -> Effect<'a> {
    let plain = Charge::new(it.rule, it.key, it.quotas).with_cost(it.cost);
    let plain = plain.with_headroom(it.headroom);
    let peek = store.peek(&[plain]).now();
    let charged = Some(plain).filter(|_| peek.is_allowed()).into_iter().collect();
    let denies = !peek.is_allowed() && !it.report_only;
    Effect { charged, waits: vec![(wait(&peek), false)], denies }
}

/// Charges as the specification says. Returns the decision, and the charges that were made with theirs.
fn model<'a>(
    store: &LocalStore,
    all: &[Charge<'a>],
) -> (Decided, Option<(Vec<Charge<'a>>, Decision)>) {
    let (mut effects, mut at) = (Vec::new(), 0);
    while at < all.len() {
        let is_share = all[at].rule == rule("site.share");
        effects.push(match is_share {
            true => of_share(store, &all[at], &all[at + 1]),
            false => of_plain(store, &all[at]),
        });
        at += 1 + usize::from(is_share);
    }
    let waits: Vec<_> = effects.iter().flat_map(|it| it.waits.clone()).collect();
    let allowed = !effects.iter().any(|it| it.denies);
    let made = allowed.then(|| {
        let charged: Vec<_> = effects.iter().flat_map(|it| it.charged.clone()).collect();
        let decision = store.take(&charged).now();
        assert!(decision.is_allowed(), "each of them fits");
        (charged, decision)
    });
    let rows = all.iter().zip(&waits).map(|(charge, (wait, passed_over))| {
        let read = Charge::new(charge.rule, charge.key, charge.quotas).with_cost(0);
        let (left, full, next, _) = rows(&store.take(&[read]).now())[0];
        let wait = if allowed && *passed_over { 0 } else { *wait };
        let retry = u64::try_from(wait).ok().map(Duration::from_nanos);
        (left, full, next, retry, *passed_over)
    });
    let rows: Vec<Row> = rows.collect();
    let deciding = all.iter().zip(&waits).filter(|(it, (_, over))| !(it.report_only || *over));
    let longest = deciding.map(|(_, (wait, _))| *wait).max().filter(|_| !allowed).unwrap_or(0);
    let retry = u64::try_from(longest).ok().map(Duration::from_nanos);
    (Decided { allowed, retry, rows }, made)
}

fn choosing<'a>(charges: &[Charge<'a>]) -> Choosing<'a> {
    Choosing::of_share(charges, rule("site.share"))
}

/// A rate of a share, which changes with each request, or of a pool.
fn rate() -> impl Strategy<Value = Quota> {
    (1..6_u32, 1..4_000_u64, 1..9_u32, 0..9_u32).prop_map(|(units, millis, burst, soft)| {
        let quota = Quota::new(units, Duration::from_millis(millis)).expect("a quota");
        let quota = quota.with_burst(burst);
        if soft == 1 { quota.with_soft(soft) } else { quota }
    })
}

fn other() -> impl Strategy<Value = Quota> {
    (0..3_u8, 1..6_u32, 1..4_u64).prop_map(|(kind, units, secs)| {
        let quota = Quota::new(units, Duration::from_secs(secs)).expect("a quota");
        let algorithms = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::SlidingLog];
        quota.with_algorithm(algorithms[usize::from(kind)])
    })
}

#[derive(Clone, Debug)]
struct Asked {
    key: usize,
    share: Quota,
    cost: u32,
    headroom: u32,
    reserve: u32,
    /// The other rules of the request: none, one before the share, one after the pool, or both.
    others: u8,
}

#[derive(Clone, Debug)]
enum Step {
    Pass(u64),
    Take(Asked),
    Undo(usize, Option<u32>),
    /// A late charge or a refund of the pool.
    Adjust(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = prop_oneof![1 => Just(0), 8 => 1..3_u32, 1 => 3..9_u32];
    let headroom = prop_oneof![4 => Just(0), 1 => 1..3_u32];
    let asked = (0..3_usize, rate(), cost, headroom, 0..5_u32, 0..6_u8);
    prop_oneof![
        4 => (0..1_500_u64).prop_map(Step::Pass),
        9 => asked.prop_map(|(key, share, cost, headroom, reserve, others)| {
            Step::Take(Asked { key, share, cost, headroom, reserve, others })
        }),
        2 => (0..20_usize, prop::option::of(0..4_u32)).prop_map(|(at, units)| Step::Undo(at, units)),
        1 => (-4..5_i64).prop_map(Step::Adjust),
    ]
}

#[test]
fn every_decision_equals_the_model() {
    let names = ["before", "site.share", "site", "after"].map(rule);
    let (everyone, clients) = (Key::everyone(), ["a", "b", "c"].map(Key::from));
    let cases = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    let config = proptest::test_runner::Config { cases, ..keeping(file!()) };
    let sequence = (rate(), vec(other(), 2), vec(step(), 1..40));
    proptest!(config, |((pool, others, steps) in sequence)| {
        let clock = FakeClock::new();
        let (store, reference) = (clock.store(1_024), clock.store(1_024));
        let (pools, shares): ([Quota; 1], Vec<_>) = ([pool], steps.iter().map(|step| match step {
            Step::Take(asked) => [asked.share],
            _ => [pool],
        }).collect());
        let others: Vec<_> = others.into_iter().map(|quota| [quota]).collect();
        let mut taken = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Pass(millis) => clock.advance(Duration::from_millis(*millis)),
                Step::Take(asked) => {
                    let Asked { key, cost, headroom, reserve, others: which, .. } = asked;
                    let share = Charge::new(names[1], &clients[*key], &shares[at]);
                    let share = share.with_headroom(*reserve);
                    let pool = Charge::new(names[2], &everyone, &pools).with_headroom(*headroom);
                    let before = Charge::new(names[0], &clients[*key], &others[0]);
                    let after = Charge::new(names[3], &everyone, &others[1]);
                    let mut charges = vec![share, pool];
                    if *which & 1 > 0 { charges.insert(0, before) }
                    if *which & 2 > 0 { charges.push(after) }
                    let charges: Vec<_> = charges.into_iter().map(|it| it.with_cost(*cost)).collect();
                    let all = choosing(&charges);
                    let peeked = Decided::of(&all.peek(&store).decision);
                    let taking = all.take(&store);
                    let (expected, made) = model(&reference, &charges);
                    prop_assert_eq!(&Decided::of(&taking.decision), &expected, "{:?}", charges);
                    prop_assert_eq!(&peeked, &expected, "a peek at {:?}", charges);
                    taken.extend(made.map(|made| (taking.charges, taking.decision, made)));
                }
                Step::Undo(at, units) if *at < taken.len() => {
                    let (charges, decision, (made, its)) = taken.remove(*at);
                    store.undo(&charges, &decision, *units);
                    reference.undo(&made, &its, *units);
                }
                Step::Undo(..) => {}
                Step::Adjust(units) => {
                    let charge = Charge::new(names[2], &everyone, &pools);
                    let answers = [&store, &reference].map(|it| it.adjust(&charge, *units).now());
                    prop_assert_eq!(rows(&answers[0]), rows(&answers[1]));
                }
            }
        }
    });
}

const MINUTE: Duration = Duration::from_secs(60);

/// Returns a share with one unit per minute, and a pool of three, of which two stay for others.
fn one_of_three<'a>(key: &'a Key, quotas: &'a [[Quota; 1]; 2]) -> [Charge<'a>; 2] {
    let share = Charge::new(rule("site.share"), key, &quotas[0]);
    let pool = Charge::new(rule("site"), key, &quotas[1]);
    [share.with_headroom(2), pool]
}

fn minutes() -> [[Quota; 1]; 2] {
    [[Quota::per_minute(1)], [Quota::per_minute(3)]]
}

#[test]
fn a_block_of_the_share_or_of_the_pool_denies() {
    let (store, key, quotas) = (FakeClock::new().store(64), Key::from("me"), minutes());
    let charges = one_of_three(&key, &quotas);
    for blocked in &charges {
        drop(store.block(blocked, MINUTE).now());
        let denied = choosing(&charges).take(&store).decision;
        assert!(denied.is_blocked() && denied.retry_after() == Some(MINUTE), "{denied:?}");
        drop(store.unblock(blocked).now());
    }
}
