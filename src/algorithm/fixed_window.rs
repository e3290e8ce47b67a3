//! The fixed window: a count that restarts with each window.
//!
//! A window lasts one period. Aligned windows start at multiples of the period since the Unix
//! epoch. An anchored window starts with the first charge.
//!
//! **State.** The start of the window, the units charged in it, and the units carried over into it. A
//! window that has ended is replaced when the account is read.
//!
//! **Invariant.** After a charge that was allowed, the count is at most the units, the bonus of the window
//! and `soft`; late charges add up to `max_debt`. A client can use all units at the end of a window, and
//! all units again at the start of the next: without a bonus, a span of one period may have twice the
//! units, and a span of `n` periods `n + 1` times.
//!
//! **Example.** Five a minute, aligned: the windows start at full minutes.
//!
//! | time | start | count | demand | decision |
//! |--:|--:|--:|--:|---|
//! | 0:50 | 0:00 | 0 | 5 | allowed |
//! | 0:55 | 0:00 | 5 | 1 | denied: the wait ends with the window, in 5 s |
//! | 1:00 | 1:00 | 0 | 5 | allowed: ten units within ten seconds |
//!
//! With `paced`, unit number `k` of a window is released `(k - 1)·period/units` after its start: at 0:00,
//! 0:12, 0:24, 0:36 and 0:48. Released units that nobody uses stay until the window ends.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use std::time::Duration;
//! use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};
//!
//! let clock = FakeClock::new();
//! let into_the_minute = Duration::from_secs(clock.now().as_secs() % 60);
//! clock.advance(Duration::from_secs(60 + 50) - into_the_minute);
//! let limiter = Limiter::named("api", clock.store(100));
//! let quota = Quota::per_minute(5).with_algorithm(Algorithm::fixed_window());
//! assert!(limiter.take("alice", &quota, 5).now().is_allowed());
//!
//! clock.advance(Duration::from_secs(5));
//! let denied = limiter.take("alice", &quota, 1).now();
//! assert_eq!(denied.retry_after(), Some(Duration::from_secs(5)));
//!
//! clock.advance(Duration::from_secs(5));
//! assert!(limiter.take("alice", &quota, 5).now().is_allowed());
//! # }
//! ```
//!
//! A calendar window is a period of a calendar. Its start is not stored, because the anchor of a
//! quota may change: the units count until the end of the period that contains the last charge.
//!
//! Aligned windows have two options:
//!
//! - `carry_over` adds unused units of a window to the next one.
//! - `paced` releases the units of a window at even intervals.

use super::{Counter, NEVER, Receipt};
use crate::quota::{Algorithm, Quota};

const DAY: u64 = 86_400_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindow {
    /// The start of the window. For a calendar window, the instant of the last charge.
    pub(crate) start: u64,
    pub(crate) count: u64,
    /// Units carried over from the previous window.
    pub(crate) bonus: u64,
}

impl FixedWindow {
    pub(super) fn new(quota: &Quota, now: u64) -> Self {
        Self {
            start: start(quota, now),
            count: 0,
            bonus: 0,
        }
    }

    /// Returns the window that contains `now`.
    fn at(self, quota: &Quota, now: u64) -> Self {
        let carry_over = u64::from(quota.algorithm().max_carry_over());
        // The period may have changed since the last charge.
        let start = start(quota, self.start);
        let end = Self { start, ..self }.end(quota);
        if now < end {
            Self {
                start,
                bonus: self.bonus.min(carry_over),
                ..self
            }
        } else if carry_over > 0 && self.count > 0 && now < end + quota.period_nanos() {
            let left = u64::from(quota.units()).saturating_sub(self.count);
            Self {
                start: end,
                count: 0,
                bonus: left.min(carry_over),
            }
        } else {
            Self::new(quota, now)
        }
    }

    fn end(self, quota: &Quota) -> u64 {
        quota
            .calendar_end(self.start)
            .unwrap_or_else(|| self.start + quota.period_nanos())
    }

    fn allowance(self, quota: &Quota) -> u64 {
        u64::from(quota.units()) + self.bonus
    }

    /// Returns the time from the start of a paced window until unit number `k` is released.
    ///
    /// Unit numbers start at 1. Returns [`NEVER`] if the window has fewer than `k` units.
    fn offset(self, quota: &Quota, k: u64) -> u64 {
        let allowance = self.allowance(quota);
        if k > allowance {
            return NEVER;
        }
        let product = u128::from(k.saturating_sub(1)) * u128::from(quota.period_nanos());
        u64::try_from(product.div_ceil(allowance.into())).unwrap_or(NEVER)
    }

    /// Returns the instant at which a paced window releases the first unit that is not charged. It may be
    /// in the past.
    fn next_at(self, quota: &Quota) -> u64 {
        self.start + self.offset(quota, self.count + 1).min(quota.period_nanos())
    }

    /// Returns the number of units that this window has released until `now`, used or unused.
    fn released(self, quota: &Quota, now: u64) -> u64 {
        let allowance = self.allowance(quota);
        if !quota.algorithm().is_paced() {
            return allowance;
        }
        let product = u128::from(now.saturating_sub(self.start)) * u128::from(allowance);
        let released = product / u128::from(quota.period_nanos()) + 1;
        u64::try_from(released).map_or(allowance, |released| released.min(allowance))
    }
}

impl Counter for FixedWindow {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        let window = self.at(quota, now);
        window.released(quota, now).saturating_sub(window.count)
    }

    fn reset_ns(&self, quota: &Quota, now: u64) -> u64 {
        let window = self.at(quota, now);
        if window.count == 0 {
            0
        } else {
            window.end(quota) - now
        }
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        let window = self.at(quota, now);
        let last = window.count + need;
        if last <= window.released(quota, now) + soft {
            return 0;
        }
        if need > u64::from(quota.units()) + soft {
            return NEVER;
        }
        let end = window.end(quota);
        if !quota.algorithm().is_paced() {
            return end - now;
        }
        let offset = window.offset(quota, last);
        if offset < quota.period_nanos() {
            return window.start + offset - now;
        }
        end + window.at(quota, end).offset(quota, need) - now
    }

    /// Returns the time until more units are available, or 0 if waiting adds no units.
    fn next_ns(&self, quota: &Quota, now: u64) -> u64 {
        let window = self.at(quota, now);
        let left = window.released(quota, now).saturating_sub(window.count);
        let end = window.end(quota);
        let offset = window.offset(quota, window.count + left + 1);
        if quota.algorithm().is_paced() && offset < quota.period_nanos() {
            window.start + offset - now
        } else if window.at(quota, end).released(quota, end) > left {
            end - now
        } else {
            0
        }
    }

    /// Returns the time until the window ends.
    fn queue_limit(&self, quota: &Quota, now: u64) -> u64 {
        self.at(quota, now).end(quota) - now
    }

    fn late_room(&self, quota: &Quota, now: u64) -> u64 {
        quota.late_limit().saturating_sub(self.at(quota, now).count)
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        *self = self.at(quota, now);
        self.count += units;
        if quota.is_calendar() {
            self.start = self.start.max(now);
        }
    }

    fn refund(&mut self, quota: &Quota, now: u64, units: u64) {
        *self = self.at(quota, now);
        self.count = self.count.saturating_sub(units);
    }

    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt) {
        let window = self.at(quota, now);
        let can_queue = quota.algorithm().is_paced();
        if receipt.queued && can_queue && window.next_at(quota) != receipt.end {
            // It is not the newest in the queue.
            return;
        }
        let counts = match quota.calendar_end(receipt.charged) {
            Some(end) => now < end,
            None => receipt.charged >= window.start,
        };
        if counts {
            self.refund(quota, now, receipt.units.into());
        }
    }

    fn expires_at(&self, quota: &Quota) -> u64 {
        let carry_over = u64::from(quota.algorithm().max_carry_over());
        let end = start(quota, self.start) + retention(quota);
        if self.count > 0 && carry_over > 0 {
            end + quota.period_nanos()
        } else if self.count > 0 || self.bonus.min(carry_over) > 0 {
            // An unused window carries nothing over.
            end
        } else {
            0
        }
    }
}

/// Returns the time for which a window is kept after its start.
///
/// A calendar window is kept for the longest period after its last charge. A new anchor may let the
/// charge count for that long. A change of the offset of a time zone makes a period longer by less
/// than a day.
pub(crate) fn retention(quota: &Quota) -> u64 {
    quota.period_nanos() + if quota.is_calendar() { DAY } else { 0 }
}

/// Returns the start of the aligned window that contains `instant`, or `instant` for an anchored
/// or calendar window.
fn start(quota: &Quota, instant: u64) -> u64 {
    match quota.algorithm() {
        Algorithm::AnchoredWindow => instant,
        _ if quota.is_calendar() => instant,
        _ => instant - instant % quota.period_nanos(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        tests::{Account, remaining},
        *,
    };

    const SECOND: u64 = 1_000_000_000;
    const PACED: Algorithm = Algorithm::FixedWindow {
        carry_over: 9,
        paced: true,
    };

    fn queueing(cost: u32, max_wait: u64) -> Demand {
        Demand {
            max_wait,
            ..Demand::units(cost)
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_reconstructed_paced_charge_equals_the_decision() {
        let (quota, mut account) = (Quota::per_second(5).with_algorithm(PACED), None);
        for _ in 0..6 {
            let demand = queueing(1, SECOND);
            let decided = take(&mut account, &quota, 0, demand);
            let rebuilt = reconstruct(account.as_ref(), &quota, 0, demand, decided.allowed);
            let parts = |it: Evaluation| (it.allowed, it.overage, it.wait);
            assert_eq!(parts(rebuilt), parts(decided));
        }
    }

    #[test]
    fn paced_charges_queue_within_their_window() {
        let quota = Quota::per_second(5).with_algorithm(PACED);
        let mut account = None;
        let waits: Vec<u64> = (0..5)
            .map(|_| take(&mut account, &quota, 0, queueing(1, SECOND)))
            .map(|taken| if taken.allowed { taken.wait } else { NEVER })
            .collect();
        assert_eq!(
            waits,
            [
                0,
                SECOND / 5,
                2 * SECOND / 5,
                3 * SECOND / 5,
                4 * SECOND / 5
            ]
        );
        let beyond = take(&mut account, &quota, 0, queueing(1, 10 * SECOND));
        assert!(!beyond.allowed, "the next unit belongs to the next window");
        assert!(matches!(
            beyond.snapshot,
            Snapshot::Known {
                retry_ns: SECOND,
                remaining: 0,
                ..
            }
        ));
    }

    #[test]
    fn a_cost_that_needs_the_bonus_does_not_queue() {
        let quota = Quota::per_second(5).with_algorithm(PACED);
        let mut account = None;
        take(&mut account, &quota, 0, Demand::units(1));
        // Four units are carried over. All nine are available late in the window.
        let late = SECOND + SECOND * 8 / 9 + 1;
        assert!(look(account.as_ref(), &quota, late, Demand::units(9)).allowed);
        let early = look(account.as_ref(), &quota, SECOND, queueing(6, SECOND));
        assert!(!early.allowed);
        assert!(matches!(
            early.snapshot,
            Snapshot::Known {
                retry_ns: NEVER,
                ..
            }
        ));
    }

    #[test]
    fn a_unit_due_at_the_end_of_the_window_is_lost() {
        let quota = "10/10ns"
            .parse::<Quota>()
            .expect("a quota")
            .with_algorithm(PACED);
        let mut account = None;
        take(&mut account, &quota, 0, Demand::units(1));
        // Nineteen units in ten nanoseconds: the last is due at the tenth.
        let paid = take(&mut account, &quota, 19, Demand::units(10));
        assert!(matches!(
            paid.snapshot,
            Snapshot::Known {
                remaining: 8,
                next_ns: 0,
                ..
            }
        ));
        let paid = take(&mut account, &quota, 19, Demand::units(7));
        assert!(matches!(
            paid.snapshot,
            Snapshot::Known {
                remaining: 1,
                next_ns: 0,
                ..
            }
        ));
        let two = take(&mut account, &quota, 19, queueing(2, 100));
        assert!(!two.allowed);
        assert!(matches!(
            two.snapshot,
            Snapshot::Known {
                remaining: 1,
                retry_ns: 2,
                ..
            }
        ));
        take(&mut account, &quota, 19, Demand::units(1));
        let one = take(&mut account, &quota, 19, queueing(1, 100));
        assert!(!one.allowed);
        assert!(matches!(
            one.snapshot,
            Snapshot::Known {
                remaining: 0,
                retry_ns: 1,
                next_ns: 1,
                ..
            }
        ));
    }

    #[test]
    fn a_refund_to_zero_keeps_the_bonus_and_carries_nothing_over() {
        let quota = Quota::per_second(10).with_algorithm(Algorithm::FixedWindow {
            carry_over: 4,
            paced: false,
        });
        let mut account = Account::new();
        account.take(&quota, 0, Demand::units(7));
        account.take(&quota, SECOND, Demand::units(2));
        account.adjust(&quota, SECOND, -2);
        assert_eq!(remaining(&account, &quota, SECOND), 13);
        assert_eq!(remaining(&account, &quota, 2 * SECOND), 10);
    }

    #[test]
    fn a_later_refund_does_not_change_the_bonus() {
        let quota = Quota::per_second(10).with_algorithm(Algorithm::FixedWindow {
            carry_over: 4,
            paced: false,
        });
        let mut account = Account::new();
        let (_, mine) = account.take(&quota, 0, Demand::units(8));
        account.adjust(&quota, SECOND, -8);
        account.undo(&quota, SECOND, mine);
        assert_eq!(remaining(&account, &quota, SECOND), 12);
    }
}
