//! Batches of requests. A batch is one call, and contains equal requests only once.

pub(crate) mod queue;

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use smallvec::SmallVec;

use self::queue::QueuedRequest;
use crate::store::redis::{
    error::RedisError,
    protocol::{Change, QuotaRequests, Request, reply::Reply},
    slots::{SlotCall, Slots},
};

/// The maximum [size](Batch::size_of) of a batch. A larger request has a batch of its own.
pub(crate) const MAX_SIZE: usize = 64;
/// The maximum number of callers in a batch, including those with equal requests.
const MAX_CALLERS: usize = 4_096;
/// The number of accounts that a small request with only plain quotas may have.
const SMALL: usize = 4;

/// The callers that share one call.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// `true` if all requests [are plain](Request::is_plain). They have their own script.
    is_plain: bool,
    /// Groups of equal requests, in the order of their first requests.
    groups: Vec<Group>,
    /// The distinct plans of a batch with only plain quotas.
    plans: Vec<(QuotaRequests, Vec<u8>)>,
    callers: usize,
    size: usize,
}

/// Callers with equal requests.
#[derive(Debug)]
struct Group {
    callers: SmallVec<[QueuedRequest; 1]>,
    /// Indices into [`Batch::plans`], counted from 1: one for each account.
    plans: SmallVec<[u16; 2]>,
}

impl Batch {
    pub(crate) fn new(is_plain: bool) -> Self {
        Self { is_plain, ..Self::default() }
    }

    /// Returns the share of a group of requests in the time of a batch.
    fn size_of(&self, request: &Request) -> usize {
        if self.is_plain {
            request.accounts.len().div_ceil(SMALL)
        } else {
            request.quota_count().max(1)
        }
    }

    /// Returns the number of callers with this request that still fit into the batch.
    pub(crate) fn room(&self, request: &Request) -> usize {
        let size = self.size + self.size_of(request);
        let fits = size <= MAX_SIZE || self.groups.is_empty();
        if fits { MAX_CALLERS.saturating_sub(self.callers) / request.weight() } else { 0 }
    }

    /// Adds callers with equal requests.
    pub(crate) fn add(&mut self, callers: SmallVec<[QueuedRequest; 1]>) {
        let Some(first) = callers.first() else { return };
        self.callers += callers.len() * first.request.weight();
        self.size += self.size_of(&first.request);
        let mut plans = SmallVec::new();
        if self.is_plain {
            for account in &first.request.accounts {
                let known = self.plans.iter().position(|(quotas, _)| *quotas == account.quotas);
                if known.is_none() {
                    let plan = account.plan(|_, _| Some(Change::Charge), |_| None, |_| 0);
                    self.plans.push((account.quotas.clone(), plan));
                }
                // Lua counts from 1.
                let index = known.map_or(self.plans.len(), |at| at + 1);
                plans.push(u16::try_from(index).unwrap_or(u16::MAX));
            }
        }
        self.groups.push(Group { callers, plans });
    }

    /// Numbers the slots of each group.
    pub(crate) fn slots(&self, slots: &Arc<Slots>) -> SmallVec<[SlotCall; 1]> {
        self.groups().map(|(request, callers)| slots.begin(request, callers)).collect()
    }

    /// Returns the request of each group, with the number of callers.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Request, usize)> {
        self.groups.iter().map(|group| (group.request(), group.callers.len()))
    }

    /// Returns the keys and the arguments of the script. `has_msetex` is `true` if the server may
    /// have the command.
    pub(crate) fn encode(
        &self,
        slots: &[SlotCall],
        has_msetex: bool,
    ) -> (Vec<Cow<'_, str>>, Vec<Vec<u8>>) {
        let (mut keys, mut args, mut layout) = (KeyList::default(), Vec::new(), Vec::new());
        if self.is_plain {
            args.extend(self.plans.iter().map(|(_, plan)| plan.clone()));
            layout.push(usize::from(has_msetex));
            for equal_groups in self.groups.chunk_by(Group::is_alike) {
                let group = &equal_groups[0];
                layout.extend([equal_groups.len(), group.callers.len(), group.plans.len()]);
                layout.extend(group.plans.iter().map(|plan| usize::from(*plan)));
                for account in equal_groups.iter().flat_map(|group| &group.request().accounts) {
                    layout.push(keys.index(Cow::Borrowed(&account.address)));
                }
            }
        } else {
            for ((request, callers), slots) in self.groups().zip(slots) {
                layout.extend([callers, request.accounts.len()]);
                for (at, account) in request.accounts.iter().enumerate() {
                    layout.push(keys.index(Cow::Borrowed(&account.address)));
                    let slots = |quota_index| slots.of(at, quota_index);
                    let index = |key| keys.index(Cow::Owned(key));
                    args.push(account.plan(|_, _| Some(Change::Charge), slots, index));
                }
            }
        }
        // A batch is small enough that all numbers fit.
        let layout = layout.into_iter().map(|number| u16::try_from(number).unwrap_or(u16::MAX));
        args.push(layout.flat_map(u16::to_le_bytes).collect());
        (keys.keys, args)
    }

    /// Sends each caller its reply. The slots of a caller that has left are freed.
    pub(crate) fn reply(self, replies: Result<SmallVec<[Reply; 1]>, RedisError>) {
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                let callers = self.groups.into_iter().flat_map(|group| group.callers);
                return callers.for_each(|caller| drop(caller.tx.send(Err(error.clone()))));
            }
        };
        for (group, mut reply) in self.groups.into_iter().zip(replies) {
            for (position, caller) in group.callers.into_iter().enumerate() {
                drop(caller.tx.send(Ok(reply.of(position, &caller.request))));
            }
        }
    }
}

/// The distinct keys of a call.
#[derive(Default)]
struct KeyList<'a> {
    keys: Vec<Cow<'a, str>>,
    indices: HashMap<Cow<'a, str>, usize>,
}

impl<'a> KeyList<'a> {
    /// Returns the index of a key, counted from 1 as in Lua.
    fn index(&mut self, key: Cow<'a, str>) -> usize {
        *self.indices.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            self.keys.len()
        })
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::Value;
    use tokio::{runtime::Handle, sync::oneshot};

    use super::*;
    use crate::{
        key::Key,
        name::RuleName,
        quota::{Algorithm, Quota},
        store::{Charge, redis::protocol::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;

    fn caller(charges: &[Charge<'_>]) -> QueuedRequest {
        let request = Arc::new(Request::new(charges, &Addresses::new()));
        QueuedRequest { request, tx: oneshot::channel().0, runtime: Handle::current() }
    }

    /// Creates a batch of requests, each with its number of callers.
    fn batch_of(requests: &[(usize, &[Charge<'_>])]) -> Batch {
        let mut batch = Batch::new(true);
        for (callers, charges) in requests {
            batch.add((0..*callers).map(|_| caller(charges)).collect());
        }
        batch
    }

    fn quota(units: u32) -> Quota {
        Quota::new(units, Duration::from_secs(10)).expect("a quota")
    }

    /// Creates a batch of two equal requests and one other request with two quotas.
    fn batch() -> Batch {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let (few, more) = ([quota(10)], [quota(10), quota(100)]);
        let one = Charge::new(RuleName::default(), &one, &few);
        let two = Charge::new(RuleName::default(), &two, &more).with_cost(2);
        batch_of(&[(2, &[one]), (1, &[two])])
    }

    fn instant(micros: u64) -> Vec<u8> {
        [&micros.to_le_bytes()[..7], &[0, 0]].concat()
    }

    /// Encodes the reply to a group with one account. `tats` are theoretical arrival times, in
    /// microseconds after `NOW`.
    fn group(allowed: u8, charges: u8, tats: &[u64]) -> Vec<u8> {
        let quota = |tat: &u64| [&[b'g', 9, 0][..], &instant(NOW + tat)].concat();
        let quotas: Vec<_> = tats.iter().flat_map(quota).collect();
        let account = [&NOW.to_le_bytes()[..7], &quotas].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        [&[allowed, 0, charges, 0, 0][..], &length, &account].concat()
    }

    fn answer(groups: &[Vec<u8>]) -> Value {
        Value::BulkString([instant(NOW), groups.concat()].concat())
    }

    fn read(batch: &Batch, value: &Value) -> Option<(SmallVec<[Reply; 1]>, bool)> {
        Reply::read(value, batch.groups()).ok()
    }

    #[tokio::test]
    async fn equal_requests_plans_and_accounts_are_sent_once() {
        let keys = ["one", "two"].map(Key::from);
        let (few, more) = ([quota(10)], [quota(10), quota(100)]);
        let one = Charge::new(RuleName::default(), &keys[0], &few);
        let two = Charge::new(RuleName::default(), &keys[1], &more);
        let batch = batch_of(&[(2, &[one]), (1, &[two]), (2, &[two, one])]);
        let (keys, args) = batch.encode(&[], false);
        assert_eq!((keys.len(), args.len()), (2, 3));
        // Whether the server has MSETEX. For each group: one of its kind, its callers, its accounts,
        // their plans and their keys.
        let first = [0, 1, 2, 1, 1, 1];
        let (second, third) = ([1, 1, 1, 2, 2], [1, 2, 2, 2, 1, 2, 1]);
        let numbers = [&first[..], &second, &third].concat();
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u16::to_le_bytes).collect();
        assert_eq!(args[2], bytes);
    }

    #[tokio::test]
    async fn a_call_is_bounded_by_its_accounts_and_its_callers() {
        let quotas = [quota(10)];
        let names = ["a", "b", "c", "d"].map(|name| RuleName::new(name).expect("a name"));
        // All callers have their own accounts, or all share theirs.
        for (distinct, callers, accounts) in [(true, 64, 256), (false, 4_096, 4)] {
            let (mut batch, mut added) = (Batch::new(true), 0_u32);
            loop {
                let key = Key::from(if distinct { added } else { 0 });
                let charges = names.map(|name| Charge::new(name, &key, &quotas));
                let room = batch.room(&caller(&charges).request);
                if room == 0 {
                    break;
                }
                let joining = if distinct { 1 } else { room };
                batch.add((0..joining).map(|_| caller(&charges)).collect());
                added += u32::try_from(joining).expect("few");
            }
            assert_eq!((added, batch.encode(&[], false).0.len()), (callers, accounts));
        }
    }

    #[tokio::test]
    async fn inconsistent_replies_are_errors() {
        let (batch, second) = (batch(), 1_000_000);
        let two = || group(1, 1, &[2 * second, second / 5]);
        let fine = [group(2, 2, &[2 * second]), two()];
        let mut flagged = fine.clone();
        flagged[0][4] = 2;
        let read = |value: &Value| read(&batch, value);
        assert!(read(&answer(&fine)).is_some());
        assert!(read(&answer(&[group(0, 0, &[10 * second]), two()])).is_some());
        assert!(read(&answer(&[group(1, 1, &[second]), two()])).is_some());
        for (what, groups) in [
            ("no group", vec![]),
            ("one group of two", vec![fine[0].clone()]),
            ("three groups of two", vec![fine[0].clone(), two(), two()]),
            ("more allowed than sent", vec![group(3, 3, &[3 * second]), two()]),
            ("allowed but not charged", vec![group(2, 0, &[2 * second]), two()]),
            ("allowed but charged once", vec![group(2, 1, &[2 * second]), two()]),
            ("charged but not allowed", vec![group(0, 1, &[2 * second]), two()]),
            ("invalid flag", flagged.to_vec()),
        ] {
            assert!(read(&answer(&groups)).is_none(), "{what}");
        }
        let Value::BulkString(bytes) = answer(&fine) else { unreachable!() };
        for cut in 0..bytes.len() {
            assert!(read(&Value::BulkString(bytes[..cut].to_vec())).is_none(), "{cut}");
        }
        let rows: [(&[u8], _); 5] =
            [(&[], Some(false)), (&[1], Some(true)), (&[0], None), (&[2], None), (&[1, 1], None)];
        for (last, lacks_msetex) in rows {
            let bytes = Value::BulkString([&bytes[..], last].concat());
            assert_eq!(read(&bytes).map(|(_, lacks_msetex)| lacks_msetex), lacks_msetex);
        }
        assert!(read(&Value::Int(1)).is_none() && read(&Value::Nil).is_none());
    }

    /// Creates a batch of three equal requests with a quota of each algorithm, and its answer.
    fn general() -> (Batch, Vec<u8>) {
        let (one, window) = (Key::from("one"), Algorithm::SlidingWindow { buckets: 5 });
        let fixed = [Algorithm::fixed_window(), Algorithm::fixed_window().paced()];
        let [bucket, log] = [Algorithm::TokenBucket, Algorithm::SlidingLog];
        let [fixed, paced] = fixed.map(|it| quota(10).with_algorithm(it));
        let [bucket, window, log] = [bucket, window, log].map(|it| quota(10).with_algorithm(it));
        let quotas = [fixed, paced, bucket, window, log];
        let mut batch = Batch::new(false);
        let charge = [Charge::new(RuleName::default(), &one, &quotas)];
        batch.add((0..3).map(|_| caller(&charge)).collect());
        let (now, two) = (instant(NOW), [2, 0, 0, 0, 0]);
        let start = [&instant(NOW - NOW % 10_000_000)[..], &two, &[0; 5]].concat();
        let entry = [&now[..], &two].concat();
        let states = [
            (b'f', start.clone()),
            (b'f', start),
            (b't', [&[8, 0, 0, 0, 0, 0][..], &now, &now].concat()),
            (b's', [&two[..], &entry].concat()),
            (b'l', [&two[..], &now, &entry].concat()),
        ];
        let place = |(letter, state): &(u8, Vec<u8>)| {
            let length = u16::try_from(state.len()).expect("short").to_le_bytes();
            [&[*letter][..], &length, state].concat()
        };
        let places: Vec<_> = states.iter().flat_map(place).collect();
        let account = [&NOW.to_le_bytes()[..7], &places].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        (batch, [&now[..], &[2, 0, 2, 0, 0], &length, &account].concat())
    }

    #[tokio::test]
    async fn random_bytes_never_panic() {
        let Value::BulkString(real) =
            answer(&[group(1, 1, &[1_000_000]), group(1, 1, &[2_000_000, 200_000])])
        else {
            unreachable!()
        };
        damage(&batch(), &real);
        let (batch, real) = general();
        damage(&batch, &real);
    }

    /// Each caller sees the units left after its own charge.
    #[tokio::test]
    async fn the_callers_of_a_group_are_answered_one_after_another() {
        let (batch, real) = general();
        let (mut replies, _) = read(&batch, &Value::BulkString(real)).expect("a reply");
        let request = batch.groups[0].request();
        for (position, allowed, left) in [(0, true, 9), (1, true, 8), (2, false, 8)] {
            let decision = replies[0].of(position, request).decision(request);
            assert_eq!(decision.is_allowed(), allowed);
            let remaining = decision.outcomes().iter().map(|outcome| outcome.remaining());
            let paced = |index| index == 1;
            assert!(remaining.enumerate().all(|(at, units)| units == left || paced(at)));
        }
    }

    fn damage(batch: &Batch, real: &[u8]) {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            usize::try_from(state >> 33).unwrap_or(0) % below
        };
        let mut parsed = 0;
        for _ in 0..50_000 {
            let mut bytes = real.to_vec();
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
            if let Some((mut replies, _)) = read(batch, &Value::BulkString(bytes)) {
                parsed += 1;
                for ((request, callers), reply) in batch.groups().zip(&mut replies) {
                    for position in 0..callers {
                        let _ = reply.of(position, request).decision(request).remaining();
                    }
                }
            }
        }
        assert!(parsed > 1_000, "only {parsed} replies parsed");
    }
}
