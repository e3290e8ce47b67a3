//! Models of accounts by the definition, in integers that do not overflow.

use super::checker::{Call, Model, Said, Waits};

/// GCRA. The state is the instant at which the account is full.
pub(crate) struct Gcra {
    limit: i128,
    interval: i128,
}

impl Gcra {
    pub(crate) fn new(limit: u32, interval: u64) -> Self {
        Self { limit: limit.into(), interval: interval.into() }
    }

    fn said(&self, full: i128, now: i128, denied: Option<i128>) -> Said {
        let (full, capacity) = ((full - now).max(0), self.limit * self.interval);
        let remaining = (capacity - full).max(0) / self.interval;
        let retry = match denied {
            None => Some(0),
            Some(cost) if cost > capacity => None,
            Some(cost) => Some(nanos(full + cost - capacity)),
        };
        let waits = Some(Waits { full: nanos(full), retry });
        Said { allowed: denied.is_none(), remaining: nanos(remaining), waits }
    }
}

impl Model for Gcra {
    type State = i128;

    fn apply(&self, full: &mut i128, call: Call, now: u64) -> Said {
        let now = i128::from(now);
        let (before, capacity) = ((*full).max(now), self.limit * self.interval);
        match call {
            Call::Take(units) => {
                let cost = i128::from(units) * self.interval;
                if units > 0 && before + cost > now + capacity {
                    return self.said(before, now, Some(cost));
                }
                if units > 0 {
                    *full = before + cost;
                }
            }
            Call::Adjustment(units) if units < 0 => {
                let late = before - i128::from(units) * self.interval;
                *full = late.min(now + 2 * capacity).max(before);
            }
            // a full account is unchanged, also for calls with an earlier reading of the time
            Call::Adjustment(_) | Call::Undo { .. } | Call::Reset if *full <= now => {}
            Call::Adjustment(units) => {
                *full = (before - i128::from(units) * self.interval).max(now);
            }
            Call::Undo { units, receipt } => {
                let worth = i128::from(units) * self.interval;
                *full = (before - (i128::from(receipt) - now).clamp(0, worth)).max(now);
            }
            Call::Reset => *full = now,
        }
        self.said(*full, now, None)
    }
}

fn nanos(n: i128) -> u64 {
    u64::try_from(n).expect("no more than years")
}

/// Any algorithm while time stands still. The state is the charged units, up to a limit.
pub(crate) struct Counted(pub(crate) u64);

impl Model for Counted {
    type State = u64;

    fn apply(&self, charged: &mut u64, call: Call, _: u64) -> Said {
        let mut allowed = true;
        match call {
            Call::Take(units) => {
                allowed = units == 0 || *charged + u64::from(units) <= self.0;
                *charged += if allowed { units.into() } else { 0 };
            }
            Call::Adjustment(units) if units < 0 => {
                *charged = (*charged + units.unsigned_abs()).min(2 * self.0).max(*charged);
            }
            Call::Adjustment(units) => *charged = charged.saturating_sub(units.unsigned_abs()),
            Call::Undo { units, .. } => *charged = charged.saturating_sub(units.into()),
            Call::Reset => *charged = 0,
        }
        Said { allowed, remaining: self.0.saturating_sub(*charged), waits: None }
    }
}
