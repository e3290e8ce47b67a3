//! Slots that an allowed request holds under [`Quota::concurrent`](crate::Quota::concurrent).

use std::{
    fmt,
    future::poll_fn,
    iter::successors,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use super::position::Position;

/// Counts held slots, and frees them.
pub(crate) trait FreeSlots: Send + Sync {
    /// Frees `units` slots of the account `id`, unless the account was reset since `epoch`.
    fn free(&self, id: u64, epoch: u64, units: u64);
}

/// Measures the requests of an adaptive quota.
pub(crate) trait MeasureLatency: Send + Sync {
    /// Adds a request that ends now. Its result is `None` without a response, and otherwise `true`
    /// for one that shows an overload.
    fn end(&self, since: u64, overloaded: Option<bool>);
}

/// Held slots of one account. Dropping this value frees them.
pub(crate) struct Hold {
    counted_by: Arc<dyn FreeSlots>,
    id: u64,
    epoch: u64,
    units: u64,
    /// The signal of a store that may lose the slots.
    loss: Option<Arc<LossSignal>>,
    /// The measurement of an adaptive quota, and its start.
    measured: Option<(Arc<dyn MeasureLatency>, u64)>,
    /// `true` once the slots are free.
    freed: AtomicBool,
    /// The held slots of another account.
    next: Option<Box<Self>>,
}

impl Hold {
    #[inline]
    pub(crate) fn new(counted_by: Arc<dyn FreeSlots>, id: u64, epoch: u64, units: u64) -> Self {
        let freed = AtomicBool::new(false);
        Self { counted_by, id, epoch, units, loss: None, measured: None, freed, next: None }
    }

    /// Ends the measurement, if there is one, and frees the slots. Later calls have no effect.
    #[inline]
    fn end(&self, overloaded: Option<bool>) {
        if self.freed.swap(true, Relaxed) {
            return;
        }
        if let Some((measure, since)) = &self.measured {
            measure.end(*since, overloaded);
        }
        self.counted_by.free(self.id, self.epoch, self.units);
    }

    /// Sets the signal that the store raises when it loses the slots.
    #[cfg(feature = "redis")]
    pub(crate) fn with_loss(mut self, signal: Arc<LossSignal>) -> Self {
        self.loss = Some(signal);
        self
    }
}

/// A signal that held slots were lost: the tasks that wait for it, or `None` afterwards.
#[derive(Debug)]
pub(crate) struct LossSignal(Mutex<Option<Vec<Waker>>>);

impl LossSignal {
    #[cfg(feature = "redis")]
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn raise(&self) {
        let wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Poll::Ready(()),
            Some(wakers) => {
                if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        self.end(None);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("units", &self.units)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// The held slots of an allowed decision, or the position of a denied one in a queue. A clone has
/// neither.
///
/// This is one pointer, because a larger decision is slower to move, even if it holds no slots.
#[derive(Debug, Default)]
pub(crate) struct Holds(Option<Box<Held>>);

#[derive(Debug)]
enum Held {
    Slots(Hold),
    Position(Position),
}

impl Holds {
    #[inline]
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn position(position: Position) -> Self {
        Self(Some(Box::new(Held::Position(position))))
    }

    #[inline]
    pub(crate) fn push(&mut self, mut hold: Hold) {
        if let Some(Held::Slots(first)) = self.0.as_deref_mut() {
            hold.next = first.next.take();
            first.next = Some(Box::new(hold));
        } else {
            self.0 = Some(Box::new(Held::Slots(hold)));
        }
    }

    /// Measures the request of which an account holds slots from `since` on.
    pub(super) fn measure(&mut self, id: u64, measure: Arc<dyn MeasureLatency>, since: u64) {
        let Some(Held::Slots(first)) = self.0.as_deref_mut() else { return };
        let mut next = Some(first);
        while let Some(hold) = next {
            if hold.id == id {
                hold.measured = Some((measure, since));
                return;
            }
            next = hold.next.as_deref_mut();
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    fn take_hold(&mut self) -> Option<Hold> {
        match *self.0.take()? {
            Held::Slots(hold) => Some(hold),
            Held::Position(_) => None,
        }
    }

    /// Takes all held slots out of the list.
    pub(super) fn take(&mut self) -> Option<Slot> {
        self.take_hold().map(|hold| Slot(Arc::new(hold)))
    }

    /// Takes the position in the queue.
    pub(super) fn take_position(&mut self) -> Option<Position> {
        match *self.0.take()? {
            Held::Position(position) => Some(position),
            Held::Slots(_) => None,
        }
    }
}

#[cfg(feature = "redis")]
impl FromIterator<Hold> for Holds {
    fn from_iter<I: IntoIterator<Item = Hold>>(holds: I) -> Self {
        let mut all = Self::none();
        holds.into_iter().for_each(|hold| all.push(hold));
        all
    }
}

impl Clone for Holds {
    fn clone(&self) -> Self {
        Self::none()
    }
}

/// Slots that a request holds under [`Quota::concurrent`](crate::Quota::concurrent).
///
/// The slots are free again when the last clone is dropped. A panic, a cancellation, a timeout and a
/// client that leaves therefore free them, too.
///
/// The layer holds the slots of a request until the response body ends, and those of an
/// [adaptive](crate::Quota::adaptive) quota until the head is ready. To hold others longer, for
/// example in a WebSocket, call [`expose_slot`](crate::RateLimitLayer::expose_slot), and take a
/// clone from the extensions of the request. Outside HTTP, a [`Decision`](crate::Decision) holds
/// its slots, and [`take_slot`](crate::Decision::take_slot) takes them out.
///
/// ```
/// use tower_sluice::{Limiter, Quota};
///
/// const EXPORTS: Quota = Quota::concurrent(1);
/// let limiter = Limiter::local();
///
/// let mut running = limiter.take("alice", &EXPORTS, 1).now();
/// assert!(!limiter.take("alice", &EXPORTS, 1).now().is_allowed());
///
/// let slot = running.take_slot(); // to move into a task
/// drop(slot);
/// assert!(limiter.take("alice", &EXPORTS, 1).now().is_allowed());
/// ```
#[derive(Clone, Debug)]
#[must_use = "the slots are free when the last clone is dropped"]
pub struct Slot(Arc<Hold>);

impl Slot {
    /// Waits until the slots no longer count, for work that should then end.
    ///
    /// Only a `RedisStore` loses slots, and does not end the request. This happens if the process
    /// was paused, or could not reach the server, for longer than the time to live of its slots, if
    /// the server lost its state, and after a reset of the key. Other requests may then hold the
    /// slots. The process notices within a third of the time to live after it continues.
    ///
    /// ```
    /// # use tower_sluice::middleware::Slot;
    /// async fn export(slot: Slot) {
    ///     tokio::select! {
    ///         () = write_all_rows() => {}
    ///         () = slot.lost() => eprintln!("the export lost its slot"),
    ///     }
    /// }
    /// # async fn write_all_rows() {}
    /// ```
    pub async fn lost(&self) {
        let signals = || successors(Some(&*self.0), |hold| hold.next.as_deref());
        let signals = || signals().filter_map(|hold| hold.loss.as_deref());
        let is_lost = |cx: &mut Context<'_>| signals().any(|signal| signal.poll(cx).is_ready());
        poll_fn(|cx| if is_lost(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Records the response, and frees the slots of [adaptive](crate::Quota::adaptive) quotas. Other
    /// slots stay held.
    ///
    /// The layer calls this method with the head of the response. Outside HTTP, call it when the work
    /// is done, with `true` if the work failed because of an overload. Later calls have no effect. If
    /// it is never called, the time counts only if it is longer than usual.
    pub fn complete(&self, overloaded: bool) {
        for hold in successors(Some(&*self.0), |hold| hold.next.as_deref()) {
            if hold.measured.is_some() {
                hold.end(Some(overloaded));
            }
        }
    }
}

/// A function that frees a slot of another store.
pub(super) struct OnFree<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> OnFree<F> {
    pub(super) fn new(free: F) -> Self {
        Self(Mutex::new(Some(free)))
    }
}

impl<F: FnOnce() + Send> FreeSlots for OnFree<F> {
    fn free(&self, _: u64, _: u64, _: u64) {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(free) = free {
            free();
        }
    }
}
