//! Decisions on accounts in different cluster slots.
//!
//! Each slot has its own call, and the calls run concurrently. If a call is denied or fails, the
//! charges of the other calls are undone.

use std::{mem, pin::pin, sync::Arc};

use futures_util::{future::join_all, poll};
use redis::aio::ConnectionLike;
use smallvec::SmallVec;
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
            let mut parts = Parts::new(&request, parts);
            let calls = (0..parts.parts.len()).map(|at| self.call_part(&parts, at));
            parts.replies = join_all(calls).await;
            while let Some(next) = parts.next() {
                parts.taken[next] = true;
                parts.reserve(next);
                parts.replies[next] = self.call_part(&parts, next).await;
            }
            let keeps = parts.keeps();
            let decision = parts.combine(&keeps);
            let undos = parts.undone(&keeps).filter_map(|(part, reply)| {
                let (charged, taken) = charged_part(part, reply)?;
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
        let mut parts = Parts::new(&request, request.split(self.settings.sharded));
        let calls = parts.parts.iter().map(|part| self.execute(part, ScriptOp::Peek));
        parts.replies = join_all(calls).await;
        for at in 0..parts.parts.len() {
            if parts.reserve(at) {
                parts.replies[at] = self.execute(&parts.parts[at], ScriptOp::Peek).await;
            }
        }
        parts.taken.fill(true);
        parts.combine(&parts.keeps())
    }

    /// Charges a part, or looks at a part that is not taken.
    async fn call_part(&self, parts: &Parts<'_>, at: usize) -> Result<Reply, RedisError> {
        match parts.taken[at] {
            true => self.take_queued(&parts.parts[at]).await,
            false => Box::pin(self.execute(&parts.parts[at], ScriptOp::Peek)).await,
        }
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

/// The parts of a request, and their replies.
///
/// Alternatives in different slots are parts of their own. The first of them is taken. The others are
/// only looked at, and taken one after another if those before them deny. A pool in another slot than
/// its share is only looked at, too, until the share is known to fit or not.
struct Parts<'r> {
    request: &'r Request,
    parts: Vec<Arc<Request>>,
    replies: Vec<Result<Reply, RedisError>>,
    taken: SmallVec<[bool; 4]>,
}

impl<'r> Parts<'r> {
    fn new(request: &'r Request, parts: Vec<Request>) -> Self {
        let parts: Vec<_> = parts.into_iter().map(|part| Arc::new(part.standalone())).collect();
        let (replies, taken) = (Vec::new(), SmallVec::new());
        let mut all = Self { request, parts, replies, taken };
        let is_first = |at| all.alternatives(at).next() == Some(at) && all.shares(at).is_empty();
        all.taken = (0..all.parts.len()).map(is_first).collect();
        all
    }

    /// Returns the parts of which one must fit: a part itself, or the alternatives of its group.
    fn alternatives(&self, at: usize) -> impl Iterator<Item = usize> {
        let group = match &*self.parts[at].accounts {
            [account] if account.is_alternative() => account.group,
            _ => 0,
        };
        let own = Some(at).filter(|_| group == 0);
        own.into_iter().chain(self.request.group(group).filter_map(|it| self.position(it)))
    }

    /// Returns the part of an account.
    fn position(&self, account: &AccountRequest) -> Option<usize> {
        let is_it = |it: &AccountRequest| it.address == account.address;
        self.parts.iter().position(|part| part.accounts.iter().any(is_it))
    }

    /// Returns the part of each share whose pool is in this part, if that is another one, with its
    /// reserve and the address of the pool.
    fn shares(&self, at: usize) -> SmallVec<[(usize, u32, &'r str); 1]> {
        let of = self.request.shares().filter_map(|(share, pool)| {
            let (from, to) = (self.position(share)?, self.position(pool)?);
            (to == at && from != at).then_some((from, share.reserve, &*pool.address))
        });
        of.collect()
    }

    /// Adds the reserve of each share that does not fit to its pool in this part. Returns `true` if
    /// there is one.
    fn reserve(&mut self, at: usize) -> bool {
        let fits = |from: usize| {
            self.replies[from].as_ref().is_ok_and(|reply| reply.accounts[0].charges > 0)
        };
        let (mut part, mut is_changed) = (self.parts[at].clone(), false);
        for (_, reserve, pool) in self.shares(at).into_iter().filter(|(from, ..)| !fits(*from)) {
            let mut accounts = Arc::make_mut(&mut part).accounts.iter_mut();
            let quotas = accounts.find(|it| it.address == pool).map(|it| &mut it.quotas);
            for (_, demand) in quotas.into_iter().flatten().flatten() {
                (*demand, is_changed) = (demand.leaving(reserve), true);
            }
        }
        self.parts[at] = part;
        is_changed
    }

    /// Returns the first alternative to a part that fits.
    fn chosen(&self, at: usize) -> Option<usize> {
        let fits = |at: &usize| self.replies[*at].as_ref().is_ok_and(|reply| reply.allowed > 0);
        self.alternatives(at).find(fits)
    }

    /// Returns the chosen alternative to each part, or `None` if a call failed, a key is blocked or the
    /// request does not fit. Alternatives that are not needed count too, because a block of any denies.
    fn all_chosen(&self) -> Option<SmallVec<[usize; 4]>> {
        let mut calls = self.parts.iter().zip(&self.replies);
        let permits = calls.all(|(part, reply)| {
            let permits = |it: &Reply| it.blocked(part, 0).is_none() && !it.is_outside(part);
            reply.as_ref().is_ok_and(permits)
        });
        let all = (0..self.parts.len()).map(|at| self.chosen(at));
        if permits { all.collect() } else { None }
    }

    /// Returns the next part to take.
    fn next(&self) -> Option<usize> {
        self.all_chosen()?.into_iter().find(|at| !self.taken[*at])
    }

    /// Returns `true` for each part that keeps its charges.
    fn keeps(&self) -> SmallVec<[bool; 4]> {
        let chosen = self.all_chosen().unwrap_or_default();
        (0..self.parts.len()).map(|at| chosen.contains(&at)).collect()
    }

    /// Returns the parts whose charges are undone.
    fn undone(&self, keeps: &[bool]) -> impl Iterator<Item = (&Request, &Reply)> {
        let all = self.parts.iter().zip(&self.replies).zip(self.taken.iter().zip(keeps));
        let undone = all.filter(|(_, (taken, keeps))| **taken && !**keeps);
        undone.filter_map(|((part, reply), _)| Some((&**part, reply.as_ref().ok()?)))
    }

    fn combine(&mut self, keeps: &[bool]) -> Result<Decision, RedisError> {
        let replies = self.replies.iter_mut().zip(keeps);
        // The slots of the other parts are freed at once.
        let holds = replies.filter_map(|(reply, keeps)| {
            let holds = mem::take(&mut reply.as_mut().ok()?.holds);
            keeps.then_some(holds)
        });
        let holds = holds.flatten().collect();
        let replies: Result<Vec<_>, _> = self.replies.iter().map(Result::as_ref).collect();
        let replies = replies.map_err(RedisError::clone)?;
        let of = |account: &AccountRequest| {
            let mut all = self.parts.iter().zip(&replies).zip(keeps);
            all.find_map(|((part, reply), keeps)| {
                let at = part.accounts.iter().position(|it| it.address == account.address)?;
                let own = &reply.accounts[at];
                Some(if *keeps { own.clone() } else { own.undone(account) })
            })
        };
        let accounts = self.request.accounts.iter().filter_map(of).collect();
        let allowed = keeps.contains(&true).into();
        Reply { allowed, accounts, holds }.into_decision(self.request)
    }
}
