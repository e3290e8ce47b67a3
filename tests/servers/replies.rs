//! Replies of any bytes: each is an error of the right kind, or a decision of the server.

use futures::future::{join_all, select_all};
use redis::aio::ConnectionLike;
use tokio::time::timeout;
use tower_sluice::{
    Quota, RedisStore, StoreExt,
    decision::Source,
    store::{RedisError, RedisErrorKind as Kind},
};

use crate::{
    accounts::{Account, HOUR, LONG, connect, gcra_account, lazy, quotas, stored_micros},
    servers::{FakeServer, Mode, PATIENCE, Proxy, Reply, Server, eventually},
};

/// Returns the error of a take, which must fail.
async fn failure(store: &RedisStore) -> RedisError {
    let account = Account::new("a", Quota::per_hour(5));
    let answer = timeout(PATIENCE, account.take(store, 1)).await;
    answer.expect("an answer in time").expect_err("no decision")
}

#[tokio::test]
async fn errors_of_the_server_have_their_kinds_and_some_replace_the_connection() {
    let server = FakeServer::answering("$-1\r\n").await;
    for (said, kind) in [
        ("LOADING Redis is loading the dataset in memory", Kind::Busy),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL.", Kind::Busy),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is", Kind::Replica),
        ("NOREPLICAS Not enough good replicas to write.", Kind::Replica),
        ("READONLY You can't write against a read only replica.", Kind::Replica),
        ("OOM command not allowed when used memory > 'maxmemory'.", Kind::Memory),
        ("NOAUTH Authentication required.", Kind::Denied),
        ("WRONGPASS invalid username-password pair or user is disabled.", Kind::Denied),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Kind::Denied),
        ("CLUSTERDOWN Hash slot not served", Kind::Cluster),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Kind::Cluster),
        ("MOVED 3999 127.0.0.1:6381", Kind::Cluster),
        ("ASK 3999 127.0.0.1:6381", Kind::Cluster),
        ("MISCONF Errors writing to the AOF file: No space left on device", Kind::Other),
        ("ERR unknown command", Kind::Other),
        ("WHATEVER", Kind::Other),
        ("", Kind::Other),
        // Redis 6 reports errors of a script in this form.
        (
            "ERR Error running script (call to f_1b): @user_script:40: @user_script: 40: -OOM \
             command not allowed when used memory > 'maxmemory'.",
            Kind::Memory,
        ),
        (
            "ERR Error running script (call to f_1b): @user_script:40: @user_script: 40: \
             -READONLY You can't write against a read only replica.",
            Kind::Replica,
        ),
        (
            "ERR Error running script (call to f_1b): @user_script:40: @user_script: 40: \
             -NOREPLICAS Not enough good replicas to write.",
            Kind::Replica,
        ),
    ] {
        server.answer(format!("-{said}\r\n"));
        let (store, before) = (lazy(&server.url()), server.accepted());
        let error = failure(&store).await;
        assert_eq!(error.kind(), kind, "{said}: {error}");
        let last = said.rsplit([' ', '-']).next().expect("a word");
        assert!(error.to_string().contains(last), "{said}: {error}");
        // A server that a failover demoted keeps its connections, and so does one with a new password.
        failure(&store).await;
        let codes = ["READONLY", "MASTERDOWN", "NOAUTH"];
        let is_replaced = codes.into_iter().any(|code| said.contains(code));
        if is_replaced {
            let another = async || (server.accepted() > before + 1).then_some(());
            eventually("another connection", another).await;
        } else {
            assert_eq!(server.accepted(), before + 1, "{said}");
        }
    }
}

#[tokio::test]
async fn a_script_that_is_never_found_is_an_error_without_a_loop() {
    let server = FakeServer::answering("-NOSCRIPT No matching script.\r\n").await;
    let error = failure(&lazy(&server.url())).await;
    assert_eq!(error.kind(), Kind::Other);
    let calls = server.asked().iter().filter(|words| words[0].starts_with(b"EVAL")).count();
    assert_eq!(calls, 2, "one by its hash, one in full");
}

/// A reply about an account that nobody has charged yet.
pub(crate) fn reply_of(
    allowed: u8,
    micros: u64,
    charges: u8,
    healed: u8,
    account: &[u8],
) -> Vec<u8> {
    let length = u32::try_from(account.len()).expect("short").to_le_bytes();
    let head = [0, 0, allowed, 0, charges, 0, healed];
    [&micros.to_le_bytes()[..7], &head, &length, account].concat()
}

pub(crate) fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

#[tokio::test]
async fn replies_of_another_shape_are_errors() {
    let now = 1_700_000_000_000_000;
    let gcra = |us: u64| gcra_account(HOUR, stored_micros(us), 0);
    let (said, full) =
        (reply_of(1, now, 1, 0, &gcra(now + 1)), reply_of(0, now, 0, 0, &gcra(now + 1)));
    let shapes: Vec<Vec<u8>> = [
        "$-1\r\n",
        ":1\r\n",
        ":9223372036854775807\r\n",
        "*0\r\n",
        "*2\r\n:1\r\n$1\r\na\r\n",
        "*-1\r\n",
        "%1\r\n+a\r\n:1\r\n",
        ",3.5\r\n",
        "#t\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "_\r\n",
        "~1\r\n:1\r\n",
        "+OK\r\n",
        "+\r\n",
        "$0\r\n\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    let bytes = [
        said[..said.len() - 1].to_vec(),
        [&said[..], b"x"].concat(),
        said[..15].to_vec(),
        reply_of(2, now, 2, 0, &gcra(now)),
        reply_of(255, now, 255, 0, &gcra(now)),
        reply_of(1, now, 2, 0, &gcra(now)),
        reply_of(1, now, 1, 4, &gcra(now)),
        reply_of(1, now, 1, 255, &gcra(now)),
        reply_of(1, (1 << 53) + 1, 1, 0, &gcra(now)),
        reply_of(1, now, 1, 0, &gcra((1 << 56) - 1)),
        // Denied and charged, allowed and not charged.
        reply_of(0, now, 1, 0, &gcra(now)),
        reply_of(1, now, 0, 0, &gcra(now)),
        reply_of(1, now, 0, 1, &gcra(now)),
    ];
    for options in ["", "?protocol=resp3"] {
        let server = FakeServer::answering("$-1\r\n").await;
        let open = || lazy(&format!("{}{options}", server.url()));
        for shape in shapes.iter().cloned().chain(bytes.iter().map(|bytes| bulk(bytes))) {
            server.answer(&shape);
            let error = failure(&open()).await;
            let shown = String::from_utf8_lossy(&shape);
            assert_eq!(error.kind(), Kind::Reply, "{shown:?}: {error}");
        }
        // Valid replies are still read.
        let (store, account) = (open(), Account::new("a", Quota::per_hour(5)));
        for (bytes, allowed) in [(&said, true), (&full, false)] {
            server.answer(bulk(bytes));
            let decision = account.take(&store, 1).await.expect("a decision");
            assert_eq!(decision.is_allowed(), allowed);
        }
        server.answer(bulk(&reply_of(1, now, 0, 0, &gcra(now))));
        assert!(account.take(&store, 0).await.expect("a look").is_allowed());
        assert!(store.adjust(&account.charge(0), 1).await.is_ok());
    }
}

/// Answers of which the second is invalid, and followed by one that nobody asked for. Later requests on the
/// connection would get the answers to others.
pub(crate) fn shifted() -> impl FnMut() -> Reply {
    let (now, mut asked) = (1_700_000_000_000_000_u64, 0);
    move || {
        asked += 1;
        let account = gcra_account(HOUR, stored_micros(now), 0);
        let reply = bulk(&reply_of(1, now, 1, 0, &account));
        match asked {
            2 => [bulk(b"damaged"), reply].concat().into(),
            _ => reply.into(),
        }
    }
}

/// Checks that a store opens another connection to a server with [`shifted`] answers.
pub(crate) async fn replaces_the_connection<C>(store: RedisStore<C>, server: &FakeServer)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let [account, other] = ["a", "b"].map(|key| Account::new(key, Quota::per_hour(5)));
    // The connection is open, so that the calls are sent in their order.
    assert!(account.passes(&store).await);
    let two = [account.take(&store, 1), other.take(&store, 1)].map(Box::pin);
    let (first, ..) = timeout(PATIENCE, select_all(two)).await.expect("an answer in time");
    let error = first.expect_err("an invalid reply");
    assert_eq!(error.kind(), Kind::Reply, "{error}");
    let well = async || account.take(&store, 1).await.ok();
    let decision = eventually("another connection", well).await;
    assert_eq!(decision.source(), Source::Redis, "no later request waits for an answer");
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn an_answer_to_another_request_replaces_the_connection() {
    let mut answer = shifted();
    let server = FakeServer::start(move |_| answer()).await;
    replaces_the_connection(lazy(&server.url()), &server).await;
}

#[tokio::test]
async fn a_truncated_reply_ends_only_its_connection() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    let cuts = [0, 1, 4, 5, 6, 20];
    for (bytes, (name, quota)) in cuts.into_iter().zip(quotas(1_000, LONG)) {
        let account = Account::new(name, quota);
        assert_eq!(account.passed(&store, 3).await, 3);
        proxy.set(Mode::Truncate(bytes)).await;
        let error = account.take(&store, 1).await.expect_err("the reply was truncated");
        assert!(matches!(error.kind(), Kind::Disconnected | Kind::Reply), "{error}");
        let well = async || account.take(&store, 0).await.ok();
        let look = eventually("another connection", well).await;
        // The unit was charged on the server.
        assert_eq!(look.outcomes()[0].remaining(), 1_000 - 4, "{name}");
        assert_eq!(account.passed(&store, 3).await, 3);
    }
    assert_eq!(proxy.accepted(), 1 + cuts.len(), "one new connection each");
}

#[tokio::test]
async fn changed_bytes_are_errors_and_later_replies_are_right() {
    let server = Server::redis().await;
    let mut proxy = Proxy::start(server.address()).await;
    let store = connect(&server.url_at(proxy.addr())).await;
    let (mut errors, mut right) = (0, 0);
    for seed in 0..12_u64 {
        let accounts: Vec<_> = (0..20_u32)
            .map(|n| Account::new(format!("{seed}-{n}"), Quota::per_hour(100 + n)))
            .collect();
        let takes = join_all(accounts.iter().map(|account| account.passed(&store, 1))).await;
        assert_eq!(takes.iter().sum::<u32>(), 20);
        proxy.set(Mode::Flip { seed, one_in: 40 + seed * 60 }).await;
        let answers = join_all(accounts.iter().map(async |account| {
            let taken = timeout(PATIENCE, account.take(&store, 1)).await;
            taken.expect("an answer in time")
        }));
        for answer in answers.await {
            match answer {
                Ok(_) => right += 1,
                Err(_) => errors += 1,
            }
        }
        proxy.set(Mode::Pass).await;
        let well = async || accounts[0].take(&store, 0).await.ok().map(drop);
        eventually("the store recovers", well).await;
        for _ in 0..3 {
            let looks = join_all(accounts.iter().map(|account| account.left(&store))).await;
            for (left, n) in looks.into_iter().zip(0..) {
                assert!((98 + n..100 + n).contains(&left), "{left} left of {}", 100 + n);
            }
        }
    }
    println!("{errors} errors and {right} answers while bytes were changed");
    assert!(errors > 20 && right > 20);
}
