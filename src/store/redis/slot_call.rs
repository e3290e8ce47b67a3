//! The reports of one call, and the effect of its reply.

use std::{mem::take, sync::Arc};

use smallvec::SmallVec;

use super::{
    error::{RedisError, RedisErrorKind},
    holds::{OnLost, Reporter, nanos},
    reply::Reply,
};
use crate::decision::{Hold, LossSignal};

/// The report of one account of slots, and the charge of the call.
#[derive(Debug)]
pub(super) struct SlotReport {
    pub(super) account: usize,
    pub(super) quota_index: usize,
    pub(super) id: u64,
    pub(super) cost: u32,
    pub(super) process: u64,
    pub(super) sequence: u64,
    pub(super) held: u64,
    pub(super) life_micros: u64,
    pub(super) pending: SmallVec<[u64; 2]>,
}

/// The reports of a call to the server. Without a reply, its charges may have been made.
pub(super) struct SlotCall {
    pub(super) reporter: Arc<Reporter>,
    pub(super) reports: SmallVec<[SlotReport; 1]>,
    pub(super) sent_at: u64,
    pub(super) failed: bool,
}

impl SlotCall {
    /// Records that the server did not accept the reports.
    pub(super) fn failed(mut self) {
        self.failed = true;
    }

    /// Records the reply, and returns the held slots.
    pub(super) fn answered(mut self, reply: &Reply) -> Result<Vec<Hold>, RedisError> {
        let (reporter, now) = (self.reporter.clone(), self.reporter.now());
        let until = self.sent_at.saturating_add(nanos(reporter.life));
        let is_late = now >= until && reporter.on_lost == OnLost::Fence;
        let (mut holds, mut too_late) = (Vec::new(), false);
        for report in take(&mut self.reports) {
            let stored = reply.sequence(report.account, report.quota_index, report.process);
            let charged = report.cost > 0 && reply.accounts[report.account].charged;
            let mut state = reporter.state();
            state.holds += 1;
            let (hold, newest) = (state.holds, state.sequence);
            let Some(account) = state.accounts.get_mut(&report.id) else { continue };
            account.pending.retain(|pending| *pending != report.sequence);
            account.is_unreachable = false;
            if let Some(stored) = stored.filter(|it| *it > newest + account.offset) {
                // The account was reset, so the holds do not count.
                account.offset = stored - newest;
                drop(account.free_all());
            }
            account.valid_until = account.valid_until.max(until);
            if charged && is_late {
                too_late = true;
                state.mark_due(report.id);
            } else if charged {
                let signal = Arc::<LossSignal>::default();
                account.hold(hold, report.cost, signal.clone());
                let counted_by = reporter.clone();
                let hold = Hold::new(counted_by, report.id, hold, report.cost.into());
                holds.push(hold.with_loss(signal));
            } else if account.is_idle() {
                state.accounts.remove(&report.id);
            }
        }
        if too_late {
            const TEXT: &str = "the reply came after the time to live of its slots";
            return Err(RedisError::new(RedisErrorKind::Timeout, TEXT));
        }
        Ok(holds)
    }
}

impl Drop for SlotCall {
    fn drop(&mut self) {
        if self.reports.is_empty() {
            return;
        }
        let now = self.reporter.now();
        let mut state = self.reporter.state();
        for report in take(&mut self.reports) {
            if let Some(account) = state.accounts.get_mut(&report.id) {
                account.pending.retain(|pending| *pending != report.sequence);
                account.is_unreachable |= self.failed && now < account.valid_until;
            }
            state.mark_due(report.id);
        }
        drop(state);
        self.reporter.wake.notify_one();
    }
}
