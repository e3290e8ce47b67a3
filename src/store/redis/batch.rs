//! Batches. A batch sends several requests in one call, and sends equal requests once.

use redis::Value;
use smallvec::SmallVec;

use super::{
    error::RedisError,
    queue::QueuedRequest,
    reply::{AccountReply, Reader, Reply},
    request::{AccountRequest, QuotaRequests, Request},
};
use crate::decision::Decision;

/// The maximum number of different requests in a batch.
pub(super) const MAX_GROUPS: usize = 64;
/// The maximum number of callers in a batch, including those with equal requests.
const MAX_CALLERS: usize = 1_024;

/// The callers that share one call.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Groups of equal requests, in the order of their first requests.
    groups: Vec<Group>,
    /// The distinct plans.
    plans: Vec<(QuotaRequests, Vec<u8>)>,
    callers: usize,
}

#[derive(Debug)]
struct Group {
    callers: SmallVec<[QueuedRequest; 1]>,
    /// The plan of each account, as a 1-based index.
    plans: SmallVec<[u16; 2]>,
}

/// The reply of the script to a batch.
#[derive(Debug)]
pub(super) struct BatchReply {
    now: u64,
    /// The runs of all groups, in the order of the groups. Each group has one or more runs.
    runs: Vec<Run>,
}

/// The result of consecutive callers of a group. The first `allowed` callers were allowed, and the
/// others were denied.
#[derive(Debug)]
struct Run {
    callers: usize,
    allowed: usize,
    /// The accounts after the call.
    accounts: SmallVec<[AccountReply; 2]>,
}

impl Batch {
    /// Returns the number of further callers that fit into the batch, even if all their requests
    /// are different.
    pub(super) fn room(&self) -> usize {
        MAX_GROUPS.saturating_sub(self.groups.len()).min(MAX_CALLERS.saturating_sub(self.callers))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn add(&mut self, caller: QueuedRequest) {
        self.callers += 1;
        match self.groups.iter_mut().find(|group| group.request().equals(&caller.request)) {
            Some(group) => group.callers.push(caller),
            None => {
                let accounts = caller.request.accounts.iter();
                let plans = accounts.map(|account| {
                    let known = self.plans.iter().position(|(quotas, _)| *quotas == account.quotas);
                    if known.is_none() {
                        self.plans.push((account.quotas.clone(), account.plain_plan()));
                    }
                    // Lua counts from 1.
                    u16::try_from(known.map_or(self.plans.len(), |at| at + 1)).unwrap_or(u16::MAX)
                });
                let plans = plans.collect();
                self.groups.push(Group { callers: [caller].into_iter().collect(), plans });
            }
        }
    }

    /// Returns the keys and the arguments of the script.
    pub(super) fn encode(&self) -> (Vec<&str>, Vec<Vec<u8>>) {
        let keys = self.groups.iter().flat_map(|group| &group.request().accounts);
        let keys = keys.map(|account| account.address.as_str()).collect();
        let mut layout = Vec::new();
        for equal_groups in self.groups.chunk_by(Group::is_alike) {
            let group = &equal_groups[0];
            let plans = group.plans.iter().map(|plan| usize::from(*plan));
            let numbers = [equal_groups.len(), group.callers.len(), group.plans.len()];
            for number in numbers.into_iter().chain(plans) {
                // A batch is small enough that all numbers fit.
                layout.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
            }
        }
        let plans = self.plans.iter().map(|(_, plan)| plan.clone());
        (keys, plans.chain([layout]).collect())
    }

    /// Parses the reply of the script.
    pub(super) fn read(&self, value: &Value) -> Result<BatchReply, RedisError> {
        let Value::BulkString(bytes) = value else {
            return Err(RedisError::invalid_reply("not a bulk string"));
        };
        let mut bytes = Reader(bytes);
        let now = bytes.instant()?;
        let mut runs = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let mut left = group.callers.len();
            while left > 0 {
                let run = Run::read(&mut bytes, group.request(), now)?;
                let rest = left.checked_sub(run.callers);
                left =
                    rest.ok_or_else(|| RedisError::invalid_reply("more results than requests"))?;
                runs.push(run);
            }
        }
        bytes.end()?;
        Ok(BatchReply { now, runs })
    }

    /// Sends each caller its own decision.
    pub(super) fn reply(self, reply: &BatchReply) {
        let positions =
            reply.runs.iter().flat_map(|run| (0..run.callers).map(move |position| (run, position)));
        for (caller, (run, position)) in self.callers().zip(positions) {
            let decision = run.decision(&caller.request, reply.now, position);
            drop(caller.tx.send(Ok(decision)));
        }
    }

    /// Returns all callers, ordered by group.
    pub(super) fn callers(self) -> impl Iterator<Item = QueuedRequest> {
        self.groups.into_iter().flat_map(|group| group.callers)
    }
}

impl BatchReply {
    /// Returns the number of accounts whose key held an invalid value.
    pub(super) fn healed(&self) -> usize {
        let accounts = self.runs.iter().flat_map(|run| &run.accounts);
        accounts.filter(|account| account.healed).count()
    }
}

impl Group {
    fn is_alike(&self, other: &Self) -> bool {
        self.callers.len() == other.callers.len() && self.plans == other.plans
    }

    fn request(&self) -> &Request {
        &self.callers[0].request
    }
}

impl Run {
    fn read(bytes: &mut Reader<'_>, request: &Request, now: u64) -> Result<Self, RedisError> {
        let number = |bytes: &mut Reader<'_>| {
            bytes.int::<2>().map(|number| usize::try_from(number).unwrap_or(usize::MAX))
        };
        let (callers, allowed) = (number(bytes)?, number(bytes)?);
        if callers == 0 || allowed > callers {
            return Err(RedisError::invalid_reply("a caller count out of range"));
        }
        let mut accounts = SmallVec::new();
        for account in &request.accounts {
            let reply = AccountReply::read(bytes, account, allowed > 0)?;
            if allowed > 0 && !reply.was_charged(allowed, account, now) {
                return Err(RedisError::invalid_reply("inconsistent charges"));
            }
            accounts.push(reply);
        }
        Ok(Self { callers, allowed, accounts })
    }

    /// Returns the decision for the caller at `position`. It equals the decision of a separate call
    /// after the calls of all earlier callers.
    fn decision(&self, request: &Request, now: u64, position: usize) -> Decision {
        let is_allowed = position < self.allowed;
        let own = |(reply, account): (&AccountReply, &AccountRequest)| match self
            .allowed
            .checked_sub(position + 1)
        {
            // After this caller, `others` more callers were charged.
            Some(others) => reply.before(others, account),
            None => reply.clone().uncharged(),
        };
        let replies: SmallVec<[_; 2]> =
            self.accounts.iter().zip(&request.accounts).map(own).collect();
        let replies: SmallVec<[_; 2]> = replies.iter().map(|reply| (now, reply)).collect();
        Reply::combine(request, &replies, is_allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{runtime::Handle, sync::oneshot};

    use super::*;
    use crate::{
        key::Key,
        quota::Quota,
        rule::RuleName,
        store::{Charge, redis::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;

    /// Creates a batch of two equal requests and one other request with two quotas.
    fn batch() -> Batch {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let quota = |units| Quota::new(units, Duration::from_secs(10)).expect("a quota");
        let (few, more) = ([quota(10)], [quota(10), quota(100)]);
        let mut batch = Batch::default();
        for charge in [
            Charge::new(RuleName::default(), &one, &few),
            Charge::new(RuleName::default(), &two, &more).with_cost(2),
            Charge::new(RuleName::default(), &one, &few),
        ] {
            let request = Box::new(Request::new(&[charge], &Addresses::new()));
            let (tx, _rx) = oneshot::channel();
            batch.add(QueuedRequest { request, tx, runtime: Handle::current() });
        }
        batch
    }

    fn instant(micros: u64) -> Vec<u8> {
        [&micros.to_le_bytes()[..7], &[0, 0]].concat()
    }

    /// Encodes a run: callers, allowed, flags, and the TATs in microseconds from now.
    fn run(callers: u8, allowed: u8, flags: u8, tats: &[u64]) -> Vec<u8> {
        let quota = |tat: &u64| [&[b'g', 9, 0][..], &instant(NOW + tat)].concat();
        let quotas: Vec<_> = tats.iter().flat_map(quota).collect();
        let account = [&NOW.to_le_bytes()[..7], &quotas].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        [&[callers, 0, allowed, 0, flags][..], &length, &account].concat()
    }

    fn answer(runs: &[Vec<u8>]) -> Value {
        Value::BulkString([instant(NOW), runs.concat()].concat())
    }

    #[tokio::test]
    async fn equal_questions_are_one_kind_and_plans_are_sent_once() {
        let batch = batch();
        let groups: Vec<_> = batch.groups.iter().map(|group| group.callers.len()).collect();
        assert_eq!(groups, [2, 1]);
        let (keys, args) = batch.encode();
        assert_eq!((keys.len(), args.len()), (2, 3));
        // One group of two callers with one account of plan 1, then the other group.
        let numbers = [1, 2, 1, 1, 1, 1, 1, 2_u16];
        assert_eq!(args[2], numbers.map(u16::to_le_bytes).concat());
    }

    #[tokio::test]
    async fn inconsistent_replies_are_errors() {
        let (batch, second) = (batch(), 1_000_000);
        let two = || run(1, 1, 1, &[2 * second, second / 5]);
        let fine = [run(2, 2, 1, &[2 * second]), two()];
        assert!(batch.read(&answer(&fine)).is_ok());
        assert!(batch.read(&answer(&[run(2, 0, 0, &[10 * second]), two()])).is_ok());
        assert!(
            batch.read(&answer(&[run(1, 1, 1, &[second]), run(1, 0, 0, &[second]), two()])).is_ok()
        );
        for (what, runs) in [
            ("no run", vec![]),
            ("one run of two", vec![fine[0].clone()]),
            ("three runs of two", vec![fine[0].clone(), two(), two()]),
            ("more callers than sent", vec![run(3, 2, 1, &[2 * second]), two()]),
            ("fewer callers than sent", vec![run(1, 1, 1, &[2 * second]), two()]),
            ("a run of no callers", vec![run(0, 0, 0, &[second]), fine[0].clone(), two()]),
            ("more allowed than callers", vec![run(2, 3, 1, &[3 * second]), two()]),
            ("allowed but not charged", vec![run(2, 2, 0, &[2 * second]), two()]),
            ("charged but not allowed", vec![run(2, 0, 1, &[2 * second]), two()]),
            ("invalid flags", vec![run(2, 2, 5, &[2 * second]), two()]),
            ("one of two charges missing", vec![run(2, 2, 1, &[2 * second - 1]), two()]),
            ("no quota", vec![run(2, 2, 1, &[]), two()]),
            ("one quota of two", vec![fine[0].clone(), run(1, 1, 1, &[2 * second])]),
        ] {
            assert!(batch.read(&answer(&runs)).is_err(), "{what}");
        }
        let Value::BulkString(bytes) = answer(&fine) else { unreachable!() };
        for cut in 0..bytes.len() {
            assert!(batch.read(&Value::BulkString(bytes[..cut].to_vec())).is_err(), "{cut}");
        }
        assert!(batch.read(&Value::BulkString([&bytes[..], b"x"].concat())).is_err());
        assert!(batch.read(&Value::Int(1)).is_err() && batch.read(&Value::Nil).is_err());
    }

    #[tokio::test]
    async fn random_bytes_never_panic() {
        let batch = batch();
        let Value::BulkString(real) =
            answer(&[run(2, 1, 1, &[1_000_000]), run(1, 1, 1, &[2_000_000, 200_000])])
        else {
            unreachable!()
        };
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(state >> 33).unwrap_or(0) % below
        };
        let mut read = 0;
        for _ in 0..50_000 {
            let mut bytes = real.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] ^= 1 << random(8),
                    1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                    2 => bytes.insert(at, random(256).to_le_bytes()[0]),
                    _ => drop(bytes.remove(at)),
                }
            }
            // Every reply that parses yields decisions.
            if let Ok(reply) = batch.read(&Value::BulkString(bytes)) {
                read += 1;
                for run in &reply.runs {
                    for position in 0..run.callers {
                        let group = batch
                            .groups
                            .iter()
                            .find(|group| group.plans.len() == run.accounts.len());
                        let request = group.expect("a group").request();
                        let _ = run.decision(request, reply.now, position).remaining();
                    }
                }
            }
        }
        assert!(read > 1_000, "only {read} replies parsed");
    }
}
