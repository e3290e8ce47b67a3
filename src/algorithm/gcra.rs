//! GCRA, the generic cell rate algorithm (ITU-T I.371, annex A), as virtual scheduling.
//!
//! The whole account is one instant, the *theoretical arrival time* (TAT): when it is full again.
//! A unit costs the interval `T`; `burst` units may be owed.
//!
//! What is stored is the instant from which the account may be forgotten, 0 where there is none.
//! A full account equals no account, so that is the TAT itself. Only an account that starts at
//! `initial` units differs from one that was used and is full: it is remembered, full, for
//! `burst·T` longer, and the stored instant is the TAT plus that.
//!
//! It spaces what comes after the burst and knows no windows: over any span it admits at most the
//! burst and what flows back in the span, which over one period can be nearly twice the quota.

use super::{Ask, Receipt, Step};
use crate::{
    decision::{NEVER, Numbers},
    quota::{Algorithm, Quota},
};

/// A quota as this algorithm sees it. `(limit + soft) × interval`, `max_debt × interval` and a wait
/// are at most ten years each, so that sums of a few of them and an instant stay far below 2^64 ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    limit: u32,
    soft: u32,
    /// Units charged at which a late charge stops.
    late_limit: u64,
    interval: u64,
    /// For how long a full account is remembered: `burst·T` with `initial`, otherwise 0.
    kept: u64,
    /// How far ahead the TAT of a cold account is: `(burst − initial)·T`.
    cold: u64,
}

/// What became of an [`Ask`], in nanoseconds: a [`Step`] without what is the quota's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighed {
    pub(crate) allowed: bool,
    pub(crate) overage: bool,
    pub(crate) wait: u64,
    /// Until the account is full.
    ahead: u64,
    retry: u64,
}

impl Gcra {
    /// The quota, if this algorithm counts it.
    #[inline]
    pub(crate) fn counting(quota: &Quota) -> Option<Self> {
        (quota.counted_by() == Algorithm::Gcra).then(|| Self::new(quota))
    }

    #[inline]
    pub(crate) fn new(quota: &Quota) -> Self {
        let (limit, interval) = (quota.limit(), quota.interval_nanos());
        let worth = |units: u32| u64::from(units) * interval;
        let (kept, cold) = match quota.initial_units() {
            None => (0, 0),
            Some(initial) => (worth(limit), worth(limit.saturating_sub(initial))),
        };
        let late_limit = quota.late_limit();
        Self { limit, soft: quota.soft_units(), late_limit, interval, kept, cold }
    }

    /// Charges what is asked of the account, if it fits: the instant to store, if any, and what to
    /// say.
    #[inline]
    pub(crate) fn take(self, stored: u64, now: u64, ask: Ask) -> (Option<u64>, Step) {
        let (new, weighed) = self.charge(stored, now, ask);
        (new, self.step(weighed))
    }

    /// What [`take`](Gcra::take) would say, with nothing charged.
    #[inline]
    pub(crate) fn look(self, stored: u64, now: u64, ask: Ask) -> Step {
        self.step(self.weigh(stored, now, ask))
    }

    /// [`take`](Gcra::take) in bare numbers, which stay in registers.
    #[inline]
    pub(crate) fn charge(self, stored: u64, now: u64, ask: Ask) -> (Option<u64>, Weighed) {
        let weighed = self.weigh(stored, now, ask);
        if !weighed.allowed {
            return (self.open(stored, now, ask), weighed);
        }
        let worth = self.worth(ask.cost.into());
        let charged = Weighed { ahead: weighed.ahead + worth, ..weighed };
        ((ask.cost > 0).then(|| self.stored(now + charged.ahead)), charged)
    }

    #[inline]
    fn weigh(self, stored: u64, now: u64, ask: Ask) -> Weighed {
        let ahead = self.tat(stored, now) - now;
        let say = |allowed, overage, wait, retry| Weighed { allowed, overage, wait, ahead, retry };
        let need = ask.need();
        if need == 0 {
            return say(true, false, 0, 0);
        }
        if !self.possible(need) {
            return say(false, false, 0, NEVER);
        }
        let over = (ahead + self.worth(need)).saturating_sub(self.worth(self.limit.into()));
        // What does not fit passes as overage or queues, never both.
        let soft = self.worth(self.soft.into());
        let slack = if self.soft > 0 { soft } else { ask.max_wait };
        if over > slack {
            say(false, false, 0, over - soft)
        } else if self.soft > 0 {
            say(true, over > 0, 0, 0)
        } else {
            say(true, false, over, 0)
        }
    }

    #[inline]
    pub(crate) fn step(self, weighed: Weighed) -> Step {
        let Weighed { allowed, overage, wait, ahead, retry } = weighed;
        Step { allowed, overage, wait, numbers: self.told_as(ahead, retry) }
    }

    /// What to store after a refusal of `ask`: the first contact opens an account with `initial`.
    ///
    /// [`take`](Gcra::take) does so itself; this is for an account that a decision over several
    /// refused because of another.
    #[inline]
    pub(crate) fn open(self, stored: u64, now: u64, ask: Ask) -> Option<u64> {
        let opens = self.kept > 0 && stored <= now && ask.cost > 0 && self.possible(ask.need());
        opens.then(|| self.stored(now + self.cold))
    }

    /// What to store after `units` are given back (above 0) or charged late (below 0), and the
    /// account then.
    ///
    /// A refund stops at full, and changes nothing where there is no account. A late charge never
    /// fails but stops where the limit and `max_debt` are owed; an account already beyond that stays.
    pub(crate) fn settle(self, stored: u64, now: u64, units: i64) -> (Option<u64>, Numbers) {
        let before = self.tat(stored, now);
        let worth = self.interval.saturating_mul(units.unsigned_abs());
        let after = if units < 0 {
            let most = now + self.worth(self.late_limit);
            before.saturating_add(worth).min(most).max(before)
        } else if stored <= now {
            before
        } else {
            before.saturating_sub(worth).max(now)
        };
        ((after != before).then(|| self.stored(after)), self.numbers(after, now, 0))
    }

    /// Returns whether a late charge of `units` is cut.
    pub(crate) fn cuts(self, stored: u64, now: u64, units: u64) -> bool {
        let room = self.worth(self.late_limit).saturating_sub(self.tat(stored, now) - now);
        self.interval.saturating_mul(units) > room
    }

    /// Returns the instant to store after a charge is undone, if it changes. What others were
    /// charged since stays charged, and what has flowed back since is not given twice.
    pub(crate) fn undo(self, stored: u64, now: u64, receipt: Receipt) -> Option<u64> {
        let tat = self.tat(stored, now);
        if receipt.queued && tat != receipt.end {
            return None;
        }
        // a clock that stepped back since refills nothing
        let held = receipt.end.saturating_sub(now.max(receipt.at));
        // the quota may have changed since the charge
        let worth = self.interval.saturating_mul(receipt.units.into());
        let after = tat.saturating_sub(held.min(worth)).max(now);
        (stored > now && after != tat).then(|| self.stored(after))
    }

    /// What a store that decided elsewhere is to say of `ask`, the account being `stored` since.
    #[cfg(feature = "redis")]
    pub(crate) fn told(self, stored: u64, now: u64, ask: Ask, charged: bool) -> Step {
        if !charged {
            return self.look(stored, now, ask);
        }
        let tat = self.tat(stored, now);
        let over = tat + self.worth(ask.headroom.into());
        let over = over.saturating_sub(now + self.worth(self.limit.into()));
        let (overage, wait) = if self.soft > 0 { (over > 0, 0) } else { (false, over) };
        Step { allowed: true, overage, wait, numbers: self.numbers(tat, now, 0) }
    }

    /// For how long a full account is remembered.
    #[cfg(feature = "redis")]
    pub(crate) fn kept(self) -> u64 {
        self.kept
    }

    /// How far ahead the TAT of a cold account is.
    #[cfg(feature = "redis")]
    pub(crate) fn cold(self) -> u64 {
        self.cold
    }

    /// How an account of this TAT is stored.
    #[inline]
    pub(crate) fn stored(self, tat: u64) -> u64 {
        tat + self.kept
    }

    /// The TAT of an account, at least `now`.
    #[inline]
    fn tat(self, stored: u64, now: u64) -> u64 {
        if stored <= now { now + self.cold } else { stored.saturating_sub(self.kept).max(now) }
    }

    #[inline]
    fn numbers(self, tat: u64, now: u64, retry: u64) -> Numbers {
        self.told_as(tat - now, retry)
    }

    /// The account, full in `ahead`, as it is told.
    #[inline]
    fn told_as(self, ahead: u64, retry: u64) -> Numbers {
        Numbers::Refilling { ahead, interval: self.interval, limit: self.limit, retry }
    }

    /// Whether a full account could ever pay.
    #[inline]
    fn possible(self, need: u64) -> bool {
        need <= u64::from(self.limit) + u64::from(self.soft)
    }

    #[inline]
    fn worth(self, units: u64) -> u64 {
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

    /// A charge of so many units that left this TAT, made at 1 000.
    fn receipt(end: u64, cost: u32) -> Receipt {
        Receipt { charged: 1_000, at: 1_000, end, cost, units: cost, queued: false }
    }

    #[test]
    fn an_undo_leaves_what_others_were_charged() {
        let (mine, now) = (1_000 + 2 * T, 1_000);
        let others = mine + T;
        assert_eq!(five().undo(others, now, receipt(mine, 2)), Some(others - 2 * T));
        let half = five().undo(others, mine - T, receipt(mine, 2));
        assert_eq!(half, Some(others - T), "half has flowed back");
        assert_eq!(five().undo(others, mine, receipt(mine, 2)), None, "all has flowed back");
    }

    #[test]
    fn a_part_that_is_undone_is_no_more_than_what_is_left() {
        let (mine, others) = (1_000 + 4 * T, 1_000 + 5 * T);
        let part = |units, now| five().undo(others, now, Receipt { units, ..receipt(mine, 4) });
        assert_eq!(part(0, 1_000), None);
        assert_eq!(part(3, 1_000), Some(others - 3 * T));
        assert_eq!(part(3, mine - 3 * T), Some(others - 3 * T), "one has flowed back");
        assert_eq!(part(3, mine - T), Some(others - T), "three have flowed back");
    }

    #[test]
    fn an_undo_in_a_forgotten_account_changes_nothing() {
        assert_eq!(five().undo(0, 1_000, receipt(1_000 + T, 1)), None);
        assert_eq!(five().undo(1_000, 1_000, receipt(1_000 + T, 1)), None);
        // nor in one that would be opened at its initial level
        let quota = Gcra::new(&Quota::per_second(5).initial(0));
        assert_eq!(quota.undo(1_000, 1_000, receipt(1_000 + T, 1)), None);
    }

    #[test]
    fn a_queued_charge_is_undone_only_while_it_is_the_newest() {
        let one = Gcra::new(&Quota::per_second(5).burst(1));
        let queued = |end| Receipt { queued: true, ..receipt(end, 1) };
        let (second, third) = (1_000 + 2 * T, 1_000 + 3 * T);
        assert_eq!(one.undo(third, 1_000, queued(second)), None);
        assert_eq!(one.undo(third, 1_000, queued(third)), Some(second));
        assert_eq!(one.undo(second, 1_000, queued(second)), Some(1_000 + T));
    }

    #[test]
    fn a_clock_that_stepped_back_does_not_make_a_receipt_hold_more() {
        let (mine, others) = (1_000 + T, 1_000 + 2 * T);
        let late = Receipt { at: 1_000 + T / 2, ..receipt(mine, 1) };
        assert_eq!(five().undo(others, 1_000, late), Some(others - T / 2));
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        const TEN_YEARS: u64 = 315_360_000_000_000_000;
        let slow = Gcra::new(&Quota::per_day(1).burst(3650));
        let now = 1 << 62;
        let ask = Ask { cost: 3650, headroom: u32::MAX, max_wait: TEN_YEARS };
        assert_eq!(slow.take(now, now, ask).0, None);
        let (full, _) = slow.take(now, now, Ask { headroom: 0, ..ask });
        let full = full.expect("fits");
        let (queued, step) = slow.take(full, now, Ask { headroom: 0, ..ask });
        assert_eq!((queued, step.wait), (Some(now + 2 * TEN_YEARS), TEN_YEARS));
        assert_eq!(slow.settle(full, now, i64::MIN).0, Some(now + 2 * TEN_YEARS));
        assert_eq!(slow.settle(full, now, i64::MAX).0, Some(now));
        let deep = Gcra::new(&Quota::per_day(1).burst(3650).max_debt(3650).initial(0));
        let (owed, _) = deep.settle(now, now, i64::MIN);
        assert_eq!(owed, Some(now + 3 * TEN_YEARS));
        let owed = owed.expect("a debt");
        assert!(!deep.look(owed, now, Ask { cost: 1, headroom: 0, max_wait: TEN_YEARS }).allowed);
    }

    #[test]
    fn a_refund_reaches_the_whole_queue() {
        let one = Gcra::new(&Quota::per_second(5).burst(1));
        let (now, queued) = (1_000, 1_000 + 20 * T);
        assert_eq!(one.settle(queued, now, 15).0, Some(now + 5 * T));
        assert_eq!(one.settle(queued, now, -1).0, None, "already beyond twice the limit");
    }

    #[test]
    fn a_refund_to_a_full_account_does_not_keep_it_longer() {
        let quota = Gcra::new(&Quota::per_second(5).initial(0));
        let full_since = 1_000;
        let stored = quota.stored(full_since);
        assert_eq!(quota.settle(stored, full_since + T, 3).0, None);
        let held = receipt(full_since + 4 * T, 3);
        assert_eq!(quota.undo(stored, full_since + T, held), None);
    }
}
