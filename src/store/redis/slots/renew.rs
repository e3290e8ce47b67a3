//! The task that frees and renews the slots of this process, and its settings.

use std::{mem, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    future::{ready, select},
    stream,
};
use redis::{Value, aio::ConnectionLike};
use tokio::time::{Instant, sleep, sleep_until};

use super::{MAX_FREED, Slots, SlotsState};
use crate::{
    observe::store_failed,
    store::{
        BoxFuture,
        redis::{
            RedisStore,
            cluster::hash_slot::slot,
            connection::link::runtime,
            error::RedisError,
            protocol::{plan::EncodedPlan, script::ScriptKind},
        },
        setting::{SettingError, literal},
    },
};

/// The maximum number of slots that a call renews.
const MAX_RENEWED: u32 = 256;
/// The maximum number of calls that renew or free slots at the same time.
const MAX_CALLS: usize = 16;
/// The time in which freed slots are collected, so that one call frees them.
const COLLECT: Duration = Duration::from_millis(1);
/// The pause after a call that failed.
const RETRY: Duration = Duration::from_millis(250);

/// The slots of one request.
#[derive(Clone, Copy, Debug)]
struct RequestSlots {
    id: u64,
    first: u64,
    units: u32,
}

/// A change of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotChange {
    Free,
    Renew,
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
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
        literal(self.try_slot_ttl(time))
    }

    /// Fallible form of [`slot_ttl`](RedisStore::slot_ttl), for a time that is read from
    /// configuration.
    ///
    /// # Errors
    ///
    /// Fails if `time` is less than 1 s or more than one day. The error contains the field, its
    /// value and the fix.
    pub fn try_slot_ttl(self, time: Duration) -> Result<Self, SettingError> {
        const FIX: &str = "give 1 s to one day, such as 10 s; slots of a lost process are not free \
                           before";
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(&time) {
            return Err(SettingError::new("redis: slot_ttl", format_args!("{time:?}"), FIX));
        }
        Ok(self.with_slot_ttl(time))
    }

    /// Returns a store on the same accounts, which holds slots as another process.
    pub(crate) fn with_slot_ttl(mut self, time: Duration) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.slots = Arc::new(settings.slots.renewed(time));
        self
    }

    /// Starts the task of this process if it takes slots and the task does not run.
    pub(in crate::store::redis) fn start_renewing(&self) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        if slots.should_start() {
            // A runtime that shuts down drops the task, which then starts again with the next call.
            let task: BoxFuture<()> = Box::pin(RenewTask(Some(slots.clone())).run(self.clone()));
            drop(runtime()?.spawn(task));
        }
        Ok(())
    }

    /// Renews or frees all slots. An error of one call does not end the others.
    pub(crate) async fn change_all(&self, change: SlotChange) -> Result<(), RedisError> {
        let calls = self.settings.slots.calls(change, self.settings.sharded);
        let calls = stream::iter(calls).map(|call| self.change_slots(change, call));
        let calls = calls.buffer_unordered(MAX_CALLS);
        calls.fold(Ok(()), |all, result| ready(all.and(result))).await
    }

    /// Frees slots when they were freed, until this process holds none.
    async fn keep_freeing(&self) {
        let slots = &self.settings.slots;
        loop {
            slots.wake.notified().await;
            sleep(COLLECT).await;
            while self.change_all(SlotChange::Free).await.is_err() {
                sleep(RETRY).await;
            }
            if slots.ends() {
                return;
            }
        }
    }

    /// Renews all held slots in each third of their time to live, until this process holds none. What
    /// failed in one third is first in the next.
    async fn keep_renewing(&self) {
        let (slots, mut failed) = (&self.settings.slots, Vec::new());
        let period = slots.life / 3;
        loop {
            let calls = slots.calls(SlotChange::Renew, self.settings.sharded);
            let pause = period / u32::try_from(calls.len().max(1)).unwrap_or(u32::MAX);
            let start = Instant::now();
            let first = mem::take(&mut failed).into_iter().map(|call| (start, call));
            let spread = calls.into_iter().zip(0..).map(|(call, n)| (start + pause * n, call));
            let all = stream::iter(first.chain(spread)).map(|(at, call)| async move {
                sleep_until(at).await;
                while self.change_slots(SlotChange::Renew, call.clone()).await.is_err() {
                    if Instant::now() + RETRY > start + period {
                        return Some(call);
                    }
                    sleep(RETRY).await;
                }
                None
            });
            failed = all.buffer_unordered(MAX_CALLS).filter_map(ready).collect().await;
            sleep_until(start + period).await;
            if slots.ends() {
                return;
            }
        }
    }

    async fn change_slots(
        &self,
        change: SlotChange,
        mut requests: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let (keys, args) = slots.encode(change, &mut requests);
        if requests.is_empty() {
            return Ok(());
        }
        let script = self.script(ScriptKind::Renew, []);
        let told = self.run(script, &keys, args).await.and_then(|reply| match reply {
            Value::BulkString(told) if told.len() == requests.len() => Ok(told),
            _ => self.checked(Err(RedisError::invalid_reply("not one byte for each request"))),
        });
        let told = told.inspect_err(|error| store_failed(error.kind().as_str()))?;
        slots.changed(change, &requests, &told);
        Ok(())
    }
}

#[cfg(feature = "testing")]
impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub(crate) async fn free_now(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Free).await
    }

    pub(crate) async fn renew_now(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Renew).await
    }
}

impl Slots {
    fn should_start(&self) -> bool {
        #[cfg(feature = "testing")]
        if self.test_clock.is_some() {
            return false;
        }
        let mut state = self.state();
        let starts = !state.is_running && !state.accounts.is_empty();
        state.is_running |= starts;
        starts
    }

    /// Returns `true` if this process neither holds nor frees slots. The task then ends.
    fn ends(&self) -> bool {
        let mut state = self.state();
        state.is_running = !state.accounts.is_empty();
        !state.is_running
    }

    /// Returns the slots to change in calls of a bounded size, oldest first. If `sharded`, a call
    /// has one hash slot.
    fn calls(&self, change: SlotChange, sharded: bool) -> Vec<Vec<RequestSlots>> {
        let (now, mut found) = (self.now(), Vec::new());
        let mut state = self.state();
        state.accounts.retain(|id, account| {
            account.freed.retain(|_, it| it.ends_at > now);
            let shard = if sharded { slot(account.address.as_bytes()) } else { 0 };
            let mut push = |first: &u64, units| {
                found.push((shard, RequestSlots { id: *id, first: *first, units }));
            };
            match change {
                SlotChange::Free => {
                    account.freed.iter().for_each(|(it, freed)| push(it, freed.units));
                }
                SlotChange::Renew => {
                    account.held.iter().for_each(|(it, held)| push(it, held.units));
                }
            }
            !account.is_idle()
        });
        drop(state);
        found.sort_unstable_by_key(|(shard, it)| (*shard, it.first));
        let max = if change == SlotChange::Renew { MAX_RENEWED } else { MAX_FREED };
        let (mut calls, mut last) = (Vec::<Vec<_>>::new(), (0, max));
        for (shard, request) in found {
            if shard != last.0 || last.1 + request.units > max {
                calls.push(Vec::new());
                last = (shard, 0);
            }
            last.1 += request.units;
            calls.last_mut().into_iter().for_each(|call| call.push(request));
        }
        calls
    }

    /// Returns the keys and the arguments of a call, and keeps only what is to change by now.
    fn encode(
        &self,
        change: SlotChange,
        requests: &mut Vec<RequestSlots>,
    ) -> (Vec<String>, Vec<Vec<u8>>) {
        requests.sort_unstable_by_key(|it| (it.id, it.first));
        let state = self.state();
        requests.retain(|it| state.is_due(change, it));
        let head = EncodedPlan::default().int::<1>(u64::from(change == SlotChange::Renew));
        let (mut keys, mut args) =
            (Vec::new(), vec![head.int::<7>(self.life_micros()).int::<8>(self.store).0]);
        for group in requests.chunk_by(|one, other| one.id == other.id) {
            let Some(account) = state.accounts.get(&group[0].id) else { continue };
            keys.push(account.address.clone());
            let list =
                EncodedPlan::default().slot_list(group.iter().map(|it| (it.first, it.units)));
            args.push(list.0);
        }
        (keys, args)
    }

    /// Records the answer of the server, with `1` for each request whose slots count.
    fn changed(&self, change: SlotChange, requests: &[RequestSlots], told: &[u8]) {
        let (mut state, mut lost) = (self.state(), Vec::new());
        for (request, told) in requests.iter().zip(told) {
            let Some(account) = state.accounts.get_mut(&request.id) else { continue };
            match change {
                SlotChange::Free => drop(account.freed.remove(&request.first)),
                SlotChange::Renew if *told == b'1' => {}
                SlotChange::Renew => lost.extend(account.held.remove(&request.first)),
            }
            if account.is_idle() {
                state.accounts.remove(&request.id);
            }
        }
        drop(state);
        lost.into_iter().for_each(|held| held.lost.raise());
    }
}

impl SlotsState {
    fn is_due(&self, change: SlotChange, request: &RequestSlots) -> bool {
        self.accounts.get(&request.id).is_some_and(|account| match change {
            SlotChange::Free => account.freed.contains_key(&request.first),
            SlotChange::Renew => account.held.contains_key(&request.first),
        })
    }
}

/// The task of a process. It ends when the process neither holds nor frees slots.
struct RenewTask(Option<Arc<Slots>>);

impl Drop for RenewTask {
    fn drop(&mut self) {
        if let Some(slots) = &self.0 {
            slots.state().is_running = false;
        }
    }
}

impl RenewTask {
    async fn run<C>(mut self, store: RedisStore<C>)
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        select(pin!(store.keep_freeing()), pin!(store.keep_renewing())).await;
        // It has been recorded that the task ends.
        self.0 = None;
    }
}
