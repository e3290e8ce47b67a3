//! Compares the local store with a literal implementation of the definition.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::subsequence};
use tower_sluice::{
    Decision, Key, LocalStore, Quota, Store, StoreExt, rule::RuleName, store::Charge,
    testing::FakeClock,
};

use crate::support::random::{Row, nanos, quota, rows, time};

proptest! {
    #![proptest_config(crate::support::regressions::keeping(file!()))]

    #[test]
    fn every_value_equals_the_definition(
        quotas in vec(prop_oneof![20 => quota(), 1 => Just(Quota::blocked())], 1..4),
        steps in vec(step(), 1..80),
    ) {
        Trial::new(quotas).run(&steps)?;
    }
}

/// The next operation, on some of two keys.
#[derive(Clone, Debug)]
enum Step {
    Pass((u64, u64)),
    /// Keys (one may occur twice), cost, headroom and longest wait.
    Take(Vec<usize>, u32, u32, (u64, u64)),
    Adjust(usize, i64),
    Reset(usize),
    /// Undoes an earlier charge, counted from the latest, or at most this number of its units.
    Undo(usize, Option<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    let who = prop_oneof![4 => subsequence(vec![0, 1], 1..3), 1 => Just(vec![1, 1])];
    let headroom = prop_oneof![6 => Just(0), 2 => 0..9_u32, 1 => Just(u32::MAX)];
    let patience = prop_oneof![2 => Just((0, 0)), 1 => time()];
    let units = prop_oneof![8 => -70..70_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    prop_oneof![
        4 => time().prop_map(Step::Pass),
        8 => (who, 0..12_u32, headroom, patience).prop_map(|(k, c, h, w)| Step::Take(k, c, h, w)),
        2 => (0..2_usize, units).prop_map(|(key, units)| Step::Adjust(key, units)),
        1 => (0..2_usize).prop_map(Step::Reset),
        2 => (0..4_usize, prop::option::of(0..6_u32)).prop_map(|(at, units)| Step::Undo(at, units)),
    ]
}

/// An account as the definition states it: a debt in nanoseconds that shrinks by one in each
/// nanosecond. All other values are found by search.
#[derive(Clone, Copy, Default)]
struct Debt(u128);

impl Debt {
    fn fits(self, quota: &Quota, need: u128, waited: u128, patience: u128) -> bool {
        let (limit, interval) = (u128::from(quota.limit()), quota.interval().as_nanos());
        let owed = self.0.saturating_sub(waited) + need * interval;
        need <= limit && owed <= limit * interval + patience
    }

    fn remaining(self, quota: &Quota, waited: u128) -> u32 {
        let fits = |units: &u32| self.fits(quota, (*units).into(), waited, 0);
        (1..=quota.limit()).rev().find(fits).unwrap_or(0)
    }

    fn row(self, quota: &Quota, need: u128) -> Row {
        let left = self.remaining(quota, 0);
        let next = self.least_wait(|waited| self.remaining(quota, waited) > left);
        let retry = self.least_wait(|waited| need == 0 || self.fits(quota, need, waited, 0));
        (left, time_of(self.0), time_of(next.unwrap_or(0)), retry.map(time_of))
    }

    /// Searches by bisection: a condition that holds after some wait also holds after a longer one.
    fn least_wait(self, holds: impl Fn(u128) -> bool) -> Option<u128> {
        let (mut low, mut high) = (0, self.0);
        while low < high {
            let middle = low.midpoint(high);
            if holds(middle) { high = middle } else { low = middle + 1 }
        }
        holds(low).then_some(low)
    }
}

fn time_of(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).expect("fits"))
}

/// The store and the definition, run side by side.
struct Trial {
    clock: FakeClock,
    store: LocalStore,
    keys: [Key; 2],
    quotas: Vec<Quota>,
    now: u128,
    /// Debts per key and quota.
    debts: [Vec<Debt>; 2],
    taken: Vec<Taken>,
}

/// A charge that can be undone: its keys, its cost, and for each account the instant at which the
/// charge ends and whether it queued.
struct Taken {
    who: Vec<usize>,
    cost: u32,
    headroom: u32,
    decision: Decision,
    ends: Vec<(usize, usize, u128, bool)>,
    /// `true` after the accounts have been reset.
    void: bool,
}

impl Trial {
    fn new(quotas: Vec<Quota>) -> Self {
        let clock = FakeClock::new();
        let debts = [vec![Debt(0); quotas.len()], vec![Debt(0); quotas.len()]];
        let (store, keys) = (clock.store(64), [Key::from("alice"), Key::from("bob")]);
        Self { clock, store, keys, quotas, now: 0, debts, taken: Vec::new() }
    }

    fn charge(&self, who: usize) -> Charge<'_> {
        Charge::new(RuleName::default(), &self.keys[who], &self.quotas)
    }

    fn run(mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        for step in steps {
            match step {
                Step::Pass(time) => {
                    let time = nanos(*time, &self.quotas[0]);
                    self.clock.advance(time);
                    self.now += time.as_nanos();
                    for debt in self.debts.iter_mut().flatten() {
                        debt.0 = debt.0.saturating_sub(time.as_nanos());
                    }
                }
                Step::Take(who, cost, headroom, patience) => {
                    let patience = nanos(*patience, &self.quotas[0]);
                    self.take(who, *cost, *headroom, patience)?;
                }
                Step::Adjust(who, units) => {
                    let decision =
                        self.store.adjust(&self.charge(*who), units.saturating_neg()).now();
                    let amount = u128::from(units.unsigned_abs());
                    for (debt, quota) in self.debts[*who].iter_mut().zip(&self.quotas) {
                        let amount = amount * quota.interval().as_nanos();
                        let most = 2 * u128::from(quota.limit()) * quota.interval().as_nanos();
                        debt.0 = match units {
                            0.. => debt.0.saturating_sub(amount),
                            _ => (debt.0 + amount).min(most).max(debt.0),
                        };
                    }
                    prop_assert_eq!(rows(&decision), self.rows(&[*who], 0));
                }
                Step::Reset(who) => {
                    let decision = self.store.reset(&self.charge(*who)).now();
                    self.debts[*who].fill(Debt(0));
                    prop_assert_eq!(rows(&decision), self.rows(&[*who], 0));
                    self.void_receipts(*who);
                }
                Step::Undo(back, units) => {
                    if let Some(at) = self.taken.len().checked_sub(back + 1) {
                        self.undo(at, *units);
                    }
                }
            }
            let looks = [self.charge(0).with_cost(0), self.charge(1).with_cost(0)];
            prop_assert_eq!(rows(&self.store.take(&looks).now()), self.rows(&[0, 1], 0));
        }
        Ok(())
    }

    fn take(
        &mut self,
        who: &[usize],
        cost: u32,
        headroom: u32,
        patience: Duration,
    ) -> Result<(), TestCaseError> {
        let asks = |at: &usize| {
            self.charge(*at).with_cost(cost).with_headroom(headroom).with_max_wait(patience)
        };
        let decision = self.store.take(&who.iter().map(asks).collect::<Vec<_>>()).now();

        let mut once = who.to_vec();
        once.dedup();
        let total = u128::from(cost) * (who.len() / once.len()) as u128;
        let need = if cost == 0 { 0 } else { total + u128::from(headroom) };
        let patience = if cost == 0 { 0 } else { patience.as_nanos() };
        let accounts = || once.iter().flat_map(|who| (0..self.quotas.len()).map(|at| (*who, at)));
        let quotas = &self.quotas;
        let debts = &self.debts;
        let fits = |(who, at): (usize, usize)| {
            cost == 0 || debts[who][at].fits(&quotas[at], need, 0, patience)
        };
        let allowed = accounts().all(fits);
        prop_assert_eq!(decision.is_allowed(), allowed);
        if !allowed {
            prop_assert_eq!(rows(&decision), self.rows(who, need));
            return Ok(());
        }
        let (mut wait, mut ends) = (0, Vec::new());
        for (who, at) in accounts().collect::<Vec<_>>() {
            let interval = quotas[at].interval().as_nanos();
            let debt = &mut self.debts[who][at].0;
            *debt += total * interval;
            let room = u128::from(quotas[at].limit()) * interval;
            let queued = *debt + u128::from(headroom) * interval > room;
            ends.push((who, at, self.now + *debt, queued));
            if patience > 0 {
                wait = (*debt + u128::from(headroom) * interval).saturating_sub(room).max(wait);
            }
        }
        prop_assert_eq!(decision.wait(), time_of(wait));
        prop_assert_eq!(rows(&decision), self.rows(who, 0));
        let (who, void) = (who.to_vec(), false);
        self.taken.push(Taken { who, cost, headroom, decision, ends, void });
        Ok(())
    }

    fn undo(&mut self, at: usize, units: Option<u32>) {
        let Taken { who, cost, headroom, decision, ends, void } = self.taken.remove(at);
        let charge = |who: &usize| self.charge(*who).with_cost(cost).with_headroom(headroom);
        let charges: Vec<_> = who.iter().map(charge).collect();
        self.store.undo(&charges, &decision, units);
        let total = u128::from(cost) * (who.len() * self.quotas.len() / ends.len()) as u128;
        let total = units.map_or(total, |units| total.min(units.into()));
        for (who, at, end, queued) in ends.into_iter().filter(|_| !void) {
            let mine = total * self.quotas[at].interval().as_nanos();
            let debt = &mut self.debts[who][at].0;
            if !queued || end == self.now + *debt {
                *debt = debt.saturating_sub(end.saturating_sub(self.now).min(mine));
            }
        }
    }

    /// Voids the receipts of a key. A reset may also void receipts of other keys, so all are
    /// dropped here.
    fn void_receipts(&mut self, who: usize) {
        self.taken.retain(|taken| taken.who.iter().all(|of| *of == who));
        self.taken.iter_mut().for_each(|taken| taken.void = true);
        // a later charge must have a later instant
        self.clock.advance(Duration::from_nanos(1));
        self.now += 1;
        self.debts.iter_mut().flatten().for_each(|debt| debt.0 = debt.0.saturating_sub(1));
    }

    fn rows(&self, who: &[usize], need: u128) -> Vec<Row> {
        let one = |who: &usize| {
            let accounts = self.debts[*who].iter().zip(&self.quotas);
            accounts.map(|(debt, quota)| debt.row(quota, need)).collect::<Vec<_>>()
        };
        who.iter().flat_map(one).collect()
    }
}
