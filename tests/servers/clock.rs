//! Steps of the server's clock.
//!
//! A step back changes no account, and a step forward gives an account at most a burst.

use std::time::Duration;

use tower_sluice::{Key, Quota, RedisStore, StoreExt, store::Charge, testing::Subject};

use crate::{
    accounts::{Account, Dice, address, connect, quotas, raw, rule},
    servers::Server,
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
async fn a_step_forward_gives_at_most_a_burst() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    for (name, quota) in quotas(LIMIT, DAY) {
        for ahead in [DAY / 7, DAY, 3 * DAY, 400 * DAY] {
            let account = Account::new(format!("{name}{ahead:?}"), quota);
            subject.set(NOW);
            assert_eq!(account.passed(&store, LIMIT + 1).await, LIMIT);
            subject.set(NOW + ahead);
            assert!(account.passed(&store, LIMIT + 1).await <= LIMIT, "{name} {ahead:?}");
        }
    }
}

#[tokio::test]
async fn a_swinging_clock_gives_one_burst_per_step_forward() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    for (name, quota) in quotas(LIMIT, DAY) {
        let account = Account::new(name, quota);
        subject.set(NOW);
        assert_eq!(account.passed(&store, LIMIT + 1).await, LIMIT);
        for _ in 0..5 {
            subject.set(NOW - DAY);
            assert_eq!(account.passed(&store, LIMIT + 1).await, 0, "{name}");
            subject.set(NOW);
            assert!(account.passed(&store, LIMIT + 1).await <= LIMIT, "{name}");
        }
    }
}

#[tokio::test]
async fn many_small_steps_keep_the_rate() {
    let server = Server::redis().await;
    let (mut subject, store) = open(&server).await;
    let mut dice = Dice(11);
    for (name, quota) in quotas(LIMIT, DAY) {
        let account = Account::new(name, quota);
        let (mut now, mut forward, mut passed) = (NOW, Duration::ZERO, 0);
        for step in 0..120 {
            let time = Duration::from_secs(dice.below(6_000).into());
            if step % 3 == 2 {
                now -= time;
            } else {
                (now, forward) = (now + time, forward + time);
            }
            subject.set(now);
            passed += account.passed(&store, 2).await;
        }
        // The units of the elapsed time, and a burst; twice that around the boundary of a fixed
        // window.
        let periods = forward.as_secs() / DAY.as_secs() + 1;
        let most = LIMIT * (u32::try_from(periods).expect("few") + 1);
        assert!(passed <= most, "{name}: {passed} of {most}");
        assert!(passed >= LIMIT * u32::try_from(periods - 1).expect("few") / 2, "{name}: {passed}");
    }
}

#[tokio::test]
async fn an_account_from_a_clock_ahead_keeps_its_units() {
    // Uses the server's own clock: the value comes from a server that was a week ahead.
    let server = Server::redis().await;
    let store = RedisStore::connect(&server.url()).readable_keys().await.expect("a store");
    let mut connection = raw(&server.url()).await;
    let account = Account::new("a", quotas(LIMIT, DAY)[0].1);
    assert_eq!(account.passed(&store, 3).await, 3);
    let key = address("default", "a");
    let get = redis::cmd("GET").arg(&key).query_async(&mut connection).await;
    let mut value: Vec<u8> = get.expect("a value");
    let week = 7 * 86_400_000_000_u64;
    for at in [0, 10] {
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
    let list = format!("{}:0", address("default", "a"));
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
