//! The fixed window: a count that starts anew with each window.
//!
//! A window is one period, aligned to the Unix epoch, or anchored: it starts with the first
//! charge. Well known and easy to read on a clock, and it admits up to twice the units within one
//! period around the edge of two windows.
//!
//! Aligned windows may lend and pace. With `carry_over`, what a used window left of its units is
//! lent to the next one as a bonus, which makes its allowance; such an account is kept one window
//! longer. Paced, the units of an allowance pass evenly spaced from the window's start on, which
//! takes most of the burst from the edge; what was not used stays usable until the window ends.

use super::{Counter, NEVER, Receipt};
use crate::quota::{Algorithm, Quota};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindow {
    start: u64,
    count: u64,
    /// Lent by the window before.
    bonus: u64,
}

impl FixedWindow {
    pub(super) fn fresh(quota: &Quota, now: u64) -> Self {
        Self { start: start(quota, now), count: 0, bonus: 0 }
    }

    #[cfg(feature = "redis")]
    pub(super) fn kept(start: u64, count: u64, bonus: u64) -> Self {
        Self { start, count, bonus }
    }

    /// The window of `now`.
    fn at(self, quota: &Quota, now: u64) -> Self {
        let carry_over = carry_over(quota);
        // the quota's period may have changed
        let start = start(quota, self.start);
        let end = start + quota.period_nanos();
        if now < end {
            Self { start, bonus: self.bonus.min(carry_over), ..self }
        } else if carry_over > 0 && self.count > 0 && now < end + quota.period_nanos() {
            let left = u64::from(quota.units()).saturating_sub(self.count);
            Self { start: end, count: 0, bonus: left.min(carry_over) }
        } else {
            Self::fresh(quota, now)
        }
    }

    fn end(self, quota: &Quota) -> u64 {
        self.start + quota.period_nanos()
    }

    fn allowance(self, quota: &Quota) -> u64 {
        u64::from(quota.units()) + self.bonus
    }

    /// How long after the window's start unit `k`, counted from 1, of a paced allowance passes:
    /// the period or more if it does not pass in this window.
    fn offset(self, quota: &Quota, k: u64) -> u64 {
        let allowance = self.allowance(quota);
        if k > allowance {
            return NEVER;
        }
        let product = u128::from(k.saturating_sub(1)) * u128::from(quota.period_nanos());
        u64::try_from(product.div_ceil(allowance.into())).unwrap_or(NEVER)
    }

    /// When the unit after those charged passes: of a paced window, the place of the next in line.
    fn following(self, quota: &Quota) -> u64 {
        self.start + self.offset(quota, self.count + 1).min(quota.period_nanos())
    }

    /// Units of the allowance whose instant has come.
    fn come(self, quota: &Quota, now: u64) -> u64 {
        let allowance = self.allowance(quota);
        if !is_paced(quota) {
            return allowance;
        }
        let product = u128::from(now.saturating_sub(self.start)) * u128::from(allowance);
        let come = product / u128::from(quota.period_nanos()) + 1;
        u64::try_from(come).map_or(allowance, |come| come.min(allowance))
    }
}

impl Counter for FixedWindow {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        let window = self.at(quota, now);
        window.come(quota, now).saturating_sub(window.count)
    }

    fn full(&self, quota: &Quota, now: u64) -> u64 {
        let window = self.at(quota, now);
        if window.count == 0 { 0 } else { window.end(quota) - now }
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        let window = self.at(quota, now);
        let last = window.count + need;
        if last <= window.come(quota, now) + soft {
            return 0;
        }
        if need > u64::from(quota.units()) + soft {
            return NEVER;
        }
        let end = window.end(quota);
        if !is_paced(quota) {
            return end - now;
        }
        let offset = window.offset(quota, last);
        if offset < quota.period_nanos() {
            return window.start + offset - now;
        }
        end + window.at(quota, end).offset(quota, need) - now
    }

    /// Looks no further than the first instant of the next window.
    fn next(&self, quota: &Quota, now: u64) -> u64 {
        let window = self.at(quota, now);
        let left = window.come(quota, now).saturating_sub(window.count);
        let end = window.end(quota);
        let offset = window.offset(quota, window.count + left + 1);
        if is_paced(quota) && offset < quota.period_nanos() {
            window.start + offset - now
        } else if window.at(quota, end).come(quota, end) > left {
            end - now
        } else {
            0
        }
    }

    /// Until the window ends, before which something comes only where it is paced.
    fn queue(&self, quota: &Quota, now: u64) -> u64 {
        self.at(quota, now).end(quota) - now
    }

    fn owable(&self, quota: &Quota, now: u64) -> u64 {
        quota.late_limit().saturating_sub(self.at(quota, now).count)
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        *self = self.at(quota, now);
        self.count += units;
    }

    fn refund(&mut self, quota: &Quota, now: u64, units: u64) {
        *self = self.at(quota, now);
        self.count = self.count.saturating_sub(units);
    }

    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt) {
        let window = self.at(quota, now);
        let newest = !receipt.queued || !is_paced(quota) || window.following(quota) == receipt.end;
        if newest && receipt.charged >= window.start {
            self.refund(quota, now, receipt.units.into());
        }
    }

    fn forget_at(&self, quota: &Quota) -> u64 {
        let carry_over = carry_over(quota);
        let end = start(quota, self.start) + quota.period_nanos();
        match (self.count, self.bonus.min(carry_over)) {
            (0, 0) => 0,
            // only a used window lends
            (0, _) => end,
            _ if carry_over > 0 => end + quota.period_nanos(),
            _ => end,
        }
    }
}

/// The start of the window that holds `instant`, or that a charge then would open.
fn start(quota: &Quota, instant: u64) -> u64 {
    match quota.counted_by() {
        Algorithm::AnchoredWindow => instant,
        _ => instant - instant % quota.period_nanos(),
    }
}

fn carry_over(quota: &Quota) -> u64 {
    match quota.counted_by() {
        Algorithm::FixedWindow { carry_over, .. } => carry_over.into(),
        _ => 0,
    }
}

fn is_paced(quota: &Quota) -> bool {
    matches!(quota.counted_by(), Algorithm::FixedWindow { paced: true, .. })
}

#[cfg(test)]
mod tests {
    use super::super::{
        tests::{Account, remaining},
        *,
    };

    const SECOND: u64 = 1_000_000_000;
    const PACED: Algorithm = Algorithm::fixed_window().carry_over(9).paced();

    fn queueing(cost: u32, max_wait: u64) -> Ask {
        Ask { max_wait, ..Ask::units(cost) }
    }

    /// By a store that decided elsewhere.
    #[cfg(feature = "redis")]
    #[test]
    fn what_is_told_of_a_paced_charge_is_what_was_decided() {
        let (quota, mut account) = (Quota::per_second(5).algorithm(PACED), None);
        for _ in 0..6 {
            let ask = queueing(1, SECOND);
            let step = take(&mut account, &quota, 0, ask);
            let now = told(account.as_ref(), &quota, 0, ask, step.allowed);
            let said = |step: Step| (step.allowed, step.overage, step.wait);
            assert_eq!(said(now), said(step));
        }
    }

    #[test]
    fn paced_charges_queue_within_their_window() {
        let quota = Quota::per_second(5).algorithm(PACED);
        let mut account = None;
        let waits: Vec<u64> = (0..5)
            .map(|_| take(&mut account, &quota, 0, queueing(1, SECOND)))
            .map(|step| if step.allowed { step.wait } else { NEVER })
            .collect();
        assert_eq!(waits, [0, SECOND / 5, 2 * SECOND / 5, 3 * SECOND / 5, 4 * SECOND / 5]);
        let beyond = take(&mut account, &quota, 0, queueing(1, 10 * SECOND));
        assert!(!beyond.allowed, "the next unit is of the next window");
        assert!(matches!(beyond.numbers, Numbers::Known { retry: SECOND, remaining: 0, .. }));
    }

    #[test]
    fn a_cost_that_needs_the_bonus_does_not_queue() {
        let quota = Quota::per_second(5).algorithm(PACED);
        let mut account = None;
        take(&mut account, &quota, 0, Ask::units(1));
        // four are lent, so that all nine have come late in the window
        let late = SECOND + SECOND * 8 / 9 + 1;
        assert!(look(account.as_ref(), &quota, late, Ask::units(9)).allowed);
        let early = look(account.as_ref(), &quota, SECOND, queueing(6, SECOND));
        assert!(!early.allowed);
        assert!(matches!(early.numbers, Numbers::Known { retry: NEVER, .. }));
    }

    #[test]
    fn a_unit_whose_instant_is_the_end_is_lost_with_the_window() {
        let quota = "10/10ns".parse::<Quota>().expect("a quota").algorithm(PACED);
        let mut account = None;
        take(&mut account, &quota, 0, Ask::units(1));
        // nineteen in ten nanoseconds: the last would pass at the tenth
        let paid = take(&mut account, &quota, 19, Ask::units(10));
        assert!(matches!(paid.numbers, Numbers::Known { remaining: 8, next: 0, .. }));
        let paid = take(&mut account, &quota, 19, Ask::units(7));
        assert!(matches!(paid.numbers, Numbers::Known { remaining: 1, next: 0, .. }));
        let two = take(&mut account, &quota, 19, queueing(2, 100));
        assert!(!two.allowed);
        assert!(matches!(two.numbers, Numbers::Known { remaining: 1, retry: 2, .. }));
        take(&mut account, &quota, 19, Ask::units(1));
        let one = take(&mut account, &quota, 19, queueing(1, 100));
        assert!(!one.allowed);
        assert!(matches!(one.numbers, Numbers::Known { remaining: 0, retry: 1, next: 1, .. }));
    }

    #[test]
    fn a_refund_to_zero_keeps_what_was_lent_and_lends_nothing() {
        let quota = Quota::per_second(10).algorithm(Algorithm::fixed_window().carry_over(4));
        let mut account = Account::cold(&quota);
        account.take(&quota, 0, Ask::units(7));
        account.take(&quota, SECOND, Ask::units(2));
        account.settle(&quota, SECOND, 2);
        assert_eq!(remaining(&account, &quota, SECOND), 13);
        assert_eq!(remaining(&account, &quota, 2 * SECOND), 10);
    }

    #[test]
    fn what_was_lent_is_not_changed_afterwards() {
        let quota = Quota::per_second(10).algorithm(Algorithm::fixed_window().carry_over(4));
        let mut account = Account::cold(&quota);
        let (_, mine) = account.take(&quota, 0, Ask::units(8));
        account.settle(&quota, SECOND, 8);
        account.undo(&quota, SECOND, mine);
        assert_eq!(remaining(&account, &quota, SECOND), 12);
    }
}
