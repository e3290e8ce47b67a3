//! Slots that an allowed request holds under [`Quota::concurrent`](crate::Quota::concurrent).

use std::{
    fmt,
    future::poll_fn,
    iter::successors,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
};

use tokio::sync::Semaphore;

/// Counts held slots, and frees them.
pub(crate) trait FreeSlots: Send + Sync {
    /// Frees `units` slots of the account `id`, unless the account was reset since `epoch`.
    fn free(&self, id: u64, epoch: u64, units: u64);

    /// Records that a request holds these slots from now on.
    #[cfg(feature = "redis")]
    fn start(&self, _: u64) {}
}

/// Held slots of one account. Dropping this value frees them.
pub(crate) struct Hold {
    counted_by: Arc<dyn FreeSlots>,
    id: u64,
    epoch: u64,
    units: u32,
    /// `true` for an adaptive limit, whose slots are free at the head of the response.
    until_head: bool,
    /// `true` once the slots are free, or have another owner.
    freed: AtomicBool,
    /// The signal of a store that may lose the slots. It has no permits, and is closed when they are
    /// lost.
    loss: Option<Arc<Semaphore>>,
    /// The held slots of other accounts, which are freed first.
    next: Option<Arc<Hold>>,
}

impl Hold {
    #[inline]
    pub(crate) fn new(counted_by: Arc<dyn FreeSlots>, id: u64, epoch: u64, units: u32) -> Self {
        Self {
            counted_by,
            id,
            epoch,
            units,
            until_head: false,
            freed: AtomicBool::new(false),
            loss: None,
            next: None,
        }
    }

    /// Creates a hold that calls `free` once.
    pub(crate) fn on_free(free: impl FnOnce() + Send + 'static) -> Self {
        Self::new(Arc::new(Mutex::new(Some(free))), 0, 0, 1)
    }

    /// Sets if the slots are free at the head of the response.
    #[inline]
    pub(crate) fn until_head(mut self, until_head: bool) -> Self {
        self.until_head = until_head;
        self
    }

    /// Sets the signal that the store closes when it loses the slots. It must have no permits.
    #[cfg(feature = "redis")]
    pub(crate) fn with_loss(mut self, signal: Arc<Semaphore>) -> Self {
        self.loss = Some(signal);
        self
    }

    /// Returns the slots with a new owner. This value then frees nothing. If it frees nothing already, neither
    /// does the new one.
    fn hand_over(&self) -> Self {
        Self {
            counted_by: self.counted_by.clone(),
            id: self.id,
            epoch: self.epoch,
            units: self.units,
            until_head: self.until_head,
            freed: self.freed.swap(true, Relaxed).into(),
            loss: self.loss.clone(),
            next: self.next.clone(),
        }
    }

    /// Frees the slots. Later calls have no effect.
    #[inline]
    fn free(&self) {
        if !self.freed.swap(true, Relaxed) {
            self.counted_by.free(self.id, self.epoch, self.units.into());
        }
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        self.next = None;
        if !*self.freed.get_mut() {
            self.counted_by.free(self.id, self.epoch, self.units.into());
        }
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

/// Frees a slot of another store.
impl<F: FnOnce() + Send> FreeSlots for Mutex<Option<F>> {
    fn free(&self, _: u64, _: u64, _: u64) {
        let free = self.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(free) = free {
            free();
        }
    }
}

/// Slots that a request holds under [`Quota::concurrent`](crate::Quota::concurrent).
///
/// The slots are free again when the last clone is dropped. A panic, a cancellation, a timeout and a
/// client that leaves therefore free them, too.
///
/// The layer holds the slots of a request until the response body ends, and those of an
/// [adaptive](crate::rule::Adaptive) limit until the head is ready. To hold others longer, for
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
#[derive(Debug)]
#[must_use = "the slots are free when the last clone is dropped"]
pub struct Slot {
    /// The slots, until they are shared. A slot without clones needs no allocation.
    own: Hold,
    /// The slots of all clones.
    shared: OnceLock<Arc<Hold>>,
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        let shared = self.shared.get_or_init(|| Arc::new(self.own.hand_over()));
        Self {
            // Frees nothing, as `self.own`: the slots are in `shared`.
            own: self.own.hand_over(),
            shared: shared.clone().into(),
        }
    }
}

impl Slot {
    /// Waits until the slots no longer count, for work that should then end.
    ///
    /// Only a `RedisStore` loses slots, and does not end the request. This may happen if the process
    /// was paused, or could not reach the server, for two thirds of the time to live of its slots or
    /// longer. It also happens if the server lost its state, and after a reset of the key. Other
    /// requests may then hold the slots. The process notices within a third of the time to live after
    /// it continues. Slots whose answer arrives later than their time to live are lost from the start.
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
        let signals = self.holds().filter_map(|hold| hold.loss.as_deref());
        let mut signals: Vec<_> = signals.map(|signal| Box::pin(signal.acquire())).collect();
        poll_fn(|cx| {
            let mut signals = signals.iter_mut();
            match signals.any(|signal| signal.as_mut().poll(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Adds a hold to those of other accounts.
    #[inline(always)]
    pub(super) fn add(slot: &mut Option<Self>, mut own: Hold) {
        own.next = slot
            .take()
            .map(|held| held.shared.into_inner().unwrap_or_else(|| held.own.into()));
        *slot = Some(Self {
            own,
            shared: OnceLock::new(),
        });
    }

    /// Records that the request holds the slots from now on.
    #[cfg(feature = "redis")]
    pub(crate) fn start(&self) {
        self.holds().for_each(|hold| hold.counted_by.start(hold.id));
    }

    /// Frees the slots of [adaptive](crate::rule::Adaptive) limits, when the head of the response is
    /// ready.
    pub(crate) fn end_head(&mut self) {
        self.holds()
            .filter(|hold| hold.until_head)
            .for_each(Hold::free);
    }

    fn holds(&self) -> impl Iterator<Item = &Hold> {
        let first = self.shared.get().map_or(&self.own, |shared| shared);
        successors(Some(first), |hold| hold.next.as_deref())
    }
}
