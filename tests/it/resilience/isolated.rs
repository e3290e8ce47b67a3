//! Wrappers around a store of several servers, of which one is lost.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tower_sluice::{
    Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Answer, BoxFuture, Charge, Op, Timeout},
};

const LOST: &str = "on the lost server";
const QUOTAS: [Quota; 1] = [Quota::per_day(100)];

/// A store whose calls with the key [`LOST`] fail while its server is lost.
#[derive(Clone, Debug, Default)]
struct Sharded {
    accounts: Arc<LocalStore>,
    is_lost: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    budget: Option<Duration>,
}

#[derive(Debug)]
struct ServerLost;

impl fmt::Display for ServerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a server is lost")
    }
}

impl std::error::Error for ServerLost {}

impl Store for Sharded {
    type Error = ServerLost;
    type Future = BoxFuture<Result<Decision, ServerLost>>;

    fn call(&self, op: Op<'_>) -> Answer<Self::Future> {
        let lost = op.charges().iter().any(|charge| *charge.key() == Key::from(LOST));
        if lost && self.is_lost.load(SeqCst) {
            self.failures.fetch_add(1, SeqCst);
            return Answer::Later(Box::pin(async { Err(ServerLost) }));
        }
        let decision = self.accounts.call(op).now().from_source(Source::Other("sharded"));
        Answer::Later(Box::pin(async move { Ok(decision) }))
    }

    fn with_budget(self, budget: Duration) -> Self {
        Self { budget: Some(budget), ..self }
    }

    fn isolates_failures(&self) -> bool {
        self.budget.is_some()
    }
}

/// Takes one unit of each key, under one rule for each.
async fn take<S: Store>(store: &S, keys: &[&str]) -> Result<Decision, S::Error> {
    let named = |at: usize| RuleName::new(["first", "second"][at]).expect("a name");
    let keys: Vec<_> = keys.iter().map(|key| Key::from(*key)).collect();
    let charge = |(at, key)| Charge::new(named(at), key, &QUOTAS);
    let charges: Vec<_> = keys.iter().enumerate().map(charge).collect();
    store.take(&charges).await
}

/// Returns the units that are used of the first rule's account of a key.
async fn used(store: &Sharded, key: &str) -> u32 {
    let (key, rule) = (Key::from(key), RuleName::new("first").expect("a name"));
    let look = Charge::new(rule, &key, &QUOTAS).with_cost(0);
    100 - store.accounts.take(&[look]).now().outcomes()[0].remaining()
}

#[tokio::test]
async fn a_breaker_lets_all_calls_to_a_store_pass_that_isolates_failures() {
    let store = Sharded::default();
    store.is_lost.store(true, SeqCst);
    for isolates in [false, true] {
        let inner = Sharded { budget: isolates.then_some(Timeout::DEFAULT), ..store.clone() };
        let breaker = inner.breaker();
        for _ in 0..10 {
            assert!(take(&breaker, &[LOST]).await.is_err());
        }
        assert_eq!(breaker.is_open(), !isolates);
        assert_eq!(take(&breaker, &["here"]).await.is_ok(), isolates);
    }
}

#[test]
fn wrappers_report_that_the_inner_store_isolates_failures() {
    let store = || Sharded::default().timeout(Timeout::DEFAULT);
    assert!(!Sharded::default().isolates_failures() && !LocalStore::new().isolates_failures());
    assert!(store().isolates_failures());
    assert!(<&Timeout<Sharded>>::isolates_failures(&&store()));
    assert!(store().breaker().deny_cache().leases(5).isolates_failures());
    assert!(store().boxed().isolates_failures());
    assert_eq!(LocalStore::new().with_budget(Timeout::DEFAULT).stats().active, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_changes_no_account_of_other_servers() {
    let inner = Sharded::default();
    let fallback = inner.clone().timeout(Timeout::DEFAULT).breaker().fallback(LocalStore::new());
    let source = async |keys: &[&str]| take(&fallback, keys).await.map(|it| it.source());
    inner.is_lost.store(true, SeqCst);
    for _ in 0..3 {
        assert_eq!(source(&["here", LOST]).await, Ok(Source::Fallback));
    }
    assert_eq!(source(&["other"]).await, Ok(Source::Other("sharded")));
    assert_eq!(used(&inner, "here").await, 0, "decided in this process");
    inner.is_lost.store(false, SeqCst);
    assert_eq!(source(&["here", LOST]).await, Ok(Source::Other("sharded")));
    assert_eq!(used(&inner, "here").await, 1, "the outage is not charged");
}
