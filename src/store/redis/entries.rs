//! Entries of slots in an account, as `lua/concurrent.lua` stores them.

use smallvec::SmallVec;

use super::{error::RedisError, reply::Reader};
use crate::{
    algorithm::{Demand, Evaluation, concurrent},
    decision::Snapshot,
    quota::Quota,
};

/// The reports of processes, and their charges since. A reply may lack entries of other processes.
#[derive(Clone, Debug)]
pub(super) struct SlotEntries {
    /// The slots of all entries.
    slots: u64,
    /// The microsecond before which no entry ends.
    first_end: u64,
    entries: SmallVec<[SlotEntry; 2]>,
}

#[derive(Clone, Copy, Debug)]
struct SlotEntry {
    process: u64,
    sequence: u64,
    held: u64,
    /// The microsecond until which the entry counts.
    until: u64,
}

impl SlotEntries {
    pub(super) fn read(bytes: &mut Reader<'_>) -> Result<Self, RedisError> {
        let mut entries = SmallVec::new();
        let (slots, first_end) = (bytes.int::<4>()?, bytes.int::<7>()?);
        while !bytes.0.is_empty() {
            let (process, sequence) = (bytes.int::<8>()?, bytes.int::<6>()?);
            let (held, until) = (bytes.int::<3>()?, bytes.int::<7>()?);
            entries.push(SlotEntry { process, sequence, held, until });
        }
        Ok(Self { slots, first_end, entries })
    }

    /// Returns the slots that all processes hold at `now`, in nanoseconds.
    fn held(&self, now: u64) -> u64 {
        let now = now / 1_000;
        if self.first_end > now {
            return self.slots;
        }
        self.entries.iter().filter(|entry| entry.until > now).map(|entry| entry.held).sum()
    }

    /// Returns the sequence of the newest report of a process.
    pub(super) fn sequence(&self, process: u64) -> Option<u64> {
        Some(self.entries.iter().find(|entry| entry.process == process)?.sequence)
    }

    /// Removes the newest charge, which is the last entry.
    pub(super) fn without_newest(&mut self) {
        let held = self.entries.pop().map_or(0, |newest| newest.held);
        self.slots = self.slots.saturating_sub(held);
    }

    /// Returns the result of the demand that led to these entries.
    pub(super) fn reconstruct(
        entries: Option<&Self>,
        quota: &Quota,
        now: u64,
        demand: Demand,
        charged: bool,
    ) -> Evaluation {
        let after = entries.map_or(0, |entries| entries.held(now));
        let cost = if charged { u64::from(demand.cost) } else { 0 };
        let mut evaluation = concurrent::look(after.saturating_sub(cost), quota, demand);
        if let Snapshot::Slots { held, .. } = &mut evaluation.snapshot {
            *held = after;
        }
        evaluation
    }
}
