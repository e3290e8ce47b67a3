//! The stored format of each algorithm, with golden values: the names of the keys, their bytes, and
//! the decisions of a store that reads them. A change of `format.txt` needs another version in
//! `src/store/redis/protocol/addresses.rs`, because stores of two releases share accounts.

use std::{fmt::Write, time::Duration};

use redis::{FromRedisValue, aio::MultiplexedConnection};
use tower_sluice::{Algorithm, Decision, Quota, RedisStore, StoreExt, testing::Subject};

use crate::{
    accounts::{Account, connect, keys, raw},
    servers::{Flavour, Server},
};

const GOLDEN: &str = include_str!("format.txt");
/// The time of the first operation: 13 s after the start of a minute. Every part of an instant has
/// a value.
const START: Duration = Duration::new(1_700_000_053, 123_456_789);

/// An operation. A take charges the cost, and an adjustment the units.
#[derive(Clone, Copy)]
enum Step {
    Take(u32),
    Adjust(i64),
    Block(Duration),
    Reset,
    /// Moves the clock.
    Pass(Duration),
}

use Step::{Adjust, Block, Pass, Reset, Take};

const SECOND: Step = Pass(Duration::from_secs(1));
const MINUTE: Step = Pass(Duration::from_secs(60));

/// Returns the quotas of a rule and the operations on its account, by name.
fn cases() -> Vec<(&'static str, Vec<Quota>, Vec<Step>)> {
    let five = Quota::per_minute(5);
    let of = |algorithm| vec![five.with_algorithm(algorithm)];
    let tokens = five.with_algorithm(Algorithm::TokenBucket);
    let (window, log) = (Algorithm::fixed_window(), Algorithm::SlidingLog);
    let lending = |carry_over, paced| of(Algorithm::FixedWindow { carry_over, paced });
    let three = || vec![Take(2), SECOND, Take(1)];
    vec![
        ("gcra", vec![five], three()),
        ("gcra, burst", vec![five.with_burst(20)], three()),
        ("gcra, initial", vec![five.with_initial(4)], three()),
        ("gcra, burst and initial", vec![five.with_burst(20).with_initial(8)], three()),
        ("gcra, denied with initial", vec![five.with_initial(1)], vec![Take(2)]),
        ("gcra, late charge", vec![five.with_max_debt(5)], vec![Take(2), Adjust(9)]),
        ("gcra, several quotas", vec![five, Quota::per_hour(100)], three()),
        ("token bucket", vec![tokens], three()),
        ("token bucket, initial", vec![tokens.with_initial(4)], three()),
        ("token bucket, late charge", vec![tokens.with_max_debt(5)], vec![Take(2), Adjust(8)]),
        ("fixed window", of(window), three()),
        ("fixed window, carry-over", lending(3, false), vec![Take(3), MINUTE, Take(6)]),
        ("fixed window, paced", lending(0, true), vec![Take(1), SECOND, Take(1)]),
        ("fixed window, paced, carry-over", lending(3, true), vec![Take(1), MINUTE, Take(1)]),
        ("anchored window", of(Algorithm::AnchoredWindow), three()),
        #[cfg(feature = "calendar")]
        ("calendar month", vec![Quota::per_month(5)], three()),
        (
            "sliding window",
            of(Algorithm::SlidingWindow { buckets: 1 }),
            vec![Take(3), MINUTE, Take(1)],
        ),
        ("sliding window, several buckets", of(Algorithm::SlidingWindow { buckets: 60 }), three()),
        ("sliding log", of(log), three()),
        (
            "every kind",
            vec![five, tokens, five.with_algorithm(window), five.with_algorithm(log)],
            three(),
        ),
        ("slots", vec![Quota::concurrent(5)], three()),
        ("slots and a rate", vec![Quota::concurrent(5), five], three()),
        ("slots, reset", vec![Quota::concurrent(5), five], vec![Take(2), Reset, Take(1)]),
        ("block", vec![five], vec![Block(Duration::from_secs(90))]),
        ("block and charge", vec![five], vec![Take(2), Block(Duration::from_secs(90))]),
        ("block after a charge", vec![five], vec![Take(2), SECOND, Block(Duration::from_secs(90))]),
        ("reset", vec![five], vec![Take(2), SECOND, Reset]),
        ("reset, block and charge", vec![five], {
            vec![Take(2), Reset, Take(1), Block(Duration::from_secs(90))]
        }),
    ]
}

struct Bench {
    _server: Server,
    connection: MultiplexedConnection,
    subject: RedisStore,
    store: RedisStore,
    now: Duration,
    /// The decisions that hold slots.
    taken: Vec<Decision>,
}

impl Bench {
    async fn open(flavour: Flavour) -> Self {
        let server = Server::start(flavour, &[]).await;
        let mut subject = connect(&server.url()).await;
        let store = subject.open().reopen().prefix("golden").lazy().expect("a store");
        let connection = raw(&server.url()).await;
        let taken = Vec::new();
        let mut bench = Self { _server: server, connection, subject, store, now: START, taken };
        bench.set(START);
        bench
    }

    fn set(&mut self, now: Duration) {
        self.now = now;
        self.subject.set(now);
    }

    async fn run(&mut self, account: &Account, step: Step) {
        let (store, charge) = (&self.store, account.charge(0));
        let answer = match step {
            Pass(time) => return self.set(self.now + time),
            Take(cost) => {
                return self.taken.push(account.take(store, cost).await.expect("a decision"));
            }
            Adjust(units) => store.adjust(&charge, units),
            Block(time) => store.block(&charge, time),
            Reset => store.reset(&charge),
        };
        drop(answer.await.expect("an answer"));
    }

    /// Returns a line for each key on the server: its name and its bytes. A list is `[entries]`. A set
    /// is `(ends)`, because its members are random.
    async fn stored(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, _) in keys(&mut self.connection).await {
            let kind: String = self.ask("TYPE", &name, &[]).await;
            let bytes = match kind.as_str() {
                "string" => hex(&self.ask::<Vec<u8>>("GET", &name, &[]).await),
                "list" => {
                    let entries: Vec<Vec<u8>> = self.ask("LRANGE", &name, &["0", "-1"]).await;
                    let entries: Vec<_> = entries.iter().map(|entry| hex(entry)).collect();
                    format!("[{}]", entries.join(" "))
                }
                _ => {
                    let range = ["0", "-1", "WITHSCORES"];
                    let members: Vec<(Vec<u8>, f64)> = self.ask("ZRANGE", &name, &range).await;
                    assert!(members.iter().all(|(member, _)| member.len() == 16));
                    let ends: Vec<_> = members.iter().map(|(_, end)| end.to_string()).collect();
                    format!("({})", ends.join(" "))
                }
            };
            lines.push(format!("{} {bytes}", String::from_utf8(name).expect("text")));
        }
        lines.sort();
        lines
    }

    async fn ask<T: FromRedisValue>(&mut self, command: &str, name: &[u8], more: &[&str]) -> T {
        let mut command = redis::cmd(command);
        command.arg(name).arg(more).query_async(&mut self.connection).await.expect("a value")
    }

    /// Writes the keys of lines that [`stored`](Bench::stored) returned.
    async fn write(&mut self, lines: &[String]) {
        for line in lines {
            let (name, bytes) = line.split_once(' ').expect("a name and bytes");
            let list = bytes.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
            let set = bytes.strip_prefix('(').and_then(|set| set.strip_suffix(')'));
            let mut command = redis::cmd(match (list, set) {
                (Some(_), _) => "RPUSH",
                (_, Some(_)) => "ZADD",
                _ => "SET",
            });
            command.arg(name);
            for (at, text) in set.unwrap_or_default().split_whitespace().enumerate() {
                command.arg(text).arg(format!("{at:016}"));
            }
            for bytes in list.unwrap_or(bytes).split(' ').filter(|_| set.is_none()) {
                command.arg(unhex(bytes));
            }
            // A key without an expiry is not one of the store's.
            let mut pipe = redis::pipe();
            pipe.add_command(command).ignore().expire(name, 3_600).ignore();
            let () = pipe.query_async(&mut self.connection).await.expect("written");
        }
    }

    async fn clear(&mut self) {
        let () = redis::cmd("FLUSHALL").query_async(&mut self.connection).await.expect("empty");
    }

    /// Returns the decisions half a second later: of a look, and of a charge of the limit.
    async fn decisions(&mut self, account: &Account) -> String {
        self.set(self.now + Duration::from_millis(500));
        let look = account.take(&self.store, 0).await.expect("a decision");
        let limit = account.quotas.iter().map(Quota::limit).max().expect("a quota");
        let all = account.take(&self.store, limit).await.expect("a decision");
        let looks = look.outcomes().iter().map(|outcome| {
            format!("{} left, full after {:?}", outcome.remaining(), outcome.reset_after())
        });
        let passes = match (all.is_allowed(), all.is_blocked()) {
            (true, _) => "allowed",
            (false, true) => "blocked",
            (false, false) => "denied",
        };
        let retry = all.retry_after().map(|time| format!(", retry after {time:?}"));
        let retry = retry.unwrap_or_default();
        format!("{}; {limit} {passes}{retry}", looks.collect::<Vec<_>>().join("; "))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("a byte");
    (0..text.len()).step_by(2).map(byte).collect()
}

async fn keeps_its_format(flavour: Flavour) {
    let (mut bench, mut text) = (Bench::open(flavour).await, String::new());
    for (name, quotas, steps) in cases() {
        bench.clear().await;
        bench.set(START);
        let account = Account { quotas: quotas.into(), ..Account::new(name, Quota::per_hour(1)) };
        for step in steps {
            bench.run(&account, step).await;
        }
        let (stored, now) = (bench.stored().await, bench.now);
        let decisions = bench.decisions(&account).await;
        let _ = writeln!(text, "{name}\n  {}\n  {decisions}", stored.join("\n  "));
        bench.clear().await;
        bench.taken.clear();
        bench.set(now);
        bench.write(&stored).await;
        assert_eq!(bench.decisions(&account).await, decisions, "{name}: read from its bytes");
    }
    assert_eq!(bench.store.healed(), 0, "every value is valid");
    assert!(GOLDEN == text, "{flavour:?} differs from tests/servers/format.txt:\n{text}");
}

#[tokio::test]
async fn redis_keeps_the_format() {
    keeps_its_format(Flavour::Redis).await;
}

#[tokio::test]
async fn valkey_keeps_the_format() {
    keeps_its_format(Flavour::Valkey).await;
}

/// In other tests, a script that compares texts would fail only under such a locale.
#[tokio::test]
async fn the_servers_of_the_tests_compare_text_by_a_locale() {
    for flavour in Flavour::ALL {
        let server = Server::start(flavour, &[]).await;
        let order: Vec<String> =
            server.command("EVAL return{tostring('a'<'B'),tostring('B'<'a')} 0").await;
        assert_eq!(order, ["true", "false"], "{flavour:?}");
    }
}
