//! A lease: borrowed units for calls with the same keys.

use smallvec::SmallVec;

use super::{balance::Balance, sizing::Share};
use crate::{
    decision::{Decision, Outcome, Source},
    store::{Charge, OwnedCharges, Store},
};

/// A lease. Instants are nanoseconds since the table was created.
#[derive(Debug)]
pub(super) struct Lease {
    /// The accounts, as hashes of rule and key.
    accounts: SmallVec<[u64; 2]>,
    charges: OwnedCharges,
    /// The decision of the store on the borrow request.
    taken: Decision,
    /// The instant of the request, before the store decided.
    requested_at: u64,
    /// The instant of the reply, after the store decided.
    received_at: u64,
    /// The number of calls for which units were borrowed.
    pub(super) calls: u32,
    pub(super) admitted: u32,
    /// The instant of the last call.
    pub(super) last: u64,
    pub(super) share: Share,
    balances: SmallVec<[Balance; 4]>,
}

impl Lease {
    /// Creates a lease after a charge for `calls` calls.
    ///
    /// Returns `None` if the decision lacks data for a balance.
    pub(super) fn new(
        charges: &[Charge<'_>],
        accounts: &[u64],
        calls: u32,
        taken: &Decision,
        (requested_at, received_at): (u64, u64),
    ) -> Option<Self> {
        let quota_count = charges.iter().map(|charge| charge.quotas().len()).sum::<usize>();
        if quota_count != taken.outcomes().len() {
            return None;
        }
        // A clock of whole microseconds may be behind by one.
        let from = requested_at.saturating_sub(1_000);
        let balance = |((charge, quota), outcome): ((&Charge<'_>, _), &Outcome)| {
            let units = charge.cost().saturating_mul(calls);
            let own = outcome.rule() == charge.rule();
            own.then(|| Balance::new(quota, outcome, units, from)).flatten()
        };
        let balances = quotas(charges).zip(taken.outcomes()).map(balance).collect::<Option<_>>()?;
        let (accounts, charges, taken) = (accounts.into(), charges.into(), taken.clone());
        let (admitted, last, share) = (0, received_at, Share::default());
        Some(Self {
            accounts,
            charges,
            taken,
            requested_at,
            received_at,
            calls,
            admitted,
            last,
            share,
            balances,
        })
    }

    /// Returns `true` if the lease has borrowed units of the account.
    pub(super) fn is_of(&self, account: u64) -> bool {
        self.accounts.contains(&account)
    }

    pub(super) fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.requested_at)
    }

    /// Returns the number of calls that the lease can still admit.
    pub(super) fn calls_left(&self, now: u64) -> u32 {
        let at = self.with_clock_error(now);
        self.charges.with(|charges| {
            let units = quotas(charges).zip(&self.balances);
            let calls =
                units.map(|((charge, _), balance)| balance.units(at) / charge.cost().max(1));
            calls.min().unwrap_or(0)
        })
    }

    /// Admits the call that requested the lease.
    pub(super) fn admit_first(&mut self, charges: &[Charge<'_>]) -> Decision {
        self.spend(charges, self.requested_at.saturating_sub(1_000));
        let source = self.taken.source();
        self.decision(self.received_at).with_source(source)
    }

    /// Admits a call if enough units are left.
    pub(super) fn admit(&mut self, charges: &[Charge<'_>], now: u64) -> Option<Decision> {
        let at = self.with_clock_error(now);
        let mut needed = quotas(charges).zip(&self.balances);
        if !needed.all(|((charge, _), balance)| charge.cost() <= balance.units(at)) {
            return None;
        }
        self.spend(charges, at);
        self.last = now;
        Some(self.decision(now).with_source(Source::Leased))
    }

    fn spend(&mut self, charges: &[Charge<'_>], at: u64) {
        for ((charge, _), balance) in quotas(charges).zip(&mut self.balances) {
            balance.spend(at, charge.cost());
        }
        self.admitted += 1;
    }

    /// Returns the decision for a call, with the units left in this process.
    ///
    /// The caller can pass the decision to `undo`. Under GCRA, each decision of a lease covers
    /// another piece of the borrowed span. All undos together therefore refund no more than was
    /// borrowed.
    fn decision(&self, now: u64) -> Decision {
        let (age, at) = (now.saturating_sub(self.received_at), self.with_clock_error(now));
        let instant = self.taken.instant().saturating_add(age);
        let mut decision = Decision::new(true, instant).charged_by(self.taken.charged_at());
        for (outcome, balance) in self.taken.outcomes().iter().zip(&self.balances) {
            decision.push(outcome.aged(age).with_more(balance.units(at)));
        }
        decision
    }

    /// Returns `now` plus a margin for a slow clock: a thousandth of the lease's age.
    fn with_clock_error(&self, now: u64) -> u64 {
        now + self.age(now) / 1_000
    }

    /// Returns the unused units to the store, except units of the account `removed`.
    pub(super) fn return_units<S: Store>(&self, store: &S, now: u64, removed: Option<u64>) {
        let now = self.with_clock_error(now);
        self.charges.with(|charges| {
            let mut balances = self.balances.iter().zip(self.taken.outcomes());
            for (charge, account) in charges.iter().zip(&self.accounts) {
                let own = balances.by_ref().take(charge.quotas().len());
                let left = own.map(|(balance, outcome)| (balance.units(now), outcome));
                let left: SmallVec<[_; 4]> = left.collect();
                if removed != Some(*account) {
                    self.return_charge(store, charge, &left);
                }
            }
        });
    }

    /// Returns the unused units of one charge to the store.
    fn return_charge<S: Store>(&self, store: &S, charge: &Charge<'_>, left: &[(u32, &Outcome)]) {
        let receipt = |outcomes: &[(u32, &Outcome)]| {
            let mut receipt = Decision::new(true, self.taken.instant());
            outcomes.iter().for_each(|(_, outcome)| receipt.push(**outcome));
            receipt.with_source(self.taken.source())
        };
        let Some(&(first, _)) = left.first() else { return };
        if left.iter().all(|(units, _)| *units == first) {
            if first > 0 {
                store.undo(&[charge.with_cost(first)], &receipt(left), None);
            }
            return;
        }
        for (quota_index, one) in left.iter().enumerate().filter(|(_, (units, _))| *units > 0) {
            store.undo(
                &[charge.with_quota_index(quota_index).with_cost(one.0)],
                &receipt(&[*one]),
                None,
            );
        }
    }
}

/// Returns each quota of a call with its charge.
fn quotas<'a, 'c>(
    charges: &'c [Charge<'a>],
) -> impl Iterator<Item = (&'c Charge<'a>, &'a crate::quota::Quota)> {
    charges.iter().flat_map(|charge| charge.quotas().iter().map(move |quota| (charge, quota)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decision::Snapshot, key::Key, name::RuleName, quota::Quota};

    #[test]
    fn balances_shrink_by_a_clock_that_may_be_faster() {
        const SECOND: u64 = 1_000_000_000;
        let (key, quotas) = (Key::from("hot"), [Quota::per_minute(60)]);
        let charge = Charge::new(RuleName::default(), &key, &quotas);
        let snapshot =
            Snapshot::Refilling { reset_ns: 10 * SECOND, interval: SECOND, limit: 60, retry_ns: 0 };
        let mut taken = Decision::new(true, 0);
        taken.push(Outcome::with(RuleName::default(), 0, snapshot));
        let lease = Lease::new(&[charge], &[1], 10, &taken, (SECOND, 2 * SECOND)).expect("a lease");
        let left = |millis: u64| lease.calls_left(SECOND + millis * 1_000_000);
        assert_eq!([0, 8_980, 8_995, 9_985].map(left), [9, 1, 0, 0]);
    }
}
