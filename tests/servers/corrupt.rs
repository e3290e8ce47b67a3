//! Invalid values in Redis, which cost at most one more burst and are not an error.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use redis::{aio::MultiplexedConnection, cmd, pipe};
use tower_sluice::{
    Quota, RedisStore, StoreExt,
    testing::{FakeClock, Subject},
};

use crate::{
    accounts::{Account, Dice, address, connect, list_key, quotas, raw},
    servers::Server,
};

const LIMIT: u32 = 5;
const AT_ONCE: usize = 400;
const DAY: Duration = Duration::from_secs(86_400);
/// An instant away from the boundaries of windows and buckets.
const NOW: Duration = Duration::from_secs(20_000 * 86_400 + 31_000);
/// The additional time for which stores with a driven clock keep values.
const LINGER: Duration = Duration::from_secs(900);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).expect("fits")
}

/// A value, and the entries of the list of a log.
#[derive(Clone, Debug)]
struct Found {
    value: Vec<u8>,
    list: Vec<Vec<u8>>,
}

struct Bench {
    _server: Server,
    connection: MultiplexedConnection,
    subject: RedisStore,
    store: RedisStore,
}

impl Bench {
    async fn open() -> Self {
        let server = Server::redis().await;
        let mut subject = connect(&server.url()).await;
        let store =
            subject.open().reopen().prefix("sluice").readable_keys().lazy().expect("a store");
        let connection = raw(&server.url()).await;
        Self { _server: server, connection, subject, store }
    }

    /// Returns the account of a key without units: two were taken in the bucket before this one.
    async fn real(&mut self, quota: Quota) -> Found {
        let account = Account::new("real", quota);
        for (units, time) in [(2, NOW - DAY / 4), (3, NOW)] {
            self.subject.set(time);
            assert!(account.take(&self.store, units).await.expect("a decision").is_allowed());
        }
        let key = address("default", "real");
        let get = cmd("GET").arg(&key).query_async(&mut self.connection).await;
        let mut range = cmd("LRANGE");
        range.arg(list_key(&key, DAY)).arg(0).arg(-1);
        let list = range.query_async(&mut self.connection).await.expect("a list");
        drop(self.store.reset(&account.charge(0)).await.expect("a reset"));
        Found { value: get.expect("a value"), list }
    }

    /// Writes a value to the key of each account. Every other key has no expiry.
    async fn put(&mut self, all: &[Found], quota: Quota) -> Vec<Account> {
        let mut accounts = Vec::new();
        for (at, Found { value, list }) in all.iter().enumerate() {
            let (key, mut put) = (address("default", &at.to_string()), pipe());
            let names = [key.clone(), list_key(&key, DAY)];
            put.cmd("SET").arg(&key).arg(value).ignore();
            put.cmd("DEL").arg(&names[1]).ignore();
            if !list.is_empty() {
                put.cmd("RPUSH").arg(&names[1]).arg(list).ignore();
            }
            let end = (DAY + LINGER).as_millis().to_string();
            for name in names.iter().filter(|_| at % 2 == 0) {
                put.cmd("PEXPIRE").arg(name).arg(&end).ignore();
            }
            let () = put.query_async(&mut self.connection).await.expect("the server is up");
            accounts.push(Account::new(at.to_string(), quota));
        }
        accounts
    }

    /// Returns the number of units that each account lets pass, of `of`.
    async fn passed(&self, accounts: &[Account], of: u32) -> Vec<u32> {
        let passed = accounts.iter().map(|account| account.passed(&self.store, of));
        stream::iter(passed).buffered(AT_ONCE).collect().await
    }
}

/// Invalid values at the key of a real account.
fn broken(real: &Found) -> Vec<Found> {
    let mut dice = Dice(7);
    let mut values: Vec<Vec<u8>> = Vec::new();
    for length in 0..=64 {
        values.extend([dice.bytes(length), dice.bytes(length)]);
        values.extend((length < real.value.len()).then(|| real.value[..length].to_vec()));
    }
    for at in 0..real.value.len() {
        for flip in [1 << dice.below(8), 0x80, dice.bytes(1)[0] | 1] {
            let mut value = real.value.clone();
            value[at] ^= flip;
            values.push(value);
        }
    }
    values.extend([b"notanumber".to_vec(), vec![b'x'; 1 << 20], vec![0; 20], vec![255; 31]]);
    values.push([&real.value[..], &real.value[..]].concat());
    values.push([&real.value[..], &real.value[7..]].concat());
    // Impossible instants, at every position of seven bytes.
    let now = micros(NOW);
    let year = 365 * micros(DAY);
    let instants =
        [0, 1, now - 20 * year, now + 3 * year, now + 100 * year, (1 << 53) - 1, 1 << 53];
    for instant in instants.into_iter().chain([(1 << 55) + 5, (1 << 56) - 1]) {
        for at in 0..real.value.len().saturating_sub(6) {
            let mut value = real.value.clone();
            value[at..at + 7].copy_from_slice(&instant.to_le_bytes()[..7]);
            values.push(value);
        }
        // A last change of the entry's own, far from that of the account.
        let length = u16::from_le_bytes([real.value[8], real.value[9]]) + 7;
        let letter = [real.value[7].to_ascii_uppercase()];
        let last = &instant.to_le_bytes()[..7];
        let head = &real.value[..7];
        let content = &real.value[10..];
        values.push([head, &letter, &length.to_le_bytes(), last, content].concat());
        // A block that lasts.
        let block = [b"b\x09\0", &instant.to_le_bytes()[..7], &[0, 0]].concat();
        values.push([&real.value[..7], &block, &real.value[7..]].concat());
    }
    let list = real.list.clone();
    let mut all: Vec<_> =
        values.into_iter().map(|value| Found { value, list: list.clone() }).collect();
    for (at, entry) in list.iter().enumerate() {
        for byte in 0..entry.len() {
            let mut found = real.clone();
            found.list[at][byte] ^= 1 << dice.below(8);
            all.push(found);
        }
        for entry in [vec![], b"junk".to_vec(), vec![255; 14], vec![0; 14]] {
            let mut found = real.clone();
            found.list[at] = entry;
            all.push(found);
        }
        let mut found = real.clone();
        found.list.remove(at);
        all.push(found);
    }
    let mut found = real.clone();
    found.list.reverse();
    all.push(found);
    all
}

/// Formats a value for a message.
fn shown(found: &Found) -> String {
    format!("{:?} {:?}", &found.value[..found.value.len().min(80)], found.list)
}

#[tokio::test]
async fn a_broken_value_admits_at_most_one_more_burst() {
    for (name, quota) in quotas(LIMIT, DAY) {
        let mut bench = Bench::open().await;
        let real = bench.real(quota).await;
        let all = broken(&real);
        let accounts = bench.put(&all, quota).await;
        // The units that an intact account allows in the same time.
        let (clock, whole) = (FakeClock::new(), Account::new("whole", quota));
        let local = clock.store(16);
        for (units, time) in [(2, NOW - DAY / 4), (3, NOW)] {
            clock.advance(time - clock.now());
            assert!(local.take(&[whole.charge(units)]).now().is_allowed());
        }
        let (mut most, mut sums) = (LIMIT, vec![0; all.len()]);
        for half_days in 0..8 {
            let now = NOW + DAY / 2 * half_days;
            bench.subject.set(now);
            clock.advance(now - clock.now());
            let of = if half_days == 0 { LIMIT + 2 } else { LIMIT + 1 };
            let whole = (0..of).map(|_| local.take(&[whole.charge(1)]).now().is_allowed());
            most += u32::try_from(whole.filter(|passed| *passed).count()).expect("small");
            let passed = bench.passed(&accounts, of).await;
            for ((sum, passed), found) in sums.iter_mut().zip(passed).zip(&all) {
                *sum += passed;
                assert!(*sum <= most, "{name}: {sum}, not {most}, of {}", shown(found));
            }
        }
        println!("{name}: {} values, {} recognised as invalid", all.len(), bench.store.healed());
    }
}

#[tokio::test]
async fn a_broken_value_locks_no_key_out() {
    for (name, quota) in quotas(LIMIT, DAY) {
        for touch in 0..4 {
            let mut bench = Bench::open().await;
            let real = bench.real(quota).await;
            let all = broken(&real);
            let accounts = bench.put(&all, quota).await;
            bench.subject.set(NOW);
            let touches = accounts.iter().map(async |account| {
                let charge = account.charge(0);
                let answer = match touch {
                    0 => bench.store.take(&[charge]),
                    1 => bench.store.take(&[charge.with_cost(1)]),
                    2 => bench.store.adjust(&charge, 1),
                    _ => bench.store.adjust(&charge, -1),
                };
                drop(answer.await.unwrap_or_else(|error| panic!("{name}: {error}")));
            });
            let () = stream::iter(touches).buffered(AT_ONCE).collect().await;
            // The longest possible debt.
            bench.subject.set(NOW + 2 * DAY + LINGER);
            let passed = bench.passed(&accounts, LIMIT + 1).await;
            for (passed, found) in passed.into_iter().zip(&all) {
                assert_eq!(passed, LIMIT, "{name}, touch {touch}: {}", shown(found));
            }
        }
    }
}
