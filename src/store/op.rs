//! The operations of a store.

use std::{slice, time::Duration};

use super::{Charge, OwnedCharges};

/// Operation of a [`Store`](super::Store).
///
/// A change of an account is answered with an allowed decision, which has the units left after the
/// change. A block is denied if the store has no room for it.
///
/// Later versions may add operations. A store answers an unknown operation with
/// a denial whose source is
/// [`Source::Unsupported`](crate::decision::Source::Unsupported), or with an error such as
/// [`Unsupported`](super::Unsupported).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Op<'a> {
    /// Charges all quotas of all charges, or none. See [`StoreExt::take`](super::StoreExt::take).
    ///
    /// The answer has one outcome per charged quota, in the order of the charges and of their
    /// quotas.
    Take(&'a [Charge<'a>]),
    /// Returns the decision that [`Take`](Op::Take) would make now. See
    /// [`StoreExt::peek`](super::StoreExt::peek).
    Peek(&'a [Charge<'a>]),
    /// Charges more units, or refunds a negative number of units. See
    /// [`StoreExt::adjust`](super::StoreExt::adjust).
    Adjust(&'a Charge<'a>, i64),
    /// Removes the account. See [`StoreExt::reset`](super::StoreExt::reset).
    Reset(&'a Charge<'a>),
    /// Denies the key for a time. See [`StoreExt::block`](super::StoreExt::block).
    Block(&'a Charge<'a>, Duration),
    /// Ends a block. See [`StoreExt::unblock`](super::StoreExt::unblock).
    Unblock(&'a Charge<'a>),
}

impl<'a> Op<'a> {
    /// Returns the charges. Every operation except [`Take`](Op::Take) and [`Peek`](Op::Peek) has
    /// exactly one.
    #[inline]
    pub fn charges(&self) -> &'a [Charge<'a>] {
        match *self {
            Self::Take(charges) | Self::Peek(charges) => charges,
            Self::Adjust(charge, _)
            | Self::Reset(charge)
            | Self::Block(charge, _)
            | Self::Unblock(charge) => slice::from_ref(charge),
        }
    }

    /// Returns this operation, applied to other charges.
    pub(super) fn on<'b>(&self, charges: &'b [Charge<'b>]) -> Op<'b> {
        Kind::of(*self).on(charges)
    }
}

/// Owned copy of an operation, for futures and wrappers.
#[derive(Clone, Debug)]
pub struct OwnedOp {
    kind: Kind,
    charges: OwnedCharges,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Take,
    Peek,
    Adjust(i64),
    Reset,
    Block(Duration),
    Unblock,
}

impl Kind {
    fn of(op: Op<'_>) -> Self {
        match op {
            Op::Take(_) => Self::Take,
            Op::Peek(_) => Self::Peek,
            Op::Adjust(_, units) => Self::Adjust(units),
            Op::Reset(_) => Self::Reset,
            Op::Block(_, time) => Self::Block(time),
            Op::Unblock(_) => Self::Unblock,
        }
    }

    fn on<'a>(self, charges: &'a [Charge<'a>]) -> Op<'a> {
        match self {
            Self::Take => Op::Take(charges),
            Self::Peek => Op::Peek(charges),
            Self::Adjust(units) => Op::Adjust(&charges[0], units),
            Self::Reset => Op::Reset(&charges[0]),
            Self::Block(time) => Op::Block(&charges[0], time),
            Self::Unblock => Op::Unblock(&charges[0]),
        }
    }
}

impl OwnedOp {
    /// Calls `read` with the operation.
    pub fn with<T>(&self, read: impl FnOnce(Op<'_>) -> T) -> T {
        self.charges.with(|charges| read(self.kind.on(charges)))
    }
}

impl From<Op<'_>> for OwnedOp {
    fn from(op: Op<'_>) -> Self {
        Self {
            kind: Kind::of(op),
            charges: op.charges().into(),
        }
    }
}
