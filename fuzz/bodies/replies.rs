//! Any answer of a server is an error or a decision as the server reports it: no request passes by
//! accident.

use std::{
    future::ready,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike, parse_redis_value};
use tokio::runtime::{Builder, Runtime};
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, StoreExt, middleware::Slot, rule::RuleName,
    store::Charge, testing::Subject,
};

use super::input::Input;

const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::fixed_window(),
    Algorithm::FixedWindow { carry_over: 3, paced: true },
    Algorithm::AnchoredWindow,
    Algorithm::SlidingWindow { buckets: 5 },
    Algorithm::SlidingWindow { buckets: 1 },
    Algorithm::SlidingLog,
    Algorithm::Concurrent,
];

/// A connection that gives one answer to every command.
#[derive(Clone, Default)]
struct Says(Arc<Mutex<Value>>);

impl Says {
    fn say(&self, value: &Value) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(value);
    }

    fn value(&self) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Stores that keep their scripts, which are slow to create.
struct Stage {
    runtime: Runtime,
    says: Says,
    store: RedisStore<Says>,
    sharded: RedisStore<Says>,
}

/// Tests of other threads wait, because they would change the answer.
static STAGE: LazyLock<Mutex<Stage>> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let says = Says::default();
    let mut store = RedisStore::with_connection(says.clone()).lazy().expect("a store");
    let mut sharded = RedisStore::sharded(says.clone()).lazy().expect("a store");
    // With a fake clock, no task renews slots.
    (store, sharded) = (store.open(), sharded.open());
    Mutex::new(Stage { runtime, says, store, sharded })
});

impl ConnectionLike for Says {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(ready(Ok(self.value())))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(ready(Ok(vec![self.value(); count])))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Reads the algorithm, the cost, the number of the accounts, for slots the answer to their renewal, and the kind of the rest: an answer in wire format, or the bytes of a string.
pub(crate) fn check(bytes: &[u8]) {
    decides(bytes);
}

/// Returns `true` if the answer is a decision.
pub(crate) fn decides(bytes: &[u8]) -> bool {
    let mut input = Input::new(bytes);
    let algorithm = input.one_of(&ALGORITHMS);
    let (cost, kind) = (input.byte() % 3, input.byte());
    let accounts = 1 + usize::from(kind % 2);
    let has_slots = algorithm == Algorithm::Concurrent;
    let renewed: Vec<_> = if has_slots { input.bytes() } else { Vec::new() };
    let value = match input.byte() % 2 {
        0 => Value::BulkString(input.rest().to_vec()),
        _ => match parse_redis_value(input.rest()) {
            Ok(value) => value,
            Err(_) => return false,
        },
    };
    let rate = Quota::new(10, Duration::from_secs(10)).expect("a quota");
    let quotas = [if has_slots { Quota::concurrent(10) } else { rate.with_algorithm(algorithm) }];
    let keys = ["one", "two"].map(Key::from);
    let charge = |(at, key): (usize, _)| {
        let rule = RuleName::new(["one", "two"][at]).expect("a name");
        Charge::new(rule, key, &quotas).with_cost(cost.into())
    };
    let charges: Vec<_> = keys[..accounts].iter().enumerate().map(charge).collect();

    let stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let Stage { runtime, says, store, sharded } = &*stage;
    says.say(&value);
    // The slots of each check are those of another process.
    let [mut one, mut several] = [store.clone(), sharded.clone()];
    let join = |it: &mut RedisStore<_>| it.join(Duration::from_secs(10)).expect("a process");
    let (store, sharded) = (join(&mut one), join(&mut several));
    runtime.block_on(async {
        let mut taken = store.take(&charges).await;
        if let Ok(decision) = &mut taken {
            is_sound(decision, accounts);
            assert_eq!(verdict(&value, accounts, cost), Some(decision.is_allowed()));
            let slot = decision.take_slot();
            assert_eq!(slot.is_some(), has_slots && cost > 0 && decision.is_allowed());
            if let Some(slot) = slot {
                says.say(&Value::BulkString(renewed.clone()));
                one.renew(&store).await;
                is_lost_if_reported(&slot, &renewed, accounts);
                says.say(&value);
            }
        }
        for units in [-1, 1] {
            store.adjust(&charges[0], units).await.iter().for_each(|now| is_sound(now, 1));
        }
        // Each account has its own call.
        if let Ok(decision) = sharded.take(&charges).await {
            is_sound(&decision, accounts);
            assert_eq!(verdict(&value, 1, cost), Some(decision.is_allowed()), "{decision:?}");
        }
        taken.is_ok()
    })
}

fn is_sound(decision: &Decision, accounts: usize) {
    let complete = decision.outcomes().len() == accounts;
    assert!(complete || !decision.is_allowed(), "{decision:?}");
    for outcome in decision.outcomes() {
        let times = (outcome.reset_after(), outcome.next_after(), outcome.retry_after());
        assert!(outcome.remaining() <= outcome.limit() + 3, "{outcome:?} {times:?}");
    }
}

/// The slots of a request are lost if an answer with one byte for each of its `accounts` reports one
/// that no longer counts.
fn is_lost_if_reported(slot: &Slot, renewed: &[u8], accounts: usize) {
    let reported = renewed.len() == accounts && renewed.iter().any(|counts| *counts != b'1');
    assert_eq!(slot.lost().now_or_never().is_some(), reported, "{renewed:?}");
}

/// Returns `true` if the server allows the request, `false` if it denies it, and `None` if the
/// answer does not have the right form for every account.
fn verdict(value: &Value, accounts: usize, cost: u8) -> Option<bool> {
    let Value::BulkString(bytes) = value else { return None };
    // The time, then the number of allowed requests.
    let (_, rest) = bytes.split_at_checked(9)?;
    let (allowed, mut rest) = number::<2>(rest)?;
    let expected = if cost > 0 { allowed } else { 0 };
    for _ in 0..accounts {
        let (charges, more) = number::<2>(rest)?;
        let (sign, more) = number::<1>(more)?;
        let (length, more) = number::<4>(more)?;
        rest = more.get(usize::try_from(length).ok()?..)?;
        if sign > 3 || charges != expected {
            return None;
        }
    }
    (allowed < 2 && matches!(rest, [] | [1])).then_some(allowed == 1)
}

/// Reads a little-endian number.
fn number<const N: usize>(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_at_checked(N)?;
    let mut all = [0; 8];
    all[..N].copy_from_slice(number);
    Some((u64::from_le_bytes(all), rest))
}
