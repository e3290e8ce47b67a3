//! Decisions that wait at the same moment travel in one call.
//!
//! A decision goes at once, by its own call, while few are under way: nothing is gained by waiting
//! then. Under load it waits for a batch, which leaves when the one before it is answered, or when
//! it is full. There is no timer that anybody waits for.

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    RedisStore,
    batch::{Answers, Batch},
    error::{RedisError, RedisErrorKind},
    link::{PATIENCE, runtime},
    question::{Purpose, Question},
    queue::{STUCK, Ticket, Waiting},
    script::Frame,
};
use crate::{decision::Decision, observe::store_failed};

/// A question of more accounts goes by itself: a batch is to be short for others on the server.
pub(super) const ACCOUNTS: usize = 4;

/// Takes what `question` asks, by its own call or together with others.
pub(super) async fn take<C>(
    store: RedisStore<C>,
    question: Box<Question>,
) -> Result<Decision, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    if let Some(_alone) = store.settings.queue.enter() {
        // in a box of its own, or those who wait would have room for it as well
        let reply = Box::pin(store.call(&question, Purpose::Take)).await?;
        return Ok(reply.told(&question));
    }
    let answer = wait(&store, question).await;
    answer.inspect_err(|error| store_failed(error.kind().as_str()))
}

async fn wait<C>(store: &RedisStore<C>, question: Box<Question>) -> Result<Decision, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let (tell, mut told) = oneshot::channel();
    let (runtime, start) = (runtime()?, Instant::now());
    store.settings.queue.wait(Waiting { question, tell, runtime });
    call_batches(store, start);
    let mut until = start + STUCK;
    while until <= start + PATIENCE {
        match timeout_at(until, &mut told).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(_)) => return Err(RedisError::new(RedisErrorKind::Other, "the batch ended")),
            // whoever was to call the next batch may have ended, or stand still
            Err(_) => call_batches(store, until),
        }
        until += STUCK;
    }
    Err(RedisError::new(RedisErrorKind::Timeout, "no answer in time"))
}

/// Sends batches on their way, each on the runtime of the first who waits for it: that one is still
/// driven.
fn call_batches<C>(store: &RedisStore<C>, now: Instant)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    while let Some((first, ticket)) = store.settings.queue.call(now) {
        let runtime = first.runtime.clone();
        let ride = Ride { store: store.clone(), ticket: Some(ticket) };
        // a runtime that ends drops it at once, and the next batch is called here
        drop(runtime.spawn(ride.go(first)));
        store.settings.queue.called();
    }
}

/// A batch under way. However it ends, the next is called.
struct Ride<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    store: RedisStore<C>,
    ticket: Option<Ticket>,
}

impl<C> Ride<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn go(self, first: Waiting) {
        // who asks at the same moment comes along
        yield_now().await;
        let Self { store, ticket: Some(ticket) } = &self else { return };
        let mut batch = Batch::default();
        ticket.board(first, &mut batch);
        if batch.is_empty() {
            return;
        }
        // nobody waits for longer
        let Ok(answers) = timeout(PATIENCE, store.answers(&batch)).await else { return };
        ticket.tell();
        call_batches(store, Instant::now());
        match answers {
            Ok(answers) => batch.tell(&answers),
            // then nothing was charged; who would be refused without a charge still is
            Err(error) if error.kind() == RedisErrorKind::Memory => {
                let again = batch.callers().map(async |caller| {
                    let decision = store.alone(&caller.question).await;
                    drop(caller.tell.send(decision));
                });
                join_all(again).await;
            }
            Err(error) => {
                for caller in batch.callers() {
                    drop(caller.tell.send(Err(error.clone())));
                }
            }
        }
        // those who ask again wait for each other, as they did
        yield_now().await;
    }
}

impl<C> Drop for Ride<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        self.ticket = None;
        call_batches(&self.store, Instant::now());
    }
}

impl<C> RedisStore<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn answers(&self, batch: &Batch) -> Result<Answers, RedisError> {
        let script = self.script(Frame::Batch, [b'g']);
        let (keys, args) = batch.encode();
        let value = self.run(script, &keys, args).await?;
        let answers = self.trusted(batch.read(&value))?;
        self.note_healed(answers.healed());
        Ok(answers)
    }

    async fn alone(&self, question: &Question) -> Result<Decision, RedisError> {
        Ok(self.answer(question, Purpose::Take).await?.told(question))
    }
}
