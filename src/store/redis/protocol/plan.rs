//! The bytes of a plan, and of the layout of a call.

use std::sync::Arc;

use crate::algorithm::Receipt;

/// The longest time for which accounts are kept, in nanoseconds: ten years.
pub(super) const LONGEST: u64 = 10 * 365 * 86_400 * 1_000_000_000;

/// The bytes of a plan. Its numbers are little-endian.
#[derive(Debug, Default)]
pub(crate) struct EncodedPlan(pub(crate) Vec<u8>);

/// A change of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// Charges the demand if it fits.
    Charge,
    /// Charges units, even if they do not fit, or refunds units. No units for a reset or a block.
    Units(u64),
    /// Undoes a charge, except for refilled units.
    Undo(Receipt),
}

impl EncodedPlan {
    /// Appends the lowest `N` bytes.
    pub(crate) fn int<const N: usize>(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes()[..N]);
        self
    }

    /// Appends a time in microseconds, then the remaining nanoseconds.
    pub(crate) fn nanos(self, nanos: u64) -> Self {
        self.int::<7>(nanos / 1_000).int::<2>(nanos % 1_000)
    }

    /// Appends the slots of requests: the first number and how many.
    pub(crate) fn slot_list(self, requests: &[RequestSlots]) -> Self {
        requests.iter().fold(self, |plan, request| {
            plan.int::<8>(request.first).int::<2>(request.units.into())
        })
    }
}

/// The slots of one quota that a call takes.
pub(crate) struct SlotTake {
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    /// The first half of the members of all slots of this process.
    pub(crate) store: u64,
    /// The number of the first slot of the first caller.
    pub(crate) first: u64,
    /// The slots that each caller takes.
    pub(crate) cost: u32,
    /// The microseconds for which a slot counts, unless it is renewed.
    pub(crate) ttl_micros: u64,
    /// The slots of the account that this process holds.
    pub(crate) own: u64,
    /// The milliseconds for which the mark of a denied request counts, or 0 if it does not wait.
    pub(crate) mark_millis: u64,
    /// The slots that the call frees.
    pub(crate) freed: Vec<RequestSlots>,
}

/// The slots of one request, which have consecutive numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestSlots {
    /// The key of the sorted set.
    pub(crate) set: Arc<str>,
    pub(crate) first: u64,
    pub(crate) units: u32,
}

impl SlotTake {
    /// Returns the key of the mark of a denied request, if it waits.
    pub(super) fn mark_key(&self) -> Option<String> {
        (self.mark_millis > 0).then(|| format!("{}w", self.set))
    }
}

impl RequestSlots {
    pub(crate) fn new(set: &Arc<str>, first: u64, units: u32) -> Self {
        let set = set.clone();
        Self { set, first, units }
    }
}

/// The argument that says which groups of equal requests a call has, as `lua/groups.lua` reads it.
#[derive(Debug, Default)]
pub(crate) struct Layout(pub(crate) Vec<u8>);

impl Layout {
    /// Appends a group, whose accounts follow.
    pub(crate) fn group(&mut self, callers: usize, accounts: usize) {
        self.number(callers);
        self.number(accounts);
    }

    /// Appends an account by the numbers of its key and its plan, which start at 1.
    pub(crate) fn account(&mut self, key: usize, plan: usize) {
        self.number(key);
        self.number(plan);
    }

    fn number(&mut self, number: usize) {
        // A call is small enough that all numbers fit.
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&number.to_le_bytes());
    }
}
