//! Balances: borrowed units of one quota that are not used yet.
//!
//! The store charges units when they are borrowed, and this process uses the units later. A balance
//! must not admit a call that an account would deny if units were charged only when used. A balance
//! therefore shrinks at the rate at which the account refills.
//!
//! **GCRA.** The used part of an account is a span of time, from now to the theoretical arrival
//! time. Each charge extends the span by a piece. A balance is such a piece, `[from, until)`. A
//! used unit moves `from` forward by the interval `T`, and `from` is never before the current time.
//!
//! A balance admits no unit too early. For the proof, compare the shared account in the store with
//! an exact account, which is charged only when a unit is used:
//!
//! - The span of the exact account is at most as long as all used pieces together. A used unit adds
//!   `T` to both, and time shortens the span at least as much as the pieces.
//! - The span of the shared account is as long as all used and unused pieces together, which is at
//!   most the burst.
//! - The exact account therefore has room for every unused piece.
//!
//! A refund by another process moves later pieces to an earlier time. A balance therefore starts
//! earlier, by a quarter of the time in which the full limit refills ([`SAFETY_MARGIN`]). The
//! balance is correct if at most a quarter of the limit is refunded while a lease exists.
//!
//! **Fixed windows.** A balance belongs to one window, and ends with that window.

use crate::{
    algorithm::gcra::Gcra,
    decision::Outcome,
    quota::{Algorithm, Quota},
};

/// Divisor of the limit: other processes may refund `limit / SAFETY_MARGIN` units during a lease.
const SAFETY_MARGIN: u64 = 4;

/// The balance of one quota, with instants in nanoseconds of this process's clock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Balance {
    Refilling { from: u64, until: u64, interval: u64 },
    Window { units: u32, until: u64 },
}

/// Returns `true` if units of the quota can be borrowed.
pub(super) fn is_borrowable(quota: &Quota) -> bool {
    let algorithm_fits = matches!(
        quota.algorithm(),
        Algorithm::Gcra
            | Algorithm::AnchoredWindow
            | Algorithm::FixedWindow { carry_over: 0, paced: false }
    );
    algorithm_fits && quota.soft() == 0 && quota.initial().is_none() && !quota.is_blocked()
}

impl Balance {
    /// Returns the balance after a charge, or `None` if `outcome` lacks the needed data.
    pub(super) fn new(
        quota: &Quota,
        outcome: &Outcome,
        units: u32,
        requested_at: u64,
    ) -> Option<Self> {
        let ahead = outcome.reset_ns();
        if Gcra::counting(quota).is_none() {
            let is_complete = outcome.is_known() && outcome.interval().is_none() && ahead > 0;
            return is_complete
                .then(|| Self::Window { units, until: requested_at.saturating_add(ahead) });
        }
        let interval = quota.interval_nanos();
        if outcome.interval() != Some(quota.interval()) {
            return None;
        }
        let (borrowed, full) = (interval * u64::from(units), interval * u64::from(quota.burst()));
        let before = ahead.saturating_sub(borrowed).saturating_sub(full / SAFETY_MARGIN);
        let from = requested_at.saturating_add(before);
        Some(Self::Refilling { from, until: from.saturating_add(borrowed), interval })
    }

    /// Returns the units left in the balance.
    pub(super) fn units(&self, now: u64) -> u32 {
        match *self {
            Self::Refilling { from, until, interval } => {
                let left = until.saturating_sub(from.max(now));
                u32::try_from(left / interval).unwrap_or(u32::MAX)
            }
            Self::Window { units, until } => {
                if now < until {
                    units
                } else {
                    0
                }
            }
        }
    }

    /// Uses `units` of the balance, which must have enough units left.
    pub(super) fn spend(&mut self, now: u64, units: u32) {
        match self {
            Self::Refilling { from, interval, .. } => {
                *from = (*from).max(now) + *interval * u64::from(units);
            }
            Self::Window { units: left, .. } => *left = left.saturating_sub(units),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decision::Snapshot, name::RuleName};

    /// A quota of 100 units that refills one unit per second.
    const QUOTA: Quota = Quota::per_minute(60).with_burst(100);
    const SECOND: u64 = 1_000_000_000;

    /// Borrows ten units from an account that needs `used_before` seconds to refill.
    fn ten(used_before: u64) -> Balance {
        let reset_ns = (used_before + 10) * SECOND;
        let numbers = Snapshot::Refilling { reset_ns, interval: SECOND, limit: 100, retry_ns: 0 };
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
        assert_eq!([0, 4, 5, 9, 10].map(|at| left(&balance, at)), [6, 6, 5, 1, 0]);
        let mut late = ten(0);
        late.spend(11 * SECOND, 4);
        assert_eq!([4, 8, 9, 10].map(|at| left(&late, at)), [2, 2, 1, 0]);
    }

    #[test]
    fn a_balance_is_void_when_its_window_ends() {
        let quota = QUOTA.with_burst(60).with_algorithm(Algorithm::fixed_window());
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
        assert_eq!((balance.units(10 * SECOND - 1), balance.units(10 * SECOND)), (6, 0));
    }

    #[test]
    fn an_outcome_without_enough_data_gives_no_balance() {
        let unknown = Outcome::unknown(RuleName::default(), 0, None);
        let window = QUOTA.with_burst(60).with_algorithm(Algorithm::AnchoredWindow);
        for quota in [QUOTA, window] {
            assert!(Balance::new(&quota, &unknown, 10, 0).is_none());
        }
        let full =
            Snapshot::Known { limit: 60, remaining: 60, reset_ns: 0, next_ns: 0, retry_ns: 0 };
        let outcome = Outcome::with(RuleName::default(), 0, full);
        assert!(Balance::new(&QUOTA, &outcome, 10, 0).is_none());
        assert!(Balance::new(&window, &outcome, 10, 0).is_none());
    }
}
