//! Replies of a script, with the accounts after the call.

use std::{mem, time::Duration};

use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::{
    AccountRequest, QuotaRequest, Request,
    algorithms::{letter, parse_state},
    reader::Reader,
};
use crate::{
    algorithm::{self, AccountState, Evaluation},
    decision::{Decision, Hold, Outcome, Source},
    store::redis::error::{RedisError, RedisErrorKind},
};

/// The reply to equal requests. The first `allowed` of them were allowed, and the others were denied.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) allowed: usize,
    /// The accounts after all of the requests.
    pub(crate) accounts: SmallVec<[AccountReply; 1]>,
    /// The slots of each allowed request.
    pub(crate) holds: Vec<Vec<Hold>>,
}

/// An account after the call.
#[derive(Clone, Debug)]
pub(crate) struct AccountReply {
    /// The server's clock, in nanoseconds of Unix time.
    pub(crate) now: u64,
    /// The number of equal requests that charged the account.
    pub(crate) charges: usize,
    /// `true` if the key held an invalid value, which was discarded.
    pub(crate) healed: bool,
    /// `true` if a state of another plan was dropped, because there were too many.
    pub(crate) dropped: bool,
    /// `true` if the next free slot is left to this process.
    pub(crate) is_marked: bool,
    stored: StoredAccount,
}

/// An account that the server keeps.
#[derive(Clone, Debug)]
struct StoredAccount {
    /// The instant at which the block ends.
    block: Option<u64>,
    /// The state under each quota, if any.
    states: SmallVec<[Option<AccountState>; 1]>,
}

impl Reply {
    /// Parses the replies of a script to requests, each with the number of its callers.
    pub(crate) fn read<'r>(
        value: &Value,
        requests: impl Iterator<Item = (&'r Request, usize)>,
    ) -> Result<SmallVec<[Self; 1]>, RedisError> {
        let Value::BulkString(bytes) = value else {
            return Err(RedisError::invalid_reply("not a bulk string"));
        };
        let mut bytes = Reader(bytes);
        let now = bytes.instant()?;
        let replies =
            requests.map(|(request, count)| Self::read_one(&mut bytes, request, count, now));
        let replies = replies.collect::<Result<_, _>>()?;
        if bytes.0.is_empty() {
            Ok(replies)
        } else {
            Err(RedisError::invalid_reply("too long"))
        }
    }

    /// Parses the reply to `count` equal requests.
    fn read_one(
        bytes: &mut Reader<'_>,
        request: &Request,
        count: usize,
        now: u64,
    ) -> Result<Self, RedisError> {
        let allowed = bytes.count()?;
        if allowed > count {
            return Err(RedisError::invalid_reply("more allowed than requests"));
        }
        let accounts = request.accounts.iter();
        let accounts = accounts.map(|account| AccountReply::read(bytes, account, now, allowed));
        let accounts = accounts.collect::<Result<_, _>>()?;
        Ok(Self {
            allowed,
            accounts,
            holds: Vec::new(),
        })
    }

    /// Returns the reply to one of the requests, as if each had been sent on its own. Takes its slots.
    pub(crate) fn of(&mut self, position: usize, request: &Request) -> Self {
        let accounts = self.accounts.iter().zip(&request.accounts);
        let accounts = accounts
            .map(|(reply, account)| reply.after(position, account))
            .collect();
        let holds = self
            .holds
            .get_mut(position)
            .map(mem::take)
            .into_iter()
            .collect();
        Self {
            allowed: usize::from(position < self.allowed),
            accounts,
            holds,
        }
    }

    /// Returns the decision, which owns the slots of the reply.
    ///
    /// Fails if the server's clock is outside the periods of a request. The call has then changed
    /// nothing.
    pub(crate) fn into_decision(self, request: &Request) -> Result<Decision, RedisError> {
        if self.is_outside(request) {
            const CLOCKS: &str = "the clocks of the server and of this process differ by more than \
                                  a calendar period; set them";
            return Err(RedisError::new(RedisErrorKind::Config, CLOCKS));
        }
        let mut decision = self.decision(request);
        self.holds
            .into_iter()
            .flatten()
            .for_each(|hold| decision.hold(hold));
        Ok(decision)
    }

    /// Returns `true` if a quota has no known period at the time of the server.
    pub(crate) fn is_outside(&self, request: &Request) -> bool {
        let mut accounts = request.accounts.iter().zip(&self.accounts);
        accounts.any(|(account, reply)| {
            let quotas = account.quotas.iter();
            let mut calendars =
                quotas.filter_map(|quota_request| quota_request.quota.calendar_edges(request.now));
            calendars.any(|edges| !(edges[0]..edges[3]).contains(&reply.now))
        })
    }

    /// Computes the decision. The accounts may be on several servers, each with its own clock.
    pub(crate) fn decision(&self, request: &Request) -> Decision {
        let allowed = self.allowed > 0;
        let clock = self.accounts.first().map_or(0, |account| account.now);
        if !allowed && let Some(denial) = self.blocked(request, clock) {
            return denial;
        }
        let mut decision = Decision::new(allowed, clock).with_source(Source::Redis);
        for named in &request.named {
            let account = &request.accounts[named.account];
            let reply = &self.accounts[named.account];
            let step = reply.evaluate(named.quota, &account.quotas[named.quota], allowed);
            if allowed && !account.report_only {
                decision.overage |= step.overage;
                decision.wait = decision.wait.max(step.wait);
            }
            let skew = reply.now.cast_signed().saturating_sub(clock.cast_signed());
            let outcome = Outcome::with(account.rule, named.quota_index, step.snapshot)
                .with_report_only(account.report_only);
            decision.outcomes.push(outcome.by_clock(skew));
        }
        decision
    }

    /// Returns the denial for a blocked key.
    pub(crate) fn blocked(&self, request: &Request, clock: u64) -> Option<Decision> {
        let all = request.accounts.iter().zip(&self.accounts);
        let denying = all.filter(|(account, _)| account.may_be_blocked());
        let left = denying.filter_map(|(account, reply)| {
            let left = reply.stored.block?.saturating_sub(reply.now);
            (left > 0).then_some((account, left))
        });
        let (account, left) = left.max_by_key(|(_, left)| *left)?;
        let limit = account
            .quotas
            .first()
            .map_or(1, |quota_request| quota_request.quota.limit());
        let outcome = Outcome::block(account.rule, limit, Duration::from_nanos(left));
        let denial = Decision::new(false, clock).with_source(Source::Redis);
        Some(denial.with_blocked().with_outcome(outcome))
    }
}

impl AccountReply {
    /// Parses the next account, as `lua/account.lua` writes it.
    fn read(
        bytes: &mut Reader<'_>,
        account: &AccountRequest,
        now: u64,
        allowed: usize,
    ) -> Result<Self, RedisError> {
        let charges = bytes.count()?;
        let sign = bytes.int::<1>()?;
        let expected = if account.charges() { allowed } else { 0 };
        // An account that does not bind may have fewer charges.
        if sign > 3 || charges > expected || charges < expected && !account.report_only {
            return Err(RedisError::invalid_reply("inconsistent charges"));
        }
        let length = usize::try_from(bytes.int::<4>()?).unwrap_or(usize::MAX);
        let stored = StoredAccount::read(Reader(bytes.take(length)?), account)?;
        if charges > 0 && stored.lacks_state(account) {
            return Err(RedisError::invalid_reply("charged without a state"));
        }
        Ok(Self {
            now,
            charges,
            healed: sign == 1,
            dropped: sign == 2,
            is_marked: sign == 3,
            stored,
        })
    }

    /// Evaluates the demand on one quota again, which the script has allowed or denied.
    fn evaluate(&self, index: usize, asked: &QuotaRequest, allowed: bool) -> Evaluation {
        let mut demand = asked.demand;
        if !allowed {
            // A denial reports waits without queueing.
            demand.max_wait = 0;
        }
        let state = self.stored.states[index].as_ref();
        let charged = self.charges > 0 && demand.cost > 0;
        algorithm::reconstruct(state, &asked.quota, self.now, demand, charged)
    }

    /// Returns the account as it was after the request at `position` of equal ones.
    fn after(&self, position: usize, account: &AccountRequest) -> Self {
        match self.charges.checked_sub(position + 1) {
            Some(others) => Self {
                charges: 1,
                ..self.before(others, account)
            },
            None => Self {
                charges: 0,
                ..self.clone()
            },
        }
    }

    /// Returns the account as it was before the charges, if any.
    pub(crate) fn undone(&self, account: &AccountRequest) -> Self {
        Self {
            charges: 0,
            ..self.before(self.charges, account)
        }
    }

    fn before(&self, charges: usize, account: &AccountRequest) -> Self {
        let mut before = self.clone();
        for (state, quota_request) in before.stored.states.iter_mut().zip(&account.quotas) {
            let Some(state) = state else { continue };
            let QuotaRequest { quota, demand, .. } = quota_request;
            let units = u64::from(demand.cost).saturating_mul(charges as u64);
            if units > 0 {
                *state = algorithm::before(state, quota, self.now, units);
            }
        }
        before
    }
}

impl StoredAccount {
    /// Parses the end of a block, if any, and the state under each quota.
    fn read(mut bytes: Reader<'_>, account: &AccountRequest) -> Result<Self, RedisError> {
        let mut stored = Self {
            block: None,
            states: smallvec![None; account.quotas.len()],
        };
        if !bytes.0.is_empty() {
            // The instant of the last change. Only the scripts need the instants of changes.
            bytes.int::<7>()?;
        }
        while !bytes.0.is_empty() {
            let letter = bytes.take(1)?[0];
            let length = bytes.count()?;
            let mut content = Reader(bytes.take(length)?);
            if letter.is_ascii_uppercase() {
                // An earlier call changed the entry last.
                content.int::<7>()?;
            }
            stored.read_entry(letter.to_ascii_lowercase(), content, account)?;
        }
        Ok(stored)
    }

    /// Parses an entry. `kind` is the letter of an algorithm, or `b` for a block.
    fn read_entry(
        &mut self,
        kind: u8,
        mut content: Reader<'_>,
        account: &AccountRequest,
    ) -> Result<(), RedisError> {
        if kind == b'b' {
            self.block = Some(content.instant()?);
            return Ok(());
        }
        let address = content.int::<4>()?;
        let index = account.quotas.iter().position(|quota_request| {
            letter(&quota_request.quota) == kind
                && u64::from(quota_request.address.number()) == address
        });
        // Resets, and states of other plans, are for the scripts only.
        let Some(index) = index else { return Ok(()) };
        // Held slots have no end, and a plain GCRA state ends with its instant.
        let has_end = kind != b'c' && !(kind == b'g' && content.0.len() == 9);
        if has_end {
            content.int::<7>()?;
        }
        let quota = &account.quotas[index].quota;
        self.states[index] = Some(parse_state(&mut content, quota)?);
        Ok(())
    }

    /// Returns `true` if a quota that was charged has no state.
    fn lacks_state(&self, account: &AccountRequest) -> bool {
        let mut quotas = self.states.iter().zip(&account.quotas);
        quotas.any(|(state, quota_request)| state.is_none() && quota_request.demand.cost > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::{Algorithm, EXAMPLES, Quota},
        store::{Charge, redis::protocol::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;

    /// Creates a request that reads one account and charges another account.
    fn request(quotas: &[Quota]) -> Request {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let charges = [&one, &two].map(|key| Charge::new(RuleName::default(), key, quotas));
        let [look, take] = charges;
        let queueing = take
            .with_cost(2)
            .with_headroom(1)
            .with_max_wait(Duration::MAX);
        Request::new(&[look.with_cost(0), queueing], &Addresses::new())
    }

    fn instant(micros: u64) -> Vec<u8> {
        [&micros.to_le_bytes()[..7], &[7, 0]].concat()
    }

    /// Encodes an account as a script does.
    fn account(quota: &Quota) -> Vec<u8> {
        let entry = |ago| [&instant(NOW - ago)[..], &[2, 0, 0, 0, 0]].concat();
        let (letter, content) = match quota.algorithm() {
            Algorithm::Gcra => (b'g', instant(NOW + 2_000_000)),
            Algorithm::TokenBucket => (
                b't',
                [
                    &[3, 0, 0, 0, 0, 0][..],
                    &instant(NOW - 9),
                    &instant(NOW - 9),
                ]
                .concat(),
            ),
            Algorithm::SlidingWindow { .. } => (
                b's',
                [&[4, 0, 0, 0, 0][..], &entry(900_000), &entry(9)].concat(),
            ),
            Algorithm::SlidingLog => {
                let head = [&[4, 0, 0, 0, 0][..], &instant(NOW - 9)].concat();
                (b'l', [head, entry(900_000), entry(9)].concat())
            }
            Algorithm::FixedWindow { .. } | Algorithm::AnchoredWindow => (
                b'f',
                [
                    &instant(NOW - NOW % 10_000_000)[..],
                    &[2, 0, 0, 0, 0, 1, 0, 0, 0, 0],
                ]
                .concat(),
            ),
            Algorithm::Concurrent => unreachable!("slots are not stored in an account"),
        };
        let end = if letter == b'g' {
            Vec::new()
        } else {
            (NOW + 9).to_le_bytes()[..7].to_vec()
        };
        let content = [&quota.address().number().to_le_bytes()[..], &end, &content].concat();
        let length = u16::try_from(content.len()).expect("short").to_le_bytes();
        let block = [&[b'b', 9, 0][..], &instant(NOW - 1)].concat();
        [
            &NOW.to_le_bytes()[..7],
            &block,
            &[letter],
            &length,
            &content,
        ]
        .concat()
    }

    /// Encodes a reply. Each account has its number of charges, and 1 if it was invalid.
    fn reply(allowed: u8, accounts: &[(u8, u8, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = [&instant(NOW)[..], &[allowed, 0]].concat();
        for (charges, healed, account) in accounts {
            bytes.extend([*charges, 0, *healed]);
            bytes.extend(u32::try_from(account.len()).expect("short").to_le_bytes());
            bytes.extend(account);
        }
        bytes
    }

    /// Returns `true` for an allowed charge, or `None` for an invalid reply.
    fn read_decision(bytes: &[u8], request: &Request) -> Option<bool> {
        let value = Value::BulkString(bytes.to_vec());
        let replies = Reply::read(&value, iter::once((request, 1))).ok()?;
        let reply = &replies[0];
        let decision = reply.decision(request);
        for outcome in decision.outcomes() {
            let times = (
                outcome.reset_after(),
                outcome.next_after(),
                outcome.retry_after(),
            );
            assert!(outcome.remaining() <= outcome.limit() + 3, "{times:?}");
        }
        for (account_reply, account) in reply.accounts.iter().zip(&request.accounts) {
            let undone = account_reply.before(1, account);
            let accounts = [
                AccountReply {
                    charges: 0,
                    ..undone
                },
                account_reply.clone(),
            ];
            let accounts = accounts.into_iter().collect();
            let _ = Reply {
                allowed: 0,
                accounts,
                holds: Vec::new(),
            }
            .decision(request);
        }
        let charged: Vec<_> = reply
            .accounts
            .iter()
            .map(|account| account.charges > 0)
            .collect();
        assert_eq!(charged, [false, reply.allowed == 1]);
        assert_eq!(decision.is_allowed(), reply.allowed == 1);
        Some(decision.is_allowed())
    }

    #[test]
    fn corrupt_replies_are_errors_or_consistent_decisions() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(state >> 33).unwrap_or(0) % below
        };
        let base = Quota::new(10, Duration::from_secs(10)).expect("a quota");
        let mut read = 0;
        for algorithm in EXAMPLES {
            let quota = base.with_algorithm(algorithm);
            let (request, account) = (request(&[quota]), account(&quota));
            let real = [
                reply(1, &[(0, 0, account.clone()), (1, 0, account.clone())]),
                reply(0, &[(0, 0, account.clone()), (0, 0, account.clone())]),
                reply(1, &[(0, 1, Vec::new()), (1, 1, account)]),
            ];
            let allowed = real.each_ref().map(|bytes| read_decision(bytes, &request));
            assert_eq!(
                allowed,
                [Some(true), Some(false), Some(true)],
                "{algorithm:?}"
            );
            for _ in 0..10_000 {
                let noise: Vec<_> = (0..random(80))
                    .map(|_| random(256).to_le_bytes()[0])
                    .collect();
                assert_eq!(read_decision(&noise, &request), None);
                let mut bytes = real[random(3)].clone();
                for _ in 0..=random(3) {
                    let at = random(bytes.len());
                    match random(8) {
                        0 => bytes.truncate(at + 1),
                        1 => bytes.insert(at, random(256).to_le_bytes()[0]),
                        2 if at > 0 => drop(bytes.remove(at)),
                        3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                        4 => bytes[at..].iter_mut().take(7).for_each(|byte| *byte = 0xff),
                        _ => bytes[at] ^= 1 << random(8),
                    }
                }
                read += usize::from(read_decision(&bytes, &request).is_some());
            }
        }
        assert!(read > 10_000, "only {read} replies parsed");
    }
}
