//! The store of the example `postgres_store`, on PostgreSQL.

#[path = "../../examples/postgres_store/call.rs"]
mod call;
#[path = "../../examples/postgres_store/store.rs"]
mod store;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use tower_sluice::{
    Algorithm, Key, Quota, StoreExt,
    rule::RuleName,
    store::{BoxFuture, Charge},
    testing::{Subject, TABLES},
};

use self::store::PostgresStore;
use crate::{
    conformance::properties_hold,
    servers::{Postgres, eventually},
    support::{
        programs::{ANY_PORT, Server, example},
        tables::all_pass,
    },
};

/// A store whose clock the test drives.
struct Driven {
    store: PostgresStore,
    now: Arc<AtomicU64>,
    opened: u32,
}

impl Driven {
    async fn connect(server: &Postgres) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let clock = now.clone();
        let clock = move || Duration::from_nanos(clock.load(SeqCst));
        let store = PostgresStore::driven(&server.url(), clock).await.expect("a store");
        Self { store, now, opened: 0 }
    }
}

impl Subject for Driven {
    type Store = PostgresStore;

    fn open(&mut self) -> PostgresStore {
        self.opened += 1;
        self.store.prefix(&self.opened.to_string())
    }

    fn set(&mut self, now: Duration) {
        self.now.store(u64::try_from(now.as_nanos()).expect("a short time"), SeqCst);
    }

    fn finish(&mut self, store: &PostgresStore) -> BoxFuture<()> {
        let store = store.clone();
        Box::pin(async move { store.settled().await })
    }
}

#[tokio::test]
async fn the_store_passes_the_conformance_kit() {
    let server = Postgres::start().await;
    let mut subject = Driven::connect(&server).await;
    // The skipped cases: token buckets, sliding windows and logs, slots, windows that are paced or
    // carry over, calendars, initial units, a `max_wait`, and a clock that steps back.
    let mut played = Vec::new();
    for (file, _) in TABLES {
        let cases = all_pass(&mut subject, file).await;
        played.push((*file, cases));
    }
    assert_eq!(
        played,
        [
            ("gcra.json", (16, 3)),
            ("token_bucket.json", (0, 18)),
            ("fixed_window.json", (20, 4)),
            ("sliding_window.json", (0, 11)),
            ("sliding_log.json", (0, 12)),
            ("max_debt.json", (7, 6)),
            ("refunds.json", (44, 114)),
            ("slots.json", (0, 69)),
            ("alternatives.json", (39, 1)),
            ("plans.json", (19, 28)),
            #[cfg(feature = "calendar")]
            ("periods.json", (0, 50)),
            ("combined.json", (4, 2)),
        ]
    );
    properties_hold(subject).await;
}

/// Half of the clients name the accounts in the other order.
#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_clients_over_two_crossed_accounts_neither_deadlock_nor_exceed() {
    const CALLS: usize = 20;
    let server = Postgres::start().await;
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(PostgresStore::connect(&server.url()).await.expect("a store"));
    }
    let mut clients = JoinSet::new();
    for client in 0..64 {
        let store = stores[client % 4].clone();
        clients.spawn(async move {
            let alice = Key::from("alice");
            let bob = Key::from("bob");
            let many = [Quota::per_day(700)];
            let few = [Quota::per_day(500).with_algorithm(Algorithm::fixed_window())];
            let mut charges = [charge(&alice, &many), charge(&bob, &few)];
            if client % 8 >= 4 {
                charges.reverse();
            }
            let mut allowed = 0;
            for _ in 0..CALLS {
                let decision = store.take(&charges).await.expect("no deadlock");
                allowed += u32::from(decision.is_allowed());
            }
            allowed
        });
    }
    let allowed: u32 = clients.join_all().await.into_iter().sum();
    assert_eq!(allowed, 500);
    let alice = Key::from("alice");
    let many = [Quota::per_day(700)];
    let left = stores[0].take(&[charge(&alice, &many).with_cost(0)]).await.expect("an answer");
    // Units of GCRA come back every two minutes.
    assert!([200, 201].contains(&left.outcomes()[0].remaining()), "{left:?}");
}

fn charge<'a>(key: &'a Key, quotas: &'a [Quota]) -> Charge<'a> {
    Charge::new(RuleName::default(), key, quotas)
}

async fn rows(server: &Postgres) -> i64 {
    let (client, connection) =
        tokio_postgres::connect(&server.url(), NoTls).await.expect("a client");
    let connection = tokio::spawn(connection);
    let row = client.query_one("SELECT count(*) FROM sluice_accounts", &[]).await.expect("a row");
    connection.abort();
    row.get(0)
}

#[tokio::test]
async fn rows_of_full_accounts_are_deleted() {
    let server = Postgres::start().await;
    let mut subject = Driven::connect(&server).await;
    let store = subject.open();
    subject.set(Duration::from_secs(60));
    let key = Key::from("alice");
    let gcra = [Quota::per_minute(6)];
    let window = [Quota::per_hour(6).with_algorithm(Algorithm::fixed_window())];
    let charges = [charge(&key, &gcra).with_cost(2), charge(&key, &window)];
    assert!(store.take(&charges).await.expect("an answer").is_allowed());
    drop(store.block(&charges[0], Duration::from_secs(30)).await.expect("an answer"));
    for (second, left) in [(79, 3), (80, 2), (89, 2), (90, 1), (3_599, 1), (3_600, 0)] {
        subject.set(Duration::from_secs(second));
        store.sweep().await.expect("an answer");
        assert_eq!(rows(&server).await, left, "after {second} s");
    }
}

#[tokio::test]
async fn the_clock_is_that_of_the_server() {
    let server = Postgres::start().await;
    let store = PostgresStore::connect(&server.url()).await.expect("a store");
    let key = Key::from("alice");
    let quotas = [Quota::new(1, Duration::from_millis(100)).expect("a quota")];
    let charges = [charge(&key, &quotas)];
    let taken = store.take(&charges).await.expect("an answer");
    assert!(taken.is_allowed());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    assert!(now.abs_diff(taken.charged_at()) < Duration::from_secs(60), "{taken:?}");
    eventually("a unit is back", async || {
        store.take(&charges).await.expect("an answer").is_allowed().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_accounts_and_continue_without_the_server() {
    let server = Postgres::start().await;
    let start = || {
        let mut command = example("postgres_store");
        command.arg(server.url()).env("ADDR", ANY_PORT);
        tokio::task::block_in_place(|| Server::start(command))
    };
    let apps = [start(), start()];
    let ask = |at: usize| tokio::task::block_in_place(|| apps[at % 2].get("/"));
    let mut rejected = 0;
    for at in 0..40 {
        rejected += usize::from(ask(at).status == 429);
    }
    // Ten, and five for each second.
    assert!(rejected > 5, "the limit is shared: {rejected}");
    let store = PostgresStore::connect(&server.url()).await.expect("a store");
    drop(server);
    for at in 0..4 {
        assert!([200, 429].contains(&ask(at).status), "each process counts by itself");
    }
    let key = Key::from("alice");
    let quotas = [Quota::per_day(1)];
    assert!(store.take(&[charge(&key, &quotas)]).await.is_err());
}
