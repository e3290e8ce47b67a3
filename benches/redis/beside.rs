//! Other keys beside a hot one: their waits for a decision, with and without the hot key.
//!
//! Requests arrive at their own rate, whether or not earlier ones have been decided.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::time::{MissedTickBehavior, interval, sleep};
use tower_sluice::{
    Key, Quota, RedisStore, Store, StoreExt,
    rule::RuleName,
    store::{Charge, Leased},
};

use crate::{server::Server, stats::Series};

/// The limit of the hot key, and the requests of all other keys, per second.
const LIMIT: u32 = 5_000;
const HOT: u32 = 15 * LIMIT;
const OTHERS: u32 = 5_000;
const KEYS: u32 = 1_000;
const PART: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(1);
const TICKS: u32 = 1_000;

/// What one part of a round has seen.
#[derive(Default)]
struct Seen {
    /// The microseconds of each decision about another key.
    waits: Mutex<Vec<f64>>,
    admitted: AtomicU64,
    asked: AtomicU64,
}

/// Prints the p99 of the other keys, alternating with and without the hot key.
pub(crate) fn run(server: &Server, rounds: usize) {
    let runtime = super::callers::threads();
    runtime.block_on(async {
        let store = RedisStore::connect(server.url()).await.expect("the server answers");
        compare("alone", store.clone(), rounds).await;
        let leased: Leased<RedisStore> = store.reopen().lazy().expect("a store").leases(5);
        compare("with leases", leased, rounds).await;
    });
}

async fn compare<S>(name: &'static str, store: S, rounds: usize)
where
    S: Store + Clone + Send + Sync + 'static,
    S::Error: std::fmt::Debug,
{
    let rule = RuleName::new(&format!("beside {name}")).expect("a name");
    let mut quiet = Series::default();
    let mut busy = Series::default();
    let mut over = 0.0;
    let mut asked = Series::default();
    for _ in 0..rounds {
        let without = part(&store, rule, false).await;
        quiet.0.push(p99(&without));
        let start = Instant::now();
        let with = part(&store, rule, true).await;
        busy.0.push(p99(&with));
        let seconds = start.elapsed().as_secs_f64();
        asked.0.push(with.asked.load(Relaxed) as f64 / seconds);
        // The account may have been full.
        let most = f64::from(LIMIT) * (seconds + 1.0);
        over += (with.admitted.load(Relaxed) as f64 - most).max(0.0);
    }
    println!(
        "beside a hot key, {name}: p99 of the others {:.0} us, {:.0} us without it; ratio {:.2} \
         ({:.2} to {:.2}); hot {:.0}/s, {over:.0} over",
        busy.median(),
        quiet.median(),
        busy.over(&quiet),
        ratios(&busy, &quiet).quantile(0.0),
        ratios(&busy, &quiet).quantile(1.0),
        asked.median(),
    );
}

fn ratios(busy: &Series, quiet: &Series) -> Series {
    Series(busy.0.iter().zip(&quiet.0).map(|(busy, quiet)| busy / quiet).collect())
}

fn p99(seen: &Seen) -> f64 {
    Series(seen.waits.lock().expect("nobody panics").clone()).quantile(0.99)
}

/// Sends the requests of one part, and waits for their decisions.
async fn part<S>(store: &S, rule: RuleName, is_hot: bool) -> Arc<Seen>
where
    S: Store + Clone + Send + Sync + 'static,
    S::Error: std::fmt::Debug,
{
    let seen = Arc::new(Seen::default());
    let mut ticks = interval(TICK);
    // Late ticks are made up for, so that the rate is kept.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let end = Instant::now() + PART;
    let mut next = 0;
    while Instant::now() < end {
        ticks.tick().await;
        for _ in 0..OTHERS / TICKS {
            next += 1;
            tokio::spawn(other(store.clone(), rule, 1 + next % KEYS, seen.clone()));
        }
        for _ in 0..if is_hot { HOT / TICKS } else { 0 } {
            tokio::spawn(hot(store.clone(), rule, seen.clone()));
        }
    }
    while Arc::strong_count(&seen) > 1 {
        sleep(TICK).await;
    }
    seen
}

async fn other<S>(store: S, rule: RuleName, number: u32, seen: Arc<Seen>)
where
    S: Store + Sync,
    S::Error: std::fmt::Debug,
{
    let start = Instant::now();
    take(&store, rule, number).await;
    let wait = start.elapsed().as_secs_f64() * 1e6;
    seen.waits.lock().expect("nobody panics").push(wait);
}

async fn hot<S>(store: S, rule: RuleName, seen: Arc<Seen>)
where
    S: Store + Sync,
    S::Error: std::fmt::Debug,
{
    seen.asked.fetch_add(1, Relaxed);
    if take(&store, rule, 0).await {
        seen.admitted.fetch_add(1, Relaxed);
    }
}

async fn take<S>(store: &S, rule: RuleName, number: u32) -> bool
where
    S: Store + Sync,
    S::Error: std::fmt::Debug,
{
    let key = Key::from(Ipv4Addr::from_bits(number));
    let quotas = [Quota::per_second(LIMIT)];
    let answer = store.take(&[Charge::new(rule, &key, &quotas)]);
    answer.await.expect("a decision").is_allowed()
}
