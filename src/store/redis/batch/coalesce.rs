//! Decisions that wait at the same time and share one call.
//!
//! While few calls are in flight, each decision is sent immediately in its own call. Under load,
//! decisions wait for a batch. A batch is sent when an earlier batch is answered, or when the batch
//! is full. No decision waits for a timer.
//!
//! On a cluster, only decisions whose accounts are in one slot can share a call.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use redis::aio::ConnectionLike;
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    Batch, BatchReply,
    queue::{Queue, QueuedRequest, STALL_TIMEOUT},
};
use crate::{
    observe::store_failed,
    store::redis::{
        RedisStore,
        connection::link::{TIMEOUT, runtime},
        error::{RedisError, RedisErrorKind},
        protocol::{
            reply::Reply,
            request::{Request, ScriptOp},
        },
    },
};

/// Charges `request` in its own call or in a batch.
pub(crate) async fn take<C>(
    store: &RedisStore<C>,
    request: &Arc<Request>,
) -> Result<Reply, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let queue = store.queue(request);
    if let Some(id) = queue.start_direct(request) {
        let _call = QueuedCall { store: store.clone(), queue: queue.clone(), id };
        // Boxed, so that the futures of waiting callers stay small.
        return Box::pin(store.execute(request, ScriptOp::Take)).await;
    }
    match take_in_batch(store, queue, request.clone()).await {
        Ok(reply) => Ok(reply),
        // The server has rejected the whole batch and charged nothing. If it has no memory, denials
        // still need none. While a slot moves, an account may be on either server.
        Err(error) if matches!(error.kind(), RedisErrorKind::Memory | RedisErrorKind::Cluster) => {
            Box::pin(store.execute(request, ScriptOp::Take)).await
        }
        Err(error) => {
            store_failed(error.kind().as_str());
            Err(error)
        }
    }
}

async fn take_in_batch<C>(
    store: &RedisStore<C>,
    queue: &Arc<Queue>,
    request: Arc<Request>,
) -> Result<Reply, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let (tx, mut rx) = oneshot::channel();
    let (runtime, start) = (runtime()?, Instant::now());
    queue.push(QueuedRequest { request, tx, runtime });
    spawn_batches(store, queue, start);
    let mut until = start + STALL_TIMEOUT;
    while until <= start + TIMEOUT {
        match timeout_at(until, &mut rx).await {
            Ok(Ok(reply)) => return reply,
            Ok(Err(_)) => {
                return Err(RedisError::new(RedisErrorKind::Other, "the task of the batch ended"));
            }
            // The task of the next batch may have ended, or its runtime may be blocked.
            Err(_) => spawn_batches(store, queue, until),
        }
        until += STALL_TIMEOUT;
    }
    Err(RedisError::new(RedisErrorKind::Timeout, "no reply in time"))
}

/// A call in its queue. On drop, it leaves the queue, and the batches that waited for it start.
struct QueuedCall<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    store: RedisStore<C>,
    queue: Arc<Queue>,
    id: u64,
}

impl<C> Drop for QueuedCall<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.queue.end(self.id);
        spawn_batches(&self.store, &self.queue, Instant::now());
    }
}

/// Spawns all batches that are due, each on the runtime of its first caller.
fn spawn_batches<C>(store: &RedisStore<C>, queue: &Arc<Queue>, now: Instant)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    while let Some((first, id)) = queue.next_batch(now) {
        let runtime = first.runtime.clone();
        let call = QueuedCall { store: store.clone(), queue: queue.clone(), id };
        // A runtime that shuts down drops the task, which spawns the next batch.
        drop(runtime.spawn(run_batch(call, first)));
        queue.batch_spawned();
    }
}

async fn run_batch<C>(call: QueuedCall<C>, first: QueuedRequest)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let QueuedCall { store, queue, id } = &call;
    // Lets requests that arrive at the same moment join the batch.
    yield_now().await;
    let batch = queue.collect(*id, first);
    if batch.is_empty() {
        return;
    }
    // No caller waits longer than this timeout.
    let Ok(reply) = timeout(TIMEOUT, store.call_batch(&batch)).await else { return };
    queue.replying(*id);
    spawn_batches(store, queue, Instant::now());
    batch.reply(reply);
    // Keeps the callers together, so that their next requests join one batch.
    yield_now().await;
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn call_batch(&self, batch: &Batch) -> Result<BatchReply, RedisError> {
        let (kind, letters) = batch.kind().script();
        let script = self.script(kind, letters.iter().copied());
        let slots = batch.slots(&self.settings.slots);
        self.start_renewing()?;
        let (keys, args) = batch.encode(&slots, !self.shared.lacks_msetex.load(Relaxed));
        let value = self.run(script, &keys, args).await?;
        let mut reply = self.checked(batch.read(&value))?;
        reply.hold(slots);
        self.note_healed(reply.healed());
        if reply.lacks_msetex {
            self.shared.lacks_msetex.store(true, Relaxed);
        }
        Ok(reply)
    }
}
