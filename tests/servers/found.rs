//! Unexpected values at the keys of a store: of another type, program or version, or missing.

use redis::{Cmd, FromRedisValue, aio::MultiplexedConnection};
use tower_sluice::{Algorithm, Quota, RedisStore, StoreExt};

use crate::{
    accounts::{Account, Dice, LONG, address, keys, list_key, quotas, raw},
    servers::Server,
};

const LIMIT: u32 = 4;
const LOGGED: Quota = Quota::per(LIMIT, LONG).with_algorithm(Algorithm::SlidingLog);

struct Bench {
    _server: Server,
    store: RedisStore,
    connection: MultiplexedConnection,
}

impl Bench {
    async fn open() -> Self {
        let server = Server::redis().await;
        let store = RedisStore::connect(server.url()).readable_keys().await.expect("a store");
        let connection = raw(&server.url()).await;
        Self { _server: server, store, connection }
    }

    /// Runs a command, split at spaces. `KEY` is the account of `name`, `LIST` its list.
    async fn command<T: FromRedisValue>(&mut self, words: &str, name: &str) -> T {
        let key = address("default", name);
        let (list, mut command) = (list_key(&key, LONG), Cmd::new());
        for word in words.split(' ') {
            command.arg(match word {
                "KEY" => &key,
                "LIST" => &list,
                word => word,
            });
        }
        command.query_async(&mut self.connection).await.unwrap_or_else(|e| panic!("{words}: {e}"))
    }

    async fn all_end(&mut self) -> bool {
        keys(&mut self.connection).await.iter().all(|(_, left)| *left >= 0)
    }
}

/// Commands that write a value of another type to a key.
const OTHERS: [&str; 6] = [
    "RPUSH PLACE a b c",
    "HSET PLACE a b",
    "SADD PLACE a b",
    "ZADD PLACE 1 a",
    "XADD PLACE * a b",
    "PFADD PLACE a b",
];

#[tokio::test]
async fn a_value_of_another_type_is_replaced_and_counted() {
    let mut bench = Bench::open().await;
    for (algorithm, quota) in quotas(LIMIT, LONG) {
        for (at, other) in OTHERS.iter().enumerate() {
            let name = format!("{algorithm}{at}");
            let account = Account::new(&name, quota);
            assert!(account.passes(&bench.store).await);
            let () = bench.command("DEL KEY", &name).await;
            let () = bench.command(&other.replace("PLACE", "KEY"), &name).await;
            let before = bench.store.healed();
            assert_eq!(account.passed(&bench.store, LIMIT + 2).await, LIMIT, "{name}");
            assert_eq!(bench.store.healed() - before, 1, "{name}");
            let kind: String = bench.command("TYPE KEY", &name).await;
            assert_eq!(kind, "string");
        }
    }
    assert!(bench.all_end().await);
}

#[tokio::test]
async fn a_look_and_a_denial_replace_foreign_values_too() {
    let mut bench = Bench::open().await;
    let account = Account::new("a", Quota::per_hour(LIMIT));
    for cost in [0, LIMIT + 1] {
        let () = bench.command("SADD KEY a", "a").await;
        let decision = account.take(&bench.store, cost).await.expect("a decision");
        assert_eq!(decision.is_allowed(), cost == 0);
        assert_eq!(decision.outcomes()[0].remaining(), LIMIT);
        assert_eq!(bench.command::<u32>("EXISTS KEY", "a").await, 0);
    }
    let charge = account.charge(0);
    for (at, what) in ["adjust", "reset", "block", "unblock"].into_iter().enumerate() {
        let () = bench.command("DEL KEY", "a").await;
        let () = bench.command("SADD KEY a", "a").await;
        let answer = match at {
            0 => bench.store.adjust(&charge, 1),
            1 => bench.store.reset(&charge),
            2 => bench.store.block(&charge, LONG),
            _ => bench.store.unblock(&charge),
        };
        drop(answer.await.unwrap_or_else(|error| panic!("{what}: {error}")));
        assert!(bench.all_end().await, "{what}");
    }
    assert_eq!(bench.store.healed(), 6);
}

#[tokio::test]
async fn a_foreign_value_at_the_key_of_a_log_costs_one_more_burst() {
    let mut bench = Bench::open().await;
    for (at, other) in OTHERS.iter().enumerate() {
        for charged in [0, 1, LIMIT] {
            let name = format!("{at}-{charged}");
            let account = Account::new(&name, LOGGED);
            assert_eq!(account.passed(&bench.store, charged).await, charged);
            let () = bench.command("DEL LIST", &name).await;
            let () = bench.command(&other.replace("PLACE", "LIST"), &name).await;
            assert_eq!(account.passed(&bench.store, LIMIT + 2).await, LIMIT, "{other}, {charged}");
            assert_eq!(bench.command::<u32>("LLEN LIST", &name).await, LIMIT);
        }
    }
    assert!(bench.all_end().await);
}

#[tokio::test]
async fn foreign_entries_in_a_log_are_not_an_error() {
    let mut bench = Bench::open().await;
    for (at, command) in [
        "LSET LIST 0 junk",
        "LSET LIST -1 junk",
        "LSET LIST 1 junk",
        "LSET LIST 2 fourteen-bytes",
        "LPUSH LIST a b c",
        "RPUSH LIST a b c",
        "LTRIM LIST 0 1",
        "LTRIM LIST 2 -1",
    ]
    .into_iter()
    .enumerate()
    {
        let name = at.to_string();
        let account = Account::new(&name, LOGGED);
        assert_eq!(account.passed(&bench.store, LIMIT).await, LIMIT);
        let () = bench.command(command, &name).await;
        let charge = account.charge(0);
        let passed = account.passed(&bench.store, LIMIT + 1).await;
        assert!(passed <= LIMIT, "{command}: {passed}");
        for units in [-1, 1, -3, 9] {
            drop(
                bench
                    .store
                    .adjust(&charge, -units)
                    .await
                    .unwrap_or_else(|e| panic!("{command}: {e}")),
            );
        }
        drop(bench.store.reset(&charge).await.expect("a reset"));
        assert_eq!(account.passed(&bench.store, LIMIT + 1).await, LIMIT, "{command}");
    }
    assert!(bench.all_end().await);
}

#[tokio::test]
async fn an_evicted_account_starts_full_and_so_does_its_log() {
    let mut bench = Bench::open().await;
    for (algorithm, quota) in quotas(LIMIT, LONG) {
        for gone in ["DEL KEY", "DEL LIST", "DEL KEY LIST"] {
            let name = format!("{algorithm}-{}", gone.replace(' ', "-"));
            let account = Account::new(&name, quota);
            assert_eq!(account.passed(&bench.store, LIMIT + 1).await, LIMIT);
            let () = bench.command(gone, &name).await;
            let logged = quota.algorithm() == Algorithm::SlidingLog;
            let again = if gone == "DEL LIST" && !logged { 0 } else { LIMIT };
            assert_eq!(account.passed(&bench.store, LIMIT + 1).await, again, "{name}");
            // The remaining half does not count twice, then or later.
            drop(bench.store.adjust(&account.charge(0), -1).await.expect("a refund"));
            assert_eq!(account.passed(&bench.store, 3).await, 1, "{name}");
        }
    }
    assert_eq!(bench.store.healed(), 0, "no invalid value was found");
    assert!(bench.all_end().await);
}

#[tokio::test]
async fn keys_of_other_versions_and_programs_stay_untouched() {
    let mut bench = Bench::open().await;
    let mut dice = Dice(3);
    let others = [
        "sluice:2:{default:%02a}",
        "sluice:3:{default:%02a}",
        "sluice:{default:%02a}",
        "sluice",
        "other:1:{a}",
    ];
    for key in others {
        let value = dice.bytes(30);
        let mut set = redis::cmd("SET");
        let set = set.arg(key).arg(value).query_async(&mut bench.connection);
        let () = set.await.expect("set");
    }
    let mut dump = async || {
        let mut dumps = Vec::new();
        for key in others {
            let dump = redis::cmd("DUMP").arg(key).query_async(&mut bench.connection).await;
            dumps.push(dump.expect("a dump"));
        }
        dumps
    };
    let before: Vec<Vec<u8>> = dump().await;
    for (name, quota) in quotas(LIMIT, LONG) {
        let account = Account::new("a", quota);
        assert_eq!(account.passed(&bench.store, LIMIT + 1).await, LIMIT, "{name}");
        drop(bench.store.adjust(&account.charge(0), 1).await.expect("a late charge"));
        drop(bench.store.reset(&account.charge(0)).await.expect("a reset"));
    }
    assert_eq!(dump().await, before);
    assert_eq!(bench.store.healed(), 0);
}
