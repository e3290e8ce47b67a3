//! Calendar periods while the clocks of the server and of a process differ.
//!
//! The server's clock decides. No period admits more than its units, and the clocks deny nothing.

use std::time::Duration;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use redis::aio::ConnectionLike;
use tower_sluice::{
    Decision, Key, Quota, RedisStore, Store, StoreExt,
    store::{Charge, RedisError, RedisErrorKind},
    testing::Subject,
};

use crate::{
    accounts::{Account, connect, on_cluster, rule},
    servers::{Cluster, Flavour, Server, eventually},
};

const LIMIT: u32 = 5;
/// 2024-02-17T00:00:00Z, the end of a period of [`monthly`].
const EDGE: Duration = Duration::from_secs(1_708_128_000);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

fn monthly() -> Quota {
    Quota::per_month(LIMIT).anchored_at(&"2023-07-17[UTC]".parse().expect("an anchor"))
}

/// A store whose process and server have clocks of their own.
struct Clocks {
    _server: Server,
    subject: RedisStore,
    store: RedisStore,
}

impl Clocks {
    async fn start(flavour: Flavour) -> Self {
        let server = Server::start(flavour, &[]).await;
        let mut subject = connect(&server.url()).await;
        let store = subject.open();
        Self { _server: server, subject, store }
    }

    /// Takes units at a time of this process, and at another time of the server.
    async fn take(
        &mut self,
        account: &Account,
        cost: u32,
        [process, server]: [Duration; 2],
    ) -> Result<Decision, RedisError> {
        self.subject.set(process);
        let answer = self.store.take(&[account.charge(cost)]);
        self.subject.set(server);
        answer.await
    }
}

#[tokio::test]
async fn clocks_that_differ_by_more_than_a_period_are_an_error() {
    let mut clocks = Clocks::start(Flavour::Redis).await;
    let account = Account::new("a", monthly());
    let far = 62 * DAY;
    for wrong in [EDGE + far, EDGE - far] {
        for cost in [1, LIMIT] {
            let error = clocks.take(&account, cost, [wrong, EDGE]).await.expect_err("far away");
            assert_eq!(error.kind(), RedisErrorKind::Config);
            assert!(error.to_string().contains("set them"), "{error}");
        }
    }
    let right = [EDGE, EDGE];
    for left in [LIMIT, 0] {
        for wrong in [EDGE + far, EDGE - far] {
            for units in [3, -3] {
                clocks.subject.set(wrong);
                let answer = clocks.store.adjust(&account.charge(1), units);
                clocks.subject.set(EDGE);
                assert!(answer.await.is_err());
            }
        }
        let look = clocks.take(&account, 0, right).await.expect("a decision");
        assert_eq!(look.remaining(), Some(left));
        drop(clocks.take(&account, left, right).await.expect("a decision"));
    }
    // The plain quota of another key shares the call.
    let plain = Account::new("b", Quota::per_hour(5));
    clocks.subject.set(EDGE + far);
    let wrong = (0..40).map(|_| clocks.store.take(&[account.charge(1)]).into_future());
    let wrong: Vec<_> = wrong.collect();
    let fine: Vec<_> =
        (0..5).map(|_| clocks.store.take(&[plain.charge(1)]).into_future()).collect();
    clocks.subject.set(EDGE);
    let (wrong, fine) = tokio::join!(join_all(wrong), join_all(fine));
    assert!(wrong.iter().all(Result::is_err));
    assert!(fine.iter().all(|it| it.as_ref().is_ok_and(Decision::is_allowed)));
}

/// No rule of a request is charged if the clock of one is wrong.
async fn all_rules_fail<C>(mut subject: RedisStore<C>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let (store, key) = (subject.open(), Key::from("me"));
    let (month, day) = ([monthly()], [Quota::per_day(LIMIT)]);
    let month = Charge::new(rule("month"), &key, &month);
    let day = Charge::new(rule("day"), &key, &day);
    for (name, charges) in [
        ("report-only", [day, month.with_report_only(true)]),
        ("a look", [day, month.with_cost(0)]),
        ("both", [day, month]),
    ] {
        subject.set(EDGE + 62 * DAY);
        let answers = [(); 3].map(|()| store.take(&charges).into_future());
        let peek = store.peek(&charges).into_future();
        subject.set(EDGE);
        for answer in join_all(answers).await.into_iter().chain([peek.await]) {
            let error = answer.expect_err("far away");
            assert_eq!(error.kind(), RedisErrorKind::Config, "{name}");
        }
        let is_unused = async || {
            let look = store.take(&[day.with_cost(0)]).await.expect("a look");
            (look.remaining() == Some(LIMIT)).then_some(())
        };
        eventually(&format!("{name}: nothing is charged"), is_unused).await;
    }
}

#[tokio::test]
async fn a_wrong_clock_charges_no_rule_of_a_request() {
    let server = Server::redis().await;
    all_rules_fail(connect(&server.url()).await).await;
    let cluster = Cluster::start(Flavour::Redis).await;
    all_rules_fail(on_cluster(&cluster).await.expect("a store")).await;
}

/// The process does not know the period of the charge.
#[tokio::test]
async fn a_refund_by_a_wrong_clock_gives_back_no_units_of_others() {
    let mut clocks = Clocks::start(Flavour::Redis).await;
    let account = Account::new("a", monthly());
    let [old, new] = [EDGE - 2 * SECOND, EDGE + SECOND];
    let first = clocks.take(&account, 4, [old; 2]).await.expect("a decision");
    assert!(clocks.take(&account, 4, [new; 2]).await.expect("a decision").is_allowed());
    clocks.subject.set(EDGE - 62 * DAY);
    clocks.store.undo(&[account.charge(4)], &first, None);
    clocks.subject.set(new);
    let store = clocks.store.clone();
    clocks.subject.finish(&store).await;
    let look = clocks.take(&account, 0, [new; 2]).await.expect("a decision");
    assert_eq!(look.remaining(), Some(1));
}

/// Without a clock of tests, the process and the server each have their own.
#[tokio::test]
async fn the_current_year_has_its_units_once() {
    let server = Server::redis().await;
    let store = RedisStore::connect(server.url()).await.expect("a store");
    // Anchored half a year away, so that no period ends while the test runs.
    let anchor = Timestamp::now() - SignedDuration::from_hours(180 * 24);
    let quota = Quota::per_year(3).anchored_at(&anchor.to_zoned_datetime(TimeZone::UTC));
    let end = quota.calendar_period(Timestamp::now()).expect("a period").end;
    let account = Account::new("a", quota);
    assert_eq!(account.passed(&store, 5).await, 3);
    let denied = account.take(&store, 1).await.expect("a decision");
    let left = Duration::try_from(end.duration_since(Timestamp::now())).expect("later");
    let wait = denied.retry_after().expect("it will pass");
    assert!(wait.abs_diff(left) < Duration::from_secs(60), "{wait:?}, {left:?}");
}
