//! GCRA, the generic cell rate algorithm (ITU-T I.371, annex A), as virtual scheduling.
//!
//! The whole account is one instant, the *theoretical arrival time* (TAT): when it is full again.
//! A unit costs the interval `T`; `burst` units may be owed. Because a full account equals no
//! account, an account may be forgotten from its TAT on.

use crate::quota::Quota;

/// What one charge asks of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// Units charged when it fits; 0 looks.
    pub(crate) cost: u32,
    /// Units that must be left over, never charged.
    pub(crate) headroom: u32,
    /// How long the caller is ready to queue, in nanoseconds.
    pub(crate) max_wait: u64,
}

impl Ask {
    pub(crate) fn units(cost: u32) -> Self {
        Self { cost, headroom: 0, max_wait: 0 }
    }

    /// Units that must fit; more than any limit when it cannot be said.
    pub(crate) fn need(self) -> u32 {
        if self.cost == 0 { 0 } else { self.cost.saturating_add(self.headroom) }
    }
}

/// A quota as this algorithm sees it. `limit × interval` is at most ten years, so that sums of a
/// few of them and an instant stay far below 2^64 ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    limit: u32,
    interval: u64,
}

impl Gcra {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self { limit: quota.limit(), interval: quota.interval_nanos() }
    }

    /// The limit, and the interval in nanoseconds.
    pub(crate) fn quota(self) -> (u32, u64) {
        (self.limit, self.interval)
    }

    /// The account after `ask`, or `None` when it does not fit.
    pub(crate) fn take(self, tat: u64, now: u64, ask: Ask) -> Option<u64> {
        if ask.cost == 0 {
            return Some(tat);
        }
        let need = ask.need();
        if need > self.limit {
            return None;
        }
        let from = tat.max(now);
        let fits = from + self.worth(need) <= now + self.worth(self.limit) + ask.max_wait;
        fits.then(|| from + self.worth(ask.cost))
    }

    /// How long a caller who took `ask` and left the account at `tat` has to wait.
    pub(crate) fn wait(self, tat: u64, now: u64, ask: Ask) -> u64 {
        if ask.cost == 0 || ask.max_wait == 0 {
            return 0;
        }
        (tat + self.worth(ask.headroom)).saturating_sub(now + self.worth(self.limit))
    }

    /// The account after `units` are given back (above 0) or charged late (below 0).
    ///
    /// A refund stops at full. A late charge never fails but stops where twice the limit is owed;
    /// an account already beyond that stays.
    pub(crate) fn settle(self, tat: u64, now: u64, units: i64) -> u64 {
        let (from, most) = (tat.max(now), now + 2 * self.worth(self.limit));
        let worth = self.interval.saturating_mul(units.unsigned_abs());
        if units >= 0 {
            from.saturating_sub(worth).max(now)
        } else {
            from.saturating_add(worth).min(most).max(from)
        }
    }

    /// The account after a charge of `cost` that left it at `receipt` is undone. What others were
    /// charged since stays charged, and what has flowed back since is not given twice.
    pub(crate) fn give_back(self, tat: u64, now: u64, receipt: u64, cost: u32) -> u64 {
        tat - receipt.saturating_sub(now).min(self.worth(cost)).min(tat)
    }

    fn worth(self, units: u32) -> u64 {
        u64::from(units) * self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 200_000_000;

    fn five() -> Gcra {
        Gcra::new(&Quota::per_second(5))
    }

    #[test]
    fn giving_back_spares_what_others_were_charged() {
        let (mine, now) = (1_000 + 2 * T, 1_000);
        let others = mine + T;
        assert_eq!(five().give_back(others, now, mine, 2), others - 2 * T);
        assert_eq!(five().give_back(others, mine - T, mine, 2), others - T, "half has flowed back");
        assert_eq!(five().give_back(others, mine, mine, 2), others, "all has flowed back");
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let slow = Gcra::new(&Quota::per_day(1).burst(3650));
        let now = 1 << 62;
        let ask = Ask { cost: 3650, headroom: u32::MAX, max_wait: 315_360_000_000_000_000 };
        assert_eq!(slow.take(now, now, ask), None);
        let full = slow.take(now, now, Ask { headroom: 0, ..ask }).expect("fits");
        assert_eq!(slow.settle(full, now, i64::MIN), now + 2 * 315_360_000_000_000_000);
        assert_eq!(slow.settle(full, now, i64::MAX), now);
    }
}
