//! Accounts on different servers: each is asked by its own call, all at once, and what was charged
//! is given back where another refuses.

use std::pin::pin;
#[cfg(feature = "testing")]
use std::sync::atomic::Ordering::{Relaxed, Release};

use futures_util::{future::join_all, poll};
use redis::aio::ConnectionLike;
use tokio::sync::oneshot;

use super::{
    RedisStore,
    error::{RedisError, RedisErrorKind},
    link::runtime,
    question::{Purpose, Question},
    reply::{Reply, Seen},
};
use crate::decision::Decision;

/// Takes every account of `question`, or none.
///
/// The flight goes on when nobody waits for it any more, so that a denial is undone in any case.
pub(super) async fn take<C>(
    store: RedisStore<C>,
    question: Question,
) -> Result<Decision, RedisError>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let (tell, told) = oneshot::channel();
    runtime()?.spawn(async move {
        let parts: Vec<_> = question.split().map(Question::alone).collect();
        let calls = parts.iter().map(|part| store.call(part, Purpose::Take));
        let replies = join_all(calls).await;
        let decision = decide(&question, &parts, &replies);
        let allowed = decision.as_ref().is_ok_and(Decision::is_allowed);
        let returns = parts.iter().zip(&replies).filter_map(|(part, reply)| {
            let reply =
                reply.as_ref().ok().filter(|reply| !allowed && reply.accounts[0].charged)?;
            let taken = Reply::decision(part, &[(reply.now, &reply.accounts[0])], true);
            Some(undo_part(&store, part, taken))
        });
        let mut returns = pin!(join_all(returns));
        // on its way before the caller asks again, and no round trip before it is told
        let done = poll!(returns.as_mut()).is_ready();
        drop(tell.send(decision));
        if !done {
            returns.await;
        }
    });
    told.await.unwrap_or_else(|_| Err(RedisError::new(RedisErrorKind::Other, "the flight ended")))
}

/// Undoes what `taken` charged to the accounts of `question`. It goes on by itself where there is a
/// tokio runtime; elsewhere the charge stays.
pub(super) fn undo<C>(
    store: &RedisStore<C>,
    question: Question,
    taken: &Decision,
    units: Option<u32>,
) where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let Ok(runtime) = runtime() else { return };
    for part in question.charged(taken, store.settings.sharded) {
        let (store, taken) = (store.clone(), taken.clone());
        #[cfg(feature = "testing")]
        store.shared.undoing.fetch_add(1, Relaxed);
        drop(runtime.spawn(async move {
            // what cannot be undone flows back by itself
            drop(store.call(&part, Purpose::Undo(&taken, units)).await);
            #[cfg(feature = "testing")]
            store.shared.undoing.fetch_sub(1, Release);
        }));
    }
}

/// Undoes what one server charged, by its own receipt.
async fn undo_part<C>(store: &RedisStore<C>, part: &Question, taken: Decision)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    // what cannot be undone flows back by itself
    drop(store.call(part, Purpose::Undo(&taken, None)).await);
}

fn decide(
    question: &Question,
    parts: &[Question],
    replies: &[Result<Reply, RedisError>],
) -> Result<Decision, RedisError> {
    let replies: Result<Vec<_>, _> = replies.iter().map(Result::as_ref).collect();
    let replies = replies.map_err(RedisError::clone)?;
    let allowed = replies.iter().all(|reply| reply.allowed);
    let seen = |(reply, part): (&&Reply, &Question)| {
        let seen = reply.accounts[0].clone();
        let undone = !allowed && seen.charged;
        (reply.now, if undone { seen.without(&part.accounts[0].places, reply.now) } else { seen })
    };
    let seen: Vec<(u64, Seen)> = replies.iter().zip(parts).map(seen).collect();
    let seen: Vec<_> = seen.iter().map(|(now, seen)| (*now, seen)).collect();
    Ok(Reply::decision(question, &seen, allowed))
}
