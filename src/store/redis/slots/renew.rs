//! The task that frees and renews the slots of this process, and its settings.

use std::{
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{ready, select},
    stream,
};
use redis::{Value, aio::ConnectionLike};
use tokio::time::{interval, sleep};

use super::{FreedSlots, MAX_FREED, RunningSlots, Slots, nanos};
use crate::{
    observe::store_failed,
    store::redis::{
        RedisStore,
        cluster::routes::slot,
        connection::runtime,
        error::RedisError,
        protocol::{EncodedPlan, script::ScriptKind},
    },
};

/// The maximum number of slots that a call renews.
const MAX_RENEWED: u32 = 256;
/// The maximum number of calls that renew or free slots at the same time.
const MAX_CALLS: usize = 16;
/// The number of steps over which the renewals of a third of the time to live are spread.
const STEPS: u32 = 16;
/// The time in which freed slots are collected, so that one call frees them.
const COLLECT: Duration = Duration::from_millis(1);
/// The pause after a call that failed.
const RETRY: Duration = Duration::from_millis(250);

/// The slots of one request.
#[derive(Clone, Debug)]
struct RequestSlots {
    set: Arc<str>,
    first: u64,
    units: u32,
}

/// A change of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotChange {
    Free,
    Renew,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Sets the time to live of [slots](crate::Quota::concurrent). Defaults to 10 s.
    ///
    /// A process renews the slots that it holds every third of this time. The slots of a process
    /// that ends without freeing them, or that cannot reach the server, are free after this time. A
    /// process that was paused for longer has lost its slots, and its requests run on: at most the
    /// limit and the requests of paused processes run.
    ///
    /// All processes that share accounts need the same time.
    ///
    /// # Panics
    ///
    /// Panics if `time` is less than 1 s or more than one day.
    #[track_caller]
    #[must_use]
    pub fn slot_ttl(self, time: Duration) -> Self {
        assert!(
            (Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&time),
            "redis: slot_ttl is {time:?}; give 1 s to one day, such as 10 s; slots of a lost \
             process are not free before"
        );
        self.with_slot_ttl(time)
    }

    /// Returns a store on the same accounts, which holds slots as another process.
    pub(crate) fn with_slot_ttl(mut self, time: Duration) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.slots = Arc::new(Slots {
            #[cfg(feature = "testing")]
            test_clock: settings.test_clock.clone(),
            ..Slots::new(time)
        });
        self
    }

    /// Starts the task of this process if it takes slots and the task does not run.
    pub(in crate::store::redis) fn start_renewing(&self) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        if let Some(task) = slots.start() {
            // A runtime that shuts down drops the task, which then starts again with the next call.
            let store = self.clone();
            drop(runtime()?.spawn(async move {
                let _task = task;
                select(pin!(store.keep_freeing()), pin!(store.keep_renewing())).await;
            }));
        }
        Ok(())
    }

    /// Frees slots when they were freed, until this process holds none.
    async fn keep_freeing(&self) {
        let slots = &self.settings.slots;
        loop {
            slots.wake.notified().await;
            sleep(COLLECT).await;
            while self.change_all(SlotChange::Free, slots.to_free()).await.is_err() {
                sleep(RETRY).await;
            }
            if slots.ends() {
                return;
            }
        }
    }

    /// Renews all held slots in each third of their time to live, until this process holds none. What
    /// failed in one step is tried again in the next.
    async fn keep_renewing(&self) {
        let slots = &self.settings.slots;
        let mut ticks = interval(slots.life / (3 * STEPS));
        for step in (0..STEPS).cycle() {
            ticks.tick().await;
            drop(self.change_all(SlotChange::Renew, slots.to_renew(Some(step))).await);
            if slots.ends() {
                return;
            }
        }
    }

    /// Renews or frees slots, in calls of a bounded size. On a cluster, a call has one hash slot. An
    /// error of one call does not end the others.
    async fn change_all(
        &self,
        change: SlotChange,
        mut found: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        let max = if change == SlotChange::Renew { MAX_RENEWED } else { MAX_FREED };
        let sharded = self.settings.sharded;
        let shard = |it: &RequestSlots| if sharded { slot(it.set.as_bytes()) } else { 0 };
        found.sort_by_cached_key(|it| (shard(it), it.set.clone(), it.first));
        let mut units = 0;
        let calls = found.chunk_by(|last, next| {
            units += last.units;
            let fits = units + next.units <= max && shard(last) == shard(next);
            units = if fits { units } else { 0 };
            fits
        });
        let calls: Vec<_> = calls.map(<[_]>::to_vec).collect();
        let calls = stream::iter(calls).map(|call| self.change_slots(change, call));
        let calls = calls.buffer_unordered(MAX_CALLS);
        calls.fold(Ok(()), |all, result| ready(all.and(result))).await
    }

    async fn change_slots(
        &self,
        change: SlotChange,
        requests: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let head = EncodedPlan::default().int::<1>(u64::from(change == SlotChange::Renew));
        let head = head.int::<7>(slots.life_micros()).int::<8>(slots.store);
        let (mut keys, mut args) = (Vec::new(), vec![head.0]);
        for group in requests.chunk_by(|one, other| one.set == other.set) {
            let list = group.iter().map(|it| (it.first, it.units));
            keys.push(&*group[0].set);
            args.push(EncodedPlan::default().slot_list(list).0);
        }
        let script = self.script(ScriptKind::Renew, []);
        let told = self.run(script, &keys, args).await.and_then(|reply| match reply {
            Value::BulkString(told) if told.len() == requests.len() => Ok(told),
            _ => self.checked(Err(RedisError::invalid_reply("not one byte for each request"))),
        });
        let told = told.inspect_err(|error| store_failed(error.kind().as_str()))?;
        slots.changed(change, requests, &told);
        Ok(())
    }

    #[cfg(feature = "testing")]
    pub(crate) async fn free_now(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Free, self.settings.slots.to_free()).await
    }

    #[cfg(feature = "testing")]
    pub(crate) async fn renew_now(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Renew, self.settings.slots.to_renew(None)).await
    }
}

impl Slots {
    /// Returns the mark of a task that runs, if one is needed and none runs.
    fn start(&self) -> Option<Arc<()>> {
        #[cfg(feature = "testing")]
        if self.test_clock.is_some() {
            return None;
        }
        let mut state = self.state();
        let needed = state.task.strong_count() == 0 && !state.is_idle();
        needed.then(|| {
            let task = Arc::new(());
            state.task = Arc::downgrade(&task);
            task
        })
    }

    /// Returns `true` if this process neither holds nor frees slots. The task then ends.
    fn ends(&self) -> bool {
        let mut state = self.state();
        let ends = state.is_idle();
        if ends {
            state.task = Weak::new();
        }
        ends
    }

    /// Returns the freed slots that the server may still count.
    fn to_free(&self) -> Vec<RequestSlots> {
        let (now, mut state) = (self.now(), self.state());
        state.freed.retain(|_, freed| freed.ends_at > now);
        let all = state.freed.iter().map(|((set, first), FreedSlots { units, .. })| RequestSlots {
            set: set.clone(),
            first: *first,
            units: *units,
        });
        all.collect()
    }

    /// Returns the held slots to renew in a step, or all: those whose numbers have their turn, and
    /// those that have missed it. Slots with near numbers have their turn together.
    fn to_renew(&self, step: Option<u32>) -> Vec<RequestSlots> {
        let (now, period, state) = (self.now(), nanos(self.life) / 3, self.state());
        let due = state.held.iter().filter(|(first, held)| {
            let turn = **first / u64::from(MAX_RENEWED) % u64::from(STEPS);
            step.is_none_or(|step| turn == u64::from(step) || held.renewed_at + period < now)
        });
        let request = |(first, held): (&u64, &RunningSlots)| RequestSlots {
            set: held.set.clone(),
            first: *first,
            units: held.units,
        };
        due.map(request).collect()
    }

    /// Records the answer of the server, with `1` for each request whose slots count.
    fn changed(&self, change: SlotChange, requests: Vec<RequestSlots>, told: &[u8]) {
        let (now, mut state, mut lost) = (self.now(), self.state(), Vec::new());
        for (RequestSlots { set, first, .. }, told) in requests.into_iter().zip(told) {
            match (change, state.held.get_mut(&first)) {
                (SlotChange::Free, _) => drop(state.freed.remove(&(set, first))),
                (SlotChange::Renew, Some(held)) if *told == b'1' => held.renewed_at = now,
                (SlotChange::Renew, _) => lost.extend(state.held.remove(&first)),
            }
        }
        drop(state);
        lost.into_iter().for_each(|held| held.lost.raise());
    }
}
