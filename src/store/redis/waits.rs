//! The queues of requests that wait for slots, one for each account.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::{
    decision::Decision,
    name::RuleName,
    quota::Quota,
    store::{Wake, nanos, waiter::SlotQueue},
};

/// The time until the first request of a queue asks again, if this process has held no slot of the
/// rule.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const MIN_INTERVAL: Duration = Duration::from_millis(10);
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two looks at all queues.
const PAUSE: Duration = Duration::from_millis(5);
/// The number of times that a process asks for each mean hold time, while the next free slot is left to
/// it.
const LOOKS: u32 = 8;
/// The weight of a new hold time in the mean is one divided by this number.
const WEIGHT: u64 = 8;

/// The requests of this process that wait for slots, or ask for them and may then wait.
#[derive(Default)]
pub(super) struct Waits {
    /// The queues, by the hash of the key of the sorted set.
    queues: HashMap<u64, WaitingRequests>,
    /// The mean time in nanoseconds for which this process held slots of a rule.
    hold_times: HashMap<RuleName, u64>,
}

/// The requests that wait for slots of one account, or ask for them and may then wait.
pub(super) struct WaitingRequests {
    pub(super) queue: SlotQueue,
    /// The number of requests that ask.
    pub(super) asking: usize,
    /// The number of times that this process freed slots.
    pub(super) frees: u64,
    /// `true` if the last call had no answer. Each request then asks at once.
    pub(super) failing: bool,
    /// The longest time in which a call was answered, since the last one that ended without an answer.
    pub(super) answered_in: Duration,
    /// The mean hold time, bounded.
    interval: Duration,
    /// The instant since which the next free slot is left to this process.
    marked_at: Option<Instant>,
    /// The instant at which the first request asks again.
    pub(super) due: Instant,
}

impl WaitingRequests {
    fn new(interval: Duration) -> Self {
        Self {
            queue: SlotQueue::default(),
            asking: 0,
            frees: 0,
            failing: false,
            answered_in: Duration::ZERO,
            interval,
            marked_at: None,
            due: Instant::now() + interval,
        }
    }

    /// Wakes the requests that fit into `room` slots.
    ///
    /// The room is at most the limit: it may count slots that a call without an answer never took.
    pub(super) fn wake_for(&mut self, room: u64, wakes: &mut Vec<Wake>) {
        let room = room.min(self.queue.limit);
        for (before, (rank, wake)) in (0..).zip(&mut self.queue.waiting) {
            if before + u64::from(rank.headroom) >= room {
                break;
            }
            wakes.extend(wake.take());
        }
    }

    /// Records whether the next free slot is left to this process.
    pub(super) fn mark(&mut self, is_marked: bool) {
        let since = self.marked_at.unwrap_or_else(Instant::now);
        self.marked_at = is_marked.then_some(since);
    }

    /// Returns the time until the first request asks again. A slot that is left to this process is free
    /// until then, so it asks more often, and less so while a slot is held for an unusual time.
    fn pause(&self) -> Duration {
        let Some(since) = self.marked_at else {
            return self.interval;
        };
        let pause = (self.interval.max(since.elapsed()) / LOOKS).max(PAUSE);
        pause.min(self.interval)
    }

    /// Wakes the first request, which may find slots that other processes have freed.
    pub(super) fn wake_first(&mut self, wakes: &mut Vec<Wake>) {
        let first = self.queue.waiting.values_mut().next();
        wakes.extend(first.and_then(Option::take));
    }

    /// Wakes all requests.
    pub(super) fn wake_all(&mut self, wakes: &mut Vec<Wake>) {
        wakes.extend(self.queue.waiting.values_mut().filter_map(Option::take));
    }

    /// Records an answer of the server. Returns `true` if the first request now asks earlier.
    pub(super) fn answered(&mut self, interval: Duration, decision: &Decision) -> bool {
        self.interval = interval;
        self.failing = false;
        let due = Instant::now() + self.pause();
        let is_earlier = due < self.due;
        // An allowed answer does not postpone the next question. A process that takes its own slots again
        // and again would otherwise never ask for those of others.
        if is_earlier || !decision.is_allowed() {
            self.due = due;
        }
        is_earlier
    }

    fn is_unused(&self) -> bool {
        self.asking == 0 && self.queue.waiting.is_empty()
    }
}

impl Waits {
    /// Returns `true` if no request waits, or asks and may then wait.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(super) fn get(&self, id: u64) -> Option<&WaitingRequests> {
        self.queues.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut WaitingRequests> {
        self.queues.get_mut(&id)
    }

    /// Returns the queue of an account of a rule. Adds one if needed.
    pub(super) fn queue(&mut self, id: u64, rule: RuleName) -> &mut WaitingRequests {
        let interval = self.interval(rule);
        self.queues
            .entry(id)
            .or_insert_with(|| WaitingRequests::new(interval))
    }

    /// Removes a queue without requests.
    pub(super) fn remove_unused(&mut self, id: u64) {
        if self.queues.get(&id).is_some_and(WaitingRequests::is_unused) {
            self.queues.remove(&id);
        }
    }

    /// Records that a request of a rule held slots for a time in nanoseconds.
    pub(super) fn record_hold(&mut self, rule: RuleName, time: u64) {
        let mean = self.hold_times.entry(rule).or_insert(time);
        *mean = *mean - *mean / WEIGHT + time / WEIGHT;
    }

    /// Records that slots of an account were freed, `room` of which the server may still count. Wakes
    /// the requests that may take them.
    pub(super) fn freed(&mut self, id: u64, room: u64, wakes: &mut Vec<Wake>) {
        if let Some(waiting) = self.queues.get_mut(&id) {
            waiting.frees += 1;
            waiting.wake_first(wakes);
            waiting.wake_for(room, wakes);
        }
    }

    /// Wakes the first request of each queue that is due at an instant. Returns the next instant at
    /// which one is.
    pub(super) fn wake_due(&mut self, now: Instant, wakes: &mut Vec<Wake>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for waiting in self.queues.values_mut() {
            if waiting.queue.waiting.is_empty() {
                continue;
            }
            if waiting.due <= now {
                waiting.due = now + waiting.pause();
                waiting.wake_first(wakes);
            }
            let due = waiting.due.max(now + PAUSE);
            next = Some(next.map_or(due, |next| next.min(due)));
        }
        next
    }

    /// Returns the expected time until `count` slots are freed: for each, the mean hold time, divided by
    /// the limit.
    pub(super) fn time_to_free(&self, rule: RuleName, quota: &Quota, count: u64) -> Duration {
        let mean = self.hold_times.get(&rule).copied().unwrap_or(0);
        let one = Duration::from_nanos(mean) / quota.limit().max(1);
        one.saturating_mul(count.try_into().unwrap_or(u32::MAX))
    }

    /// Returns the milliseconds for which a mark counts, unless its store asks before. A slow call
    /// may be late.
    pub(super) fn mark_millis(&self, rule: RuleName) -> u64 {
        nanos(self.interval(rule) + FIRST_INTERVAL) / 1_000_000
    }

    pub(super) fn interval(&self, rule: RuleName) -> Duration {
        let mean = self.hold_times.get(&rule).copied();
        mean.map_or(FIRST_INTERVAL, Duration::from_nanos)
            .clamp(MIN_INTERVAL, MAX_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_asks_more_often_while_a_slot_is_left_to_it() {
        let cases = [
            (10, 0, 5),
            (10, 60, 7),
            (400, 0, 50),
            (400, 1_200, 150),
            (400, 4_000, 400),
        ];
        for (interval, marked_for, pause) in cases {
            let mut waiting = WaitingRequests::new(Duration::from_millis(interval));
            waiting.mark(true);
            advance(Duration::from_millis(marked_for)).await;
            waiting.mark(true);
            assert_eq!(
                waiting.pause().as_millis(),
                pause,
                "{interval}, {marked_for} ms"
            );
            waiting.mark(false);
            assert_eq!(waiting.pause().as_millis(), interval.into());
        }
    }
}
