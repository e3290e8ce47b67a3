//! The share of each limit that this process may hold.
//!
//! All leases of one account together hold at most the share of that account.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use smallvec::SmallVec;

use crate::store::Charge;

/// The value of a counter when a full limit is borrowed from one account.
const FULL_LIMIT: u64 = 1_000_000_000;
/// The number of counters. Several accounts may share a counter.
const STRIPES: usize = 1_024;

#[derive(Debug)]
pub(super) struct Shares {
    borrowed: Box<[AtomicU64]>,
    max: u64,
}

/// The reserved part of each limit for one lease, released on drop.
#[derive(Debug, Default)]
pub(super) struct Share(Option<Arc<Shares>>, SmallVec<[(usize, u64); 2]>);

impl Shares {
    pub(super) fn new(percent: u32) -> Arc<Self> {
        let borrowed = (0..STRIPES).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { borrowed, max: FULL_LIMIT / 100 * u64::from(percent) })
    }

    /// Reserves a part of each limit for up to `calls` calls. Returns the number of calls that fit.
    pub(super) fn reserve(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        accounts: &[u64],
        calls: u32,
    ) -> (u32, Share) {
        let parts = charges.iter().map(|charge| {
            let limit = charge.quotas().iter().map(|quota| u64::from(quota.limit())).min();
            (u64::from(charge.cost()) * FULL_LIMIT).div_ceil(limit.unwrap_or(1).max(1))
        });
        #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
        let at = accounts.iter().map(|account| *account as usize % STRIPES);
        let parts: SmallVec<[(usize, u64); 2]> = at.zip(parts).collect();
        let free = |at: usize| self.max.saturating_sub(self.borrowed[at].load(Acquire));
        let room = parts.iter().filter_map(|&(at, part)| free(at).checked_div(part)).min();
        let calls = calls.min(u32::try_from(room.unwrap_or(0)).unwrap_or(u32::MAX));
        let mut share = Share(Some(self.clone()), SmallVec::new());
        for (at, part) in parts {
            let part = part * u64::from(calls);
            let borrowed = self.borrowed[at].fetch_add(part, AcqRel) + part;
            share.1.push((at, part));
            if borrowed > self.max {
                // Other calls have taken the room.
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
            shares.borrowed[at].fetch_sub(part, AcqRel);
        }
    }
}
