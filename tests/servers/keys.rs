//! The keys of a store in Redis.
//!
//! They contain no text of the user, and expire by themselves.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::future::join_all;
use tokio::time::sleep;
use tower_sluice::{
    Algorithm, Decision, Key, Quota, RedisStore, Store, StoreExt, store::Charge, testing::Subject,
};

use crate::{
    accounts::{Account, Dice, connect, keys, lazy, quotas, raw, rule},
    servers::{Server, eventually},
};

const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Returns `true` if the name is `<prefix>:4:{<22 characters>}`, with the address of a quota for a log's
/// list or for slots.
fn is_ours(name: &[u8], prefix: &str) -> bool {
    let parts = || {
        let rest = std::str::from_utf8(name).ok()?.strip_prefix(prefix)?.strip_prefix(":4:{")?;
        rest.split_once('}')
    };
    let url_safe = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    parts().is_some_and(|(hash, place)| {
        let beside = |place: &str| {
            let number = place.strip_prefix(":s").or_else(|| place.strip_prefix(':'));
            number.is_some_and(|n| n.len() == 8 && u32::from_str_radix(n, 16).is_ok())
        };
        hash.len() == 22 && hash.chars().all(url_safe) && (place.is_empty() || beside(place))
    })
}

fn hostile() -> Vec<Key> {
    let long = "x".repeat(10_000);
    let texts = ["", "}", "{", "{a}", "}{", "a\r\nDEL b\r\n", "\0", "*", "sluice:4:{a}", &long];
    let bytes: [&[u8]; 3] = [b"\xff\xfe", b"\xc3\x28}", &[0x80; 64]];
    let texts = texts.into_iter().map(Key::from);
    texts.chain(bytes.into_iter().map(Key::from)).collect()
}

/// Quotas of all kinds, including those with initial units or a bonus.
fn kinds() -> Vec<Quota> {
    let period = Duration::from_millis(600);
    let plain = quotas(6, period).map(|(_, quota)| quota);
    let windows = [
        Algorithm::FixedWindow { carry_over: 3, paced: false },
        Algorithm::FixedWindow { carry_over: 0, paced: true },
        Algorithm::SlidingWindow { buckets: 1 },
    ];
    let [gcra, tokens, ..] = plain;
    let hour = Quota::per_hour(9);
    let special = [
        gcra.with_initial(2),
        tokens.with_initial(2),
        gcra.with_soft(2),
        hour,
        Quota::concurrent(9),
    ];
    let windows = windows.map(|kind| gcra.with_algorithm(kind));
    plain.into_iter().chain(special).chain(windows).collect()
}

/// Runs a random operation on a random account, with any result.
async fn work(store: &RedisStore, dice: &mut Dice, keys: &[Key], taken: &mut Vec<Decision>) {
    let kinds = kinds();
    let rules = [rule("}"), rule("{a}"), rule("plain")];
    let count = 1 + dice.below(3);
    let quotas: Vec<_> = (0..count).map(|_| *dice.pick(&kinds)).collect();
    let charge = Charge::new(*dice.pick(&rules), dice.pick(keys), &quotas);
    let other = Charge::new(*dice.pick(&rules), dice.pick(keys), &quotas[..1]);
    let is_same = (other.rule, other.key) == (charge.rule, charge.key);
    let charges = [charge.with_cost(dice.below(4)), other.with_report_only(!is_same)];
    let answer = match dice.below(8) {
        0 => store.adjust(&charge, -i64::from(dice.below(5))),
        1 => store.adjust(&charge, i64::from(dice.below(20))),
        2 => store.reset(&charge),
        3 => store.block(&charge, Duration::from_millis(dice.below(300).into())),
        4 => store.unblock(&charge),
        _ => store.take(&charges),
    };
    let decision = answer.await.unwrap_or_else(|error| panic!("{error}"));
    taken.push(decision);
    if dice.below(4) == 0 {
        store.undo(&charges, dice.pick(taken), None);
    }
}

#[tokio::test]
async fn all_keys_have_one_form_and_an_expiry() {
    let server = Server::redis().await;
    let (mut connection, mut dice) = (raw(&server.url()).await, Dice(1));
    let real = connect(&server.url()).await;
    let mut subject = real.clone();
    let driven = subject.open();
    let hostile = hostile();
    let (mut taken, mut most) = (Vec::new(), 0);
    for round in 0..60_u64 {
        subject.set(Duration::from_secs(1_000) + Duration::from_millis(round * 37));
        for _ in 0..15 {
            work(&real, &mut dice, &hostile, &mut taken).await;
            work(&driven, &mut dice, &hostile, &mut taken).await;
            taken.drain(..taken.len().saturating_sub(20));
        }
        let found = keys(&mut connection).await;
        most = most.max(found.len());
        for (name, left) in found {
            let shown = String::from_utf8_lossy(&name);
            let prefix = shown.split(":4:{").next().expect("a prefix");
            assert!(prefix == "sluice" || prefix.starts_with("test-"), "{shown}");
            assert!(is_ours(&name, prefix), "{shown}");
            assert!(left >= 0, "{shown} has no expiry: {left}");
        }
    }
    assert!(most > 30, "only {most} keys");
    assert_eq!(real.healed() + driven.healed(), 0);
}

/// Takes three units. Returns the keys, with their remaining time and the time for which the
/// account is kept.
async fn kept(server: &Server, quota: Quota, longer: Duration) -> Vec<(String, i64, i64)> {
    let store = RedisStore::connect(server.url()).readable_keys().await.expect("a store");
    let (account, start) = (Account::new("a", quota), Instant::now());
    let decision = account.take(&store, 3).await.expect("a decision");
    assert!(decision.is_allowed());
    let full = decision.outcomes()[0].reset_after() + longer;
    let mut connection = raw(&server.url()).await;
    let found = keys(&mut connection).await;
    let took = i64::try_from(start.elapsed().as_millis()).expect("short") + 2;
    let full = i64::try_from(full.as_millis()).expect("short");
    assert!(!found.is_empty());
    let check = |(name, left): (Vec<u8>, i64)| {
        assert!(left <= full + 2 && left >= full - took, "{quota:?}: {left} of {full} ms");
        (String::from_utf8(name).expect("text"), left, full)
    };
    found.into_iter().map(check).collect()
}

#[tokio::test]
async fn a_key_expires_when_its_account_is_no_longer_needed() {
    // Long enough to find the keys on a busy machine.
    let period = Duration::from_secs(2);
    let [(_, gcra), (_, tokens), ..] = quotas(6, period);
    let mut cases = quotas(6, period).map(|(_, quota)| (quota, Duration::ZERO)).to_vec();
    // These accounts are kept for one refill or window longer.
    cases.extend([(gcra.with_initial(4), period), (tokens.with_initial(4), period)]);
    cases.push((
        gcra.with_algorithm(Algorithm::FixedWindow { carry_over: 2, paced: false }),
        period,
    ));
    let cases = cases.into_iter().map(async |(quota, longer)| {
        let server = Server::redis().await;
        let lists = usize::from(quota.algorithm() == Algorithm::SlidingLog);
        // A window that ends soon would drop its account before the keys are found.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
        let into = u64::try_from(now % period.as_millis()).expect("short");
        if Duration::from_millis(into) > period / 4 {
            sleep(period - Duration::from_millis(into)).await;
        }
        let found = kept(&server, quota, longer).await;
        assert_eq!(found.len(), 1 + lists, "{quota:?}");
        let left = found.iter().map(|(_, left, _)| *left).max().expect("a key");
        assert!(left > 0, "{quota:?}");
        let mut connection = raw(&server.url()).await;
        eventually("the keys expire", async || {
            keys(&mut connection).await.is_empty().then_some(())
        })
        .await;
        assert_eq!(server.command::<u32>(&format!("EXISTS {}", found[0].0)).await, 0);
    });
    join_all(cases).await;
}

#[tokio::test]
async fn no_key_lasts_longer_than_ten_years() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let longest = i64::try_from(TEN_YEARS.as_millis()).expect("fits");
    let mut connection = raw(&server.url()).await;
    for (name, quota) in quotas(2, TEN_YEARS) {
        let account = Account::new(name, quota);
        let decision = account.take(&store, 2).await.expect("a decision");
        assert!(decision.is_allowed(), "{name}");
        drop(store.adjust(&account.charge(0), 100).await.expect("a late charge"));
        assert!(!account.passes(&store).await, "{name}");
    }
    // Blocks of ten years, and a reset whose receipts may hold units for twelve.
    let blocked = ["one", "two", "three"].map(|key| Account::new(key, Quota::per_second(1)));
    for account in &blocked {
        drop(store.block(&account.charge(0), Duration::MAX).await.expect("a block"));
    }
    let quota = Quota::new(6, TEN_YEARS * 6 / 10).expect("a quota").with_initial(1);
    let reset = Account::new("reset", quota);
    drop(store.reset(&reset.charge(0)).await.expect("a reset"));
    assert!(reset.passes(&store).await);
    // Their keys now expire in less than ten years.
    sleep(Duration::from_millis(1_200)).await;
    let looks = blocked.each_ref().map(|account| account.charge(1));
    for (charge, account) in looks.iter().zip(&blocked) {
        let look = store.peek(&[*charge]).await.expect("a decision");
        assert!(look.is_blocked() && !look.is_allowed(), "{account:?}");
    }
    assert!(!blocked[0].passes(&store).await);
    let both = join_all(blocked[1..].iter().map(|account| account.passes(&store))).await;
    assert_eq!((both, reset.passes(&store).await), (vec![false; 2], false));
    let found = keys(&mut connection).await;
    assert_eq!(found.len(), 11);
    assert!(found.iter().all(|(_, left)| (1..=longest).contains(left)), "{found:?}");
    assert!(found.iter().filter(|(_, left)| *left > longest - 60_000).count() >= 7, "{found:?}");
    assert_eq!(store.healed(), 0);
}

#[tokio::test]
async fn only_stores_of_one_prefix_and_secret_share_accounts() {
    let server = Server::redis().await;
    let store = connect(&server.url()).await;
    let account = Account::new("a", Quota::per_hour(5));
    let secret = |byte| store.reopen().secret([byte; 16]);
    let prefix = |prefix| store.reopen().prefix(prefix);
    for (builders, left) in [
        ([store.reopen(), RedisStore::connect(server.url())], 3),
        ([secret(1), secret(1)], 3),
        ([secret(2), secret(3)], 4),
        ([secret(4), secret(4).prefix("other")], 4),
        ([prefix("a"), prefix("b")], 4),
        ([prefix("c"), prefix("c")], 3),
        ([prefix("d"), prefix("d").readable_keys()], 4),
    ] {
        let stores = builders.map(|builder| builder.lazy().expect("a store"));
        assert!(account.passes(&stores[0]).await);
        assert!(account.passes(&stores[1]).await);
        assert_eq!(account.left(&stores[0]).await, left, "{stores:?}");
    }
}

#[test]
fn an_invalid_prefix_panics_with_the_permitted_characters() {
    let store = lazy("redis://127.0.0.1:1");
    let long = "x".repeat(65);
    for bad in ["", "{a}", "a}", "a b", "a\n", "ü", "a*", &long] {
        let prefixed = catch_unwind(AssertUnwindSafe(|| store.reopen().prefix(bad)));
        let panic = prefixed.expect_err("no prefix");
        let text = panic.downcast_ref::<String>().expect("a text");
        assert_eq!(*text, format!("prefix {bad:?}: give 1 to 64 of [A-Za-z0-9_.:-]"));
    }
    for good in ["a", "app:limits-2_b.c", &long[1..]] {
        assert!(format!("{:?}", store.reopen().prefix(good)).contains(good));
    }
}
