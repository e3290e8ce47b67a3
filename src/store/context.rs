//! The circumstances of a call.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use super::Waiter;
use crate::decision::{Outcome, Snapshot};

/// Circumstances of a call of a [`Store`](super::Store), besides its operation.
///
/// A store that wraps another store passes the context on. Every other store may ignore the context.
/// Later versions may add fields.
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::store::Context;
///
/// assert_eq!(Context::default().limit, None);
/// let context = Context::default().with_limit(Duration::from_millis(100));
/// assert_eq!(context.limit, Some(Duration::from_millis(100)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Context<'a> {
    /// The time after which a server that does not answer has failed, if there is a limit. Set by a
    /// [`Timeout`](super::Timeout).
    ///
    /// A store that does not [keep](Context::keep_limit) the limit may ignore it: the `Timeout`
    /// counts the time.
    pub limit: Option<Duration>,
    /// The waiter of the request, if the request may wait for slots. Without one, a store denies a
    /// request at once, even with a [`max_wait`](super::Charge::max_wait).
    pub waiter: Option<&'a Waiter>,
    /// Set by a store that keeps the limit.
    pub(super) is_kept: Option<&'a AtomicBool>,
    /// The account of another store that an adjusted account follows.
    pub(super) followed: Option<&'a Followed<'a>>,
    /// `true` if a request holds the slots in another store, so they need no decision.
    pub(super) holds_slots: bool,
}

/// An account that is shared by several processes, after a decision on it.
#[derive(Debug)]
pub(super) struct Followed<'a> {
    /// One outcome per quota of the charge.
    pub(super) outcomes: &'a [Outcome],
    /// The number of processes.
    pub(super) instances: u32,
    /// The refunded units.
    pub(super) refunded: u64,
}

impl Followed<'_> {
    /// Returns the units to charge to the account of this process, which is in the state `own`.
    ///
    /// Its units left are lowered to the share of this process of the units left in the shared account.
    /// They are raised only after a refund, because answers may arrive out of order.
    pub(super) fn late(&self, quota_index: usize, own: Snapshot) -> i64 {
        let mut outcomes = self.outcomes.iter();
        let of_quota = outcomes.find(|shared| shared.quota_index() == quota_index);
        let Some(shared) = of_quota.filter(|shared| shared.is_known()) else {
            return 0;
        };
        let own = Outcome::with(shared.rule(), quota_index, own);
        let is_full = shared.left() >= shared.limit().into();
        let share = shared.left().div_euclid(self.instances.into());
        let share = if is_full { own.limit().into() } else { share };
        let refunded = self.refunded.div_ceil(self.instances.into());
        (own.left() - share).max(-i64::try_from(refunded).unwrap_or(i64::MAX))
    }
}

impl<'a> Context<'a> {
    /// Sets the limit.
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Option<Duration>>) -> Self {
        Self {
            limit: limit.into(),
            ..self
        }
    }

    /// Sets the waiter.
    #[must_use]
    pub fn with_waiter(self, waiter: impl Into<Option<&'a Waiter>>) -> Self {
        Self {
            waiter: waiter.into(),
            ..self
        }
    }

    /// Returns the limit, which the store then keeps. The [`Timeout`](super::Timeout) around the store
    /// no longer counts the time of this call.
    ///
    /// For a `Timeout`, a silent server and a process that is too busy to read an answer look alike. A
    /// store that knows the difference calls this method. The store must then end every call with a
    /// limit by itself.
    #[must_use]
    pub fn keep_limit(&self) -> Option<Duration> {
        if let Some(is_kept) = self.is_kept {
            is_kept.store(true, Relaxed);
        }
        self.limit
    }
}

/// Owned copy of a context, for wrappers that call a store later. The store cannot keep the limit.
#[derive(Clone, Debug)]
pub(super) struct OwnedContext {
    limit: Option<Duration>,
    waiter: Option<Waiter>,
}

impl OwnedContext {
    pub(super) fn get(&self) -> Context<'_> {
        Context::default()
            .with_limit(self.limit)
            .with_waiter(self.waiter.as_ref())
    }
}

impl From<&Context<'_>> for OwnedContext {
    fn from(context: &Context<'_>) -> Self {
        Self {
            limit: context.limit,
            waiter: context.waiter.cloned(),
        }
    }
}
