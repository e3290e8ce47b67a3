//! Calls of the scripts that decide on requests and change accounts.

use std::{iter, sync::atomic::Ordering::Relaxed};

use redis::aio::ConnectionLike;
use smallvec::SmallVec;

use super::{
    RedisStore,
    error::RedisError,
    protocol::{
        Request, ScriptOp, letter,
        reply::Reply,
        script::{Script, ScriptKind},
    },
    slots::SlotCall,
};
use crate::log::warn;

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    pub(crate) async fn execute(
        &self,
        request: &Request,
        op: ScriptOp<'_>,
    ) -> Result<Reply, RedisError> {
        let kind = request.script(op);
        let call = self.settings.slots.begin(request, usize::from(op.takes()));
        let (keys, args) = request.encode(op, |account, quota| call.of(account, quota));
        let script = self.script(kind, request.quotas().map(letter));
        let requests = iter::once((request, 1));
        let replies = self
            .call_script(script, &keys, args, requests, [call].into())
            .await;
        let mut replies = replies.inspect_err(RedisError::count)?;
        if kind != ScriptKind::Peek {
            self.count_losses(&replies);
        }
        replies
            .pop()
            .ok_or_else(|| RedisError::invalid_reply("empty"))
    }

    /// Calls a script for requests, each with the number of its callers.
    pub(crate) async fn call_script<'r, K: redis::ToRedisArgs + AsRef<str>>(
        &self,
        script: &Script,
        keys: &[K],
        args: Vec<Vec<u8>>,
        requests: impl Iterator<Item = (&'r Request, usize)>,
        slots: SmallVec<[SlotCall; 1]>,
    ) -> Result<SmallVec<[Reply; 1]>, RedisError> {
        if slots.iter().any(SlotCall::takes_any) {
            self.start_renewing()?;
        }
        let replies = self.run(script, keys, args, |reply| Reply::read(&reply, requests));
        let mut replies = replies.await?;
        for (reply, call) in replies.iter_mut().zip(slots) {
            reply.holds = call.answered(&reply.accounts);
        }
        Ok(replies)
    }

    /// Counts the accounts whose value in Redis was invalid, and those that lost a state.
    pub(crate) fn count_losses(&self, replies: &[Reply]) {
        for account in replies.iter().flat_map(|reply| &reply.accounts) {
            if account.healed {
                self.shared.healed.fetch_add(1, Relaxed);
            }
            if account.dropped && self.shared.dropped_states.fetch_add(1, Relaxed) == 0 {
                warn!(
                    "a key has states of more than sixteen quotas that are not full, besides those of \
                     its plan, and the state that ends first was dropped; let the plans of a rule have \
                     equal periods and algorithms (logged once)"
                );
            }
        }
    }
}
