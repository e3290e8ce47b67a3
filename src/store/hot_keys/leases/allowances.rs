//! The units that leases may hold.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::{
    quota::Quota,
    store::{Charge, Instances, subtract},
};

/// More units than any account has.
const CLOSED: u64 = 1 << 40;

/// The percentage of each limit that the leases of one process may hold.
#[derive(Clone, Debug)]
pub(super) struct Percent {
    /// The percentage of all processes.
    pub(super) percent: u32,
    pub(super) instances: Instances,
}

impl Percent {
    pub(super) fn of(&self, limit: u32) -> u64 {
        u64::from(limit) * u64::from(self.percent) / (100 * u64::from(self.instances.count()))
    }
}

/// The units that all leases together may hold, by account.
#[derive(Debug)]
pub(super) struct Allowances {
    pub(super) percent: Percent,
    pub(super) reserved: Mutex<HashMap<u64, u64>>,
}

/// The units of each account that one lease may hold, released on drop.
pub(super) struct Allowance {
    allowances: Arc<Allowances>,
    /// The tag of each account, and its units.
    units: SmallVec<[(u64, u64); 2]>,
}

/// Units for several calls.
pub(super) struct Reserved {
    pub(super) calls: u32,
    pub(super) allowance: Allowance,
}

impl Allowances {
    /// Reserves all units of an account, so that none are borrowed.
    pub(super) fn close(self: &Arc<Self>, tag: u64) -> Allowance {
        self.grant(&mut self.reserved.lock(), smallvec![(tag, CLOSED)])
    }

    /// Reserves units for up to `calls` calls, if several fit. Each charge has the tag of its accounts.
    pub(super) fn reserve(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        tags: &[u64],
        calls: u32,
    ) -> Option<Reserved> {
        let mut reserved = self.reserved.lock();
        let mut calls = calls;
        for (charge, tag) in charges.iter().zip(tags) {
            let limit = charge.quotas.iter().map(Quota::limit).min().unwrap_or(0);
            let taken = reserved.get(tag).copied().unwrap_or(0);
            let free = self.percent.of(limit).saturating_sub(taken);
            let most = u32::try_from(free / u64::from(charge.cost)).unwrap_or(u32::MAX);
            calls = calls.min(most);
        }
        if calls < 2 {
            return None;
        }
        let units = charges
            .iter()
            .map(|charge| u64::from(charge.cost) * u64::from(calls));
        let units = tags.iter().copied().zip(units).collect();
        let allowance = self.grant(&mut reserved, units);
        Some(Reserved { calls, allowance })
    }

    fn grant(
        self: &Arc<Self>,
        reserved: &mut HashMap<u64, u64>,
        units: SmallVec<[(u64, u64); 2]>,
    ) -> Allowance {
        for (tag, units) in &units {
            *reserved.entry(*tag).or_default() += units;
        }
        Allowance {
            allowances: self.clone(),
            units,
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        let mut reserved = self.allowances.reserved.lock();
        self.units
            .iter()
            .for_each(|(tag, units)| subtract(&mut reserved, *tag, *units));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_the_percentage() {
        let percent = |instances| Percent {
            percent: 25,
            instances: Instances::from(instances),
        };
        assert_eq!(
            [1, 5, 8, 1_000].map(|n| percent(n).of(1_000)),
            [250, 50, 31, 0]
        );
        assert_eq!(percent(1).of(u32::MAX), u64::from(u32::MAX / 4));
    }
}
