//! Any answer of a server is an error or a decision as the server reports it: no request passes by
//! accident.

use std::{
    future::ready,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike, parse_redis_value};
use tokio::runtime::{Builder, Runtime};
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, StoreExt, rule::RuleName, store::Charge,
};

use super::input::Input;

const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::Gcra,
    Algorithm::TokenBucket,
    Algorithm::fixed_window(),
    Algorithm::FixedWindow { carry_over: 3, paced: true },
    Algorithm::AnchoredWindow,
    Algorithm::SlidingWindow { buckets: 5 },
    Algorithm::SlidingWindow { buckets: 1 },
    Algorithm::SlidingLog,
];

/// A connection that gives one answer to every command.
#[derive(Clone, Default)]
struct Says(Arc<Mutex<Value>>);

impl Says {
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
    let (store, sharded) = (RedisStore::new(says.clone()), RedisStore::sharded(says.clone()));
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

/// Reads the algorithm, the cost, the number of accounts, and the kind of the rest: an answer in
/// wire format, or the bytes of a string.
pub(crate) fn check(bytes: &[u8]) {
    decides(bytes);
}

/// Returns `true` if the answer is a decision.
pub(crate) fn decides(bytes: &[u8]) -> bool {
    let mut input = Input::new(bytes);
    let algorithm = input.one_of(&ALGORITHMS);
    let (cost, accounts) = (input.byte() % 3, 1 + usize::from(input.byte() % 2));
    let value = match input.byte() % 2 {
        0 => Value::BulkString(input.rest().to_vec()),
        _ => match parse_redis_value(input.rest()) {
            Ok(value) => value,
            Err(_) => return false,
        },
    };
    let quota = Quota::new(10, Duration::from_secs(10)).expect("a quota").with_algorithm(algorithm);
    let (quotas, keys) = ([quota], ["one", "two"].map(Key::from));
    let charge = |key| Charge::new(RuleName::default(), key, &quotas).with_cost(cost.into());
    let charges: Vec<_> = keys[..accounts].iter().map(charge).collect();

    let stage = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let Stage { runtime, says, store, sharded } = &*stage;
    says.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&value);
    runtime.block_on(async {
        let taken = store.take(&charges).await;
        if let Ok(decision) = &taken {
            is_sound(decision, accounts);
            assert_eq!(verdict(&value, accounts, cost), Some(decision.is_allowed()));
        }
        for units in [-1, 1] {
            store.adjust(&charges[0], units).await.iter().for_each(|now| is_sound(now, 1));
        }
        // Each account has its own call.
        if let Ok(decision) = sharded.take(&charges).await {
            is_sound(&decision, accounts);
            assert_eq!(verdict(&value, 1, cost), Some(decision.is_allowed()));
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

/// Returns `true` if the server allows the request, `false` if it denies it, and `None` if the
/// answer does not have the right form for every account.
fn verdict(value: &Value, accounts: usize, cost: u8) -> Option<bool> {
    let Value::BulkString(bytes) = value else { return None };
    // The time, then the number of allowed requests.
    let (_, rest) = bytes.split_at_checked(9)?;
    let (allowed, mut rest) = number::<2>(rest)?;
    for _ in 0..accounts {
        let (charges, more) = number::<2>(rest)?;
        let (healed, more) = number::<1>(more)?;
        let (length, more) = number::<4>(more)?;
        rest = more.get(usize::try_from(length).ok()?..)?;
        if healed > 1 || charges != if cost > 0 { allowed } else { 0 } {
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
