//! The conformance kit on Redis, Valkey and a cluster.
//!
//! All numbers equal the published tables, also for a clock that steps back.

use std::time::Duration;

use tokio::{runtime::Handle, task::spawn_blocking};
use tower_sluice::{
    RedisStore, Store,
    testing::{Subject, properties},
};

use crate::{
    accounts::on_cluster,
    servers::{Cluster, Flavour, Server},
    support::{live, tables::all_pass},
};

/// The clock is driven to the nanosecond.
const TICK: Duration = Duration::from_nanos(1);

async fn conforms<S>(mut subject: S)
where
    S: Subject<Store: Store<Future: 'static> + Send + Sync> + Send + 'static,
{
    for (file, cases) in [
        ("gcra.json", 19),
        ("token_bucket.json", 18),
        ("fixed_window.json", 24),
        ("sliding_window.json", 11),
        ("sliding_log.json", 12),
        ("max_debt.json", 13),
        ("refunds.json", 158),
        ("combined.json", 6),
        ("alternatives.json", 40),
        ("plans.json", 47),
        ("slots.json", 69),
        #[cfg(feature = "calendar")]
        ("periods.json", 50),
    ] {
        assert_eq!(all_pass(&mut subject, file).await, (cases, 0), "{file}");
    }
    properties_hold(subject).await;
}

/// Checks the properties that each store has.
pub(crate) async fn properties_hold<S>(mut subject: S)
where
    S: Subject<Store: Store<Future: 'static> + Send + Sync> + Send + 'static,
{
    let all = &mut subject;
    assert_eq!(properties::patience(all, TICK).await, Ok(()));
    assert_eq!(properties::all_or_nothing(all).await, Ok(()));
    assert_eq!(properties::report_only(all).await, Ok(()));
    assert_eq!(properties::queueing(all).await, Ok(()));
    assert_eq!(properties::overage(all).await, Ok(()));
    assert_eq!(properties::blocks(all).await, Ok(()));
    assert_eq!(properties::undo(all).await, Ok(()));
    assert_eq!(properties::waiting(all).await, Ok(()));
    let runtime = Handle::current();
    let exact = spawn_blocking(move || {
        properties::no_over_admission(&mut subject, |answer| runtime.block_on(answer))
    });
    assert_eq!(exact.await.expect("no panic"), Ok(()));
}

#[tokio::test]
async fn redis_conforms() {
    let server = Server::redis().await;
    conforms(RedisStore::connect(server.url()).await.expect("a store")).await;
}

#[tokio::test]
async fn valkey_conforms_over_resp3() {
    let server = Server::start(Flavour::Valkey, &[]).await;
    let url = format!("{}?protocol=resp3", server.url());
    conforms(RedisStore::connect(&url).await.expect("a store")).await;
}

#[tokio::test]
async fn a_cluster_conforms() {
    let cluster = Cluster::start(Flavour::Redis).await;
    let mut subject = on_cluster(&cluster).await.expect("a store");
    // A denial returns before its charges are undone. The undo is certain to be under way before
    // the next call only once the servers know the script.
    let _ = properties::all_or_nothing(&mut subject).await;
    conforms(subject).await;
}

#[tokio::test]
async fn a_replaced_quota_refills_and_drops_no_account_and_locks_none_out() {
    let server = Server::redis().await;
    let mut redis = RedisStore::connect(server.url()).await.expect("a store");
    live::replaced_quotas(&mut redis).await;
    live::a_quota_that_keeps_accounts_longer(&mut redis).await;
    live::a_receipt_of_an_older_quota(&mut redis).await;
    live::a_look_under_another_quota(&mut redis).await;
}
