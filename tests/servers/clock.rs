//! Steps of the server's clock.
//!
//! A step back changes no account, and a step forward gives an account at most a burst. A clock that
//! jitters refills no account twice.

use std::time::Duration;

use futures::future::join_all;
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, Store, StoreExt, store::Charge, testing::Subject,
};

use crate::{
    accounts::{Account, Dice, address, connect, keys, list_key, quotas, raw, rule},
    servers::Server,
    support::random::{Row, rows},
};

const LIMIT: u32 = 5;
const DAY: Duration = Duration::from_secs(86_400);
const NOW: Duration = Duration::from_secs(20_000 * 86_400 + 31_000);

async fn open(server: &Server) -> (RedisStore, RedisStore) {
    let mut subject = connect(&server.url()).await;
    let store = subject.open();
    (subject, store)
}

/// Steps that keep the position of windows and buckets within their periods.
const STEPS: [Duration; 3] =
    [DAY, Duration::from_secs(7 * 86_400), Duration::from_secs(86_400_000)];

#[tokio::test]
async fn a_step_back_neither_refills_nor_charges_an_account() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    for (name, quota) in quotas(LIMIT, DAY) {
        for (at, back) in STEPS.into_iter().enumerate() {
            let account = Account::new(format!("{name}{at}"), quota);
            for time in [NOW - DAY / 4, NOW] {
                subject.set(time);
                assert!(account.take(&store, 2).await.expect("a decision").is_allowed());
            }
            let before = account.take(&store, LIMIT).await.expect("a decision");
            assert!(!before.is_allowed());
            let wait = before.retry_after().expect("it will pass");
            subject.set(NOW - back);
            let after = account.take(&store, LIMIT).await.expect("a decision");
            assert_eq!(after.remaining(), before.remaining(), "{name} {back:?}");
            assert_eq!(after.retry_after(), Some(wait), "{name} {back:?}");
            // The wait is exactly as long as before.
            subject.set(NOW - back + wait - Duration::from_nanos(1));
            let early = account.take(&store, LIMIT).await.expect("a decision");
            assert!(!early.is_allowed(), "{name} {back:?}");
            subject.set(NOW - back + wait);
            let late = account.take(&store, LIMIT).await.expect("a decision");
            assert!(late.is_allowed(), "{name} {back:?}");
        }
    }
}

#[tokio::test]
async fn an_account_from_a_clock_ahead_keeps_its_units() {
    // Uses the server's own clock: the value comes from a server that was a week ahead.
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).readable_keys().await.expect("a store");
    let mut connection = raw(&server.url()).await;
    let account = Account::new("a", quotas(LIMIT, DAY)[0].1);
    assert_eq!(account.passed(&store, 3).await, 3);
    let key = address("default", "a");
    let get = redis::cmd("GET").arg(&key).query_async(&mut connection).await;
    let mut value: Vec<u8> = get.expect("a value");
    let week = 7 * 86_400_000_000_u64;
    for at in [0, 14] {
        let mut instant = [0; 8];
        instant[..7].copy_from_slice(&value[at..at + 7]);
        let moved = u64::from_le_bytes(instant) + week;
        value[at..at + 7].copy_from_slice(&moved.to_le_bytes()[..7]);
    }
    let mut set = redis::cmd("SET");
    let set = set.arg(&key).arg(value).arg("KEEPTTL").query_async(&mut connection).await;
    let () = set.expect("set");
    assert_eq!(account.left(&store).await, 2);
    assert_eq!(account.passed(&store, 3).await, 2);
    assert_eq!(store.healed(), 0);
}

#[tokio::test]
async fn a_step_back_moves_a_log_with_any_list() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    let store = store.reopen().prefix("sluice").readable_keys().lazy().expect("a store");
    let account = Account::new("a", quotas(LIMIT, DAY)[5].1);
    let list = list_key(&address("default", "a"), DAY);
    let mut back = NOW;
    for junk in ["LSET LIST 1 junk", "RPUSH LIST fourteen-bytes", "LPUSH LIST x", "SET LIST x"] {
        subject.set(back);
        drop(store.reset(&account.charge(0)).await.expect("a reset"));
        for at in 0..LIMIT {
            subject.set(back + Duration::from_millis(at.into()));
            assert!(account.passes(&store).await);
        }
        let () = server.command(&junk.replace("LIST", &list)).await;
        back -= DAY;
        subject.set(back);
        let passed = account.passed(&store, LIMIT + 1).await;
        assert!(passed <= LIMIT, "{junk}: {passed}");
        subject.set(back + DAY);
        assert_eq!(account.passed(&store, LIMIT + 1).await, LIMIT, "{junk}");
    }
}

/// A call of some quotas of an account, after a step back that no call has seen.
#[tokio::test]
async fn a_call_of_other_quotas_does_not_hide_a_step_back() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    let week = 7 * DAY;
    for (name, quota) in quotas(LIMIT, DAY) {
        for call in 0..2 {
            let quotas = [quota, Quota::per_day(1_000)];
            let key = Key::from(format!("{name}{call}"));
            let both = Charge::new(rule("both"), &key, &quotas);
            let take = async || store.take(&[both]).await.expect("a decision").is_allowed();
            subject.set(NOW);
            for _ in 0..LIMIT {
                assert!(take().await, "{name}");
            }
            subject.set(NOW - week);
            match call {
                0 => {
                    let operator = Charge::new(rule("both"), &key, &[]);
                    drop(store.block(&operator, DAY / 2).await.expect("a block"));
                    assert!(!take().await, "{name}: a block");
                    drop(store.unblock(&operator).await.expect("no block"));
                }
                _ => {
                    let second = [both.with_quota_index(1)];
                    assert!(store.take(&second).await.expect("a decision").is_allowed());
                }
            }
            assert!(!take().await, "{name}, {call}: a step back refills no account");
            subject.set(NOW - week + 2 * DAY);
            assert!(take().await, "{name}, {call}: a step back locks no key out");
            assert_eq!(store.healed(), 0, "{name}, {call}");
        }
    }
}

const MS: Duration = Duration::from_millis(1);

/// The operations on accounts. Those that decide do so on two accounts in one call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Take,
    /// More requests at once than have a call each.
    Many,
    /// A request that also takes a slot.
    Slots,
    Peek,
    Charge,
    Refund,
    Undo,
    Reset,
    Block,
}

const CALLS: [Call; 9] = [
    Call::Take,
    Call::Many,
    Call::Slots,
    Call::Peek,
    Call::Charge,
    Call::Refund,
    Call::Undo,
    Call::Reset,
    Call::Block,
];
/// The number of callers of [`Call::Many`].
const MANY: u32 = 40;

/// Accounts of which a call names the newest one last.
struct Pair {
    older: Vec<Account>,
    newest: Account,
}

impl Pair {
    fn new(name: &str, quota: Quota, older: u32) -> Self {
        let of = |rule_name: &str, key: String| {
            let account = Account::new(key, quota);
            Account { rule: rule(rule_name), ..account }
        };
        let older = (0..older).map(|at| of("older", format!("{name}{at}"))).collect();
        Self { older, newest: of("newest", name.to_owned()) }
    }

    /// Makes a call. Returns the decisions, in which the older accounts come first.
    async fn call(&self, call: Call, store: &RedisStore, receipt: &Decision) -> Vec<Decision> {
        let (older, newest) = (self.older[0].charge(1), self.newest.charge(1));
        let slots = [Quota::concurrent(1_000)];
        let decision = match call {
            Call::Take => store.take(&[older, newest]).await,
            Call::Many => {
                let both = self.older.iter().map(|older| [older.charge(1), newest]);
                let takes = both.map(|both| store.take(&both).into_future());
                let decisions = join_all(takes.collect::<Vec<_>>()).await.into_iter();
                return decisions.map(|it| it.expect("a decision")).collect();
            }
            Call::Slots => {
                let slot = Charge::new(rule("slots"), &self.newest.key, &slots);
                store.take(&[older, newest, slot]).await
            }
            Call::Peek => store.peek(&[older, newest]).await,
            Call::Charge => store.adjust(&newest, 1).await,
            Call::Refund => store.adjust(&newest, -1).await,
            Call::Undo => {
                store.undo(&[newest], receipt, None);
                store.clone().finish(store).await;
                store.take(&[newest.with_cost(0)]).await
            }
            Call::Reset => store.reset(&newest).await,
            Call::Block => {
                drop(store.block(&newest, 1_000 * MS).await.expect("a block"));
                return Vec::new();
            }
        };
        vec![decision.expect("a decision")]
    }

    /// Returns the state of the accounts.
    async fn look(&self, store: &RedisStore) -> Vec<(bool, Vec<Row>)> {
        let mut states = Vec::new();
        for account in self.older.iter().chain([&self.newest]) {
            let decision = store.peek(&[account.charge(1)]).await.expect("a decision");
            states.push((decision.is_allowed(), rows(&decision)));
        }
        states
    }
}

/// Compares calls with a clock that is late for the last one of them with calls in time.
#[tokio::test]
async fn a_clock_that_is_late_for_one_account_decides_at_its_last_change() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    for (name, quota) in quotas(100, Duration::from_secs(10)) {
        for call in CALLS {
            let mut played = Vec::new();
            for late in [Duration::ZERO, 5 * MS, 999 * MS] {
                let older = if matches!(call, Call::Many) { MANY } else { 1 };
                let pair = Pair::new(&format!("{name}{call:?}{late:?}"), quota, older);
                subject.set(NOW - 50 * MS);
                for older in &pair.older {
                    assert!(older.passes(&store).await);
                }
                subject.set(NOW);
                let receipt = pair.newest.take(&store, 1).await.expect("a decision");
                subject.set(NOW - late);
                let mut decided = pair.call(call, &store, &receipt).await;
                // The order in which merged requests charge their common account is not fixed.
                let seen: Vec<_> = match call {
                    Call::Many => decided.iter().map(|it| vec![rows(it)[0]]).collect(),
                    _ => decided.iter().map(rows).collect(),
                };
                decided.clear();
                let mut looks = Vec::new();
                for time in [NOW, NOW + 997 * MS, NOW + 1_000 * MS] {
                    subject.set(time);
                    looks.push(pair.look(&store).await);
                }
                played.push((seen, looks));
            }
            assert_eq!(played[0], played[1], "{name} {call:?}, 5 ms");
            assert_eq!(played[0], played[2], "{name} {call:?}, 999 ms");
        }
    }
}

/// 1,000 units a second and a burst of 10, with a clock that is late in a part of the calls.
#[tokio::test]
async fn a_clock_that_jitters_allows_no_more_than_the_limit() {
    const TIME: u32 = 100;
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    let mut dice = Dice(7);
    for (name, quota) in quotas(10, 10 * MS) {
        let quota = match quota.algorithm() {
            Algorithm::Gcra => Quota::per_second(1_000).with_burst(10),
            _ => quota,
        };
        for most in [1, 10] {
            for percent in [1, 10, 50] {
                for calls in [1, 2, 5] {
                    let cell = format!("{name}, {most} ms, {percent} %, {calls} calls");
                    let (account, mut passed) = (Account::new(cell.clone(), quota), 0);
                    for time in 0..TIME {
                        for _ in 0..calls {
                            let is_late = dice.below(100) < percent;
                            let late = if is_late { 1 + dice.below(most) } else { 0 };
                            subject.set(NOW + time * MS - late * MS);
                            passed += u32::from(account.passes(&store).await);
                        }
                    }
                    assert!(passed <= TIME + 10, "{cell}: {passed} of {}", TIME + 10);
                    assert!(passed >= TIME / 2, "{cell}: {passed} of {}", TIME + 10);
                }
            }
        }
    }
}

/// One account is ahead by less than a second, and the other by more.
#[tokio::test]
async fn the_nearer_account_gives_the_instant_to_which_the_other_moves() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    let second = 1_000 * MS;
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket] {
        let key = format!("{algorithm:?}");
        let of = |name, quota: Quota| {
            let account = Account::new(key.clone(), quota.with_algorithm(algorithm));
            Account { rule: rule(name), ..account }
        };
        let near = of("near", Quota::per(5, 10 * second));
        let far = of("far", Quota::per(50, 600 * second));
        let both = |cost| [near.charge(cost), far.charge(cost)];
        let full = |decision: &Decision| {
            decision.outcomes().iter().map(|it| it.reset_after()).collect::<Vec<_>>()
        };
        subject.set(1_200 * second);
        assert!(near.take(&store, 2).await.expect("a decision").is_allowed());
        subject.set(1_201_300 * MS);
        assert!(far.take(&store, 20).await.expect("a decision").is_allowed());
        let by_gcra = algorithm == Algorithm::Gcra;
        let expected = |gcra: [u32; 2], bucket: [u32; 2]| {
            (if by_gcra { gcra } else { bucket }).map(|n| n * second).to_vec()
        };
        subject.set(1_199_800 * MS);
        let first = store.take(&both(1)).await.expect("a decision");
        assert_eq!(full(&first), expected([6, 252], [10, 600]), "{key}");
        subject.set(1_199_700 * MS);
        let second_take = near.take(&store, 1).await.expect("a decision");
        assert_eq!(full(&second_take), expected([8, 0], [10, 0])[..1], "{key}");
        subject.set(1_199_900 * MS);
        let denied = store.take(&both(2)).await.expect("a decision");
        assert!(!denied.is_allowed());
        assert_eq!(full(&denied), expected([8, 252], [10, 600]), "{key}");
        subject.set(1_203_000 * MS);
        let look = store.take(&both(0)).await.expect("a decision");
        assert_eq!(full(&look), expected([5, 249], [7, 597]), "{key}");
    }
}

/// A slot ends by the clock, and a key lives by it, although the call decides at a later instant.
#[tokio::test]
async fn ends_of_slots_and_times_to_live_go_by_the_clock_itself() {
    const TTL: Duration = Duration::from_secs(1_000);
    let server = Server::redis().await;
    let (mut subject, _) = open(&server).await;
    let store = subject.join(TTL).expect("a store");
    let store = store.reopen().prefix("x").readable_keys().lazy().expect("a store");
    let mut connection = raw(&server.url()).await;
    let late = 900 * MS;
    let rates = ["one", "two", "three"].map(|key| Account::new(key, Quota::per_second(5)));
    subject.set(NOW);
    assert!(rates[0].passes(&store).await && rates[1].passes(&store).await);
    let lives = async |key: &str, connection: &mut _| {
        let all = keys(connection).await;
        let found = all.iter().find(|(name, _)| name.ends_with(format!("{key}}}").as_bytes()));
        found.unwrap_or_else(|| panic!("no {key} in {all:?}")).1
    };
    let slots = [Quota::concurrent(1)];
    let slot = Charge::new(rule("slots"), &rates[0].key, &slots);
    subject.set(NOW - late);
    let held = store.take(&[rates[2].charge(1), rates[0].charge(1), slot]).await;
    let held = held.expect("a decision");
    assert!(held.is_allowed());
    // The key was written after that of another account with the same end.
    let later = lives("three", &mut connection).await;
    let early = lives("two", &mut connection).await;
    assert!(later >= early + 900, "{later} ms, {early} ms");
    for (time, is_held) in [(TTL - MS, 1), (TTL, 0)] {
        subject.set(NOW - late + time);
        let look = store.take(&[slot.with_cost(0)]).await.expect("a decision");
        assert_eq!(look.outcomes()[0].held(), Some(is_held), "after {time:?}");
    }
    drop(held);
}
