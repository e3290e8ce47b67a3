//! The task that frees and renews the slots of this process.

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{Either, ready, select, try_join_all},
    stream::{self, FuturesUnordered},
};
use redis::{Cmd, Value, aio::ConnectionLike};
use tokio::time::{interval, sleep};

use super::{
    RedisStore,
    cluster::hash_slot,
    connection::runtime,
    error::{RedisError, code},
    protocol::{EncodedPlan, RequestSlots, script::ScriptKind},
    slots::{MAX_FREED, MAX_RENEWED, STEPS, Slots},
};
use crate::store::BoxFuture;

/// The maximum number of calls of a pass at the same time.
const MAX_CALLS: usize = 16;
/// The time in which freed slots are collected, so that one call frees them.
const COLLECT: Duration = Duration::from_millis(1);
/// The pause after a call that failed.
const RETRY: Duration = Duration::from_millis(250);

/// The passes that renew slots, or those that free them: at most one on each server of a cluster, so that
/// a server that does not reply delays no others.
#[derive(Default)]
struct Passes {
    /// The address of each server on which a pass is running, or `None` outside of a cluster.
    servers: HashSet<Option<String>>,
    running: FuturesUnordered<BoxFuture<Option<String>>>,
}

impl Passes {
    /// Runs the passes until an event.
    async fn run_until(&mut self, event: impl Future) {
        let mut event = pin!(event);
        loop {
            match select(event.as_mut(), self.running.next()).await {
                Either::Left(_) => return,
                Either::Right((Some(server), _)) => _ = self.servers.remove(&server),
                Either::Right((None, event)) => {
                    event.await;
                    return;
                }
            }
        }
    }
}

/// A change of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotChange {
    Free,
    Renew,
}

impl SlotChange {
    /// Returns the maximum number of slots of a call.
    fn max(self) -> u32 {
        match self {
            Self::Free => MAX_FREED,
            Self::Renew => MAX_RENEWED,
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Starts the task of this process if it takes slots and the task does not run.
    pub(in crate::store::redis) fn start_renewing(&self) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let mut state = slots.state();
        // A runtime that shuts down drops the task, which then starts again with the next call.
        let runs = state.task.as_ref().is_some_and(|task| !task.is_finished());
        if !runs && !state.is_idle() && slots.test_clock.is_none() {
            let store = self.clone();
            state.task = Some(runtime()?.spawn(async move {
                let mut end = TaskEnd {
                    slots: store.settings.slots.clone(),
                    is_idle: false,
                };
                let freeing = pin!(store.keep_freeing());
                let renewing = pin!(store.keep_renewing());
                let calling = pin!(store.keep_calling());
                select(select(freeing, renewing), calling).await;
                end.is_idle = true;
            }));
        }
        Ok(())
    }

    /// Frees slots when they were freed, until this process holds none.
    async fn keep_freeing(&self) {
        let slots = &self.settings.slots;
        let mut passes = Passes::default();
        let mut skipped = 0;
        loop {
            passes.run_until(slots.wake_to_free.notified()).await;
            // The pause grows with the slots that were skipped. Collecting all freed slots again takes a
            // small part of it.
            passes.run_until(sleep(COLLECT * (1 + skipped / 256))).await;
            skipped = self.start_passes(SlotChange::Free, slots.to_free(), &mut passes);
            if slots.ends() {
                return;
            }
        }
    }

    /// Renews all held slots in each third of their time to live, until this process holds none. What
    /// failed in one step is tried again in the next.
    async fn keep_renewing(&self) {
        let slots = &self.settings.slots;
        let mut passes = Passes::default();
        let mut ticks = interval(slots.ttl / (3 * STEPS));
        for step in (0..STEPS).cycle() {
            passes.run_until(ticks.tick()).await;
            self.start_passes(SlotChange::Renew, slots.to_renew(Some(step)), &mut passes);
            if slots.ends() {
                return;
            }
        }
    }

    /// Starts to renew or free slots on each server on which no such pass is running. Returns the
    /// number of requests on the other servers.
    fn start_passes(
        &self,
        change: SlotChange,
        found: Vec<RequestSlots>,
        passes: &mut Passes,
    ) -> u32 {
        let mut servers = HashMap::<_, Vec<_>>::new();
        let mut skipped = 0;
        for slots in found {
            let cluster = self.cluster_link();
            let master = cluster.and_then(|link| link.master(hash_slot(slots.set.as_bytes())));
            let server = master.map(|node| node.address.clone());
            if passes.servers.contains(&server) {
                skipped += 1;
            } else {
                servers.entry(server).or_default().push(slots);
            }
        }
        for (server, found) in servers {
            passes.servers.insert(server.clone());
            let pass = self.clone().run_pass(change, found, server);
            passes.running.push(Box::pin(pass));
        }
        skipped
    }

    /// Renews or frees slots on a server. Returns the server.
    async fn run_pass(
        self,
        change: SlotChange,
        found: Vec<RequestSlots>,
        server: Option<String>,
    ) -> Option<String> {
        let changed = self.change_all(change, found).await;
        if change == SlotChange::Free {
            if changed.is_err() {
                sleep(RETRY).await;
            }
            // Others may have been freed on this server.
            self.settings.slots.wake_to_free.notify_one();
        }
        server
    }

    /// Frees all freed slots that the server may still count, after the calls that undo charges.
    #[cfg(feature = "testing")]
    pub(crate) async fn free_slots(&self) -> Result<(), RedisError> {
        // A decision that is being undone still holds its slots.
        while Arc::strong_count(&self.shared.undoing) > 1 {
            tokio::task::yield_now().await;
        }
        self.change_all(SlotChange::Free, self.settings.slots.to_free())
            .await
    }

    /// Renews all held slots.
    #[cfg(feature = "testing")]
    pub(crate) async fn renew_slots(&self) -> Result<(), RedisError> {
        self.change_all(SlotChange::Renew, self.settings.slots.to_renew(None))
            .await
    }

    /// Renews or frees slots, in calls of a bounded size. On a cluster, a script has one hash slot. An
    /// error of one call does not end the others.
    async fn change_all(
        &self,
        change: SlotChange,
        mut found: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        // Only renewals are scripts, whose keys must be in one hash slot of a cluster.
        let splits = self.settings.sharded && change == SlotChange::Renew;
        let hash_slot_of = |slots: &RequestSlots| {
            if splits {
                hash_slot(slots.set.as_bytes())
            } else {
                0
            }
        };
        found.sort_by_cached_key(|slots| (hash_slot_of(slots), slots.clone()));
        let shards = found.chunk_by(|one, other| hash_slot_of(one) == hash_slot_of(other));
        let calls: Vec<_> = shards
            .flat_map(|shard| calls(shard, change.max()))
            .collect();
        let calls = stream::iter(calls).map(|call| self.change_slots(change, call));
        let calls = calls.buffer_unordered(MAX_CALLS);
        calls
            .fold(Ok(()), |all, result| ready(all.and(result)))
            .await
    }

    async fn change_slots(
        &self,
        change: SlotChange,
        requests: Vec<RequestSlots>,
    ) -> Result<(), RedisError> {
        let slots = &self.settings.slots;
        let sent_at = slots.now();
        let changed = match change {
            SlotChange::Free => {
                let removed = self.remove(&requests).await;
                removed.map(|()| slots.removed(&requests))
            }
            SlotChange::Renew => {
                let counted = self.renew(&requests).await;
                counted.map(|counted| slots.renewed(&requests, &counted, sent_at))
            }
        };
        changed.inspect_err(RedisError::count)
    }

    /// Removes slots. This needs no script, which takes the server several times as long.
    async fn remove(&self, requests: &[RequestSlots]) -> Result<(), RedisError> {
        let store = self.settings.slots.store;
        let removals = by_set(requests).map(async |requests| {
            match self.send(&removal(store, requests)).await {
                // A value of another type has no slots. The next take replaces it.
                Err(error) if code(&error) == Some("WRONGTYPE") => Ok(()),
                reply => reply.map(drop),
            }
        });
        Ok(try_join_all(removals).await.map(drop)?)
    }

    /// Renews slots. Returns `1` for each request whose slots count.
    async fn renew(&self, requests: &[RequestSlots]) -> Result<Vec<u8>, RedisError> {
        let slots = &self.settings.slots;
        let head = EncodedPlan::default()
            .int::<7>(slots.ttl_micros())
            .int::<8>(slots.store);
        let mut keys = Vec::new();
        let mut args = vec![head.0];
        for slots in by_set(requests) {
            keys.push(&*slots[0].set);
            args.push(EncodedPlan::default().slot_list(slots).0);
        }
        let script = self.script(ScriptKind::Renew, []);
        self.run(script, &keys, args, |reply| match reply {
            Value::BulkString(counted) if counted.len() == requests.len() => Ok(counted),
            _ => Err(RedisError::invalid_reply("not one byte for each request")),
        })
        .await
    }
}

/// Returns the requests of each set, which are neighbours.
fn by_set(requests: &[RequestSlots]) -> impl Iterator<Item = &[RequestSlots]> {
    requests.chunk_by(|one, other| one.set == other.set)
}

/// Splits requests into calls of at most `max` slots.
fn calls(requests: &[RequestSlots], max: u32) -> Vec<Vec<RequestSlots>> {
    let mut calls = Vec::<Vec<_>>::new();
    let mut units = 0;
    for request in requests {
        units += request.units;
        match calls.last_mut() {
            Some(call) if units <= max => call.push(request.clone()),
            _ => {
                calls.push(vec![request.clone()]);
                units = request.units;
            }
        }
    }
    calls
}

/// Returns the command that removes slots of one set.
fn removal(store: u64, requests: &[RequestSlots]) -> Cmd {
    let mut command = redis::cmd("ZREM");
    command.arg(&*requests[0].set);
    for RequestSlots { first, units, .. } in requests {
        for number in *first..first + u64::from(*units) {
            command.arg(EncodedPlan::default().int::<8>(store).int::<8>(number).0);
        }
    }
    command
}

/// The end of the task. If its runtime shuts down, requests that wait on another one start it again.
struct TaskEnd {
    slots: Arc<Slots>,
    is_idle: bool,
}

impl Drop for TaskEnd {
    fn drop(&mut self) {
        if !self.is_idle {
            self.slots.state().task = None;
            self.slots.wake_all();
        }
    }
}
