//! Blocking keys, and the denial of those that are blocked.

use std::time::Duration;

use super::ledger::Ledger;
use crate::{
    decision::{Decision, NEVER, Outcome, Source},
    quota::Quota,
    store::Charge,
};

/// Slots of accounts for each slot of a block: one for every four keys of the capacity.
const SLOTS_PER_BLOCK: usize = 8;

impl Ledger {
    pub(super) fn block(&self, charge: &Charge<'_>, time: Duration) -> Decision {
        let now = self.clock.now();
        let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(NEVER));
        let room = self.instants.len() / SLOTS_PER_BLOCK;
        let fits = self.blocks.set(self.addresses.block(charge), now, until, room);
        if !fits {
            self.blocks_denied.note_block(now, room);
            return Decision::new(false, now).from_source(Source::Overflow);
        }
        Decision::new(true, now)
    }

    pub(super) fn unblock(&self, charge: &Charge<'_>) -> Decision {
        self.blocks.end(self.addresses.block(charge), self.clock.now());
        Decision::allow()
    }

    /// The refusal of a blocked key; none of the charges is made.
    #[cold]
    pub(super) fn refuse_blocked(&self, charges: &[Charge<'_>], now: u64) -> Option<Decision> {
        let refusing = charges.iter().filter(|c| c.units() > 0 && !c.is_report_only());
        let left = |charge| (charge, self.blocks.left(self.addresses.block(charge), now));
        let (charge, left) = refusing.map(left).max_by_key(|(_, left)| *left)?;
        let limit = charge.quotas().first().map_or(1, Quota::limit);
        let left = Duration::from_nanos(left);
        let outcome = Outcome::new(charge.rule(), 0, limit, 0, left, left, Some(left));
        (!left.is_zero()).then(|| Decision::new(false, now).blocked().outcome(outcome))
    }
}
