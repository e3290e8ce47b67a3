//! Accounts as the definition has them, in numbers that do not overflow.

use super::checker::{Call, Model, Said, Waits};

/// GCRA: the state is the instant at which the account is full.
pub(crate) struct Gcra {
    limit: i128,
    interval: i128,
}

impl Gcra {
    pub(crate) fn new(limit: u32, interval: u64) -> Self {
        Self { limit: limit.into(), interval: interval.into() }
    }

    fn said(&self, full: i128, now: i128, refused: Option<i128>) -> Said {
        let (full, capacity) = ((full - now).max(0), self.limit * self.interval);
        let remaining = (capacity - full).max(0) / self.interval;
        let retry = match refused {
            None => Some(0),
            Some(cost) if cost > capacity => None,
            Some(cost) => Some(nanos(full + cost - capacity)),
        };
        let waits = Some(Waits { full: nanos(full), retry });
        Said { allowed: refused.is_none(), remaining: nanos(remaining), waits }
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
            Call::Settle(units) if units < 0 => {
                let late = before - i128::from(units) * self.interval;
                *full = late.min(now + 2 * capacity).max(before);
            }
            // what is full stays as it is, for those too who read the time earlier
            Call::Settle(_) | Call::Undo { .. } | Call::Reset if *full <= now => {}
            Call::Settle(units) => *full = (before - i128::from(units) * self.interval).max(now),
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

/// Any algorithm while time stands still: the state is what is owed, of at most so many.
pub(crate) struct Counted(pub(crate) u64);

impl Model for Counted {
    type State = u64;

    fn apply(&self, owed: &mut u64, call: Call, _: u64) -> Said {
        let mut allowed = true;
        match call {
            Call::Take(units) => {
                allowed = units == 0 || *owed + u64::from(units) <= self.0;
                *owed += if allowed { units.into() } else { 0 };
            }
            Call::Settle(units) if units < 0 => {
                *owed = (*owed + units.unsigned_abs()).min(2 * self.0).max(*owed);
            }
            Call::Settle(units) => *owed = owed.saturating_sub(units.unsigned_abs()),
            Call::Undo { units, .. } => *owed = owed.saturating_sub(units.into()),
            Call::Reset => *owed = 0,
        }
        Said { allowed, remaining: self.0.saturating_sub(*owed), waits: None }
    }
}
