//! Decisions that wait at the same time and share one call.
//!
//! While few calls are in flight, each decision is sent immediately in its own call. Under load,
//! decisions wait for a batch. A batch is sent when an earlier batch is answered, or when the batch
//! is full. No decision waits for a timer.

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    RedisStore,
    batch::{Batch, BatchReply},
    error::{RedisError, RedisErrorKind},
    link::{TIMEOUT, runtime},
    queue::{BatchGuard, QueuedRequest, STALL_TIMEOUT},
    request::{Request, ScriptOp},
    script::ScriptKind,
};
use crate::{decision::Decision, observe::store_failed};

/// The maximum number of accounts in a batched request.
pub(super) const MAX_ACCOUNTS: usize = 4;

/// Charges `request` in its own call or in a batch.
pub(super) async fn take<C>(
    store: RedisStore<C>,
    request: Box<Request>,
) -> Result<Decision, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    if let Some(_permit) = store.settings.queue.try_direct() {
        // Boxed, so that the futures of waiting callers stay small.
        let reply = Box::pin(store.execute(&request, ScriptOp::Take)).await?;
        return Ok(reply.decision(&request));
    }
    let decision = take_in_batch(&store, request).await;
    decision.inspect_err(|error| store_failed(error.kind().as_str()))
}

async fn take_in_batch<C>(
    store: &RedisStore<C>,
    request: Box<Request>,
) -> Result<Decision, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let (tx, mut rx) = oneshot::channel();
    let (runtime, start) = (runtime()?, Instant::now());
    store.settings.queue.push(QueuedRequest { request, tx, runtime });
    spawn_batches(store, start);
    let mut until = start + STALL_TIMEOUT;
    while until <= start + TIMEOUT {
        match timeout_at(until, &mut rx).await {
            Ok(Ok(decision)) => return decision,
            Ok(Err(_)) => {
                return Err(RedisError::new(RedisErrorKind::Other, "the task of the batch ended"));
            }
            // The task of the next batch may have ended, or its runtime may be blocked.
            Err(_) => spawn_batches(store, until),
        }
        until += STALL_TIMEOUT;
    }
    Err(RedisError::new(RedisErrorKind::Timeout, "no reply in time"))
}

/// Spawns all batches that are due, each on the runtime of its first caller.
fn spawn_batches<C>(store: &RedisStore<C>, now: Instant)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    while let Some((first, guard)) = store.settings.queue.next_batch(now) {
        let runtime = first.runtime.clone();
        let task = BatchTask { store: store.clone(), guard: Some(guard) };
        // A runtime that shuts down drops the task, which spawns the next batch.
        drop(runtime.spawn(task.run(first)));
        store.settings.queue.batch_spawned();
    }
}

/// The task of a batch. Spawns the next batch on drop.
struct BatchTask<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    store: RedisStore<C>,
    guard: Option<BatchGuard>,
}

impl<C> BatchTask<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn run(self, first: QueuedRequest) {
        // Lets requests that arrive at the same moment join the batch.
        yield_now().await;
        let Self { store, guard: Some(guard) } = &self else { return };
        let mut batch = Batch::default();
        guard.collect(first, &mut batch);
        if batch.is_empty() {
            return;
        }
        // No caller waits longer than this timeout.
        let Ok(reply) = timeout(TIMEOUT, store.call_batch(&batch)).await else { return };
        guard.replying();
        spawn_batches(store, Instant::now());
        match reply {
            Ok(reply) => batch.reply(&reply),
            // Nothing was charged. Single calls can still return denials, which need no memory.
            Err(error) if error.kind() == RedisErrorKind::Memory => {
                let retried = batch.callers().map(async |caller| {
                    let decision = store.take_alone(&caller.request).await;
                    drop(caller.tx.send(decision));
                });
                join_all(retried).await;
            }
            Err(error) => {
                for caller in batch.callers() {
                    drop(caller.tx.send(Err(error.clone())));
                }
            }
        }
        // Keeps the callers together, so that their next requests join one batch.
        yield_now().await;
    }
}

impl<C> Drop for BatchTask<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.guard = None;
        spawn_batches(&self.store, Instant::now());
    }
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn call_batch(&self, batch: &Batch) -> Result<BatchReply, RedisError> {
        let script = self.script(ScriptKind::Batch, [b'g']);
        let (keys, args) = batch.encode();
        let value = self.run(script, &keys, args).await?;
        let reply = self.checked(batch.read(&value))?;
        self.note_healed(reply.healed());
        Ok(reply)
    }

    /// Decides requests in one batch, even without load.
    pub(super) async fn take_together(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<(), RedisError> {
        let (mut batch, runtime) = (Batch::default(), runtime()?);
        for request in requests {
            let (tx, _) = oneshot::channel();
            let request = Box::new(request);
            batch.add(QueuedRequest { request, tx, runtime: runtime.clone() });
        }
        self.call_batch(&batch).await.map(drop)
    }

    async fn take_alone(&self, request: &Request) -> Result<Decision, RedisError> {
        Ok(self.execute_unrecorded(request, ScriptOp::Take).await?.decision(request))
    }
}
