//! Slow models of the fixed windows, the sliding window and the sliding log.

use std::collections::BTreeMap;

use super::{Charge, Model, ceil};
use crate::quota::{Algorithm, Quota};

/// Aligned windows. The model keeps the count of every window.
#[derive(Clone, Debug)]
pub(super) struct SlowAligned {
    units: u64,
    late_limit: u64,
    period: u64,
    carry_over: u64,
    paced: bool,
    counts: BTreeMap<u64, u64>,
}

impl SlowAligned {
    fn count(&self, window: u64) -> u64 {
        self.counts.get(&window).copied().unwrap_or(0)
    }
    fn allowance(&self, window: u64) -> u64 {
        match window.checked_sub(1).map(|before| self.count(before)) {
            None | Some(0) => self.units,
            Some(used) => self.units + self.units.saturating_sub(used).min(self.carry_over),
        }
    }
    /// Returns the instants at which the units of a window are released.
    fn instants(&self, window: u64) -> Vec<u64> {
        let start = window * self.period;
        let allowance = self.allowance(window);
        let spaced = |k| ceil(u128::from(k) * u128::from(self.period), allowance.into());
        let offset = |k| if self.paced { spaced(k) } else { 0 };
        (0..allowance).map(|k| start + offset(k)).collect()
    }
    /// Returns the instants at which a result may change, from `now` to the end of the next window.
    fn coming(&self, now: u64) -> impl Iterator<Item = u64> {
        let window = now / self.period;
        let mut instants = vec![now, (window + 1) * self.period];
        instants.extend(self.instants(window));
        instants.extend(self.instants(window + 1));
        instants.sort_unstable();
        instants.into_iter().filter(move |t| *t >= now)
    }
}

impl Model for SlowAligned {
    fn of(quota: &Quota) -> Self {
        let Algorithm::FixedWindow { carry_over, paced } = quota.algorithm() else {
            panic!("{quota:?}")
        };
        Self {
            units: quota.units().into(),
            late_limit: quota.late_limit(),
            period: quota.period_nanos(),
            carry_over: carry_over.into(),
            paced,
            counts: BTreeMap::new(),
        }
    }
    fn arrive(&mut self, _now: u64) {}
    fn open(&mut self, _now: u64) {}
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool {
        let window = t / self.period;
        let come = self
            .instants(window)
            .into_iter()
            .filter(|instant| *instant <= t)
            .count();
        self.count(window) + need <= come as u64 + soft
    }
    fn is_full(&self, t: u64) -> bool {
        self.count(t / self.period) == 0
    }
    fn charge(&mut self, now: u64, units: u64) {
        *self.counts.entry(now / self.period).or_default() += units;
    }
    fn charge_late(&mut self, now: u64, units: u64) {
        let count = self.counts.entry(now / self.period).or_default();
        *count = count.saturating_add(units).min(self.late_limit).max(*count);
    }
    fn refund(&mut self, now: u64, units: u64) {
        let count = self.counts.entry(now / self.period).or_default();
        *count = count.saturating_sub(units);
    }
    fn next_at(&self, now: u64) -> u64 {
        let window = now / self.period;
        let end = self.queue_end(now);
        let count = usize::try_from(self.count(window)).expect("fits");
        self.instants(window)
            .get(count)
            .map_or(end, |instant| end.min(*instant))
    }
    fn undo(&mut self, now: u64, charge: Charge) {
        let newest = self.next_at(now) == charge.next_at;
        if charge.at / self.period == now / self.period && (newest || !charge.queued) {
            self.refund(now, charge.back);
        }
    }
    fn queue_end(&self, now: u64) -> u64 {
        if self.paced {
            (now / self.period + 1) * self.period
        } else {
            0
        }
    }
    fn first(&self, now: u64, pred: impl Fn(u64) -> bool) -> u64 {
        self.coming(now)
            .find(|t| pred(*t))
            .expect("two windows are enough")
    }
    fn next(&self, now: u64, _limit: u64) -> u64 {
        let left = self.remaining(now);
        let end = (now / self.period + 1) * self.period;
        let mut coming = self.coming(now).take_while(|t| *t <= end);
        coming
            .find(|t| self.remaining(*t) > left)
            .map_or(0, |t| t - now)
    }
}

#[derive(Clone, Debug)]
pub(super) struct SlowAnchored {
    units: u64,
    late_limit: u64,
    period: u64,
    charges: Vec<(u64, u64)>,
}

impl SlowAnchored {
    fn end(&self) -> u64 {
        self.charges.first().map_or(0, |(at, _)| at + self.period)
    }
    fn count(&self, t: u64) -> u64 {
        if t < self.end() {
            self.charges.iter().map(|(_, units)| units).sum()
        } else {
            0
        }
    }
}

impl Model for SlowAnchored {
    fn of(quota: &Quota) -> Self {
        let units = quota.units().into();
        let period = quota.period_nanos();
        Self {
            units,
            late_limit: quota.late_limit(),
            period,
            charges: Vec::new(),
        }
    }
    fn arrive(&mut self, now: u64) {
        if self.count(now) == 0 {
            self.charges.clear();
        }
    }
    fn open(&mut self, _now: u64) {}
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool {
        self.count(t) + need <= self.units + soft
    }
    fn is_full(&self, t: u64) -> bool {
        self.count(t) == 0
    }
    fn charge(&mut self, now: u64, units: u64) {
        self.charges.push((now, units));
    }
    fn charge_late(&mut self, now: u64, units: u64) {
        let late = units.min(self.late_limit.saturating_sub(self.count(now)));
        self.charges.push((now, late));
    }
    fn refund(&mut self, _now: u64, mut units: u64) {
        for (_, charged) in self.charges.iter_mut().rev() {
            let back = units.min(*charged);
            *charged -= back;
            units -= back;
        }
    }
    fn undo(&mut self, now: u64, charge: Charge) {
        if charge.at < self.end() && charge.at + self.period >= self.end() {
            self.refund(now, charge.back);
        }
    }
}

/// A sliding window or sliding log that keeps every charge.
#[derive(Clone, Debug)]
pub(super) struct SlowSliding {
    units: u64,
    late_limit: u64,
    period: u64,
    width: Option<u64>,
    charges: BTreeMap<u64, u64>,
}

impl SlowSliding {
    fn bucket(&self, t: u64) -> u64 {
        self.width.map_or(t, |width| t / width)
    }
    /// Returns the nanoseconds of a bucket that are inside the period at `t`.
    fn inside(&self, bucket: u64, t: u64) -> u128 {
        let t = i128::from(t);
        let bucket = i128::from(bucket);
        let inside = match self.width.map(i128::from) {
            None => i128::from(bucket > t - i128::from(self.period)),
            // The newest bucket counts in full.
            Some(width) => {
                let horizon = t - i128::from(self.period);
                (bucket * width + width - horizon).clamp(0, width)
            }
        };
        inside.unsigned_abs()
    }
    fn used(&self, t: u64) -> u128 {
        let each = |(bucket, units): (&u64, &u64)| u128::from(*units) * self.inside(*bucket, t);
        self.charges.iter().map(each).sum()
    }
    fn fits_in(&self, t: u64, used: u64) -> bool {
        self.used(t) <= u128::from(used) * u128::from(self.width.unwrap_or(1))
    }
}

impl Model for SlowSliding {
    fn of(quota: &Quota) -> Self {
        let units = quota.units().into();
        let period = quota.period_nanos();
        let width = match quota.algorithm() {
            Algorithm::SlidingWindow { buckets } => Some(period / u64::from(buckets)),
            _ => None,
        };
        Self {
            units,
            late_limit: quota.late_limit(),
            period,
            width,
            charges: BTreeMap::new(),
        }
    }
    fn arrive(&mut self, _now: u64) {}
    fn open(&mut self, _now: u64) {}
    fn fits(&self, t: u64, need: u64, soft: u64) -> bool {
        (self.units + soft)
            .checked_sub(need)
            .is_some_and(|used| self.fits_in(t, used))
    }
    fn is_full(&self, t: u64) -> bool {
        self.used(t) == 0
    }
    fn charge(&mut self, now: u64, units: u64) {
        *self.charges.entry(self.bucket(now)).or_default() += units;
    }
    fn charge_late(&mut self, now: u64, units: u64) {
        for _ in 0..units.min(100) {
            if self.fits_in(now, self.late_limit - 1) {
                self.charge(now, 1);
            }
        }
    }
    fn refund(&mut self, now: u64, units: u64) {
        for _ in 0..units.min(100) {
            let newest = self.charges.iter().rev().find(|(_, units)| **units > 0);
            let newest = newest.map(|(bucket, _)| *bucket);
            if let Some(bucket) = newest.filter(|bucket| self.inside(*bucket, now) > 0) {
                self.charges.entry(bucket).and_modify(|units| *units -= 1);
            }
        }
    }
    fn undo(&mut self, _now: u64, charge: Charge) {
        let bucket = self.bucket(charge.at);
        self.charges
            .entry(bucket)
            .and_modify(|units| *units -= charge.back.min(*units));
    }
}
