//! Slow models of GCRA and the token bucket.

use super::{Charge, Model, ceil};
use crate::quota::Quota;

/// GCRA as a number of nanoseconds that counts down to zero.
#[derive(Clone, Debug)]
pub(super) struct SlowGcra {
    interval: u64,
    burst: u64,
    late_limit: u64,
    soft: u64,
    initial: Option<u64>,
    /// An instant, and the nanoseconds left at that instant.
    account: Option<(u64, u64)>,
}

impl SlowGcra {
    fn work(&self, t: u64) -> u64 {
        let (work, since) = self.account.unwrap_or((0, t));
        work.saturating_sub(t - since)
    }
}

impl Model for SlowGcra {
    fn of(quota: &Quota) -> Self {
        Self {
            interval: ceil(quota.period_nanos().into(), quota.units().into()),
            burst: quota.limit().into(),
            soft: quota.soft().into(),
            initial: quota.initial().map(u64::from),
            late_limit: quota.late_limit(),
            account: None,
        }
    }
    fn arrive(&mut self, now: u64) {
        let retention = self.initial.map_or(0, |_| self.burst * self.interval);
        self.account
            .take_if(|(work, since)| *since + *work + retention <= now);
    }
    fn open(&mut self, now: u64) {
        let initial = self.initial.unwrap_or(self.burst);
        self.account
            .get_or_insert(((self.burst - initial) * self.interval, now));
    }
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool {
        let need = u128::from(need) * u128::from(self.interval);
        u128::from(self.work(t)) + need <= ((self.burst + soft) * self.interval).into()
    }
    fn is_full(&self, t: u64) -> bool {
        self.work(t) == 0
    }
    fn charge(&mut self, now: u64, units: u64) {
        self.account = Some((self.work(now) + units * self.interval, now));
    }
    fn work_at(&self, now: u64) -> u64 {
        self.work(now)
    }
    fn charge_late(&mut self, now: u64, units: u64) {
        for _ in 0..units.min(2 * self.late_limit) {
            let most = self.late_limit * self.interval;
            let work = self.work(now);
            if work < most {
                self.account = Some(((work + self.interval).min(most), now));
            }
        }
    }
    fn refund(&mut self, now: u64, units: u64) {
        if self.work(now) > 0 {
            let back = u128::from(units) * u128::from(self.interval);
            let work = u128::from(self.work(now)).saturating_sub(back);
            self.account = Some((u64::try_from(work).expect("less than before"), now));
        }
    }
    fn undo(&mut self, now: u64, charge: Charge) {
        let mine = charge
            .work
            .saturating_sub(now - charge.at)
            .min(charge.back * self.interval);
        let newest = charge.at + charge.work == now + self.work(now);
        if self.work(now) > 0 && (newest || !charge.queued) {
            self.account = Some((self.work(now).saturating_sub(mine), now));
        }
    }
    fn queue_end(&self, _now: u64) -> u64 {
        if self.soft > 0 { 0 } else { u64::MAX }
    }
}

/// A token bucket that adds past refills one by one.
#[derive(Clone, Debug)]
pub(super) struct SlowBucket {
    units: i128,
    period: u64,
    burst: i128,
    max_debt: i128,
    initial: Option<u64>,
    account: Option<Grid>,
}

#[derive(Clone, Copy, Debug)]
struct Grid {
    opened: u64,
    /// The instant of the last refill.
    last: u64,
    tokens: i128,
}

impl SlowBucket {
    fn at(&self, t: u64) -> Grid {
        let full = Grid {
            opened: t,
            last: t,
            tokens: self.burst,
        };
        let mut grid = self.account.unwrap_or(full);
        while grid.tokens < self.burst && grid.last + self.period <= t {
            grid.tokens = self.burst.min(grid.tokens + self.units);
            grid.last += self.period;
        }
        grid
    }
    fn put(&mut self, now: u64, more: i128) {
        let grid = self.at(now);
        let tokens = self.burst.min(grid.tokens + more);
        if grid.tokens < self.burst {
            let last = if tokens == self.burst { now } else { grid.last };
            self.account = Some(Grid {
                tokens,
                last,
                ..grid
            });
        }
    }
}

impl Model for SlowBucket {
    fn of(quota: &Quota) -> Self {
        Self {
            units: quota.units().into(),
            period: quota.period_nanos(),
            burst: quota.limit().into(),
            initial: quota.initial().map(u64::from),
            max_debt: quota.max_debt_units().into(),
            account: None,
        }
    }
    fn arrive(&mut self, now: u64) {
        let refills = self
            .burst
            .unsigned_abs()
            .div_ceil(self.units.unsigned_abs());
        let retention = self
            .initial
            .map_or(0, |_| refills * u128::from(self.period));
        let grid = self.at(now);
        if grid.tokens == self.burst && u128::from(grid.last) + retention <= now.into() {
            self.account = None;
        }
    }
    fn open(&mut self, now: u64) {
        let tokens = self.initial.map_or(self.burst, i128::from);
        self.account.get_or_insert(Grid {
            opened: now,
            last: now,
            tokens,
        });
    }
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool {
        i128::from(need) <= self.at(t).tokens + i128::from(soft)
    }
    fn is_full(&self, t: u64) -> bool {
        self.at(t).tokens == self.burst
    }
    fn charge(&mut self, now: u64, units: u64) {
        if self.is_full(now) {
            self.account = Some(Grid {
                opened: now,
                last: now,
                tokens: self.burst,
            });
        }
        let grid = self.at(now);
        self.account = Some(Grid {
            tokens: grid.tokens - i128::from(units),
            ..grid
        });
    }
    fn charge_late(&mut self, now: u64, units: u64) {
        for _ in 0..units.min(100) {
            if self.at(now).tokens > -self.max_debt {
                self.charge(now, 1);
            }
        }
    }
    fn refund(&mut self, now: u64, units: u64) {
        self.put(now, units.into());
    }
    fn undo(&mut self, now: u64, charge: Charge) {
        let grid = self.at(now);
        if charge.at >= grid.opened && grid.tokens < self.burst {
            let mut back = i128::from(charge.units);
            let mut refill = grid.last;
            while refill > charge.at && back > 0 {
                back -= self.units;
                refill -= self.period;
            }
            self.put(now, back.clamp(0, charge.back.into()));
        }
    }
}
