//! The check of a quota's values.

use super::{Algorithm, ErrorKind, MAX_BUCKETS, MAX_LOG_UNITS, MAX_REFILL, Quota};

impl Quota {
    /// Returns the error of a quota that is neither a rate nor a number of slots.
    const fn kind_fault(&self) -> Option<ErrorKind> {
        // Only a number of slots has no period.
        let has_slots = self.period == 0;
        if has_slots != self.is_concurrent() {
            return Some(if has_slots { ErrorKind::RateOfSlots } else { ErrorKind::SlotsOfRate });
        }
        let has_rate =
            self.burst != self.units || self.initial.is_some() || self.max_debt.is_some();
        match has_slots {
            true if self.units == 0 => Some(ErrorKind::NoSlots),
            true if has_rate => Some(ErrorKind::RateOfSlots),
            _ => match self.unit {
                Some(unit) if has_slots || is_unit_of_slots(unit) => Some(ErrorKind::UnitOfSlots),
                _ => None,
            },
        }
    }

    /// Returns the error of an invalid quota.
    pub(super) const fn fault(&self) -> Option<ErrorKind> {
        if let Some(fault) = self.kind_fault() {
            return Some(fault);
        }
        if self.units == 0 {
            let changed = self.burst > 0
                || self.soft > 0
                || self.initial.is_some()
                || self.max_debt.is_some();
            return match self.algorithm {
                _ if changed => Some(ErrorKind::BurstOfBlocked),
                Algorithm::SlidingWindow { buckets } if !is_bucket_count(buckets) => {
                    Some(ErrorKind::Buckets)
                }
                _ => None,
            };
        }
        if self.burst == 0 {
            return Some(ErrorKind::NoBurst);
        }
        let raised = self.burst as u64 + self.soft as u64;
        if raised > MAX_REFILL / self.interval {
            return Some(ErrorKind::BurstTooLong);
        }
        if let Some(fault) = self.debt_fault() {
            return Some(fault);
        }
        if let Some(initial) = self.initial
            && initial > self.burst
        {
            return Some(ErrorKind::InitialAboveBurst);
        }
        match self.algorithm {
            Algorithm::Gcra | Algorithm::Concurrent => return None,
            Algorithm::TokenBucket => {
                let periods = raised.div_ceil(self.units as u64);
                return if periods > MAX_REFILL / self.period {
                    Some(ErrorKind::BurstTooLong)
                } else {
                    None
                };
            }
            _ if self.initial.is_some() => return Some(ErrorKind::InitialOfWindow),
            _ if self.burst != self.units => return Some(ErrorKind::BurstOfWindow),
            _ => {}
        }
        match self.algorithm {
            Algorithm::FixedWindow { paced: true, .. } if self.soft > 0 => {
                Some(ErrorKind::SoftAndPaced)
            }
            Algorithm::SlidingWindow { buckets } if !is_bucket_count(buckets) => {
                Some(ErrorKind::Buckets)
            }
            Algorithm::SlidingWindow { buckets } if !self.period.is_multiple_of(buckets as u64) => {
                Some(ErrorKind::BucketsUneven)
            }
            Algorithm::SlidingLog if raised > MAX_LOG_UNITS => Some(ErrorKind::LogTooLong),
            _ => None,
        }
    }
}

const fn is_unit_of_slots(unit: &str) -> bool {
    matches!(unit.as_bytes(), b"concurrent-requests")
}

/// Returns `true` for a valid number of buckets of a sliding window.
const fn is_bucket_count(buckets: u32) -> bool {
    buckets > 0 && buckets <= MAX_BUCKETS
}
