//! A batch: decisions that share one call, and its encoding.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use redis::aio::ConnectionLike;
use smallvec::{SmallVec, smallvec};
use tokio::{runtime::Handle, sync::oneshot};

use crate::store::redis::{
    RedisStore,
    error::RedisError,
    protocol::{
        AccountRequest, Change, Layout, Request, RequestKind, ScriptOp, all_letters, letter,
        reply::Reply, script::ScriptKind,
    },
    slots::{SlotCall, Slots},
};

/// The maximum [size](Batch::size_of) of a batch. A larger request has a batch of its own.
const MAX_SIZE: usize = 64;
/// The maximum number of callers in a batch, including those with equal requests.
const MAX_CALLERS: usize = 4_096;
/// The number of accounts that a small request with only plain quotas may have.
const SMALL: usize = 4;

/// A waiting caller with its request.
pub(crate) struct Caller {
    pub(crate) request: Arc<Request>,
    /// Closed once the caller is dropped.
    pub(crate) tx: oneshot::Sender<Answered>,
    /// The runtime of the caller.
    pub(crate) runtime: Handle,
}

/// The answer to a caller.
pub(crate) struct Answered {
    pub(crate) reply: Result<Reply, RedisError>,
    /// `true` if the call had other callers, too.
    pub(crate) is_shared: bool,
}

/// The callers that share one call.
#[derive(Default)]
pub(crate) struct Batch {
    kind: RequestKind,
    /// The callers with equal requests, in the order of their first requests.
    groups: Vec<SmallVec<[Caller; 1]>>,
    callers: usize,
    size: usize,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> RedisStore<C> {
    pub(super) async fn call_batch(
        &self,
        batch: &Batch,
    ) -> Result<SmallVec<[Reply; 1]>, RedisError> {
        if let Some(request) = batch.lone_request() {
            // Its script costs the server less.
            return Ok(smallvec![self.execute(request, ScriptOp::Take).await?]);
        }
        let script = match batch.kind {
            RequestKind::Plain => self.script(ScriptKind::Plain, *b"g"),
            RequestKind::Slots => self.script(ScriptKind::Slots, batch.letters()),
            // All algorithms, so that there is one such script.
            RequestKind::Other => self.script(ScriptKind::Groups, all_letters()),
        };
        let slots = batch.groups();
        let slots: SmallVec<_> = slots
            .map(|(request, callers)| self.settings.slots.begin(request, callers))
            .collect();
        let (keys, args) = batch.encode(&slots);
        let replies = self
            .call_script(script, &keys, args, batch.groups(), slots)
            .await?;
        self.count_losses(&replies);
        Ok(replies)
    }
}

impl Batch {
    /// Creates an empty batch of requests of one kind.
    pub(super) fn new(kind: RequestKind) -> Self {
        Self {
            kind,
            ..Self::default()
        }
    }

    /// Returns the size that a group of equal requests adds to a batch.
    fn size_of(&self, request: &Request) -> usize {
        if self.kind == RequestKind::Plain {
            request.accounts.len().div_ceil(SMALL)
        } else {
            request.quotas().count().max(1)
        }
    }

    /// Returns the number of callers with this request that still fit into the batch.
    pub(crate) fn room(&self, request: &Request) -> usize {
        let size = self.size + self.size_of(request);
        let fits = size <= MAX_SIZE || self.groups.is_empty();
        if fits {
            MAX_CALLERS.saturating_sub(self.callers) / Slots::weight(request)
        } else {
            0
        }
    }

    /// Adds callers with equal requests.
    pub(crate) fn add(&mut self, callers: SmallVec<[Caller; 1]>) {
        let Some(first) = callers.first() else { return };
        self.callers += callers.len() * Slots::weight(&first.request);
        self.size += self.size_of(&first.request);
        self.groups.push(callers);
    }

    /// Returns the request of each group, with the number of callers.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&Request, usize)> {
        self.groups
            .iter()
            .map(|callers| (&*callers[0].request, callers.len()))
    }

    /// Returns the letters of the algorithms of all quotas.
    fn letters(&self) -> impl Iterator<Item = u8> {
        self.groups()
            .flat_map(|(request, _)| request.quotas())
            .map(letter)
    }

    /// Returns the keys and the arguments of the script.
    pub(crate) fn encode(&self, slots: &[SlotCall]) -> (Vec<Cow<'_, str>>, Vec<Vec<u8>>) {
        let mut keys = KeyList::default();
        let mut plans = PlanList::default();
        let mut layout = Layout::default();
        for ((request, callers), slots) in self.groups().zip(slots) {
            layout.group(callers, request.accounts.len());
            for (at, account) in request.accounts.iter().enumerate() {
                let key = keys.index(Cow::Borrowed(&account.address));
                let plan = if account.is_plain() {
                    plans.shared(account)
                } else {
                    plans.add(account.plan(
                        request.now,
                        |_, _| Some(Change::Charge),
                        |quota| slots.of(at, quota),
                        |key| keys.index(Cow::Owned(key)),
                    ))
                };
                layout.account(key, plan);
            }
        }
        plans.bytes.push(layout.0);
        (keys.keys, plans.bytes)
    }

    /// Returns the request if the batch has one caller.
    fn lone_request(&self) -> Option<&Request> {
        match &*self.groups {
            [callers] if callers.len() == 1 => Some(&callers[0].request),
            _ => None,
        }
    }

    /// Returns `true` if the batch has more than one caller.
    pub(super) fn is_shared(&self) -> bool {
        self.lone_request().is_none()
    }

    /// Sends each caller its reply. The slots of a caller that has left are freed.
    pub(super) fn reply(self, replies: Result<SmallVec<[Reply; 1]>, RedisError>) {
        let is_shared = self.is_shared();
        let replies = match replies {
            Ok(replies) => replies,
            Err(error) => {
                for caller in self.groups.into_iter().flatten() {
                    let reply = Err(error.clone());
                    drop(caller.tx.send(Answered { reply, is_shared }));
                }
                return;
            }
        };
        for (callers, mut reply) in self.groups.into_iter().zip(replies) {
            for (position, caller) in callers.into_iter().enumerate() {
                let reply = Ok(reply.of(position, &caller.request));
                drop(caller.tx.send(Answered { reply, is_shared }));
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

/// The plans of a call. Plain accounts with equal demands share a plan.
#[derive(Default)]
struct PlanList<'a> {
    bytes: Vec<Vec<u8>>,
    shared: Vec<BatchPlan<'a>>,
}

/// A plan of plain accounts.
struct BatchPlan<'a> {
    account: &'a AccountRequest,
    number: usize,
}

impl<'a> PlanList<'a> {
    /// Adds a plan, and returns its number, counted from 1 as in Lua.
    fn add(&mut self, plan: Vec<u8>) -> usize {
        self.bytes.push(plan);
        self.bytes.len()
    }

    /// Returns the number of the plan of a plain account.
    fn shared(&mut self, account: &'a AccountRequest) -> usize {
        for known in &self.shared {
            if known.account.quotas == account.quotas && known.account.known == account.known {
                return known.number;
            }
        }
        let number = self.add(account.plan(0, |_, _| Some(Change::Charge), |_| None, |_| 0));
        self.shared.push(BatchPlan { account, number });
        number
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
        quota::{Algorithm, Quota, QuotaAddress},
        store::{Charge, redis::protocol::addresses::Addresses},
    };

    const NOW: u64 = 1_700_000_000_000_000;

    fn caller(charges: &[Charge<'_>]) -> Caller {
        let request = Arc::new(Request::new(charges, &Addresses::new()));
        Caller {
            request,
            tx: oneshot::channel().0,
            runtime: Handle::current(),
        }
    }

    /// Creates a batch of requests, each with its number of callers.
    fn batch_of(requests: &[(usize, &[Charge<'_>])]) -> Batch {
        let mut batch = Batch::new(RequestKind::Plain);
        for (callers, charges) in requests {
            batch.add((0..*callers).map(|_| caller(charges)).collect());
        }
        batch
    }

    fn quota(units: u32) -> Quota {
        Quota::new(units, Duration::from_secs(10)).expect("a quota")
    }

    /// A quota of another period, which is another account.
    fn slow(units: u32) -> Quota {
        Quota::new(units, Duration::from_secs(20)).expect("a quota")
    }

    /// Creates a batch of two equal requests and one other request with two quotas.
    fn batch() -> Batch {
        let (one, two) = (Key::from("one"), Key::from("two"));
        let (few, more) = ([quota(10)], [quota(10), slow(100)]);
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
        let addresses = [quota(10), slow(100)].map(|quota| quota.address().number().to_le_bytes());
        let entry = |(tat, address): (&u64, &[u8; 4])| {
            [&[b'g', 13, 0][..], address, &instant(NOW + tat)].concat()
        };
        let quotas: Vec<_> = tats.iter().zip(&addresses).flat_map(entry).collect();
        let account = [&NOW.to_le_bytes()[..7], &quotas].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        [&[allowed, 0, charges, 0, 0][..], &length, &account].concat()
    }

    fn answer(groups: &[Vec<u8>]) -> Value {
        Value::BulkString([instant(NOW), groups.concat()].concat())
    }

    /// The number of keys and the arguments of a call.
    struct EncodedCall {
        keys: usize,
        args: Vec<Vec<u8>>,
    }

    fn encode(batch: &Batch) -> EncodedCall {
        let slots = Arc::new(Slots::new(Duration::from_secs(60), None));
        let calls: Vec<_> = batch
            .groups()
            .map(|(request, _)| slots.begin(request, 0))
            .collect();
        let (keys, args) = batch.encode(&calls);
        EncodedCall {
            keys: keys.len(),
            args,
        }
    }

    fn read(batch: &Batch, value: &Value) -> Option<SmallVec<[Reply; 1]>> {
        Reply::read(value, batch.groups()).ok()
    }

    #[tokio::test]
    async fn equal_requests_plans_and_accounts_are_sent_once() {
        let keys = ["one", "two"].map(Key::from);
        let (few, more) = ([quota(10)], [quota(10), slow(100)]);
        let one = Charge::new(RuleName::default(), &keys[0], &few);
        let two = Charge::new(RuleName::default(), &keys[1], &more);
        let batch = batch_of(&[(2, &[one]), (1, &[two]), (2, &[two, one])]);
        let call = encode(&batch);
        assert_eq!((call.keys, call.args.len()), (2, 3));
        // For each group: its callers, its accounts, and the key and the plan of each account.
        let first = [2, 1, 1, 1];
        let (second, third) = ([1, 1, 2, 2], [2, 2, 2, 2, 1, 1]);
        let numbers = [&first[..], &second, &third].concat();
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u16::to_le_bytes).collect();
        assert_eq!(call.args[2], bytes);
    }

    #[tokio::test]
    async fn a_call_is_bounded_by_its_accounts_and_its_callers() {
        let quotas = [quota(10)];
        let names = ["a", "b", "c", "d"].map(|name| RuleName::new(name).expect("a name"));
        // All callers have their own accounts, or all share theirs.
        for (distinct, callers, accounts) in [(true, 64, 256), (false, 4_096, 4)] {
            let (mut batch, mut added) = (Batch::new(RequestKind::Plain), 0_u32);
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
            assert_eq!((added, encode(&batch).keys), (callers, accounts));
        }
    }

    #[tokio::test]
    async fn inconsistent_replies_are_errors() {
        let (batch, second) = (batch(), 1_000_000);
        let two = || group(1, 1, &[2 * second, second / 5]);
        let fine = [group(2, 2, &[2 * second]), two()];
        let mut flagged = fine.clone();
        flagged[0][4] = 4;
        let read = |value: &Value| read(&batch, value);
        assert!(read(&answer(&fine)).is_some());
        assert!(read(&answer(&[group(0, 0, &[10 * second]), two()])).is_some());
        assert!(read(&answer(&[group(1, 1, &[second]), two()])).is_some());
        for (what, groups) in [
            ("no group", vec![]),
            ("one group of two", vec![fine[0].clone()]),
            ("three groups of two", vec![fine[0].clone(), two(), two()]),
            (
                "more allowed than sent",
                vec![group(3, 3, &[3 * second]), two()],
            ),
            (
                "allowed but not charged",
                vec![group(2, 0, &[2 * second]), two()],
            ),
            (
                "allowed but charged once",
                vec![group(2, 1, &[2 * second]), two()],
            ),
            (
                "charged but not allowed",
                vec![group(0, 1, &[2 * second]), two()],
            ),
            ("invalid flag", flagged.to_vec()),
        ] {
            assert!(read(&answer(&groups)).is_none(), "{what}");
        }
        let Value::BulkString(bytes) = answer(&fine) else {
            unreachable!()
        };
        for cut in 0..bytes.len() {
            assert!(
                read(&Value::BulkString(bytes[..cut].to_vec())).is_none(),
                "{cut}"
            );
        }
        let longer = Value::BulkString([&bytes[..], &[0]].concat());
        assert!(read(&longer).is_none());
        assert!(read(&Value::Int(1)).is_none() && read(&Value::Nil).is_none());
    }

    /// Creates a batch of three equal requests with a quota of each algorithm, and its answer.
    fn general() -> (Batch, Vec<u8>) {
        let (one, window) = (Key::from("one"), Algorithm::SlidingWindow { buckets: 5 });
        let fixed = [
            Algorithm::fixed_window(),
            Algorithm::FixedWindow {
                carry_over: 0,
                paced: true,
            },
        ];
        let [bucket, log] = [Algorithm::TokenBucket, Algorithm::SlidingLog];
        let [fixed, paced] = fixed.map(|it| quota(10).with_algorithm(it));
        let [bucket, window, log] = [bucket, window, log].map(|it| quota(10).with_algorithm(it));
        let quotas = [fixed, paced, bucket, window, log];
        let mut batch = Batch::default();
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
        let entry = |(at, (letter, state)): (usize, &(u8, Vec<u8>))| {
            let address = QuotaAddress::at(&quotas, at).number().to_le_bytes();
            let length = u16::try_from(11 + state.len())
                .expect("short")
                .to_le_bytes();
            let end = (NOW + 10_000_000).to_le_bytes();
            [&[*letter][..], &length, &address, &end[..7], state].concat()
        };
        let entries: Vec<_> = states.iter().enumerate().flat_map(entry).collect();
        let account = [&NOW.to_le_bytes()[..7], &entries].concat();
        let length = u32::try_from(account.len()).expect("short").to_le_bytes();
        (
            batch,
            [&now[..], &[2, 0, 2, 0, 0], &length, &account].concat(),
        )
    }

    #[tokio::test]
    async fn random_bytes_never_panic() {
        let Value::BulkString(real) = answer(&[
            group(1, 1, &[1_000_000]),
            group(1, 1, &[2_000_000, 200_000]),
        ]) else {
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
        let mut replies = read(&batch, &Value::BulkString(real)).expect("a reply");
        let request = batch.groups().next().expect("a group").0;
        for (position, allowed, left) in [(0, true, 9), (1, true, 8), (2, false, 8)] {
            let decision = replies[0].of(position, request).decision(request);
            assert_eq!(decision.is_allowed(), allowed);
            let remaining = decision
                .outcomes()
                .iter()
                .map(|outcome| outcome.remaining());
            let paced = |index| index == 1;
            assert!(
                remaining
                    .enumerate()
                    .all(|(at, units)| units == left || paced(at))
            );
        }
    }

    fn damage(batch: &Batch, real: &[u8]) {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
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
            if let Some(mut replies) = read(batch, &Value::BulkString(bytes)) {
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
