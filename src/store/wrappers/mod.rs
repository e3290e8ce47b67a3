//! Stores that wrap another store, and the code that they share.

pub(super) mod breaker;
pub(super) mod fallback;
pub(super) mod timeout;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Answer, Charge, Op, Store};

/// Forwards methods of [`Store`] to an inner store.
macro_rules! forward {
    ($self:ident => $inner:expr; $($method:ident),*) => {
        $($crate::store::wrappers::forward!(@$method $self $inner);)*
    };
    (@undo $self:ident $inner:expr) => {
        fn undo(
            &$self,
            charges: &[$crate::store::Charge<'_>],
            taken: &$crate::decision::Decision,
            units: Option<u32>,
        ) {
            $inner.undo(charges, taken, units);
        }
    };
    (@supports $self:ident $inner:expr) => {
        fn supports(
            &$self,
            charges: &[$crate::store::Charge<'_>],
        ) -> Result<(), $crate::store::Unsupported> {
            $inner.supports(charges)
        }
    };
    (@failure_domains $self:ident $inner:expr) => {
        fn failure_domains(
            &$self,
            op: $crate::store::Op<'_>,
        ) -> Vec<$crate::store::FailureDomain> {
            $inner.failure_domains(op)
        }
    };
    (@health $self:ident $inner:expr) => {
        fn health(&$self) -> $crate::store::BoxFuture<$crate::store::Health> {
            $inner.health()
        }
    };
}

pub(super) use forward;

/// Returns the start of the request, if a wrapper has set the start.
pub(super) fn request_start(op: Op<'_>) -> Option<Instant> {
    op.charges().first()?.start.copied()
}

/// Takes charges for a request that started at `start`. All calls and waits of the request then share
/// the budget of a `Timeout`.
pub(super) fn take_since<S: Store>(
    store: &S,
    start: Instant,
    charges: &[Charge<'_>],
) -> Answer<S::Future> {
    let since = charges.iter().map(|it| Charge { start: Some(&start), ..*it });
    let charges: SmallVec<[_; 4]> = since.collect();
    store.call(Op::Take(&charges))
}
