//! Decisions on accounts in different hash slots.
//!
//! Each hash slot has its own call, and the calls run concurrently. If a call is denied or fails, the
//! charges of the other calls are undone.

use std::{
    mem,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
};

use futures_util::{future::join_all, poll};
use redis::aio::ConnectionLike;
use tokio::sync::oneshot;

use crate::{
    decision::Decision,
    store::redis::{
        RedisStore,
        connection::runtime,
        error::{RedisError, RedisErrorKind},
        protocol::{
            AccountRequest, Request, ScriptOp,
            reply::{AccountReply, Reply},
        },
    },
};

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    /// Charges all accounts of `request`, or none. Each of `subrequests` is sent in its own call.
    ///
    /// The calls continue if the caller is dropped, so that charges can be undone.
    pub(crate) async fn take_subrequests(
        self,
        request: Arc<Request>,
        subrequests: Vec<Request>,
    ) -> Result<Decision, RedisError> {
        let (tx, rx) = oneshot::channel();
        runtime()?.spawn(self.decide_subrequests(request, subrequests, tx));
        rx.await.unwrap_or_else(|_| {
            let text = "the task of the decision ended";
            Err(RedisError::new(RedisErrorKind::Other, text))
        })
    }

    async fn decide_subrequests(
        self,
        request: Arc<Request>,
        subrequests: Vec<Request>,
        tx: oneshot::Sender<Result<Decision, RedisError>>,
    ) {
        let mut split = Subrequests::new(&request, subrequests);
        let calls = split
            .all
            .iter()
            .map(|subrequest| self.take_queued(subrequest));
        split.replies = join_all(calls).await;
        let keeps = split.permit();
        let decision = split.combine(keeps);
        let undos = split.undone(keeps).filter_map(|(subrequest, reply)| {
            let (charged, taken) = charged_subset(subrequest, reply)?;
            Some(self.undo_subrequest(charged, taken, None))
        });
        let mut undos = pin!(join_all(undos));
        // Sends the undo calls before the caller can retry, but does not wait for them.
        let done = poll!(undos.as_mut()).is_ready();
        drop(tx.send(decision));
        if !done {
            undos.await;
        }
    }

    /// Returns the decision that [`take_subrequests`](Self::take_subrequests) would make.
    pub(crate) async fn peek_subrequests(
        self,
        request: Arc<Request>,
    ) -> Result<Decision, RedisError> {
        let mut split = Subrequests::new(&request, self.apart(&request));
        let calls = split
            .all
            .iter()
            .map(|subrequest| self.execute(subrequest, ScriptOp::Peek));
        split.replies = join_all(calls).await;
        split.combine(split.permit())
    }

    /// Undoes the charges of `taken` in the background. Without a runtime, the charges remain.
    pub(crate) fn undo_in_background(
        &self,
        request: &Request,
        taken: &Decision,
        units: Option<u32>,
    ) {
        let Ok(runtime) = runtime() else { return };
        for subrequest in self.apart(&request.charged(taken)) {
            let store = self.clone();
            let mut taken = taken.clone();
            // The answer to this call may be late.
            taken.slot = None;
            let undoing = self.shared.undoing.clone();
            let mut undo = Box::pin(async move {
                store.undo_subrequest(subrequest, taken, units).await;
                drop(undoing);
            });
            // Sent now, so that undos arrive in the order of their calls: of charges that queue
            // (`max_wait`), only the newest one can be undone. With a test clock, the task sends it
            // later, at the time of the clock then.
            let is_sent_later = self.settings.test_clock.is_some();
            let mut context = Context::from_waker(Waker::noop());
            if is_sent_later || undo.as_mut().poll(&mut context).is_pending() {
                drop(runtime.spawn(undo));
            }
        }
    }

    /// Splits the request of a peek or an undo, which need not charge all accounts or none. On a cluster,
    /// each account has its own call: while a hash slot moves, its accounts may be on two servers, and a
    /// call for several of them fails.
    fn apart(&self, request: &Request) -> Vec<Request> {
        if self.settings.sharded {
            request.by_account()
        } else {
            request.split(false)
        }
    }

    /// Undoes the charges of `subrequest`. `taken` is the decision of the server that made them.
    async fn undo_subrequest(&self, subrequest: Request, taken: Decision, units: Option<u32>) {
        // A charge that cannot be undone is refilled with time.
        drop(
            self.execute(&subrequest, ScriptOp::Undo(&taken, units))
                .await,
        );
    }
}

/// Returns the accounts that a call has charged, and its decision, or `None` without a charge.
fn charged_subset(subrequest: &Request, reply: &Reply) -> Option<(Request, Decision)> {
    let charged = subrequest
        .subset(|at| reply.accounts[at].charges > 0 && subrequest.accounts[at].has_rates());
    (!charged.accounts.is_empty()).then(|| (charged, reply.decision(subrequest)))
}

/// The requests into which a request is split, and their replies.
struct Subrequests<'r> {
    request: &'r Request,
    all: Vec<Arc<Request>>,
    replies: Vec<Result<Reply, RedisError>>,
}

impl<'r> Subrequests<'r> {
    fn new(request: &'r Request, subrequests: Vec<Request>) -> Self {
        let all = subrequests
            .into_iter()
            .map(|subrequest| Arc::new(subrequest.standalone()))
            .collect();
        Self {
            request,
            all,
            replies: Vec::new(),
        }
    }

    /// Returns `true` if all calls were allowed. Otherwise, none keeps its charges.
    fn permit(&self) -> bool {
        let mut calls = self.all.iter().zip(&self.replies);
        calls.all(|(subrequest, reply)| {
            reply
                .as_ref()
                .is_ok_and(|reply| reply.allowed > 0 && !reply.is_outside(subrequest))
        })
    }

    /// Returns those whose charges are undone.
    fn undone(&self, keeps: bool) -> impl Iterator<Item = (&Request, &Reply)> {
        let all = self.all.iter().zip(&self.replies).filter(move |_| !keeps);
        all.filter_map(|(subrequest, reply)| Some((&**subrequest, reply.as_ref().ok()?)))
    }

    fn combine(&mut self, keeps: bool) -> Result<Decision, RedisError> {
        // The slots of a denied request are freed at once.
        let replies = self.replies.iter_mut().flatten();
        let holds = replies.map(|reply| mem::take(&mut reply.holds));
        let holds = holds.filter(|_| keeps).flatten().collect();
        for reply in &self.replies {
            reply.as_ref().map_err(RedisError::clone)?;
        }
        let accounts = self.request.accounts.iter().filter_map(|account| {
            let own = self.reply_to(account)?;
            Some(if keeps {
                own.clone()
            } else {
                own.undone(account)
            })
        });
        let reply = Reply {
            allowed: keeps.into(),
            accounts: accounts.collect(),
            holds,
        };
        reply.into_decision(self.request)
    }

    fn reply_to(&self, account: &AccountRequest) -> Option<&AccountReply> {
        self.all
            .iter()
            .zip(&self.replies)
            .find_map(|(subrequest, reply)| {
                let at = subrequest
                    .accounts
                    .iter()
                    .position(|other| other.address == account.address)?;
                Some(&reply.as_ref().ok()?.accounts[at])
            })
    }
}
