//! A lease, and the balance of each of its quotas.

use std::ops::Range;

use smallvec::SmallVec;

use super::allowances::Allowance;
use crate::{
    decision::{Decision, Outcome, Snapshot, Source},
    quota::Quota,
    store::{Charge, OwnedCharges, Store},
};

/// Divisor of the limit: all processes may refund `limit / SAFETY_MARGIN` units during a lease.
const SAFETY_MARGIN: u64 = 4;

/// A lease. Instants are nanoseconds since the table was created.
pub(super) struct Lease {
    /// The tags of the accounts.
    pub(super) tags: SmallVec<[u64; 2]>,
    pub(super) charges: OwnedCharges,
    /// The decision of the store on the borrow request.
    pub(super) taken: Decision,
    /// The instant of the request, before the store decided.
    pub(super) requested_at: u64,
    /// The instant of the reply, after the store decided.
    pub(super) received_at: u64,
    /// The number of other calls for which units were borrowed.
    pub(super) calls: u32,
    /// The instant of the last call.
    pub(super) last: u64,
    pub(super) allowance: Option<Allowance>,
    pub(super) balances: SmallVec<[Balance; 4]>,
}

impl Lease {
    /// Creates a lease after a charge for `calls` calls. `time` is that of the call to the store.
    ///
    /// Returns `None` if the decision lacks data for a balance.
    pub(super) fn new(
        charges: &[Charge<'_>],
        tags: &[u64],
        calls: u32,
        taken: &Decision,
        time: Range<u64>,
    ) -> Option<Self> {
        let quotas = Charge::all_quotas(charges);
        let rules = quotas.clone().map(|charged| charged.charge.rule);
        if !rules.eq(taken.outcomes().iter().map(Outcome::rule)) {
            return None;
        }
        let from = earliest(time.start);
        let balances = quotas.zip(taken.outcomes()).map(|(charged, outcome)| {
            let units = charged.charge.cost.saturating_mul(calls);
            Balance::new(charged.quota, outcome, units, from)
        });
        Some(Self {
            tags: tags.into(),
            balances: balances.collect::<Option<_>>()?,
            charges: charges.into(),
            taken: taken.clone(),
            requested_at: time.start,
            received_at: time.end,
            calls: calls - 1,
            last: time.end,
            allowance: None,
        })
    }

    pub(super) fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.requested_at)
    }

    /// Returns the number of other calls whose units are used or expired.
    pub(super) fn calls_gone(&self, now: u64) -> u32 {
        let at = self.with_clock_error(now);
        let left = self.charges.with(|charges| {
            let balances = Charge::all_quotas(charges).zip(&self.balances);
            balances
                .map(|(charged, balance)| balance.units(at) / charged.charge.cost)
                .min()
        });
        self.calls.saturating_sub(left.unwrap_or(0))
    }

    /// Admits a call if enough units are left.
    pub(super) fn admit(&mut self, charges: &[Charge<'_>], now: u64) -> Option<Decision> {
        let at = self.with_clock_error(now);
        for (charged, balance) in Charge::all_quotas(charges).zip(&self.balances) {
            if charged.charge.cost > balance.units(at) {
                return None;
            }
        }
        self.spend(charges, at);
        self.last = now;
        Some(self.decision(now).with_source(Source::Leased))
    }

    pub(super) fn spend(&mut self, charges: &[Charge<'_>], at: u64) {
        for (charged, balance) in Charge::all_quotas(charges).zip(&mut self.balances) {
            balance.spend(at, charged.charge.cost);
        }
    }

    /// Returns the decision for a call, with the units left in this process.
    ///
    /// The caller can pass the decision to `undo`. Under GCRA, each decision of a lease covers
    /// another piece of the borrowed span. All undos together therefore refund no more than was
    /// borrowed.
    pub(super) fn decision(&self, now: u64) -> Decision {
        let age = now.saturating_sub(self.received_at);
        let at = self.with_clock_error(now);
        let mut decision = Decision::new(true, self.taken.at.saturating_add(age));
        decision.charged_at = self.taken.charged_at;
        for (outcome, balance) in self.taken.outcomes().iter().zip(&self.balances) {
            decision.outcomes.push(balance.added_to(outcome, age, at));
        }
        decision
    }

    /// Returns `now` plus a margin for a slow clock: a thousandth of the lease's age.
    pub(super) fn with_clock_error(&self, now: u64) -> u64 {
        now + self.age(now) / 1_000
    }

    /// Returns the unused units to the store.
    pub(super) fn return_units<S: Store>(&self, store: &S, now: u64) {
        let at = self.with_clock_error(now);
        let mut receipt = Decision::new(true, self.taken.at).with_source(self.taken.source());
        self.charges.with(|charges| {
            let mut unused = SmallVec::<[Charge<'_>; 4]>::new();
            let quotas = Charge::all_quotas(charges).zip(&self.balances);
            for ((charged, balance), outcome) in quotas.zip(self.taken.outcomes()) {
                let units = balance.units(at);
                if units > 0 {
                    let charge = charged.charge.with_quota_index(charged.index);
                    unused.push(charge.with_cost(units));
                    receipt.outcomes.push(*outcome);
                }
            }
            if !unused.is_empty() {
                store.undo(&unused, &receipt, None);
            }
        });
    }
}

/// Returns the earliest instant that a clock of whole microseconds may show for an instant.
pub(super) fn earliest(instant: u64) -> u64 {
    instant.saturating_sub(1_000)
}

/// The balance of one quota: borrowed units that are not used yet.
#[derive(Clone, Copy)]
pub(super) struct Balance {
    /// The units that are not used. In a window, they do not expire before its end.
    units: u32,
    /// The instant from which the balance shrinks under GCRA.
    from: u64,
    until: u64,
    /// The time per unit under GCRA, or 0 in a window.
    interval: u64,
}

impl Balance {
    /// Returns the balance after a charge, or `None` if `outcome` lacks the needed data.
    fn new(quota: &Quota, outcome: &Outcome, units: u32, requested_at: u64) -> Option<Self> {
        let is_gcra = quota.is_gcra();
        match *outcome.snapshot() {
            Snapshot::Refilling {
                reset_ns, interval, ..
            } if is_gcra && interval == quota.interval_nanos() => {
                let borrowed = interval * u64::from(units);
                let margin = interval * u64::from(quota.limit()) / SAFETY_MARGIN;
                let before = reset_ns.saturating_sub(borrowed).saturating_sub(margin);
                let from = requested_at.saturating_add(before);
                Some(Self {
                    units,
                    from,
                    until: from.saturating_add(borrowed),
                    interval,
                })
            }
            Snapshot::Known { reset_ns: 0, .. } => None,
            Snapshot::Known { reset_ns, .. } if !is_gcra => {
                let until = requested_at.saturating_add(reset_ns);
                Some(Self {
                    units,
                    from: 0,
                    until,
                    interval: 0,
                })
            }
            _ => None,
        }
    }

    /// Returns the units left in the balance.
    fn units(&self, now: u64) -> u32 {
        let time = self.until.saturating_sub(self.from.max(now));
        match time.checked_div(self.interval) {
            Some(units) => u32::try_from(units).unwrap_or(u32::MAX),
            None if now < self.until => self.units,
            None => 0,
        }
    }

    /// Uses `units` of the balance, which must have enough units left.
    fn spend(&mut self, now: u64, units: u32) {
        self.units = self.units.saturating_sub(units);
        self.from = self.from.max(now) + self.interval * u64::from(units);
    }

    /// Returns the outcome of the store as of `age` later, with the units of the balance.
    fn added_to(&self, outcome: &Outcome, age: u64, now: u64) -> Outcome {
        let units = self.units(now);
        // Under GCRA, the units left only depend on the time until the account is full.
        let outcome = outcome.aged(age + self.interval * u64::from(units));
        outcome.with_remaining(outcome.remaining().saturating_add(units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Key, name::RuleName, quota::Algorithm};

    /// A quota of 100 units that refills one unit per second.
    const QUOTA: Quota = Quota::per_minute(60).with_burst(100);
    const SECOND: u64 = 1_000_000_000;

    /// Borrows ten units from an account that needs `used_before` seconds to refill.
    fn ten(used_before: u64) -> Balance {
        let reset_ns = (used_before + 10) * SECOND;
        let numbers = Snapshot::Refilling {
            reset_ns,
            interval: SECOND,
            limit: 100,
            retry_ns: 0,
        };
        let outcome = Outcome::with(RuleName::default(), 0, numbers);
        Balance::new(&QUOTA, &outcome, 10, 7 * SECOND).expect("a balance")
    }

    fn left(balance: &Balance, seconds: u64) -> u32 {
        balance.units((7 + seconds) * SECOND)
    }

    #[test]
    fn a_balance_shrinks_once_earlier_charges_may_have_refilled() {
        for (before, from) in [(0, 0), (25, 0), (28, 3), (65, 40)] {
            let balance = ten(before);
            let units =
                [from, from + 1, from + 9, from + 10, from + 99].map(|at| left(&balance, at));
            assert_eq!(units, [10, 9, 1, 0, 0], "{before} s before");
        }
    }

    #[test]
    fn used_units_refill_before_the_balance_shrinks() {
        let mut balance = ten(0);
        balance.spend(7 * SECOND, 4);
        assert_eq!(
            [0, 4, 5, 9, 10].map(|at| left(&balance, at)),
            [6, 6, 5, 1, 0]
        );
        let mut late = ten(0);
        late.spend(11 * SECOND, 4);
        assert_eq!([4, 8, 9, 10].map(|at| left(&late, at)), [2, 2, 1, 0]);
    }

    #[test]
    fn a_balance_is_void_when_its_window_ends() {
        let quota = QUOTA
            .with_burst(60)
            .with_algorithm(Algorithm::fixed_window());
        let numbers = Snapshot::Known {
            limit: 60,
            remaining: 9,
            reset_ns: 3 * SECOND,
            next_ns: SECOND,
            retry_ns: 0,
        };
        let outcome = Outcome::with(RuleName::default(), 0, numbers);
        let mut balance = Balance::new(&quota, &outcome, 10, 7 * SECOND).expect("a balance");
        balance.spend(8 * SECOND, 4);
        assert_eq!(
            (balance.units(10 * SECOND - 1), balance.units(10 * SECOND)),
            (6, 0)
        );
    }

    #[test]
    fn an_outcome_without_enough_data_gives_no_balance() {
        let unknown = Outcome::unknown(RuleName::default(), 0, None);
        let window = QUOTA
            .with_burst(60)
            .with_algorithm(Algorithm::AnchoredWindow);
        for quota in [QUOTA, window] {
            assert!(Balance::new(&quota, &unknown, 10, 0).is_none());
        }
        let full = Snapshot::Known {
            limit: 60,
            remaining: 60,
            reset_ns: 0,
            next_ns: 0,
            retry_ns: 0,
        };
        let outcome = Outcome::with(RuleName::default(), 0, full);
        assert!(Balance::new(&QUOTA, &outcome, 10, 0).is_none());
        assert!(Balance::new(&window, &outcome, 10, 0).is_none());
    }

    #[test]
    fn balances_shrink_by_a_clock_that_may_be_faster() {
        let (key, quotas) = (Key::from("hot"), [Quota::per_minute(60)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let snapshot = Snapshot::Refilling {
            reset_ns: 10 * SECOND,
            interval: SECOND,
            limit: 60,
            retry_ns: 0,
        };
        let mut taken = Decision::new(true, 0);
        taken
            .outcomes
            .push(Outcome::with(RuleName::default(), 0, snapshot));
        let lease = Lease::new(&[charge], &[1], 10, &taken, SECOND..2 * SECOND).expect("a lease");
        let left = |millis: u64| {
            let at = lease.with_clock_error(SECOND + millis * 1_000_000);
            lease.balances[0].units(at)
        };
        assert_eq!([0, 8_980, 8_995, 9_985].map(left), [9, 1, 0, 0]);
    }
}
