//! The generic cell rate algorithm (GCRA, ITU-T I.371, annex A).
//!
//! An account is one instant: the *theoretical arrival time* (TAT), at which the account is full
//! again. Each charged unit moves the TAT forward by the interval `T`. A charge is allowed if the
//! TAT is then at most `burst·T` in the future.
//!
//! **Invariant.** The TAT is at most `burst·T` in the future after each charge that was allowed at once, at
//! most `(burst + soft)·T` under a soft quota, at most `burst·T + max_wait` after one that waits, and at
//! most `(burst + max_debt)·T` after a late one. In a span of length `t` the TAT moves by at most
//! `t + burst·T`, so at most `burst + t/T` units are charged in it, wherever the span begins, and
//! at most `soft`, `max_wait/T` or `max_debt` more by those other charges.
//!
//! **Why one instant is enough.** Under a token bucket, an account has a number of tokens and the instant
//! at which they were counted. Here both are one number: `(TAT - now) / T` units are missing. Nothing is
//! rounded until an answer is computed, so an account of eight bytes is exact to the nanosecond.
//!
//! **Example.** Two units a second, three at once: `T` is 0.5 s, and `burst·T` 1.5 s.
//!
//! | time | TAT before | demand | TAT after | decision |
//! |--:|--:|--:|--:|---|
//! | 0.0 | 0.0 | 3 | 1.5 | allowed: 1.5 is not more than 0.0 + 1.5. No unit is left |
//! | 0.2 | 1.5 | 1 | 1.5 | denied: 2.0 is more than 0.2 + 1.5, by 0.3 s, which is the wait |
//! | 0.5 | 1.5 | 1 | 2.0 | allowed: 2.0 is not more than 0.5 + 1.5 |
//! | 2.0 | 2.0 | | | full: the account is dropped |
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use std::time::Duration;
//! use tower_sluice::{Limiter, Quota, testing::FakeClock};
//!
//! let clock = FakeClock::new();
//! let limiter = Limiter::named("api", clock.store(100));
//! let quota = Quota::per_second(2).with_burst(3);
//! assert!(limiter.take("alice", &quota, 3).now().is_allowed());
//!
//! clock.advance(Duration::from_millis(200));
//! let denied = limiter.take("alice", &quota, 1).now();
//! assert_eq!(denied.retry_after(), Some(Duration::from_millis(300)));
//!
//! clock.advance(Duration::from_millis(300));
//! assert_eq!(limiter.take("alice", &quota, 1).now().remaining(), Some(0));
//! # }
//! ```
//!
//! A full account is dropped, because a new account is also full. A quota with
//! [`initial`](Quota::with_initial) starts new accounts with fewer units. Its full accounts are
//! therefore kept, for the time in which a whole burst is refilled.

use super::{Adjusted, Demand, Evaluation, Receipt};
use crate::{
    decision::{NEVER, Snapshot},
    quota::Quota,
};

/// The value that stands for no account. It is never stored.
pub(super) const NO_ACCOUNT: u64 = u64::MAX;

/// Charges the account if enough units are available.
///
/// Returns the new value of the account, or `None` if it does not change.
#[inline(always)]
pub(crate) fn take(
    stored: u64,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> (Option<u64>, Evaluation) {
    let (new, evaluation) = take_from(tat(stored, quota, now), quota, now, demand);
    let new = if evaluation.allowed {
        new
    } else {
        open(stored, quota, now, demand)
    };
    (new, evaluation)
}

/// Charges an account, whose TAT is not before `now`.
///
/// Returns the new TAT, or `None` if it does not change.
#[inline(always)]
pub(crate) fn take_from(
    tat: u64,
    quota: &Quota,
    now: u64,
    demand: Demand,
) -> (Option<u64>, Evaluation) {
    let fit = fit(tat - now, quota, demand);
    let reset_ns = tat - now
        + if fit.allowed {
            span(quota, demand.cost.into())
        } else {
            0
        };
    let new = (fit.allowed && demand.cost > 0).then_some(now + reset_ns);
    (
        new,
        fit.with(|retry_ns| snapshot(reset_ns, quota, retry_ns)),
    )
}

/// Returns the result of [`take`] without charging the account.
#[inline]
pub(crate) fn look(stored: u64, quota: &Quota, now: u64, demand: Demand) -> Evaluation {
    let reset_ns = tat(stored, quota, now) - now;
    fit(reset_ns, quota, demand).with(|retry_ns| snapshot(reset_ns, quota, retry_ns))
}

/// Returns the result of a demand, without the state of the account.
#[inline(always)]
fn fit(reset_ns: u64, quota: &Quota, demand: Demand) -> Evaluation {
    let need = demand.need();
    if need == 0 {
        return Evaluation::at_once(false);
    }
    if need > quota.raised_limit() {
        return Evaluation::denied(NEVER);
    }
    let over = (reset_ns + span(quota, need)).saturating_sub(span(quota, quota.limit().into()));
    let soft = span(quota, quota.soft().into());
    let slack = if quota.soft() > 0 {
        soft
    } else {
        demand.max_wait
    };
    if over > slack {
        Evaluation::denied(over - soft)
    } else {
        Evaluation::charged(quota, over)
    }
}

/// Returns the value of a new account when a quota denied the request.
///
/// Returns `None` if the quota has no `initial` units, if the account exists, or if the demand has no cost
/// or can never fit.
#[inline]
pub(crate) fn open(stored: u64, quota: &Quota, now: u64, demand: Demand) -> Option<u64> {
    let opens = retention(quota) > 0
        && !is_live(stored, quota, now)
        && demand.cost > 0
        && demand.need() <= quota.raised_limit();
    opens.then(|| now + initial_reset(quota))
}

/// Returns the value of the account after a charge of units that may not fit.
pub(super) fn charge(stored: u64, quota: &Quota, now: u64, units: u32) -> u64 {
    /// A time after which nothing fits. No sum with it overflows.
    const CENTURY: u64 = 100 * 365 * 86_400 * 1_000_000_000;
    let time = quota.interval_nanos().saturating_mul(units.into());
    tat(stored, quota, now)
        .saturating_add(time)
        .min(now + CENTURY)
}

/// Charges `units`, or refunds units if `units` is negative.
///
/// Also returns the new value of the account, or `None` if it does not change.
pub(super) fn adjust(stored: u64, quota: &Quota, now: u64, units: i64) -> (Option<u64>, Adjusted) {
    let before = tat(stored, quota, now);
    let is_live = is_live(stored, quota, now);
    let time = quota.interval_nanos().saturating_mul(units.unsigned_abs());
    let whole = before.saturating_add(time);
    let after = if units > 0 {
        let most = now + span(quota, quota.late_limit());
        whole.min(most).max(before)
    } else {
        before.saturating_sub(time).max(now)
    };
    // With `initial`, any change creates the account first.
    let opens = units != 0 && retention(quota) > 0 && !is_live;
    let new = (after != before || opens).then_some(after);
    let adjusted = Adjusted {
        snapshot: snapshot(after - now, quota, 0),
        is_cut: units > 0 && after < whole,
    };
    (new, adjusted)
}

/// Undoes a charge. Units that were refilled since the charge are not added twice.
///
/// Returns the new value of the account, or `None` if it does not change.
pub(super) fn undo(stored: u64, quota: &Quota, now: u64, receipt: Receipt) -> Option<u64> {
    let tat = tat(stored, quota, now);
    if receipt.queued && tat != receipt.end {
        return None;
    }
    // The time until the units of this and of earlier charges are back. None came back if the clock went
    // back after the charge.
    let held = receipt.end.saturating_sub(now.max(receipt.at));
    // The quota may have changed since the charge.
    let time = quota.interval_nanos().saturating_mul(receipt.units.into());
    let after = tat.saturating_sub(held.min(time)).max(now);
    (is_live(stored, quota, now) && after != tat).then_some(after)
}

/// Returns the evaluation of a decision that Redis made.
///
/// `stored` is the value after the decision. `charged` is `true` if Redis charged the account.
#[cfg(feature = "redis")]
pub(super) fn reconstruct(
    stored: u64,
    quota: &Quota,
    now: u64,
    demand: Demand,
    charged: bool,
) -> Evaluation {
    if !charged {
        return look(stored, quota, now, demand);
    }
    let tat = tat(stored, quota, now);
    // A damaged server may report a charge for any headroom.
    let over = tat.saturating_add(
        quota
            .interval_nanos()
            .saturating_mul(demand.headroom.into()),
    );
    let over = over.saturating_sub(now + span(quota, quota.limit().into()));
    Evaluation::charged(quota, over).with(|_| snapshot(tat - now, quota, 0))
}

/// Returns the instant from which the account can be dropped.
#[inline]
pub(super) fn expires_at(tat: u64, quota: &Quota) -> u64 {
    tat + retention(quota)
}

/// Returns the time for which a full account is kept. It is 0 without `initial`.
#[inline]
pub(crate) fn retention(quota: &Quota) -> u64 {
    quota
        .initial()
        .map_or(0, |_| span(quota, quota.limit().into()))
}

/// Returns the time until a new account is full.
#[inline]
pub(crate) fn initial_reset(quota: &Quota) -> u64 {
    let missing = quota
        .initial()
        .map_or(0, |initial| quota.limit().saturating_sub(initial));
    span(quota, missing.into())
}

#[inline]
fn is_live(stored: u64, quota: &Quota, now: u64) -> bool {
    stored != NO_ACCOUNT && expires_at(stored, quota) > now
}

/// Returns the TAT of an account, at least `now`.
#[inline]
fn tat(stored: u64, quota: &Quota, now: u64) -> u64 {
    if is_live(stored, quota, now) {
        stored.max(now)
    } else {
        now + initial_reset(quota)
    }
}

#[inline]
fn snapshot(reset_ns: u64, quota: &Quota, retry_ns: u64) -> Snapshot {
    let interval = quota.interval_nanos();
    let limit = quota.limit();
    Snapshot::Refilling {
        reset_ns,
        interval,
        limit,
        retry_ns,
    }
}

/// Returns the time in which `units` units are refilled, at most ten years, so sums do not overflow.
#[inline]
fn span(quota: &Quota, units: u64) -> u64 {
    units * quota.interval_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 200_000_000;

    const FIVE: Quota = Quota::per_second(5);

    /// Creates the receipt of a charge at 1 000 ns. `end` is the TAT after the charge.
    fn receipt(end: u64, cost: u32) -> Receipt {
        Receipt {
            charged: 1_000,
            at: 1_000,
            end,
            cost,
            units: cost,
            queued: false,
        }
    }

    #[test]
    fn an_undo_keeps_the_charges_of_other_callers() {
        let (mine, now) = (1_000 + 2 * T, 1_000);
        let others = mine + T;
        assert_eq!(
            undo(others, &FIVE, now, receipt(mine, 2)),
            Some(others - 2 * T)
        );
        let half = undo(others, &FIVE, mine - T, receipt(mine, 2));
        assert_eq!(half, Some(others - T), "half has come back");
        assert_eq!(
            undo(others, &FIVE, mine, receipt(mine, 2)),
            None,
            "all has come back"
        );
    }

    #[test]
    fn a_partial_undo_returns_at_most_what_has_not_come_back() {
        let (mine, others) = (1_000 + 4 * T, 1_000 + 5 * T);
        let part = |units, now| {
            undo(
                others,
                &FIVE,
                now,
                Receipt {
                    units,
                    ..receipt(mine, 4)
                },
            )
        };
        assert_eq!(part(0, 1_000), None);
        assert_eq!(part(3, 1_000), Some(others - 3 * T));
        assert_eq!(
            part(3, mine - 3 * T),
            Some(others - 3 * T),
            "one has come back"
        );
        assert_eq!(part(3, mine - T), Some(others - T), "three have come back");
    }

    #[test]
    fn an_undo_in_an_expired_account_changes_nothing() {
        assert_eq!(undo(0, &FIVE, 1_000, receipt(1_000 + T, 1)), None);
        assert_eq!(undo(1_000, &FIVE, 1_000, receipt(1_000 + T, 1)), None);
        // With `initial`, it creates no account either.
        let quota = Quota::per_second(5).with_initial(0);
        assert_eq!(undo(1_000, &quota, 1_000, receipt(1_000 + T, 1)), None);
    }

    #[test]
    fn a_queued_charge_is_undone_only_while_it_is_the_newest() {
        let one = Quota::per_second(5).with_burst(1);
        let queued = |end| Receipt {
            queued: true,
            ..receipt(end, 1)
        };
        let (second, third) = (1_000 + 2 * T, 1_000 + 3 * T);
        assert_eq!(undo(third, &one, 1_000, queued(second)), None);
        assert_eq!(undo(third, &one, 1_000, queued(third)), Some(second));
        assert_eq!(undo(second, &one, 1_000, queued(second)), Some(1_000 + T));
    }

    #[test]
    fn a_clock_that_goes_back_does_not_increase_an_undo() {
        let (mine, others) = (1_000 + T, 1_000 + 2 * T);
        let late = Receipt {
            at: 1_000 + T / 2,
            ..receipt(mine, 1)
        };
        assert_eq!(undo(others, &FIVE, 1_000, late), Some(others - T / 2));
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        const TEN_YEARS: u64 = 315_360_000_000_000_000;
        let slow = Quota::per_day(1).with_burst(3650);
        let now = 1 << 62;
        let demand = Demand {
            cost: 3650,
            headroom: u32::MAX,
            max_wait: TEN_YEARS,
        };
        assert_eq!(take(now, &slow, now, demand).0, None);
        let (full, _) = take(
            now,
            &slow,
            now,
            Demand {
                headroom: 0,
                ..demand
            },
        );
        let full = full.expect("fits");
        let (queued, evaluation) = take(
            full,
            &slow,
            now,
            Demand {
                headroom: 0,
                ..demand
            },
        );
        assert_eq!(
            (queued, evaluation.wait),
            (Some(now + 2 * TEN_YEARS), TEN_YEARS)
        );
        assert_eq!(
            adjust(full, &slow, now, i64::MAX).0,
            Some(now + 2 * TEN_YEARS)
        );
        assert_eq!(adjust(full, &slow, now, i64::MIN).0, Some(now));
        let deep = Quota::per_day(1)
            .with_burst(3650)
            .with_max_debt(3650)
            .with_initial(0);
        let (active, _) = adjust(now, &deep, now, i64::MAX);
        assert_eq!(active, Some(now + 2 * TEN_YEARS));
        let active = active.expect("a debt");
        assert!(
            !look(
                active,
                &deep,
                now,
                Demand {
                    cost: 1,
                    headroom: 0,
                    max_wait: TEN_YEARS
                }
            )
            .allowed
        );
    }

    #[test]
    fn a_refund_reduces_debt_beyond_the_limit() {
        let one = Quota::per_second(5).with_burst(1);
        let (now, queued) = (1_000, 1_000 + 20 * T);
        assert_eq!(adjust(queued, &one, now, -15).0, Some(now + 5 * T));
        assert_eq!(
            adjust(queued, &one, now, 1).0,
            None,
            "already beyond twice the limit"
        );
    }

    #[test]
    fn a_refund_to_a_full_account_does_not_keep_it_longer() {
        let quota = Quota::per_second(5).with_initial(0);
        let (full_since, stored) = (1_000, 1_000);
        assert_eq!(adjust(stored, &quota, full_since + T, -3).0, None);
        let held = receipt(full_since + 4 * T, 3);
        assert_eq!(undo(stored, &quota, full_since + T, held), None);
    }
}
