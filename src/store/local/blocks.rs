//! Blocked keys, in a table beside the accounts.

use std::{
    sync::atomic::Ordering::{Acquire, Release},
    time::Duration,
};

use super::{ledger::Ledger, table::Table};
use crate::{
    decision::{Decision, Outcome, Source},
    quota::Quota,
    store::{Charge, nanos},
};

/// The number of account slots per block slot.
const SLOTS_PER_BLOCK: usize = 8;

impl Ledger {
    pub(super) fn block(&self, charge: &Charge<'_>, time: Duration) -> Decision {
        let now = self.clock.now();
        let until = now.saturating_add(nanos(time));
        let slots = self.table.slots() / SLOTS_PER_BLOCK;
        let blocks = self.blocks.get_or_init(|| Table::new(slots));
        if !blocks.keep(self.key_id(charge), now, until) {
            self.block_warning.record_block(now, slots);
            return Decision::new(false, now).with_source(Source::Overflow);
        }
        self.blocked_until.fetch_max(until, Release);
        Decision::new(true, now)
    }

    pub(super) fn unblock(&self, charge: &Charge<'_>) -> Decision {
        if let Some(blocks) = self.blocks.get() {
            blocks.end(self.key_id(charge), self.clock.now());
        }
        Decision::allow()
    }

    /// Returns `false` if no key is blocked now.
    #[inline]
    pub(super) fn may_be_blocked(&self, now: u64) -> bool {
        self.blocked_until.load(Acquire) > now
    }

    /// Denies the charges if a key is blocked.
    #[cold]
    pub(super) fn deny_blocked(&self, charges: &[Charge<'_>], decision: &mut Decision) -> bool {
        let Some(blocks) = self.blocks.get() else {
            return false;
        };
        let now = self.clock.now();
        let deciding = charges.iter().filter(|charge| charge.may_deny());
        let left = deciding.map(|charge| (charge, blocks.left(self.key_id(charge), now)));
        let Some((charge, left)) = left
            .max_by_key(|(_, left)| *left)
            .filter(|longest| longest.1 > 0)
        else {
            return false;
        };
        let limit = charge.quotas.first().map_or(1, Quota::limit);
        let outcome = Outcome::block(charge.rule, limit, Duration::from_nanos(left));
        *decision = Decision::new(false, now)
            .with_blocked()
            .with_outcome(outcome);
        true
    }
}
