//! The generic cell rate algorithm (GCRA, ITU-T I.371, annex A).
//!
//! An account is one instant: the *theoretical arrival time* (TAT), at which the account is full
//! again. Each charged unit moves the TAT forward by the interval `T`. A charge is allowed if the
//! TAT is then at most `burst·T` in the future.
//!
//! A full account is dropped, because a new account is also full. A quota with
//! [`initial`](Quota::with_initial) starts new accounts with fewer units. Its full accounts are
//! therefore kept, for the time in which a whole burst is refilled.

use super::{Demand, Evaluation, Fit, Receipt};
use crate::{
    decision::{NEVER, Snapshot},
    quota::{Algorithm, Quota},
};

/// The stored value of a new account.
pub(super) const NO_ACCOUNT: u64 = u64::MAX;

/// The parameters of a quota for GCRA.
///
/// Each time is at most ten years, so sums do not overflow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    limit: u32,
    soft: u32,
    /// The limit plus the maximum debt.
    late_limit: u64,
    interval: u64,
    /// The time for which a full account is kept. It is 0 without `initial`.
    pub(crate) retention: u64,
    /// The time until a new account is full.
    pub(crate) initial_reset: u64,
}

impl Gcra {
    /// Returns the parameters of a GCRA quota without `initial`, or `None` for other quotas.
    #[inline]
    pub(crate) fn plain(quota: &Quota) -> Option<Self> {
        (quota.algorithm() == Algorithm::Gcra && quota.initial().is_none())
            .then(|| Self::new(quota))
    }

    /// Returns the parameters of a GCRA quota, or `None` for another algorithm.
    #[inline]
    pub(crate) fn counting(quota: &Quota) -> Option<Self> {
        (quota.algorithm() == Algorithm::Gcra).then(|| Self::new(quota))
    }

    #[inline]
    pub(crate) fn new(quota: &Quota) -> Self {
        let (limit, interval) = (quota.burst(), quota.interval_nanos());
        let span = |units: u32| u64::from(units) * interval;
        let (retention, initial_reset) = match quota.initial() {
            None => (0, 0),
            Some(initial) => (span(limit), span(limit.saturating_sub(initial))),
        };
        let late_limit = quota.late_limit();
        let soft = quota.soft();
        Self { limit, soft, late_limit, interval, retention, initial_reset }
    }

    /// Charges the account if enough units are available.
    ///
    /// Returns the new value of the account, or `None` if it does not change.
    #[inline]
    pub(crate) fn take(self, stored: u64, now: u64, demand: Demand) -> (Option<u64>, Evaluation) {
        let (new, charged) = self.charge(stored, now, demand);
        (new, self.evaluation(charged))
    }

    /// Returns the result of [`take`](Gcra::take) without charging the account.
    #[inline]
    pub(crate) fn look(self, stored: u64, now: u64, demand: Demand) -> Evaluation {
        let reset_ns = self.tat(stored, now) - now;
        self.evaluation((self.fit(reset_ns, demand), reset_ns))
    }

    /// Charges the account as [`take`](Gcra::take) does, but returns a smaller result, for speed.
    ///
    /// [`evaluation`](Gcra::evaluation) converts the result to an [`Evaluation`].
    #[inline(always)]
    pub(crate) fn charge(self, stored: u64, now: u64, demand: Demand) -> (Option<u64>, (Fit, u64)) {
        let reset_ns = self.tat(stored, now) - now;
        let fit = self.fit(reset_ns, demand);
        if !fit.allowed {
            return (self.open(stored, now, demand), (fit, reset_ns));
        }
        let reset_ns = reset_ns + self.span(demand.cost.into());
        ((demand.cost > 0).then_some(now + reset_ns), (fit, reset_ns))
    }

    #[inline(always)]
    fn fit(self, reset_ns: u64, demand: Demand) -> Fit {
        let need = demand.need();
        if need == 0 {
            return Fit::at_once(false);
        }
        if !self.is_possible(need) {
            return Fit::denied(NEVER);
        }
        let over = (reset_ns + self.span(need)).saturating_sub(self.span(self.limit.into()));
        // A quota with soft units does not queue.
        let soft = self.span(self.soft.into());
        let slack = if self.soft > 0 { soft } else { demand.max_wait };
        if over > slack {
            Fit::denied(over - soft)
        } else if self.soft > 0 {
            Fit::at_once(over > 0)
        } else {
            Fit::queued(over)
        }
    }

    #[inline]
    pub(crate) fn evaluation(self, (fit, reset_ns): (Fit, u64)) -> Evaluation {
        fit.with(self.snapshot(reset_ns, fit.retry_ns))
    }

    /// Returns the value of a new account when another quota denied the request.
    ///
    /// Returns `None` if the quota has no `initial` units, or if the account exists.
    #[inline]
    pub(crate) fn open(self, stored: u64, now: u64, demand: Demand) -> Option<u64> {
        let opens = self.retention > 0
            && !self.is_live(stored, now)
            && demand.cost > 0
            && self.is_possible(demand.need());
        opens.then(|| now + self.initial_reset)
    }

    /// Charges `units`, or refunds units if `units` is negative.
    ///
    /// The charge stops when the debt reaches `max_debt`. The result is then `true`. Also returns the
    /// new value of the account, or `None` if it does not change.
    pub(super) fn adjust(
        self,
        stored: u64,
        now: u64,
        units: i64,
    ) -> (Option<u64>, (Snapshot, bool)) {
        let before = self.tat(stored, now);
        let span = self.interval.saturating_mul(units.unsigned_abs());
        let whole = before.saturating_add(span);
        let after = if units > 0 {
            let most = now + self.span(self.late_limit);
            whole.min(most).max(before)
        } else if self.is_live(stored, now) {
            before.saturating_sub(span).max(now)
        } else {
            before
        };
        // With `initial`, a late charge creates an account even if it charges nothing.
        let opens = units > 0 && self.retention > 0 && !self.is_live(stored, now);
        let new = (after != before || opens).then_some(after);
        (new, (self.snapshot(after - now, 0), units > 0 && after < whole))
    }

    /// Undoes a charge. Units that were refilled since the charge are not added twice.
    ///
    /// Returns the new value of the account, or `None` if it does not change.
    pub(crate) fn undo(self, stored: u64, now: u64, receipt: Receipt) -> Option<u64> {
        let tat = self.tat(stored, now);
        if receipt.queued && tat != receipt.end {
            return None;
        }
        // No units came back if the clock went back after the charge.
        let held = receipt.end.saturating_sub(now.max(receipt.at));
        // The quota may have changed since the charge.
        let span = self.interval.saturating_mul(receipt.units.into());
        let after = tat.saturating_sub(held.min(span)).max(now);
        (self.is_live(stored, now) && after != tat).then_some(after)
    }

    /// Returns the evaluation of a decision that Redis made.
    ///
    /// `stored` is the value after the decision. `charged` is `true` if Redis charged the account.
    #[cfg(feature = "redis")]
    pub(crate) fn reconstruct(
        self,
        stored: u64,
        now: u64,
        demand: Demand,
        charged: bool,
    ) -> Evaluation {
        if !charged {
            return self.look(stored, now, demand);
        }
        let tat = self.tat(stored, now);
        // A damaged server may report a charge for any headroom.
        let over = tat.saturating_add(self.interval.saturating_mul(demand.headroom.into()));
        let over = over.saturating_sub(now + self.span(self.limit.into()));
        let fit = if self.soft > 0 { Fit::at_once(over > 0) } else { Fit::queued(over) };
        fit.with(self.snapshot(tat - now, 0))
    }

    /// Returns the instant from which the account can be dropped.
    #[inline]
    pub(crate) fn expires_at(self, tat: u64) -> u64 {
        tat + self.retention
    }

    #[inline]
    fn is_live(self, stored: u64, now: u64) -> bool {
        stored != NO_ACCOUNT && self.expires_at(stored) > now
    }

    /// Returns the TAT of an account, at least `now`.
    #[inline]
    fn tat(self, stored: u64, now: u64) -> u64 {
        if self.is_live(stored, now) { stored.max(now) } else { now + self.initial_reset }
    }

    #[inline]
    fn snapshot(self, reset_ns: u64, retry_ns: u64) -> Snapshot {
        Snapshot::Refilling { reset_ns, interval: self.interval, limit: self.limit, retry_ns }
    }

    /// Returns `true` if a full account can provide `need` units.
    #[inline]
    fn is_possible(self, need: u64) -> bool {
        need <= u64::from(self.limit) + u64::from(self.soft)
    }

    /// Returns the time in which `units` units are refilled.
    #[inline]
    fn span(self, units: u64) -> u64 {
        units * self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 200_000_000;

    fn five() -> Gcra {
        Gcra::new(&Quota::per_second(5))
    }

    /// Creates the receipt of a charge at 1 000 ns. `end` is the TAT after the charge.
    fn receipt(end: u64, cost: u32) -> Receipt {
        Receipt { charged: 1_000, at: 1_000, end, cost, units: cost, queued: false }
    }

    #[test]
    fn an_undo_keeps_the_charges_of_other_callers() {
        let (mine, now) = (1_000 + 2 * T, 1_000);
        let others = mine + T;
        assert_eq!(five().undo(others, now, receipt(mine, 2)), Some(others - 2 * T));
        let half = five().undo(others, mine - T, receipt(mine, 2));
        assert_eq!(half, Some(others - T), "half has come back");
        assert_eq!(five().undo(others, mine, receipt(mine, 2)), None, "all has come back");
    }

    #[test]
    fn a_partial_undo_returns_at_most_what_has_not_come_back() {
        let (mine, others) = (1_000 + 4 * T, 1_000 + 5 * T);
        let part = |units, now| five().undo(others, now, Receipt { units, ..receipt(mine, 4) });
        assert_eq!(part(0, 1_000), None);
        assert_eq!(part(3, 1_000), Some(others - 3 * T));
        assert_eq!(part(3, mine - 3 * T), Some(others - 3 * T), "one has come back");
        assert_eq!(part(3, mine - T), Some(others - T), "three have come back");
    }

    #[test]
    fn an_undo_in_an_expired_account_changes_nothing() {
        assert_eq!(five().undo(0, 1_000, receipt(1_000 + T, 1)), None);
        assert_eq!(five().undo(1_000, 1_000, receipt(1_000 + T, 1)), None);
        // With `initial`, it creates no account either.
        let quota = Gcra::new(&Quota::per_second(5).with_initial(0));
        assert_eq!(quota.undo(1_000, 1_000, receipt(1_000 + T, 1)), None);
    }

    #[test]
    fn a_queued_charge_is_undone_only_while_it_is_the_newest() {
        let one = Gcra::new(&Quota::per_second(5).with_burst(1));
        let queued = |end| Receipt { queued: true, ..receipt(end, 1) };
        let (second, third) = (1_000 + 2 * T, 1_000 + 3 * T);
        assert_eq!(one.undo(third, 1_000, queued(second)), None);
        assert_eq!(one.undo(third, 1_000, queued(third)), Some(second));
        assert_eq!(one.undo(second, 1_000, queued(second)), Some(1_000 + T));
    }

    #[test]
    fn a_clock_that_goes_back_does_not_increase_an_undo() {
        let (mine, others) = (1_000 + T, 1_000 + 2 * T);
        let late = Receipt { at: 1_000 + T / 2, ..receipt(mine, 1) };
        assert_eq!(five().undo(others, 1_000, late), Some(others - T / 2));
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        const TEN_YEARS: u64 = 315_360_000_000_000_000;
        let slow = Gcra::new(&Quota::per_day(1).with_burst(3650));
        let now = 1 << 62;
        let demand = Demand { cost: 3650, headroom: u32::MAX, max_wait: TEN_YEARS };
        assert_eq!(slow.take(now, now, demand).0, None);
        let (full, _) = slow.take(now, now, Demand { headroom: 0, ..demand });
        let full = full.expect("fits");
        let (queued, evaluation) = slow.take(full, now, Demand { headroom: 0, ..demand });
        assert_eq!((queued, evaluation.wait), (Some(now + 2 * TEN_YEARS), TEN_YEARS));
        assert_eq!(slow.adjust(full, now, i64::MAX).0, Some(now + 2 * TEN_YEARS));
        assert_eq!(slow.adjust(full, now, i64::MIN).0, Some(now));
        let deep =
            Gcra::new(&Quota::per_day(1).with_burst(3650).with_max_debt(3650).with_initial(0));
        let (active, _) = deep.adjust(now, now, i64::MAX);
        assert_eq!(active, Some(now + 2 * TEN_YEARS));
        let active = active.expect("a debt");
        assert!(
            !deep.look(active, now, Demand { cost: 1, headroom: 0, max_wait: TEN_YEARS }).allowed
        );
    }

    #[test]
    fn a_refund_reduces_debt_beyond_the_limit() {
        let one = Gcra::new(&Quota::per_second(5).with_burst(1));
        let (now, queued) = (1_000, 1_000 + 20 * T);
        assert_eq!(one.adjust(queued, now, -15).0, Some(now + 5 * T));
        assert_eq!(one.adjust(queued, now, 1).0, None, "already beyond twice the limit");
    }

    #[test]
    fn a_refund_to_a_full_account_does_not_keep_it_longer() {
        let quota = Gcra::new(&Quota::per_second(5).with_initial(0));
        let (full_since, stored) = (1_000, 1_000);
        assert_eq!(quota.adjust(stored, full_since + T, -3).0, None);
        let held = receipt(full_since + 4 * T, 3);
        assert_eq!(quota.undo(stored, full_since + T, held), None);
    }
}
