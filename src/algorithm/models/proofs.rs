//! Four statements about each algorithm, checked without a model: for all short sequences under
//! small quotas, and for random sequences over the whole range of the types. These stand in for a proof
//! by Kani, whose compiler is not in a package registry.
//!
//! 1. A decision never admits more than the bound of its quota, in any time span.
//! 2. A wait is exact: the demand is allowed after it, and not a nanosecond earlier. A demand that
//!    may queue for its wait is not denied.
//! 3. A refund returns at most its units, and an undo at most its charge. A late charge ends at the
//!    debt.
//! 4. Nothing overflows or panics, also not for an account as a damaged server may report it.
//!
//! For GCRA, each of these changes fails a test of this file: `over > slack` to
//! `over >= slack`, `need <=` of `is_possible` to `need <`, and `tat != receipt.end` of `undo` to
//! `tat < receipt.end`.

use std::thread;

use proptest::prelude::*;

use super::{
    super::tests::remaining,
    hostile::extreme_quota,
    retry_holds,
    sequence::{Jump, Op, jump, op},
    sequences, snapshot_holds, *,
};

/// The steps of each sequence.
const DEPTH: usize = if cfg!(debug_assertions) { 3 } else { 4 };
/// The latest instant that a server may report: 2^53 microseconds, and 999 nanoseconds.
const LATEST: u64 = (1 << 53) * 1_000 + 999;

/// An admitted request.
#[derive(Clone, Copy, Debug)]
struct Start {
    decided: u64,
    /// The instant of the decision, or the end of the wait.
    at: u64,
    units: u64,
}

/// An account, and all that was admitted and returned.
#[derive(Clone, Debug)]
struct Proof {
    quota: Quota,
    account: Account,
    now: u64,
    last: Row,
    starts: Vec<Start>,
    returned: Vec<(u64, u64)>,
    receipts: Vec<(usize, Receipt)>,
}

impl Proof {
    fn new(quota: Quota, now: u64) -> Self {
        let last = Row {
            remaining: 0,
            full: 0,
            next: 0,
            retry: 0,
        };
        let account = Account::new();
        let starts = Vec::new();
        let returned = Vec::new();
        let receipts = Vec::new();
        Self {
            quota,
            account,
            now,
            last,
            starts,
            returned,
            receipts,
        }
    }

    fn row(&self) -> Row {
        self.account
            .look(&self.quota, self.now, Demand::units(0))
            .snapshot
            .into()
    }

    fn step(&mut self, nanos: u64, op: Op) -> TestCaseResult {
        self.now += nanos;
        match op {
            Op::Take {
                cost,
                headroom,
                max_wait,
            } => {
                self.take(Demand {
                    cost,
                    headroom,
                    max_wait,
                })?;
            }
            Op::Adjust(units) if units < 0 => self.charge_late(units)?,
            Op::Adjust(units) => self.refund(units)?,
            Op::Undo(nth, units) => self.undo(nth, units)?,
        }
        snapshot_holds(self.account.clone(), &self.quota, self.now, self.last)?;
        let carry = self.quota.algorithm().max_carry_over();
        let most = u64::from(self.quota.limit()) + u64::from(carry);
        prop_assert!(u64::from(self.last.remaining) <= most, "{:?}", self);
        Ok(())
    }

    fn take(&mut self, demand: Demand) -> TestCaseResult {
        let mut before = self.account.clone();
        let quota = self.quota;
        let now = self.now;
        before.open(&quota, now, demand);
        let (evaluation, receipt) = self.account.take(&quota, now, demand);
        let Evaluation {
            allowed,
            overage,
            wait,
            snapshot,
        } = evaluation;
        self.last = snapshot.into();
        let raised = u64::from(quota.limit()) + u64::from(quota.soft());
        if allowed {
            prop_assert!(!overage || (quota.soft() > 0 && wait == 0), "{:?}", self);
            prop_assert!(wait <= demand.max_wait, "{} ns in {:?}", wait, self);
            if wait > 0 {
                retry_holds(&before, &quota, now, demand, wait)?;
            }
            self.receipts.push((self.starts.len(), receipt));
            let at = now + wait;
            let units = demand.cost.into();
            self.starts.push(Start {
                decided: now,
                at,
                units,
            });
            return self.is_within_its_bound();
        }
        let retry = self.last.retry;
        prop_assert!(demand.cost > 0 && retry > 0, "{:?} in {:?}", demand, self);
        retry_holds(&self.account, &quota, now, demand, retry)?;
        let never = quota.algorithm().max_carry_over() == 0 && demand.need() > raised;
        prop_assert!((retry == NEVER) == never || quota.algorithm().max_carry_over() > 0);
        let queues = quota.algorithm() == Algorithm::Gcra && quota.soft() == 0;
        prop_assert!(
            !queues || retry > demand.max_wait,
            "{:?} may queue in {:?}",
            demand,
            self
        );
        Ok(())
    }

    /// A late charge of many units equals the same units one at a time, up to the debt.
    fn charge_late(&mut self, units: i64) -> TestCaseResult {
        let before = self.row();
        let mut single = self.account.clone();
        let adjusted = adjust(
            &mut self.account.0,
            &self.quota,
            self.now,
            units.saturating_neg(),
        );
        self.last = adjusted.snapshot.into();
        let lost = u64::from(before.remaining.saturating_sub(self.last.remaining));
        prop_assert!(lost <= units.unsigned_abs() && self.last.remaining <= before.remaining);
        if units.unsigned_abs() <= 16 {
            let charge = |_| adjust(&mut single.0, &self.quota, self.now, 1);
            let cuts = (0..units.unsigned_abs())
                .map(charge)
                .filter(|adjusted| adjusted.is_cut)
                .count();
            let row = single
                .look(&self.quota, self.now, Demand::units(0))
                .snapshot
                .into();
            prop_assert_eq!(self.last, row);
            prop_assert_eq!(adjusted.is_cut, cuts > 0);
        }
        self.ends_at_the_debt()
    }

    /// After endless late charges, the account has units again as soon as its debt is refunded.
    fn ends_at_the_debt(&self) -> TestCaseResult {
        let quota = &self.quota;
        let debt = i64::from(self.quota.max_debt_units());
        let mut charged = self.account.clone();
        charged.adjust(quota, self.now, i64::MAX);
        let after = |units: i64| {
            let mut account = charged.clone();
            account.adjust(quota, self.now, -units);
            remaining(&account, quota, self.now)
        };
        prop_assert!(
            after(debt) <= quota.algorithm().max_carry_over(),
            "{:?}",
            self
        );
        // A queue and soft units lead further. A paced window releases its units later, and a unit
        // that is partly outside of a sliding window gives back less.
        let further =
            i64::from(quota.soft()) > debt || self.starts.iter().any(|it| it.at > self.now);
        let later = quota.algorithm().is_paced()
            || matches!(quota.algorithm(), Algorithm::SlidingWindow { .. })
            || quota.limit() == 0;
        prop_assert!(after(debt + 1) > 0 || further || later, "{:?}", self);
        Ok(())
    }

    fn refund(&mut self, units: i64) -> TestCaseResult {
        let before = self.row();
        self.last = self
            .account
            .adjust(&self.quota, self.now, units.saturating_neg())
            .into();
        let back = u64::from(self.last.remaining.saturating_sub(before.remaining));
        prop_assert!(back <= units.unsigned_abs() && self.last.remaining >= before.remaining);
        self.returned.push((self.now, units.unsigned_abs()));
        Ok(())
    }

    /// An undone charge counts as if it had never been made.
    fn undo(&mut self, nth: usize, units: u32) -> TestCaseResult {
        let before = self.row();
        let state = format!("{:?}", self.account);
        if let Some(at) = self.receipts.len().checked_sub(nth + 1) {
            let (start, receipt) = self.receipts.remove(at);
            let units = receipt.units.min(units);
            self.account
                .undo(&self.quota, self.now, Receipt { units, ..receipt });
            let back = self.row().remaining.saturating_sub(before.remaining);
            prop_assert!(back <= units, "{} of {} back in {:?}", back, units, self);
            if format!("{:?}", self.account) != state {
                self.starts[start].units -= u64::from(units);
                // If units were refunded since the charge, the undo returns those of other charges. It does so,
                // too, if a request waits, which keeps its start: a later one may start at the same instant.
                let since = self.starts[start].decided;
                let now = self.now;
                let before = self.returned.iter().filter(|(at, _)| *at >= since);
                let before = before.fold(0_u64, |sum, (_, units)| sum.saturating_add(*units));
                let waits = self.starts.iter().any(|it| it.at > now);
                let again = if waits {
                    units.into()
                } else {
                    before.min(units.into())
                };
                self.returned.push((now, again));
            }
        }
        self.last = self.row();
        Ok(())
    }

    /// Checks each span. Returned units may be used again by those that are decided later.
    fn is_within_its_bound(&self) -> TestCaseResult {
        let spans = self
            .starts
            .iter()
            .flat_map(|first| self.starts.iter().map(|last| (first.at, last.at)));
        for (from, to) in spans.filter(|(from, to)| from <= to) {
            let inside = || self.starts.iter().filter(|it| it.at >= from && it.at <= to);
            let units: u128 = inside().map(|it| u128::from(it.units)).sum();
            let since = inside().map(|it| it.decided).min().unwrap_or(to);
            let returned = self
                .returned
                .iter()
                .filter(|(at, _)| *at >= since && *at <= to);
            let returned: u128 = returned.map(|(_, units)| u128::from(*units)).sum();
            let most = bound(&self.quota, from, to) + returned;
            prop_assert!(
                units <= most,
                "{} of {} from {} to {} in {:?}",
                units,
                most,
                from,
                to,
                self
            );
        }
        Ok(())
    }
}

/// Returns the most units that a quota may admit from `from` to `to`, both included.
fn bound(quota: &Quota, from: u64, to: u64) -> u128 {
    let [from, to, period] = [from, to, quota.period_nanos().max(1)].map(u128::from);
    let [burst, soft, units] = [quota.limit(), quota.soft(), quota.units()].map(u128::from);
    let carry = u128::from(quota.algorithm().max_carry_over());
    let span = to - from;
    match quota.algorithm() {
        Algorithm::Gcra => burst + soft + span / u128::from(quota.interval_nanos().max(1)),
        Algorithm::TokenBucket => burst + soft + units * span.div_ceil(period),
        Algorithm::FixedWindow { paced, .. } => {
            let windows = to / period - from / period;
            let into = to % period;
            let all = burst + carry;
            let last = if paced {
                all.min(into * all / period + 1)
            } else {
                burst
            };
            let carried = if paced && windows == 0 { 0 } else { carry };
            windows * burst + last + carried + (windows + 1) * soft
        }
        Algorithm::AnchoredWindow => {
            let windows = if span == 0 {
                1
            } else {
                (span - 1) / period + 2
            };
            windows * (burst + soft)
        }
        Algorithm::SlidingWindow { buckets } => {
            let exact = period - period / u128::from(buckets.max(1));
            (span / (exact + 1) + 1) * (burst + soft)
        }
        Algorithm::SlidingLog => (span / period + 1) * (burst + soft),
        Algorithm::Concurrent => unreachable!("slots have no time"),
    }
}

/// A store checks this before it asks an algorithm.
fn can_queue(quota: &Quota) -> bool {
    quota.algorithm().can_queue() && quota.soft() == 0
}

/// Returns all small quotas of an algorithm, with each option that it has.
fn small(algorithm: Algorithm) -> impl Iterator<Item = Quota> {
    let rates = [(1, 1), (1, 3), (2, 5), (3, 8)];
    let options = [
        (0, None, None),
        (1, None, Some(0)),
        (0, Some(0), Some(1)),
        (1, Some(1), None),
    ];
    let all = rates.into_iter().flat_map(move |(units, period)| {
        options.into_iter().flat_map(move |(soft, initial, debt)| {
            [1, 3].map(|burst| (units, period, burst, soft, initial, debt))
        })
    });
    all.filter_map(move |(units, period, burst, soft, initial, debt)| {
        let base = Quota::new(units, Duration::from_nanos(period)).ok()?;
        let refills = matches!(algorithm, Algorithm::Gcra | Algorithm::TokenBucket);
        let base = if refills {
            base.try_with_burst(burst).ok()?
        } else {
            base
        };
        let quota = base
            .try_with_algorithm(algorithm)
            .ok()?
            .try_with_soft(soft)
            .ok()?;
        let quota = debt
            .map_or(Ok(quota), |debt| quota.try_with_max_debt(debt))
            .ok()?;
        // A burst does not distinguish windows.
        (refills || burst == 1).then_some(())?;
        initial
            .map_or(Ok(quota), |initial| quota.try_with_initial(initial))
            .ok()
    })
}

/// Returns the steps that each sequence may have next.
fn choices(quota: &Quota) -> Vec<(u64, Op)> {
    let period = quota.period_nanos();
    let burst = quota.limit();
    let take = |cost, headroom, max_wait| Op::Take {
        cost,
        headroom,
        max_wait,
    };
    let mut ops = vec![
        take(1, 0, 0),
        take(burst, 0, 0),
        take(burst, 1, 0),
        take(2, 0, 0),
    ];
    ops.extend([
        Op::Adjust(-1),
        Op::Adjust(-9),
        Op::Adjust(1),
        Op::Undo(0, u32::MAX),
    ]);
    ops.extend([Op::Adjust(2), Op::Undo(1, 1)]);
    if can_queue(quota) {
        ops.extend([
            take(1, 0, quota.interval_nanos()),
            take(1, 0, 99),
            take(burst, 1, 99),
        ]);
    }
    let mut gaps = vec![0, 1, period - 1, period];
    gaps.sort_unstable();
    gaps.dedup();
    gaps.into_iter()
        .flat_map(|gap| ops.iter().map(move |op| (gap, *op)))
        .collect()
}

/// Plays each sequence that continues this one. Returns their number.
fn play_all(proof: &Proof, choices: &[(u64, Op)], depth: usize) -> u64 {
    if depth == 0 {
        return 1;
    }
    let each = |(gap, op): &(u64, Op)| {
        let mut next = proof.clone();
        if let Err(error) = next.step(*gap, *op) {
            panic!("{op:?} {gap} ns after {proof:?}: {error}");
        }
        play_all(&next, choices, depth - 1)
    };
    choices.iter().map(each).sum()
}

fn algorithms() -> [Algorithm; 9] {
    [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::fixed_window(),
        Algorithm::FixedWindow {
            carry_over: 1,
            paced: false,
        },
        Algorithm::FixedWindow {
            carry_over: 0,
            paced: true,
        },
        Algorithm::FixedWindow {
            carry_over: 2,
            paced: true,
        },
        Algorithm::AnchoredWindow,
        Algorithm::SlidingWindow { buckets: 2 },
        Algorithm::SlidingLog,
    ]
}

#[test]
fn all_short_sequences_keep_the_bounds() {
    let of = |algorithm| {
        let played = small(algorithm).map(|quota| {
            // Before a boundary of windows.
            let mut proof = Proof::new(quota, quota.period_nanos() * 6 - 1);
            let choices = choices(&quota);
            let all = play_all(&proof, &choices, DEPTH);
            // A queue of three.
            for _ in 0..3 {
                let max_wait = if can_queue(&quota) { 99 } else { 0 };
                proof
                    .step(
                        0,
                        Op::Take {
                            cost: 1,
                            headroom: 0,
                            max_wait,
                        },
                    )
                    .expect("a step");
            }
            all + play_all(&proof, &choices, DEPTH - 1)
        });
        let played: u64 = played.sum();
        assert!(
            played > 40_u64.pow(u32::try_from(DEPTH).expect("few")),
            "{algorithm:?}: {played}"
        );
    };
    // Each algorithm in a thread of its own.
    thread::scope(|scope| algorithms().map(|it| scope.spawn(move || of(it))).map(drop));
}

/// Slots have no clock, so their decisions are a table.
#[test]
fn slots_keep_their_limit_for_all_numbers() {
    let held = (0..8).chain([u64::MAX - 1, u64::MAX, u64::from(u32::MAX)]);
    let most = || (0..6).chain([u32::MAX - 1, u32::MAX]);
    let quotas = (1..5).chain([u32::MAX]).flat_map(|limit| {
        let of = move |soft| Quota::concurrent(limit).try_with_soft(soft).ok();
        [0, 1, 3].into_iter().filter_map(of)
    });
    let quotas: Vec<_> = quotas.collect();
    for (held, quota) in held.flat_map(|held| quotas.iter().map(move |quota| (held, quota))) {
        for (cost, headroom) in most().flat_map(|cost| most().map(move |more| (cost, more))) {
            let demand = Demand {
                cost,
                headroom,
                max_wait: 0,
            };
            let evaluation = concurrent::look(held, quota, demand);
            let raised = u128::from(quota.limit()) + u128::from(quota.soft());
            let after = u128::from(held) + u128::from(demand.need());
            assert_eq!(
                evaluation.allowed,
                cost == 0 || after <= raised,
                "{held} {demand:?}"
            );
            let missing = u128::from(concurrent::missing(held, quota, demand));
            let exact = after.saturating_sub(raised);
            assert!(
                missing == exact || after > u128::from(u64::MAX),
                "{held} {demand:?}"
            );
            let Snapshot::Slots { retry_ns, .. } = evaluation.snapshot else {
                panic!("no slots")
            };
            assert_eq!(
                retry_ns == NEVER,
                cost > 0 && u128::from(demand.need()) > raised
            );
        }
    }
}

/// Returns accounts with each number at its extremes.
fn extreme_accounts(algorithm: Algorithm) -> Vec<AccountState> {
    let instants = [0, 1, SECOND, LATEST - 1, LATEST];
    let pairs = || {
        instants
            .into_iter()
            .flat_map(|one| instants.map(|other| (one, other)))
    };
    let counts = [0, 1, (1 << 40) - 1];
    match algorithm {
        Algorithm::Gcra => instants.into_iter().map(AccountState::Gcra).collect(),
        Algorithm::TokenBucket => {
            let of = |tokens: i64| {
                pairs().map(move |(anchor, opened)| TokenBucket {
                    tokens,
                    anchor,
                    opened,
                })
            };
            let tokens = [-(1 << 47), -1, 0, 1, (1 << 47) - 1];
            tokens
                .into_iter()
                .flat_map(of)
                .map(AccountState::TokenBucket)
                .collect()
        }
        Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => {
            let of = |start| {
                let counts = counts
                    .into_iter()
                    .flat_map(|one| counts.map(|other| (one, other)));
                counts.map(move |(count, bonus)| FixedWindow {
                    start,
                    count,
                    bonus,
                })
            };
            instants
                .into_iter()
                .flat_map(of)
                .map(AccountState::FixedWindow)
                .collect()
        }
        _ => extreme_entries(algorithm, pairs().collect()),
    }
}

#[cfg(feature = "redis")]
fn extreme_entries(algorithm: Algorithm, pairs: Vec<(u64, u64)>) -> Vec<AccountState> {
    let of = |(one, other): (u64, u64)| {
        let entries = Sliding::from(vec![(one, 1), (other, (1 << 40) - 1)]);
        match algorithm {
            Algorithm::SlidingLog => AccountState::SlidingLog(entries),
            _ => AccountState::SlidingWindow(entries),
        }
    };
    pairs.into_iter().map(of).collect()
}

/// Without Redis, nobody else writes accounts.
#[cfg(not(feature = "redis"))]
fn extreme_entries(_: Algorithm, _: Vec<(u64, u64)>) -> Vec<AccountState> {
    Vec::new()
}

/// Returns quotas with each number at its extremes.
fn extreme_quotas(algorithm: Algorithm) -> Vec<Quota> {
    const TEN_YEARS: u64 = 315_360_000 * SECOND;
    let rates = [
        (1, 1),
        (1, TEN_YEARS),
        (1_000, TEN_YEARS),
        (u32::MAX, 5 * SECOND),
        (7, 999),
    ];
    let built = rates.into_iter().filter_map(|(units, period)| {
        Quota::new(units, Duration::from_nanos(period))
            .ok()?
            .try_with_algorithm(algorithm)
            .ok()
    });
    let more = |quota: Quota| {
        let deep = quota.try_with_max_debt(u32::MAX).unwrap_or(quota);
        let soft = deep
            .try_with_soft(u32::MAX)
            .or(deep.try_with_soft(1_000))
            .unwrap_or(deep);
        [quota, deep, soft, soft.try_with_initial(0).unwrap_or(soft)]
    };
    built.chain([Quota::blocked()]).flat_map(more).collect()
}

#[test]
fn nothing_overflows_at_the_ends_of_the_types() {
    let costs = [0, 1, u32::MAX];
    let demands = costs.into_iter().flat_map(|cost| {
        [(0, 0), (1, 315_360_000 * SECOND), (u32::MAX, 1)].map(|(headroom, max_wait)| Demand {
            cost,
            headroom,
            max_wait,
        })
    });
    let demands: Vec<_> = demands.collect();
    let mut played = 0_u64;
    for algorithm in algorithms() {
        for quota in extreme_quotas(algorithm) {
            let accounts = extreme_accounts(algorithm).into_iter().map(Some);
            for state in accounts.chain([None]) {
                for now in [0, SECOND, LATEST - 1, LATEST] {
                    let account = Account(state.clone());
                    for demand in &demands {
                        ends(&account, &quota, now, *demand);
                    }
                    for units in [i64::MIN, -1, 1, i64::MAX] {
                        account.clone().adjust(&quota, now, units);
                    }
                    played += 1;
                }
            }
        }
    }
    assert!(played > 10_000, "{played}");
}

/// Plays all operations on an account.
fn ends(account: &Account, quota: &Quota, now: u64, demand: Demand) {
    account.clone().open(quota, now, demand);
    let mut taken = account.clone();
    let (evaluation, receipt) = taken.take(quota, now, demand);
    assert!(evaluation.allowed || Row::from(evaluation.snapshot).retry > 0);
    for (charged, units) in [(0, u32::MAX), (now, 1), (LATEST, u32::MAX)] {
        for end in [receipt.end, 0, u64::MAX] {
            let receipt = Receipt {
                charged,
                units,
                end,
                ..receipt
            };
            account.clone().undo(quota, now, receipt);
            taken.clone().undo(quota, now, receipt);
        }
    }
    #[cfg(feature = "redis")]
    for charged in [false, true] {
        reconstruct(account.0.as_ref(), quota, now, demand, charged);
        if let Some(state) = &account.0 {
            before(state, quota, now, u64::from(demand.cost) * 65_535);
        }
    }
}

proptest! {
    #![proptest_config(sequences())]

    #[test]
    fn random_sequences_keep_the_bounds(
        quota in extreme_quota(), start in prop_oneof![0..20 * SECOND, Just(1_u64 << 62)],
        steps in prop::collection::vec((jump(), op()), 1..24),
    ) {
        let queues = can_queue(&quota);
        let mut proof = Proof::new(quota, start);
        for (jump, op) in steps {
            let op = match op {
                Op::Take { cost, headroom, .. } if !queues => Op::Take { cost, headroom, max_wait: 0 },
                other => other,
            };
            let year = 31_536_000 * SECOND;
            let Row { full, next, retry, .. } = proof.last;
            let retry = if retry == NEVER { 0 } else { retry };
            let last = Row { full: full.min(year), next: next.min(year), retry: retry.min(year), ..proof.last };
            let nanos = Jump::nanos(jump, &quota, last).min(10 * year);
            proof.step(nanos, op)?;
        }
    }
}
