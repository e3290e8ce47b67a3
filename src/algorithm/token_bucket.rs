//! The token bucket with interval refill: all units are refilled together, once per period.
//!
//! **State.** The tokens at one instant, the anchor, which is that of the last refill. All later refills
//! are computed when the account is read, so nothing runs between requests. Periods are counted from the
//! first charge of a full account, and not from the clock.
//!
//! **Invariant.** There are never more tokens than the burst, and never less than `-max_debt` or, if it is
//! lower, `-soft`. Each period adds
//! `units` tokens, so in a span of length `t` at most `burst + units·(⌊t/period⌋ + 1)` are charged, and at
//! most `soft` or `max_debt` more by charges beyond the limit.
//!
//! **Example.** Three tokens every ten seconds, at most five.
//!
//! | time | tokens | anchor | demand | decision |
//! |--:|--:|--:|--:|---|
//! | 4 | 5 | 4 | 4 | allowed. The first charge sets the anchor. One token is left |
//! | 13 | 1 | 4 | 2 | denied: the refill comes at 14, so the wait is 1 s |
//! | 14 | 4 | 14 | 2 | allowed. Two tokens are left |
//! | 24 | 5 | 24 | | full: the account is dropped |
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use std::time::Duration;
//! use tower_sluice::{Algorithm, Limiter, Quota, testing::FakeClock};
//!
//! let clock = FakeClock::new();
//! let limiter = Limiter::named("api", clock.store(100));
//! let quota = Quota::new(3, Duration::from_secs(10))?.with_burst(5);
//! let quota = quota.with_algorithm(Algorithm::TokenBucket);
//! assert_eq!(limiter.take("alice", &quota, 4).now().remaining(), Some(1));
//!
//! clock.advance(Duration::from_secs(9));
//! let denied = limiter.take("alice", &quota, 2).now();
//! assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
//!
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(limiter.take("alice", &quota, 2).now().remaining(), Some(2));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A full account is dropped, because a new account is also full. With `initial`, a new account is not
//! full, so a full account is kept for the time in which an empty account refills.
//!
//! RFC 2697 describes the continuous form, which is [`gcra`](super::gcra).

use super::{Counter, NEVER, Receipt};
use crate::quota::Quota;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// The tokens at `anchor`. Negative if the account is in debt.
    pub(crate) tokens: i64,
    /// The instant of the last refill that `tokens` includes.
    pub(crate) anchor: u64,
    /// The instant at which the account was created, or was last charged while it was full. Receipts of
    /// earlier charges are ignored.
    pub(crate) opened: u64,
}

impl TokenBucket {
    pub(super) fn new(quota: &Quota, now: u64) -> Self {
        let tokens = quota.initial().unwrap_or(quota.limit());
        Self {
            tokens: tokens.into(),
            anchor: now,
            opened: now,
        }
    }

    /// Returns the instant at which the account has `tokens` tokens. `tokens` is at most the burst.
    fn reached_at(&self, quota: &Quota, tokens: i64) -> u64 {
        let missing = tokens.saturating_sub(self.tokens).max(0).unsigned_abs();
        let refills = missing.div_ceil(refill(quota));
        self.anchor
            .saturating_add(refills.saturating_mul(quota.period_nanos()))
    }

    /// Returns the bucket at `now`, with all refills.
    fn at(self, quota: &Quota, now: u64) -> Self {
        let full = self.reached_at(quota, burst(quota));
        if full <= now || self.tokens >= burst(quota) {
            return Self {
                tokens: burst(quota),
                anchor: full,
                ..self
            };
        }
        let refills = now.saturating_sub(self.anchor) / quota.period_nanos();
        Self {
            tokens: self.tokens + (refills * refill(quota)).cast_signed(),
            anchor: self.anchor + refills * quota.period_nanos(),
            ..self
        }
    }
}

impl Counter for TokenBucket {
    fn remaining(&self, quota: &Quota, now: u64) -> u64 {
        self.at(quota, now).tokens.max(0).unsigned_abs()
    }

    fn reset_ns(&self, quota: &Quota, now: u64) -> u64 {
        self.reached_at(quota, burst(quota)).saturating_sub(now)
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        if need > u64::from(quota.limit()) + soft {
            return NEVER;
        }
        let tokens = need.cast_signed() - soft.cast_signed();
        if tokens <= self.tokens {
            0
        } else {
            self.reached_at(quota, tokens).saturating_sub(now)
        }
    }

    fn late_room(&self, quota: &Quota, now: u64) -> u64 {
        (self.at(quota, now).tokens + i64::from(quota.max_debt_units()))
            .max(0)
            .unsigned_abs()
    }

    fn charge(&mut self, quota: &Quota, now: u64, units: u64) {
        *self = self.at(quota, now);
        if self.tokens == burst(quota) {
            (self.anchor, self.opened) = (now, now);
        }
        self.tokens -= units.cast_signed();
    }

    fn refund(&mut self, quota: &Quota, now: u64, units: u64) {
        *self = self.at(quota, now);
        let missing = (burst(quota) - self.tokens).unsigned_abs();
        self.tokens += units.min(missing).cast_signed();
        if missing > 0 && units >= missing {
            // An account that is kept although it is full is kept for a time from now.
            self.anchor = now;
        }
    }

    /// Undoes a charge. Tokens that were refilled since the charge are not added twice.
    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt) {
        if receipt.charged >= self.opened {
            let since = self.at(quota, now).anchor.saturating_sub(receipt.charged);
            let refilled = since
                .div_ceil(quota.period_nanos())
                .saturating_mul(refill(quota));
            let held = u64::from(receipt.cost).saturating_sub(refilled);
            self.refund(quota, now, held.min(receipt.units.into()));
        }
    }

    fn expires_at(&self, quota: &Quota) -> u64 {
        let refills = u64::from(quota.limit()).div_ceil(refill(quota));
        let retention = quota
            .initial()
            .map_or(0, |_| refills * quota.period_nanos());
        self.reached_at(quota, burst(quota))
            .saturating_add(retention)
    }
}

fn burst(quota: &Quota) -> i64 {
    quota.limit().into()
}

/// Returns the tokens per refill, at least 1.
fn refill(quota: &Quota) -> u64 {
    quota.units().max(1).into()
}

#[cfg(test)]
mod tests {
    use super::super::{
        Algorithm, Demand, Quota, Receipt,
        tests::{Account, remaining},
    };

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn refilled_tokens_are_not_returned_a_second_time() {
        let quota = Quota::per_second(3)
            .with_burst(10)
            .with_algorithm(Algorithm::TokenBucket);
        let mut account = Account::new();
        let (_, mine) = account.take(&quota, 0, Demand::units(5));
        account.take(&quota, SECOND, Demand::units(8));
        account.undo(&quota, SECOND, mine);
        // Three of the five tokens were refilled and then used.
        assert_eq!(remaining(&account, &quota, SECOND), 2);
    }

    #[test]
    fn a_partial_undo_returns_at_most_the_tokens_that_were_not_refilled() {
        let quota = Quota::per_second(3)
            .with_burst(10)
            .with_algorithm(Algorithm::TokenBucket);
        let after = |units| {
            let mut account = Account::new();
            let (_, mine) = account.take(&quota, 0, Demand::units(5));
            account.take(&quota, SECOND, Demand::units(8));
            account.undo(&quota, SECOND, Receipt { units, ..mine });
            remaining(&account, &quota, SECOND)
        };
        assert_eq!([0, 1, 2, 3, 5].map(after), [0, 1, 2, 2, 2]);
    }

    #[test]
    fn a_receipt_from_before_the_bucket_was_full_is_void() {
        let quota = Quota::per_second(3)
            .with_burst(10)
            .with_algorithm(Algorithm::TokenBucket);
        let mut account = Account::new();
        let (_, mine) = account.take(&quota, 0, Demand::units(3));
        account.take(&quota, SECOND, Demand::units(5));
        account.undo(&quota, SECOND, mine);
        assert_eq!(remaining(&account, &quota, SECOND), 5);
    }
}
