//! Accounts on different servers: each is asked by its own call, all at once, and what was charged
//! is given back where another refuses.

use redis::aio::ConnectionLike;
use tokio::{sync::oneshot, task::JoinSet};

use super::{
    RedisStore,
    error::{RedisError, RedisErrorKind},
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
    tokio::spawn(async move {
        let parts: Vec<_> = question.split().map(Question::alone).collect();
        let replies = ask_all(&store, &parts).await;
        let decision = decide(&question, &parts, &replies);
        let charged = decision.as_ref().is_ok_and(Decision::is_allowed);
        // nobody may be waiting any more
        drop(tell.send(decision));
        if !charged {
            give_back(&store, parts, replies).await;
        }
    });
    told.await.unwrap_or_else(|_| Err(RedisError::new(RedisErrorKind::Other, "the flight ended")))
}

async fn ask_all<C>(store: &RedisStore<C>, parts: &[Question]) -> Vec<Result<Reply, RedisError>>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let mut calls = JoinSet::new();
    for (at, part) in parts.iter().enumerate() {
        let (store, part) = (store.clone(), part.clone());
        calls.spawn(async move { (at, store.call(&part, Purpose::Take).await) });
    }
    let failed = || Err(RedisError::new(RedisErrorKind::Other, "a call of the flight ended"));
    let mut replies: Vec<_> = parts.iter().map(|_| failed()).collect();
    while let Some(joined) = calls.join_next().await {
        if let Ok((at, reply)) = joined {
            replies[at] = reply;
        }
    }
    replies
}

fn decide(
    question: &Question,
    parts: &[Question],
    replies: &[Result<Reply, RedisError>],
) -> Result<Decision, RedisError> {
    let replies: Vec<&Reply> =
        replies.iter().map(Result::as_ref).collect::<Result<_, _>>().map_err(RedisError::clone)?;
    let allowed = replies.iter().all(|reply| reply.allowed);
    let seen: Vec<(u64, Seen)> = replies
        .iter()
        .zip(parts)
        .map(|(reply, part)| {
            let seen = reply.accounts[0].clone();
            let undone = !allowed && seen.charged;
            (
                reply.now,
                if undone { seen.without(&part.accounts[0].places, reply.now) } else { seen },
            )
        })
        .collect();
    let seen: Vec<_> = seen.iter().map(|(now, seen)| (*now, seen)).collect();
    Ok(Reply::decision(question, &seen, allowed))
}

/// Gives back what was charged, each by the receipt of its own server.
async fn give_back<C>(
    store: &RedisStore<C>,
    parts: Vec<Question>,
    replies: Vec<Result<Reply, RedisError>>,
) where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let mut calls = JoinSet::new();
    for (part, reply) in parts.into_iter().zip(replies) {
        let Ok(reply) = reply else { continue };
        if !reply.accounts[0].charged {
            continue;
        }
        let store = store.clone();
        calls.spawn(async move {
            let taken = Reply::decision(&part, &[(reply.now, &reply.accounts[0])], true);
            store.call(&part, Purpose::GiveBack(&taken)).await
        });
    }
    while calls.join_next().await.is_some() {}
}
