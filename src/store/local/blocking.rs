//! Blocking keys, and denying blocked keys.

use std::time::Duration;

use super::ledger::Ledger;
use crate::{
    decision::{Decision, NEVER, Outcome, Source},
    quota::Quota,
    store::Charge,
};

/// Slots of the account table per slot of the block table. That is one slot per four keys of the
/// capacity.
const SLOTS_PER_BLOCK: usize = 8;

impl Ledger {
    pub(super) fn block(&self, charge: &Charge<'_>, time: Duration) -> Decision {
        let now = self.clock.now();
        let until = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(NEVER));
        let slots = self.gcra_table.len() / SLOTS_PER_BLOCK;
        let has_room = self.blocks.set(self.hasher.block_id(charge), now, until, slots);
        if !has_room {
            self.block_warning.record_block(now, slots);
            return Decision::new(false, now).from_source(Source::Overflow);
        }
        Decision::new(true, now)
    }

    pub(super) fn unblock(&self, charge: &Charge<'_>) -> Decision {
        self.blocks.end(self.hasher.block_id(charge), self.clock.now());
        Decision::allow()
    }

    /// Returns a denial if a key is blocked. Nothing is charged.
    #[cold]
    pub(super) fn deny_blocked(&self, charges: &[Charge<'_>], now: u64) -> Option<Decision> {
        let deciding = charges.iter().filter(|c| c.cost() > 0 && !c.is_report_only());
        let left = |charge| (charge, self.blocks.left(self.hasher.block_id(charge), now));
        let (charge, left) = deciding.map(left).max_by_key(|(_, left)| *left)?;
        let limit = charge.quotas().first().map_or(1, Quota::limit);
        let left = Duration::from_nanos(left);
        let outcome = Outcome::block(charge.rule(), limit, left);
        (!left.is_zero()).then(|| Decision::new(false, now).with_blocked().outcome(outcome))
    }
}
