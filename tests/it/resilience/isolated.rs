//! Wrappers around a store of several servers, of which one is lost.

use std::{
    convert::Infallible,
    fmt,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::time::{Instant, advance};
use tower::BoxError;
use tower_sluice::{
    Decision, Key, LocalStore, Quota, Store, StoreExt,
    decision::Source,
    rule::RuleName,
    store::{Answer, BoxFuture, BreakerError, Charge, Context, FailureDomain, Op, Timeout},
};

use crate::support::any_error::{AnyError, Wrapper};

const LOST: &str = "on the lost server";
const QUOTAS: [Quota; 1] = [Quota::per_day(100_000)];
const SHARDED: Source = Source::Other("sharded");

/// The state of the first server.
const WELL: u8 = 0;
const FAILING: u8 = 1;
const HANGING: u8 = 2;
/// Both servers fail.
const DOWN: u8 = 3;

/// A store of two servers. The first has the account of the key [`LOST`].
#[derive(Clone, Debug)]
struct Sharded {
    accounts: Arc<LocalStore>,
    mood: Arc<AtomicU8>,
    failures: Arc<AtomicUsize>,
    servers: [FailureDomain; 2],
}

impl Sharded {
    fn new(mood: u8) -> Self {
        let servers = ["lost", "here"].map(FailureDomain::new);
        let (accounts, mood) = (Arc::default(), Arc::new(AtomicU8::new(mood)));
        Self { accounts, mood, failures: Arc::default(), servers }
    }

    fn failures(&self) -> usize {
        self.failures.load(SeqCst)
    }
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

    fn call(&self, op: Op<'_>, context: &Context<'_>) -> Answer<Self::Future> {
        let (servers, mood) = (self.failure_domains(op), self.mood.load(SeqCst));
        let needs = |at: usize| servers.contains(&self.servers[at]);
        if needs(1) && mood != DOWN {
            self.servers[1].answered(Instant::now().into_std());
        }
        if needs(0) && mood != WELL || mood == DOWN {
            self.failures.fetch_add(1, SeqCst);
            return Answer::Later(Box::pin(async move {
                if mood == HANGING {
                    pending::<()>().await;
                }
                Err(ServerLost)
            }));
        }
        let decision = self.accounts.call(op, context).now().with_source(SHARDED);
        Answer::Later(Box::pin(async move { Ok(decision) }))
    }

    fn failure_domains(&self, op: Op<'_>) -> Vec<FailureDomain> {
        let mut servers = Vec::new();
        for charge in op.charges() {
            let server = &self.servers[usize::from(*charge.key != Key::from(LOST))];
            if !servers.contains(server) {
                servers.push(server.clone());
            }
        }
        servers
    }
}

const WRAPPERS: [Wrapper; 5] =
    [Wrapper::Breaker, Wrapper::Timeout, Wrapper::Fallback, Wrapper::Leases, Wrapper::DenyCache];

/// Returns all orders of the wrappers.
fn orders(wrappers: &[Wrapper]) -> Vec<Vec<Wrapper>> {
    if wrappers.is_empty() {
        return vec![Vec::new()];
    }
    let first = |first: &Wrapper| {
        let rest: Vec<_> = wrappers.iter().copied().filter(|other| other != first).collect();
        let with = |rest: Vec<Wrapper>| [&[*first], &rest[..]].concat();
        orders(&rest).into_iter().map(with).collect::<Vec<_>>()
    };
    wrappers.iter().flat_map(first).collect()
}

/// Takes one unit of each key, under one rule for each.
async fn take<S: Store<Error = E>, E>(store: &S, keys: &[&str]) -> Result<Decision, E>
where
    E: Into<BoxError>,
{
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
    100_000 - store.accounts.take(&[look]).now().outcomes()[0].remaining()
}

#[tokio::test(start_paused = true)]
async fn a_breaker_stops_only_the_calls_to_a_failed_server() {
    for keys in [&[LOST][..], &["here", LOST]] {
        let store = Sharded::new(FAILING);
        let breaker = store.clone().breaker();
        for _ in 0..5 {
            assert!(matches!(take(&breaker, keys).await, Err(BreakerError::Store(_))));
        }
        assert!(store.servers[0].is_open() && !store.servers[1].is_open() && !breaker.is_open());
        for stopped in [&[LOST][..], &["here", LOST], &[LOST, "here"]] {
            assert!(matches!(take(&breaker, stopped).await, Err(BreakerError::Open { .. })));
        }
        assert_eq!(store.failures(), 5);
        assert!(take(&breaker, &["here"]).await.is_ok());

        advance(Duration::from_secs(1)).await;
        assert!(take(&breaker, keys).await.is_err(), "the probe");
        assert_eq!((store.failures(), store.servers[0].is_open()), (6, true));
        assert!(!store.servers[1].is_open());
        store.mood.store(WELL, SeqCst);
        advance(Duration::from_secs(1)).await;
        assert!(take(&breaker, keys).await.is_ok());
        assert!(!store.servers[0].is_open());
    }
}

/// The servers fail at different instants, and a call of both has to wait for the later one.
#[tokio::test(start_paused = true)]
async fn a_call_of_several_failed_servers_waits_for_all() {
    for order in [["here", LOST], [LOST, "here"]] {
        let store = Sharded::new(DOWN);
        let time = Duration::from_secs(10);
        let breaker = store.clone().breaker().failures(1).open_for(time..=time);
        for key in order {
            assert!(matches!(take(&breaker, &[key]).await, Err(BreakerError::Store(_))));
            advance(Duration::from_secs(2)).await;
        }
        let wait = async |keys: &[&str]| match take(&breaker, keys).await {
            Err(BreakerError::Open { retry_after }) => retry_after,
            answer => panic!("{answer:?}"),
        };
        let longest = wait(&["here"]).await.max(wait(&[LOST]).await);
        assert_eq!(wait(&["here", LOST]).await, longest);
        assert_eq!(wait(&[LOST, "here"]).await, longest);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_left_the_store_is_no_longer_open() {
    let store = Sharded::new(FAILING);
    let breaker = store.clone().breaker().failures(1);
    assert!(take(&breaker, &[LOST]).await.is_err());
    assert!(store.servers[0].is_open());
    store.servers[0].retire();
    assert!(!store.servers[0].is_open());
    assert!(matches!(take(&breaker, &[LOST]).await, Err(BreakerError::Store(_))));
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_delays_no_key_of_other_servers_in_any_order_of_the_wrappers() {
    for order in orders(&WRAPPERS) {
        for mood in [FAILING, HANGING] {
            let inner = Sharded::new(mood);
            let store =
                order.iter().fold(AnyError(inner.clone()).boxed(), |store, one| one.wrap(store));
            for round in 0..12 {
                for lost in [&[LOST][..], &["here", LOST]] {
                    let answer = take(&store, lost).await;
                    let of_store = answer.is_ok_and(|it| it.source() == SHARDED);
                    assert!(!of_store, "{order:?}, {mood}, {round}");
                }
                let start = Instant::now();
                let here = take(&store, &["here"]).await.expect("a decision");
                assert_eq!(start.elapsed(), Duration::ZERO, "{order:?}, {mood}, {round}");
                let of_store = matches!(here.source(), SHARDED | Source::Leased);
                assert!(of_store, "{:?}: {order:?}, {mood}, {round}", here.source());
            }
            assert!(!inner.servers[1].is_open(), "{order:?}, {mood}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_when_no_server_fails() {
    let inner = Sharded::new(FAILING);
    let store = inner.clone().fallback(LocalStore::new(), 1);
    let take = async |key| take::<_, Infallible>(&store, &[key]).await.map(|it| it.source());
    for _ in 0..3 {
        assert_eq!(take(LOST).await, Ok(Source::Fallback));
        assert_eq!(take("here").await, Ok(SHARDED));
        assert!(store.is_failing());
    }
    inner.mood.store(WELL, SeqCst);
    assert_eq!(take(LOST).await, Ok(SHARDED));
    advance(Duration::from_secs(1)).await;
    assert_eq!(take("here").await, Ok(SHARDED));
    assert!(!store.is_failing());
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_changes_no_account_of_other_servers() {
    let inner = Sharded::new(FAILING);
    let fallback = inner.clone().timeout(Timeout::DEFAULT).breaker().fallback(LocalStore::new(), 1);
    let source = async |keys: &[&str]| take(&fallback, keys).await.map(|it| it.source());
    for _ in 0..3 {
        assert_eq!(source(&["here", LOST]).await, Ok(Source::Fallback));
    }
    assert_eq!(source(&["other"]).await, Ok(SHARDED));
    assert_eq!(used(&inner, "here").await, 0, "decided in this process");
    inner.mood.store(WELL, SeqCst);
    assert_eq!(source(&["here", LOST]).await, Ok(SHARDED));
    assert_eq!(used(&inner, "here").await, 1, "the outage is not charged");
}
