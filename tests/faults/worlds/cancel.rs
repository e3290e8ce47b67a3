//! Clients that leave: their futures are dropped at any point.

use std::{pin::pin, task::Poll, time::Duration};

use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep},
};
use tower_sluice::{Decision, Limiter, Quota, RedisStore, Store, StoreExt};

use crate::{
    fault::Fault,
    options::Options,
    random::mix,
    row::Row,
    servers::Server,
    stack::{BUDGET, Guarded},
};

/// A quota that returns almost no unit within the test.
const QUOTA: Quota = Quota::per_day(80_000);
/// The difference of the initial units of two keys, so that an answer identifies its key.
const STEP: u32 = 1_000;
const KEYS: u32 = 64;
/// The concurrent calls.
const TOGETHER: usize = 32;

pub(crate) fn faults() -> Vec<Fault> {
    let holds = "every answer belongs to its request, the connection stays, no breaker opens";
    vec![Fault::other("clients leave", holds, leave)]
}

type Answered = Option<Result<Decision, <Guarded as Store>::Error>>;

/// The results of calls.
#[derive(Debug, Default)]
struct Tally {
    left: u64,
    mismatches: u64,
    errors: Vec<String>,
}

impl Tally {
    fn note(&mut self, key: u32, answer: Answered) {
        match answer {
            None => self.left += 1,
            Some(Err(error)) => self.errors.push(error.to_string()),
            Some(Ok(decision)) => {
                // Some units have returned since, but less than a step.
                let most = QUOTA.limit() - key * STEP + STEP / 10;
                let own = most - STEP..most;
                self.mismatches +=
                    u64::from(!own.contains(&decision.remaining().expect("a count")));
            }
        }
    }
}

async fn leave(options: &Options, mut row: Row) -> Row {
    let calls = if options.long { 100_000 } else { 10_000 };
    let server = options.server().await;
    let store = RedisStore::connect(&server.url()).await.expect("connects");
    let guarded = store.timeout(BUDGET).breaker();
    let limiter = Limiter::named("default", guarded.clone());
    for key in 0..KEYS {
        drop(limiter.try_take(key.to_string(), &QUOTA, key * STEP + 1).await.expect("charged"));
    }
    let connections = connections(&server).await;
    let (start, mut tally, mut opened) = (Instant::now(), Tally::default(), false);
    let mut under_way = JoinSet::new();
    for number in 0..calls {
        under_way.spawn(call(limiter.clone(), mix(number)));
        while under_way.len() >= TOGETHER || (number + 1 == calls && !under_way.is_empty()) {
            let (key, answer) = under_way.join_next().await.expect("some").expect("no panic");
            tally.note(key, answer);
            opened |= guarded.is_open();
        }
    }
    let took = start.elapsed();
    // Under low load, a client that left must not look like a silent server.
    for _ in 0..2 {
        tally.note(0, look_for(1, limiter.try_take("0", &QUOTA, 1).into_future()).await);
        sleep(Duration::from_millis(1_100)).await;
        tally.note(0, Some(limiter.try_take("0", &QUOTA, 1).await));
    }
    // Each look at the server is a connection too: the second look counts itself.
    let more = self::connections(&server).await - connections - 1;
    let Tally { left, mismatches, errors } = tally;
    row.notes.push(format!(
        "{calls} calls in {took:.1?}, {left} left before the answer, {mismatches} answers of \
         another question, {} errors, {more} new connections",
        errors.len(),
    ));
    row.demand(mismatches == 0, || format!("{mismatches} answers to another request"));
    row.demand(errors.is_empty(), || format!("{} errors: {:?}", errors.len(), errors.first()));
    row.demand(!opened, || "a breaker opened".into());
    row.demand(more == 0, || format!("{more} new connections"));
    row.demand(left >= calls / 4, || format!("only {left} left"));
    row
}

/// Makes one call. Every other client leaves: before sending, or after some polls.
async fn call(limiter: Limiter<Guarded>, draw: u64) -> (u32, Answered) {
    let key = u32::try_from(draw % u64::from(KEYS)).expect("small");
    // Most calls only look, so that accounts last.
    let cost = u32::from(draw >> 50 & 3 == 0);
    let asked = limiter.try_take(key.to_string(), &QUOTA, cost);
    let leaves = draw >> 40 & 1 == 0;
    let answer = match leaves {
        false => Some(asked.await),
        true => look_for(draw >> 8 & 3, asked.into_future()).await,
    };
    (key, answer)
}

/// Returns the answer, if it arrives within this number of polls.
async fn look_for<F: Future>(looks: u64, asked: F) -> Option<F::Output> {
    let mut asked = pin!(asked);
    for _ in 0..looks {
        if let Poll::Ready(answer) = futures::poll!(asked.as_mut()) {
            return Some(answer);
        }
        yield_now().await;
    }
    None
}

async fn connections(server: &Server) -> u64 {
    let count = server.info("stats", "total_connections_received").await;
    count.expect("a count").parse().expect("a number")
}
