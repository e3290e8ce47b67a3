//! Whatever a server answers is an error or what it says: nobody passes by accident.

use std::{
    future::ready,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike, parse_redis_value};
use tokio::runtime::{Builder, Runtime};
use tower_sluice::{Algorithm, Charge, Decision, Key, Quota, RedisStore, RuleName, Store};

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

/// Says the same to every command.
#[derive(Clone, Default)]
struct Says(Arc<Mutex<Value>>);

impl Says {
    fn said(&self) -> Value {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Stores that keep their scripts, which are long in the making.
struct Stage {
    runtime: Runtime,
    says: Says,
    store: RedisStore<Says>,
    sharded: RedisStore<Says>,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let says = Says::default();
    let (store, sharded) = (RedisStore::new(says.clone()), RedisStore::sharded(says.clone()));
    Stage { runtime, says, store, sharded }
});

impl ConnectionLike for Says {
    fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(ready(Ok(self.said())))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(ready(Ok(vec![self.said(); count])))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// The algorithm, the cost, how many accounts and whether the rest is an answer as it goes over
/// the wire, or the bytes of a string.
pub(crate) fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let algorithm = input.one_of(&ALGORITHMS);
    let (cost, accounts) = (input.byte() % 3, 1 + usize::from(input.byte() % 2));
    let value = match input.byte() % 2 {
        0 => Value::BulkString(input.rest().to_vec()),
        _ => match parse_redis_value(input.rest()) {
            Ok(value) => value,
            Err(_) => return,
        },
    };
    let quota = Quota::new(10, Duration::from_secs(10)).expect("a quota").algorithm(algorithm);
    let (quotas, keys) = ([quota], ["one", "two"].map(Key::from));
    let charge = |key| Charge::new(RuleName::default(), key, &quotas).cost(cost.into());
    let charges: Vec<_> = keys[..accounts].iter().map(charge).collect();

    let Stage { runtime, says, store, sharded } = &*STAGE;
    says.0.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&value);
    runtime.block_on(async {
        if let Ok(decision) = store.take(&charges).await {
            is_sound(&decision, accounts);
            assert_eq!(said(&value, accounts, cost), Some(decision.is_allowed()));
        }
        for units in [-1, 1] {
            store.settle(&charges[0], units).await.iter().for_each(|now| is_sound(now, 1));
        }
        // each account is asked for by itself
        if let Ok(decision) = sharded.take(&charges).await {
            is_sound(&decision, accounts);
            assert_eq!(said(&value, 1, cost), Some(decision.is_allowed()));
        }
    });
}

fn is_sound(decision: &Decision, accounts: usize) {
    let all_told = decision.outcomes().len() == accounts;
    assert!(all_told || !decision.is_allowed(), "{decision:?}");
    for outcome in decision.outcomes() {
        let times = (outcome.reset_after(), outcome.next_after(), outcome.retry_after());
        assert!(outcome.remaining() <= outcome.limit() + 3, "{outcome:?} {times:?}");
    }
}

/// Whether the server let it pass, where it says so of every account in the right form.
fn said(value: &Value, accounts: usize, cost: u8) -> Option<bool> {
    let Value::BulkString(bytes) = value else { return None };
    let (head, mut rest) = bytes.split_at_checked(10)?;
    let allowed = match head[0] {
        0 => false,
        1 => true,
        _ => return None,
    };
    for _ in 0..accounts {
        let (flags, length) = rest.split_at_checked(5)?.0.split_first()?;
        let length = usize::try_from(u32::from_le_bytes(length.try_into().ok()?)).ok()?;
        rest = rest[5..].get(length..)?;
        if (flags & 1 == 1) != (allowed && cost > 0) {
            return None;
        }
    }
    rest.is_empty().then_some(allowed)
}
