//! Requests that wait, and a queue of them.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Weak, atomic::AtomicU64},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::sync::Mutex;

/// The longest wait: ten years. A timer cannot be set for any time.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Request that may wait, such as for a slot of a [concurrent](crate::Quota::concurrent) quota.
///
/// The [`Context`](super::Context) of a call has the waiter of a request that may wait. A store that
/// denies the request may then put it into a queue, with [`wait`](Waiter::wait). The request is not
/// rejected, and calls the store again when it is woken.
///
/// Clones stand for one request. It leaves its queue when the last clone is dropped. A store that
/// decides later clones the waiter into its future.
///
/// A store of one slot, whose requests get the slot in the order of arrival:
///
/// ```
/// use std::{collections::BTreeMap, convert::Infallible, sync::{Arc, Mutex}, time::Duration};
/// use tower_sluice::{
///     Decision, Store,
///     decision::Outcome,
///     store::{Answer, Wake, Charge, Context, Never, Op, Unsupported},
/// };
///
/// #[derive(Clone, Default)]
/// struct OneSlot(Arc<Mutex<State>>);
///
/// #[derive(Default)]
/// struct State {
///     is_held: bool,
///     /// The requests that wait. A wake is `None` once it was made.
///     waiting: BTreeMap<u64, Option<Wake>>,
/// }
///
/// impl OneSlot {
///     /// Changes the state, then wakes the first request if the slot is free.
///     fn change(&self, change: impl FnOnce(&mut State)) {
///         let mut state = self.0.lock().unwrap();
///         change(&mut state);
///         let is_free = !state.is_held;
///         let first = state.waiting.values_mut().next().filter(|_| is_free);
///         let wake = first.and_then(Option::take);
///         drop(state);
///         drop(wake); // wakes the request, without the lock
///     }
/// }
///
/// impl Store for OneSlot {
///     type Error = Infallible;
///     type Future = Never<Result<Decision, Infallible>>;
///
///     fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
///         let Op::Take([charge]) = op else { return Answer::Now(Ok(Decision::allow())) };
///         let number = context.waiter.map_or(u64::MAX, |waiter| waiter.number());
///         let mut state = self.0.lock().unwrap();
///         let is_first = state.waiting.keys().all(|other| *other >= number);
///         if is_first && !state.is_held {
///             state.is_held = true;
///             state.waiting.remove(&number);
///             let store = self.clone();
///             let free = move || store.change(|state| state.is_held = false);
///             return Answer::Now(Ok(Decision::allow().with_slot(free)));
///         }
///         if let Some(waiter) = context.waiter
///             && !charge.max_wait.is_zero()
///         {
///             let store = self.clone();
///             let leave = move || store.change(|state| drop(state.waiting.remove(&number)));
///             state.waiting.insert(number, Some(waiter.wait(0, charge.max_wait, leave)));
///         }
///         let held = Outcome::slots(charge.rule, 0, 1, 1).with_estimated_retry_after(Duration::ZERO);
///         Answer::Now(Ok(Decision::deny().with_outcome(held)))
///     }
///
///     fn supports(&self, _: &[Charge<'_>]) -> Result<(), Unsupported> {
///         Ok(())
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Waiter(Arc<WaiterState>);

struct WaiterState {
    number: u64,
    wait: Mutex<Wait>,
}

/// The wait of a request: in a queue of its store, for an instant, or both.
#[derive(Default)]
struct Wait {
    place: Option<QueuePlace>,
    /// The number of places so far, which distinguishes the wakes of one from those of another.
    places: u64,
    is_released: bool,
    task: Option<Waker>,
}

/// The place of a request in a queue of its store.
pub(crate) struct QueuePlace {
    pub(crate) queue: u64,
    max_wait: Duration,
    is_woken: bool,
    /// `true` once the request knows of its wake. It then asks again.
    asks: bool,
    leave: Box<dyn FnOnce() + Send>,
}

impl QueuePlace {
    pub(crate) fn leave(self) {
        (self.leave)();
    }
}

impl Waiter {
    /// Creates the waiter of a request that comes after all earlier ones.
    pub(crate) fn new() -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self(Arc::new(WaiterState {
            number,
            wait: Mutex::new(Wait::default()),
        }))
    }

    /// Returns a number that is larger than those of all requests of this process that came before.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Lets a request that is denied wait for at most `max_wait`, counted from its call of the store.
    /// Returns the [`Wake`] that ends the wait.
    ///
    /// Give the [`max_wait`](super::Charge::max_wait) of the charge for which it waits. After its wake,
    /// the request asks the store again. It stays in the queue until then, so that no later request
    /// gets its slot.
    ///
    /// `leave` removes the request from the queue. It runs if the time of the request ends, its client
    /// goes away, or it joins another queue. If the request had been woken, `leave` must wake the
    /// next one.
    ///
    /// `queue` is a number by which the store distinguishes its queues. If the request is in another
    /// queue, the `leave` of that queue runs within this call, so do not hold a lock that it needs. If
    /// it is in this queue already, its earlier `leave` is dropped.
    pub fn wait(
        &self,
        queue: u64,
        max_wait: Duration,
        leave: impl FnOnce() + Send + 'static,
    ) -> Wake {
        let mut wait = self.0.wait.lock();
        wait.places += 1;
        let place = QueuePlace {
            queue,
            max_wait: max_wait.min(LONGEST),
            is_woken: false,
            asks: false,
            leave: Box::new(leave),
        };
        let left = wait.place.replace(place);
        let wake = Wake {
            waiter: Arc::downgrade(&self.0),
            place: wait.places,
        };
        drop(wait);
        if let Some(other) = left.filter(|place| place.queue != queue) {
            other.leave();
        }
        wake
    }

    /// Returns `true` if the request was woken in this queue, and asks again.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "for a remote store")
    )]
    pub(crate) fn is_woken(&self, queue: u64) -> bool {
        let wait = self.0.wait.lock();
        wait.place
            .as_ref()
            .is_some_and(|place| place.queue == queue && place.asks)
    }

    /// Returns the longest time that the request waits, or `None` if it is in no queue, or asks. The time
    /// is zero when this is called again, unless the request has joined a queue in between.
    pub(crate) fn take_max_wait(&self) -> Option<Duration> {
        let mut wait = self.0.wait.lock();
        let place = wait.place.as_mut().filter(|place| !place.asks)?;
        Some(mem::take(&mut place.max_wait))
    }

    /// Completes once the request is woken or released.
    pub(crate) fn poll_woken(&self, cx: &mut Context<'_>) -> Poll<()> {
        let task = cx.waker().clone();
        let mut wait = self.0.wait.lock();
        if wait.is_released {
            return Poll::Ready(());
        }
        if let Some(place) = wait.place.as_mut().filter(|place| place.is_woken) {
            place.asks = true;
            return Poll::Ready(());
        }
        let old = wait.task.replace(task);
        // Wakers may run any code when they are dropped, so the lock is released first.
        drop(wait);
        drop(old);
        Poll::Pending
    }

    /// Completes once the request is woken or released, and when the timer ends.
    pub(crate) fn poll_until(&self, timer: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        if self.poll_woken(cx).is_ready() {
            return Poll::Ready(());
        }
        timer.poll(cx)
    }

    /// Waits until the request is woken or released, for at most `time`.
    pub(crate) async fn wait_for(&self, time: Duration) {
        let mut timer = pin!(sleep(time));
        poll_fn(|cx| self.poll_until(timer.as_mut(), cx)).await;
    }

    /// Ends the wait of the request. It does not call the store again.
    pub(crate) fn release(&self) {
        let mut wait = self.0.wait.lock();
        wait.is_released = true;
        let task = wait.task.take();
        drop(wait);
        task.into_iter().for_each(Waker::wake);
    }

    /// Leaves its queue.
    pub(crate) fn leave(&self) {
        self.leave_unless(|_| false);
    }

    /// Leaves the queue for which `stays` returns `false`.
    pub(crate) fn leave_unless(&self, stays: impl Fn(u64) -> bool) {
        if let Some(place) = self.take_place(|queue| !stays(queue)) {
            place.leave();
        }
    }

    /// Returns the place of the request if it is in a queue for which `is_left` returns `true`. The
    /// caller removes the request from the queue, and drops the place after its locks.
    pub(crate) fn take_place(&self, is_left: impl Fn(u64) -> bool) -> Option<QueuePlace> {
        self.0
            .wait
            .lock()
            .place
            .take_if(|place| is_left(place.queue))
    }
}

impl Drop for WaiterState {
    fn drop(&mut self) {
        let left = self.wait.lock().place.take();
        left.into_iter().for_each(QueuePlace::leave);
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

/// Wake of a request that waits: it then calls the store again. Made when this value is dropped.
///
/// Do not drop a wake while a lock is held, because the woken task may run any code.
#[must_use = "dropping a wake ends the wait"]
pub struct Wake {
    /// A queue must not keep a request that has gone away.
    waiter: Weak<WaiterState>,
    place: u64,
}

impl Drop for Wake {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.upgrade() else {
            return;
        };
        let mut wait = waiter.wait.lock();
        let is_current = wait.places == self.place;
        let Some(place) = wait.place.as_mut().filter(|_| is_current) else {
            return;
        };
        place.is_woken = true;
        let task = wait.task.take();
        drop(wait);
        task.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").finish_non_exhaustive()
    }
}

/// The place in a queue for slots. Requests get slots in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) headroom: u32,
    number: u64,
}

impl Rank {
    /// Returns the rank of a request. Without a waiter, it is the last of its headroom.
    pub(crate) fn new(waiter: Option<&Waiter>, headroom: u32) -> Self {
        Self {
            headroom,
            number: waiter.map_or(u64::MAX, Waiter::number),
        }
    }
}

/// The requests that wait for slots of one account.
#[derive(Debug, Default)]
pub(crate) struct SlotQueue {
    /// The limit of the latest request.
    pub(crate) limit: u64,
    /// Each request needs one slot and its headroom. Its wake is `None` once it is woken.
    pub(crate) waiting: BTreeMap<Rank, Option<Wake>>,
}

impl SlotQueue {
    /// Removes a request, whose headroom may have changed since it joined. Returns its wake, to be
    /// dropped after all locks.
    pub(crate) fn remove(&mut self, waiter: &Waiter) -> Option<Wake> {
        let number = waiter.number();
        let rank = self
            .waiting
            .keys()
            .find(|rank| rank.number == number)
            .copied()?;
        self.waiting.remove(&rank).flatten()
    }

    /// Returns `true` if another request waits before one of this rank.
    #[inline]
    pub(crate) fn is_before(&self, rank: Rank) -> bool {
        self.waiting
            .first_key_value()
            .is_some_and(|(first, _)| *first < rank)
    }
}
