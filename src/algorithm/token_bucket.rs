//! The token bucket with interval refill: `units` come back together, each whole period.
//!
//! The refills lie on a grid that starts at the account's first contact. A bucket that becomes
//! full ends with its grid: a full account equals no account. One that starts at `initial` tokens
//! is remembered, full, for as long as it takes to refill from empty, and is cold again then.
//!
//! The continuous form of the token bucket (RFC 2697 and most others), in which a token comes back
//! every `period / units`, is [`gcra`](super::gcra). This one lets the whole burst pass right
//! before a refill and the refilled units right after it.

use super::{Counter, NEVER, Receipt};
use crate::quota::Quota;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// Below 0 in debt.
    tokens: i64,
    /// The last refill that is among the tokens; of a full bucket the one that filled it.
    anchor: u64,
    /// The first contact: what was charged earlier was another bucket's.
    opened: u64,
}

impl TokenBucket {
    pub(super) fn fresh(quota: &Quota, now: u64) -> Self {
        let tokens = quota.initial_units().unwrap_or(quota.limit());
        Self { tokens: tokens.into(), anchor: now, opened: now }
    }

    #[cfg(feature = "redis")]
    pub(super) fn kept(tokens: i64, anchor: u64, opened: u64) -> Self {
        Self { tokens, anchor, opened }
    }

    /// The instant from which on there are `tokens`, which are at most the burst.
    fn reaches(&self, quota: &Quota, tokens: i64) -> u64 {
        let missing = tokens.saturating_sub(self.tokens).max(0).unsigned_abs();
        let refills = missing.div_ceil(refill(quota));
        self.anchor.saturating_add(refills.saturating_mul(quota.period_nanos()))
    }

    /// The bucket with what has been refilled until now.
    fn at(self, quota: &Quota, now: u64) -> Self {
        let full = self.reaches(quota, burst(quota));
        if full <= now || self.tokens >= burst(quota) {
            return Self { tokens: burst(quota), anchor: full, ..self };
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

    fn full(&self, quota: &Quota, now: u64) -> u64 {
        self.reaches(quota, burst(quota)).saturating_sub(now)
    }

    fn wait(&self, quota: &Quota, now: u64, need: u64, soft: u64) -> u64 {
        if need > u64::from(quota.limit()) + soft {
            return NEVER;
        }
        let tokens = need.cast_signed() - soft.cast_signed();
        if tokens <= self.tokens { 0 } else { self.reaches(quota, tokens).saturating_sub(now) }
    }

    fn owable(&self, quota: &Quota, now: u64) -> u64 {
        (self.at(quota, now).tokens + i64::from(quota.max_debt_units())).max(0).unsigned_abs()
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
            self.anchor = now;
        }
    }

    /// What was refilled since the charge counts as refilled for it.
    fn undo(&mut self, quota: &Quota, now: u64, receipt: Receipt) {
        if receipt.charged >= self.opened {
            let since = self.at(quota, now).anchor.saturating_sub(receipt.charged);
            let refilled = since.div_ceil(quota.period_nanos()).saturating_mul(refill(quota));
            let held = u64::from(receipt.cost).saturating_sub(refilled);
            self.refund(quota, now, held.min(receipt.units.into()));
        }
    }

    fn forget_at(&self, quota: &Quota) -> u64 {
        let refills = u64::from(quota.limit()).div_ceil(refill(quota));
        let kept = quota.initial_units().map_or(0, |_| refills * quota.period_nanos());
        self.reaches(quota, burst(quota)).saturating_add(kept)
    }
}

fn burst(quota: &Quota) -> i64 {
    quota.limit().into()
}

/// Tokens per refill; a blocked quota has none, and needs none.
fn refill(quota: &Quota) -> u64 {
    quota.units().max(1).into()
}

#[cfg(test)]
mod tests {
    use super::super::{
        Algorithm, Ask, Quota, Receipt,
        tests::{Account, remaining},
    };

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_was_refilled_since_is_not_given_back() {
        let quota = Quota::per_second(3).burst(10).algorithm(Algorithm::TokenBucket);
        let mut account = Account::cold(&quota);
        let (_, mine) = account.take(&quota, 0, Ask::units(5));
        account.take(&quota, SECOND, Ask::units(8));
        account.undo(&quota, SECOND, mine);
        // three of the five had come back, and were spent
        assert_eq!(remaining(&account, &quota, SECOND), 2);
    }

    #[test]
    fn a_part_that_is_undone_is_no_more_than_what_was_not_refilled() {
        let quota = Quota::per_second(3).burst(10).algorithm(Algorithm::TokenBucket);
        let after = |units| {
            let mut account = Account::cold(&quota);
            let (_, mine) = account.take(&quota, 0, Ask::units(5));
            account.take(&quota, SECOND, Ask::units(8));
            account.undo(&quota, SECOND, Receipt { units, ..mine });
            remaining(&account, &quota, SECOND)
        };
        assert_eq!([0, 1, 2, 3, 5].map(after), [0, 1, 2, 2, 2]);
    }

    #[test]
    fn a_bucket_that_became_full_in_between_is_another_one() {
        let quota = Quota::per_second(3).burst(10).algorithm(Algorithm::TokenBucket);
        let mut account = Account::cold(&quota);
        let (_, mine) = account.take(&quota, 0, Ask::units(3));
        account.take(&quota, SECOND, Ask::units(5));
        account.undo(&quota, SECOND, mine);
        assert_eq!(remaining(&account, &quota, SECOND), 5);
    }
}
