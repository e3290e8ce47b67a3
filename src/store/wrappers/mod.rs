//! Stores that wrap another store, and the code that they share.

pub(super) mod breaker;
pub(super) mod fallback;
pub(super) mod timeout;

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
    (@register $self:ident $inner:expr) => {
        fn register(
            &$self,
            charges: &[$crate::store::Charge<'_>],
        ) -> Result<(), $crate::store::Unsupported> {
            $inner.register(charges)
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
    (@known_rules $self:ident $inner:expr) => {
        fn known_rules(&$self) -> Option<&$crate::store::KnownRules> {
            $inner.known_rules()
        }
    };
    (@health $self:ident $inner:expr) => {
        fn health(&$self) -> $crate::store::BoxFuture<$crate::store::Health> {
            $inner.health()
        }
    };
}

pub(super) use forward;
