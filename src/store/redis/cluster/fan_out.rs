//! Decisions on accounts in different cluster slots.
//!
//! Each slot has its own call, and the calls run concurrently. If a call is denied or fails, the
//! charges of the other calls are undone.

use std::{mem, pin::pin, sync::Arc};

use futures_util::{future::join_all, poll};
use redis::aio::ConnectionLike;
use tokio::sync::oneshot;

use crate::{
    decision::Decision,
    store::redis::{
        RedisStore,
        connection::runtime,
        error::{RedisError, RedisErrorKind},
        protocol::{AccountRequest, Request, ScriptOp, reply::Reply},
    },
};

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Charges all accounts of `request`, or none. Each of `parts` is a piece of the request, and is
    /// sent in its own call.
    ///
    /// The calls continue if the caller is dropped, so that charges can be undone.
    pub(crate) async fn take_parts(
        self,
        request: Arc<Request>,
        parts: Vec<Request>,
    ) -> Result<Decision, RedisError> {
        let (tx, rx) = oneshot::channel();
        runtime()?.spawn(async move {
            let parts: Vec<_> = parts.into_iter().map(|part| Arc::new(part.standalone())).collect();
            let mut replies = join_all(parts.iter().map(|part| self.take_queued(part))).await;
            let decision = combine(&request, &parts, &mut replies);
            let allowed = decision.as_ref().is_ok_and(Decision::is_allowed);
            let answered = parts.iter().zip(replies.iter().map(|reply| reply.as_ref().ok()));
            let undos = answered.filter_map(|(part, reply)| {
                let (charged, taken) = charged_part(part, reply.filter(|_| !allowed)?)?;
                Some(self.undo_part(charged, taken, None))
            });
            let mut undos = pin!(join_all(undos));
            // Sends the undo calls before the caller can retry, but does not wait for them.
            let done = poll!(undos.as_mut()).is_ready();
            drop(tx.send(decision));
            if !done {
                undos.await;
            }
        });
        rx.await.unwrap_or_else(|_| {
            Err(RedisError::new(RedisErrorKind::Other, "the task of the decision ended"))
        })
    }

    /// Returns the decision that [`take_parts`](Self::take_parts) would make.
    pub(crate) async fn peek_parts(self, request: Arc<Request>) -> Result<Decision, RedisError> {
        let parts = request.split(self.settings.sharded).into_iter();
        let parts: Vec<_> = parts.map(|part| Arc::new(part.standalone())).collect();
        let calls = parts.iter().map(|part| self.execute(part, ScriptOp::Peek));
        combine(&request, &parts, &mut join_all(calls).await)
    }

    /// Undoes the charges of `taken` in the background. Without a runtime, the charges remain.
    pub(crate) fn undo_parts(&self, request: &Request, taken: &Decision, units: Option<u32>) {
        let Ok(runtime) = runtime() else { return };
        for part in request.charged(taken).split(self.settings.sharded) {
            let (store, taken, undoing) =
                (self.clone(), taken.clone(), self.shared.undoing.clone());
            drop(runtime.spawn(async move {
                store.undo_part(part, taken, units).await;
                drop(undoing);
            }));
        }
    }

    /// Undoes the charges of `part`. `taken` is the decision of the server that made them.
    async fn undo_part(&self, part: Request, taken: Decision, units: Option<u32>) {
        // A charge that cannot be undone is refilled with time.
        drop(self.execute(&part, ScriptOp::Undo(&taken, units)).await);
    }
}

/// Returns the accounts that a call has charged, and its decision, or `None` without a charge.
fn charged_part(part: &Request, reply: &Reply) -> Option<(Request, Decision)> {
    let is_charged = |at: usize| reply.accounts[at].charges > 0 && part.accounts[at].has_rates();
    let charged = part.part(is_charged);
    (!charged.accounts.is_empty()).then(|| (charged, reply.decision(part)))
}

fn combine(
    request: &Request,
    parts: &[Arc<Request>],
    replies: &mut [Result<Reply, RedisError>],
) -> Result<Decision, RedisError> {
    let holds = replies.iter_mut().flatten().flat_map(|reply| mem::take(&mut reply.holds));
    let mut holds: Vec<_> = holds.collect();
    let replies: Result<Vec<_>, _> = replies.iter().map(Result::as_ref).collect();
    let replies = replies.map_err(RedisError::clone)?;
    let allowed = replies.iter().all(|reply| reply.allowed > 0);
    let of = |account: &AccountRequest| {
        let own = parts.iter().zip(&replies).find_map(|(part, reply)| {
            let at = part.accounts.iter().position(|it| it.address == account.address)?;
            Some(&reply.accounts[at])
        })?;
        Some(if allowed { own.clone() } else { own.undone(account) })
    };
    let accounts = request.accounts.iter().filter_map(of).collect();
    if !allowed {
        holds.clear();
    }
    Reply { allowed: allowed.into(), accounts, holds }.into_decision(request)
}
