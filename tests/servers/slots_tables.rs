//! The published table of cases for waiting, on Redis and Valkey.
//!
//! The time of the server and that of the process are driven.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use tokio::{task::spawn_blocking, time};
use tower_sluice::{
    Decision, Key, Quota, RedisStore, Store, StoreExt,
    store::{Answer, BoxFuture, Charge, Context, FailClosed, Fallback, Op, Unsupported},
    testing::Subject,
};

use crate::{
    accounts::{Account, connect},
    servers::{Flavour, Server},
    slots::held,
    support::slot_tables::{Driven, play_waiting, waiting},
};

/// A store that counts its calls in flight.
#[derive(Clone)]
struct Watched(Arc<Fallback<RedisStore, FailClosed>>, Arc<AtomicUsize>);

struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Store for Watched {
    type Error = Infallible;
    type Future = BoxFuture<Result<Decision, Infallible>>;

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        match self.0.call(op, context) {
            Answer::Now(decision) => Answer::Now(decision),
            Answer::Later(decision) => {
                self.1.fetch_add(1, SeqCst);
                let in_flight = InFlight(self.1.clone());
                Answer::Later(Box::pin(async move {
                    let _in_flight = in_flight;
                    decision.await
                }))
            }
        }
    }

    fn undo(&self, charges: &[Charge<'_>], taken: &Decision, units: Option<u32>) {
        self.0.undo(charges, taken, units);
    }

    fn supports(&self, charges: &[Charge<'_>]) -> Result<(), Unsupported> {
        self.0.supports(charges)
    }
}

/// A real server, with the time that has passed.
struct Redis {
    subject: RedisStore,
    store: RedisStore,
    in_flight: Arc<AtomicUsize>,
    passed: Duration,
}

impl Redis {
    fn open(mut subject: RedisStore) -> Self {
        let store = subject.open();
        let mut redis = Self { subject, store, in_flight: Arc::default(), passed: Duration::ZERO };
        redis.set();
        redis
    }

    fn set(&mut self) {
        self.subject.set(Duration::from_secs(1_000) + self.passed);
    }
}

impl Driven for Redis {
    type Store = Watched;

    fn store(&self) -> Watched {
        Watched(Arc::new(self.store.clone().fail_closed()), self.in_flight.clone())
    }

    async fn pass(&mut self, time: Duration) {
        self.passed += time;
        self.set();
        time::advance(time).await;
    }

    fn is_settled(&self) -> bool {
        self.in_flight.load(SeqCst) == 0
    }
}

#[tokio::test]
async fn requests_wait_as_in_the_published_table() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let subject = connect(&server.url()).await;
        time::pause();
        // The time passes only when it is driven, as long as a blocking task runs.
        let (end, ended) = mpsc::channel::<()>();
        let blocking = spawn_blocking(move || ended.recv().is_err());
        for case in &waiting() {
            let mut redis = Redis::open(subject.clone());
            play_waiting(case, &mut redis, true).await;
            let (store, mut subject) = (redis.store.clone(), redis.subject);
            subject.finish(&store).await;
            let slots = Quota::concurrent(1);
            let account = Account {
                rule: crate::accounts::rule("api"),
                ..Account::new(Key::everyone(), slots)
            };
            assert_eq!(held(&store, &account).await, 0, "{flavour:?}");
        }
        drop(end);
        assert!(blocking.await.expect("no panic"));
        time::resume();
    }
}

/// The expected wait is the mean hold time of the rule in this process, divided by the limit, for each
/// missing slot.
#[tokio::test]
async fn denials_expect_the_driven_hold_times() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        let server = Server::start(flavour, &[]).await;
        let mut subject = connect(&server.url()).await;
        let (store, mut now) = (subject.open(), Duration::from_secs(1_000));
        let account = Account::new("a", Quota::concurrent(2));
        let wait = async |cost| {
            let denied = account.take(&store, cost).await.expect("a decision");
            assert!(!denied.is_allowed(), "{flavour:?}");
            denied.retry_after().map(|wait| wait.as_nanos())
        };
        subject.set(now);
        let running = [account.take(&store, 1).await, account.take(&store, 1).await];
        assert_eq!(wait(1).await, Some(1_000_000_000), "no history");
        now += Duration::from_secs(10);
        subject.set(now);
        drop(running);
        // The seconds of the next hold, and the nanoseconds for one and for two slots before it ends.
        for (seconds, one, two) in [
            (80, 5_000_000_000, 10_000_000_000),
            (1, 9_375_000_000, 18_750_000_000),
            (10, 8_265_625_000, 16_531_250_000),
        ] {
            let running = account.take(&store, 2).await.expect("a decision");
            assert!(running.is_allowed(), "{flavour:?}");
            assert_eq!((wait(1).await, wait(2).await), (Some(one), Some(two)), "{flavour:?}");
            now += Duration::from_secs(seconds);
            subject.set(now);
            assert_eq!(wait(1).await, Some(one), "a slot that is held changes nothing");
        }
    }
}
