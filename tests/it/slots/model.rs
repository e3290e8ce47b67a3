//! An exact model of held slots: a multiset of holds. Written from the specification alone.

use std::collections::BTreeMap;

/// A quota of slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) limit: u64,
    pub(super) soft: u64,
}

/// The reason why a quota does not allow a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    UnknownWait,
    Never,
}

/// The held slots of one key. Instants are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    /// The slots and the end of each hold, by its process and its name.
    holds: BTreeMap<(String, String), (u64, u64)>,
    /// The time for which a hold is valid. Without it, holds do not end.
    lease: Option<u64>,
}

impl Model {
    pub(super) fn new(lease: Option<u64>) -> Self {
        Self { lease, ..Self::default() }
    }

    /// Returns the slots that all processes hold.
    pub(super) fn held(&self) -> u64 {
        self.holds.values().map(|(units, _)| units).sum()
    }

    /// Returns the result of a demand on each quota.
    pub(super) fn look(&self, quotas: &[Slots], units: u64, headroom: u64) -> Vec<Option<Denied>> {
        let need = if units == 0 { 0 } else { units + headroom };
        let result = |quota: &Slots| {
            let raised = quota.limit + quota.soft;
            match self.held() + need {
                _ if need > raised => Some(Denied::Never),
                after if need > 0 && after > raised => Some(Denied::UnknownWait),
                _ => None,
            }
        };
        quotas.iter().map(result).collect()
    }

    /// Returns `true` if an allowed demand uses soft slots of a quota.
    pub(super) fn is_overage(&self, quotas: &[Slots], units: u64, headroom: u64) -> bool {
        units > 0 && quotas.iter().any(|quota| self.held() + units + headroom > quota.limit)
    }

    pub(super) fn hold(&mut self, process: &str, name: &str, units: u64, now: u64) {
        if units > 0 {
            let end = self.end(now);
            self.holds.insert((process.to_owned(), name.to_owned()), (units, end));
        }
    }

    pub(super) fn release(&mut self, process: &str, name: &str) {
        self.holds.remove(&(process.to_owned(), name.to_owned()));
    }

    fn end(&self, now: u64) -> u64 {
        self.lease.map_or(u64::MAX, |lease| now + lease)
    }
}
