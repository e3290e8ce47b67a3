//! How much of each limit lies in this process: calls that have an account in common, such as one of
//! the whole site, share what may be borrowed of it.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use smallvec::SmallVec;

use crate::store::Charge;

/// A whole limit.
const WHOLE: u64 = 1_000_000_000;
/// Accounts that meet share too, and so borrow less.
const STRIPES: usize = 1_024;

#[derive(Debug)]
pub(super) struct Shares {
    lent: Box<[AtomicU64]>,
    most: u64,
}

/// A part of some limits. Dropped, it is free again.
#[derive(Debug, Default)]
pub(super) struct Share(Option<Arc<Shares>>, SmallVec<[(usize, u64); 2]>);

impl Shares {
    pub(super) fn new(percent: u32) -> Arc<Self> {
        let lent = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { lent, most: WHOLE / 100 * u64::from(percent) })
    }

    /// Room for so many calls, or as many as there is room for.
    pub(super) fn reserve(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        accounts: &[u64],
        calls: u32,
    ) -> (u32, Share) {
        let parts = charges.iter().map(|charge| {
            let least = charge.quotas().iter().map(|quota| u64::from(quota.limit())).min();
            (u64::from(charge.units()) * WHOLE).div_ceil(least.unwrap_or(1).max(1))
        });
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let at = accounts.iter().map(|account| *account as usize % STRIPES);
        let parts: SmallVec<[(usize, u64); 2]> = at.zip(parts).collect();
        let free = |at: usize| self.most.saturating_sub(self.lent[at].load(Acquire));
        let room = parts.iter().filter_map(|&(at, part)| free(at).checked_div(part)).min();
        let calls = calls.min(u32::try_from(room.unwrap_or(0)).unwrap_or(u32::MAX));
        let mut share = Share(Some(self.clone()), SmallVec::new());
        for (at, part) in parts {
            let part = part * u64::from(calls);
            let lent = self.lent[at].fetch_add(part, AcqRel) + part;
            share.1.push((at, part));
            if lent > self.most {
                // others were quicker
                return (0, Share::default());
            }
        }
        (calls, share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Self(Some(shares), parts) = self else { return };
        for (at, part) in parts.drain(..) {
            shares.lent[at].fetch_sub(part, AcqRel);
        }
    }
}
