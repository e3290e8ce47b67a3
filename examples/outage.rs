//! Behavior while Redis is down. Stop the server, and start it again.
//!
//! `cargo run -p dev --features redis --example outage -- [open|closed|fallback]
//! [redis://127.0.0.1]`
#![allow(clippy::print_stdout)]

use std::{collections::BTreeMap, convert::Infallible, error::Error, sync::Arc, time::Duration};

use tokio::time::{Instant, interval};
use tower_sluice::{
    Limiter, LocalStore, Quota, RedisStore, StoreExt,
    store::{DynStore, Timeout},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let choice = args.next().unwrap_or_else(|| "fallback".into());
    let url = args.next().unwrap_or_else(|| "redis://127.0.0.1".into());

    let redis = RedisStore::connect(&url).lazy()?.timeout(Timeout::DEFAULT).breaker();
    let store: Arc<DynStore<Infallible>> = match choice.as_str() {
        "open" => redis.fail_open().boxed(),
        "closed" => redis.fail_closed().boxed(),
        "fallback" => redis.fallback(LocalStore::new(), 1).boxed(),
        other => return Err(format!("{other}: give open, closed or fallback").into()),
    };
    let limiter = Limiter::named("jobs", store);

    // A hundred requests per second, under a limit of twenty.
    let (quota, mut ticks) = (Quota::per_second(20), interval(Duration::from_millis(10)));
    let seconds = std::env::var("SECONDS_TO_RUN").map_or(Ok(u64::MAX), |text| text.parse())?;
    for _ in 0..seconds {
        let (mut seen, mut slowest) = (BTreeMap::<_, u32>::new(), Duration::ZERO);
        for _ in 0..100 {
            ticks.tick().await;
            let start = Instant::now();
            let decision = limiter.take("alice", &quota, 1).await;
            slowest = slowest.max(start.elapsed());
            let word = if decision.is_allowed() { "admitted" } else { "denied" };
            *seen.entry(format!("{word} by {}", decision.source())).or_default() += 1;
        }
        println!("{seen:?}, the slowest in {slowest:?}");
    }
    Ok(())
}
